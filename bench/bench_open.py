"""open, import, memory. Targets: an empty store opens in < 10 ms; an idle open store keeps < 40 MiB beyond the
interpreter.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from harness import Table
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

_RSS = """
import sys, psutil
before = psutil.Process().memory_info().rss
import mqfast
store = mqfast.open(sys.argv[1])
store.put("Bench", b"x" * 1024)
print(psutil.Process().memory_info().rss - before)
store.close()
"""


def test_open_empty(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """Create a store: directory, lock, threads."""

    def fresh() -> tuple[tuple[()], dict[str, object]]:
        shutil.rmtree(place / "store", ignore_errors=True)
        return (), {}

    stores: list[mqfast.MessageStore] = []

    def work() -> None:
        stores.append(mqfast.open(place / "store"))

    def again() -> tuple[tuple[()], dict[str, object]]:
        while stores:
            stores.pop().close()
        return fresh()

    benchmark.pedantic(work, setup=again, rounds=15)
    again()
    ms = statistics.median(benchmark.stats.stats.data) * 1e3
    table.add("open an empty store", f"{ms:.2f} ms", "< 10 ms", ms < 10, "-")


def test_idle_memory(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """Resident memory of a process with an open store, less the interpreter's."""

    def work() -> int:
        shutil.rmtree(place / "store", ignore_errors=True)
        run = subprocess.run(
            [sys.executable, "-c", _RSS, str(place / "store")], capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    used = benchmark.pedantic(work, rounds=3)
    table.add("memory of an idle open store", f"{used / 2**20:.1f} MiB", "< 40 MiB", used < 40 << 20, "-")
