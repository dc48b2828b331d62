"""Many queues: put rate, memory and mappings with 1 to 100,000 of them. Target: at 10,000 queues >= 0.8 times the rate
of one, and never more mappings than the kernel allows.

From 10,000 queues on the stores are on a RAM disk, if there is one: the names of each new queue are synced, and on a
disk that takes minutes, so that 100,000 queues are measured there only. They are more than the kernel allows mappings:
what is written to the longest ago is unmapped then, and its next unit left to the dispatcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import psutil
from harness import QUICK, Floor, Table, in_memory, interleaved, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

PUTS = 50_000
QUEUES_OF_A_TOPIC = 64
COUNTS = [1, 64, 1024, *([] if QUICK else [10_000]), *([] if QUICK or in_memory() is None else [100_000])]
MOST_PLACES = 30_000  # of the floor, which maps each
BODY = 256
RECORD = BODY + 98  # with what stands around the body


def _private_memory() -> int:
    """Bytes that are the process's own: the log's and queues' pages are the page cache's. What is left of rows
    before is given back first: a difference would count what goes into its place as nothing.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return psutil.Process().memory_info().rss


def _mappings() -> int:
    return len(Path("/proc/self/maps").read_bytes().splitlines())


def _disk(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def test_many_queues(benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor) -> None:
    """Bound producers, one put to each queue in turn, beside a store of one queue; and what the memory alone costs."""
    body = b"x" * BODY
    puts = scaled(PUTS)

    def one(count: int) -> None:
        ram = in_memory() if count >= 10_000 else None
        with tempfile.TemporaryDirectory(prefix="mqfast-bench-", dir=ram or place) as directory:
            measured(count, Path(directory), ", on a RAM disk" if ram else "")

    def measured(count: int, place: Path, where: str) -> None:
        with (
            mqfast.open(place / f"one{count}", profile="broker") as alone,
            mqfast.open(place / f"many{count}", profile="broker") as store,
        ):
            single = alone.producer("Bench").put
            began = time.perf_counter()
            before = _private_memory()
            producers = [
                store.producer(f"Bench{number // QUEUES_OF_A_TOPIC}", number % QUEUES_OF_A_TOPIC).put
                for number in range(count)
            ]
            for put in producers:
                put(body)
            store.topics()  # every queue is there from here on
            made = time.perf_counter() - began
            memory = _private_memory() - before
            turn = cycle(producers)

            def many_work() -> float:
                began = time.perf_counter_ns()
                for put in islice(turn, puts):
                    put(body)
                return (time.perf_counter_ns() - began) / puts

            def one_work() -> float:
                began = time.perf_counter_ns()
                for put in islice(cycle((single,)), puts):
                    put(body)
                return (time.perf_counter_ns() - began) / puts

            strangers = cycle([{}.get for _ in range(count)])
            stranger = cycle([{}.get])

            def call(which: Iterator[Callable[[object], object]]) -> float:
                began = time.perf_counter_ns()
                for get in islice(which, puts):
                    get(body)
                return (time.perf_counter_ns() - began) / puts

            many, one_queue, spread, near, called, same = interleaved(
                many_work,
                one_work,
                lambda: floor.spread_ns(place, min(count, MOST_PLACES), RECORD, puts),
                lambda: floor.spread_ns(place, 1, RECORD, puts),
                lambda: call(strangers),
                lambda: call(stranger),
            )
            touching = [a - b for a, b in zip(spread, near, strict=True)]
            calling = [a - b for a, b in zip(called, same, strict=True)]
            apart, calls = statistics.median(touching), statistics.median(calling)
            ratio = statistics.median(b / a for a, b in zip(many, one_queue, strict=True))
            limit = int(Path("/proc/sys/vm/max_map_count").read_text())
            mapped = _mappings()
            ns = statistics.median(many)
            disk = _disk(place / f"many{count}" / "consumequeue") / 2**20
            table.add(
                f"put {BODY} B to {count:,} queues in turn",
                f"{ratio:.2f}x of one queue ({ns:.0f} ns, "
                f"{memory / 2**20:,.1f} MiB of its own, "
                f"{mapped:,} of {limit:,} mappings, "
                f"queues on disk {disk:,.0f} MiB, made in {made:.2f} s{where})",
                {10_000: ">= 0.8x", 100_000: "mappings < limit"}.get(count, "-"),
                {10_000: ratio >= 0.8 and mapped < limit, 100_000: mapped < limit}.get(count),
                baseline=f"touching them {apart:.0f} ns more than one, calling as many objects {calls:.0f} ns",
            )
            producers.clear()

    benchmark.pedantic(lambda: [one(count) for count in COUNTS], rounds=1)
