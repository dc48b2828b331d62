"""verify: a whole store read and checked, warm. Target: >= 5 GB/s on two cores."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from harness import ROUNDS, Table, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast


def test_verify(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """1 KiB messages in four queues, closed in order; the second pass on, from the page cache."""
    with mqfast.open(place / "store", mappedFileSizeCommitLog=128 << 20, profile="broker") as store:
        for number in range(scaled(500)):
            store.put_many("Bench", [b"x" * 1024] * 1000, number % 4)
        written = store.log.written
    seconds: list[float] = []

    def work() -> None:
        began = time.perf_counter()
        report = mqfast.verify(place / "store")
        seconds.append(time.perf_counter() - began)
        assert report.ok, report

    benchmark.pedantic(work, rounds=ROUNDS, warmup_rounds=1)
    rate = written / statistics.median(seconds[1:]) / 1e9
    table.add("verify a whole store, 1 KiB bodies, CRC", f"{rate:.2f} GB/s", ">= 5 GB/s", rate >= 5)
