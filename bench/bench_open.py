"""open, import, memory, size. Targets: an empty store opens in < 5 ms, one of 100 log files and 10,000 queues in
< 200 ms; import < 60 ms; the wheel < 3 MB; an idle open store keeps < 40 MiB beyond the interpreter.
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from harness import QUICK, ROOT, ROUNDS, Table, in_memory
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
        stores.append(mqfast.open(place / "store", profile="broker"))

    def again() -> tuple[tuple[()], dict[str, object]]:
        while stores:
            stores.pop().close()
        return fresh()

    benchmark.pedantic(work, setup=again, rounds=15)
    again()
    ms = statistics.median(benchmark.stats.stats.data) * 1e3
    table.add("open an empty store", f"{ms:.2f} ms", "< 5 ms", ms < 5, "-")


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


def test_open_large(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """A clean store of 100 log files and 10,000 queues: the call of open alone, files in the page cache."""
    files, queues = (10, 500) if QUICK else (100, 10_000)
    settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000}
    # On a RAM disk, if there is one: what is opened is in the page cache anyway, and the names of each new queue are
    # synced, which takes a disk milliseconds.
    ram = in_memory()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="mqfast-bench-", dir=ram or place) as directory:
        path = Path(directory) / "store"
        with mqfast.open(path, **settings, profile="broker") as store:
            body = b"x" * ((1 << 20) * files // queues - 200)
            for number in range(queues):
                store.put(f"Bench{number // 100}", body, number % 100)

        def work() -> None:
            began = time.perf_counter()
            store = mqfast.open(path, create=False, profile="broker")
            seconds.append(time.perf_counter() - began)
            assert len(store.log.files) >= files - 1
            assert store.stats()["queues"] == queues
            store.close()

        benchmark.pedantic(work, rounds=ROUNDS, warmup_rounds=1)
    ms = statistics.median(seconds) * 1e3
    met = None if QUICK else ms < 200
    where = " (on a RAM disk)" if ram else ""
    table.add(f"open {files} log files, {queues:,} queues, clean", f"{ms:.1f} ms{where}", "< 200 ms", met, "-")


def test_import(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """import mqfast in a new process, less nothing: what the importer waits for. With byte code, as an installed
    package has it: a source tree may have none (PYTHONDONTWRITEBYTECODE).
    """
    program = "import time; a = time.perf_counter(); import mqfast; print(time.perf_counter() - a)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")

    def work() -> float:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout)

    found = benchmark.pedantic(lambda: [work() for _ in range(ROUNDS)], rounds=1, warmup_rounds=1)
    ms = statistics.median(found) * 1e3
    table.add("import mqfast", f"{ms:.1f} ms", "< 60 ms", ms < 60, "-")


def test_package_size(benchmark: BenchmarkFixture, table: Table) -> None:
    """The files of a wheel, packed as a wheel is; ``make wheel`` makes the real one."""
    kinds = {".py", ".pyi", ".pxd", ".pyx", ".md", ".so", ".typed"}

    def pack() -> int:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
            for path in sorted((ROOT / "mqfast").rglob("*")):
                if path.suffix in kinds or path.name == "py.typed":
                    wheel.write(path, path.relative_to(ROOT))
        return len(out.getvalue())

    size = benchmark.pedantic(pack, rounds=1)
    table.add("package, packed as in a wheel", f"{size / 1e6:.2f} MB", "< 3 MB", size < 3e6, "-")
