"""Several putting threads in one process. Target: no collapse, >= 0.8 times the rate of one thread."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from harness import Table, interleaved, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

PUTS = 400_000  # many times as long as a thread may keep the GIL (5 ms)
ROUNDS = 15  # short ones: the median leaves out those whose pages were not ready in time


def test_putters(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """1, 2 and 4 threads, each with a queue of its own, the same number of puts altogether."""
    body = b"x" * 40  # the threads are compared, not the making of pages
    puts = max(scaled(PUTS), PUTS // 2)
    with mqfast.open(place / "store", profile="broker") as store:

        def work(threads: int) -> Callable[[], float]:
            def one(number: int) -> None:
                put = store.producer("Bench", number).put
                for _ in repeat(None, puts // threads):
                    put(body)

            def run() -> float:
                workers = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
                began = time.perf_counter()
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                return puts / (time.perf_counter() - began)

            return run

        one, two, four = benchmark.pedantic(lambda: interleaved(work(1), work(2), work(4), rounds=ROUNDS), rounds=1)
    table.add("1 putting thread, 40 B", f"{statistics.median(one) / 1e6:.2f} M/s", "-", None)
    for name, rates in (("2", two), ("4", four)):
        ratio = statistics.median(mine / alone for mine, alone in zip(rates, one, strict=True))
        figure = f"{ratio:.2f}x of one ({statistics.median(rates) / 1e6:.2f} M/s)"
        table.add(f"{name} putting threads, 40 B", figure, ">= 0.8x of one", ratio >= 0.8)
