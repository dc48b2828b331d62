"""Beside Apache RocketMQ's own store, on the same machine in the same run. Target: 16 threads with sync flush >= 2x
its rate.

Needs Java and Maven; the Java side is the test suite's oracle (tests/compat).
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from harness import ROOT, Floor, Table
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

sys.path.insert(0, str(ROOT / "tests" / "compat"))
from java_oracle import JavaOracle

SECONDS_AS_COUNT = 20_000


def _ours(path: Path, threads: int, count: int, size: int) -> float:
    """Puts a second with sync flush."""
    body = b"x" * size
    with mqfast.open(path, flushDiskType="SYNC_FLUSH") as store:
        store.put("Bench", body)

        def work(number: int) -> None:
            put = store.producer("Bench", number % 4).put
            for _ in range(count // threads):
                put(body)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count / (time.perf_counter() - began)


@pytest.mark.parametrize(("threads", "target"), [(1, None), (16, 2.0)])
def test_sync_flush(
    benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor, threads: int, target: float | None
) -> None:
    """Durable puts: every acknowledged message is on the disk. Interleaved with the Java store, medians of the
    rounds.
    """
    available, reason = JavaOracle.available()
    count = SECONDS_AS_COUNT if threads > 1 else 3_000
    ours: list[float] = []
    theirs: list[float] = []
    rounds = 3
    oracle = JavaOracle(for_speed=True) if available else None
    try:

        def work(number: list[int] = [0]) -> None:  # noqa: B006
            number[0] += 1
            ours.append(_ours(place / f"ours{number[0]}", threads, count, 1024))
            if oracle is not None:
                result = oracle.bench(
                    place / f"java{number[0]}",
                    count=count,
                    body_size=1024,
                    threads=threads,
                    flush="SYNC_FLUSH",
                    warm_up=2000,
                    recovery=False,
                )
                theirs.append(result["put_per_s"])

        benchmark.pedantic(work, rounds=rounds)
    finally:
        if oracle is not None:
            oracle.close()
    mine = sorted(ours)[rounds // 2]
    bare = 1e9 / floor.sync_ns(place, 1024)
    if theirs:
        other = sorted(theirs)[rounds // 2]
        figure = f"{mine:,.0f}/s = {mine / other:.1f}x RocketMQ's {other:,.0f}/s (bare fdatasync {bare:,.0f}/s)"
        met = None if target is None else mine >= target * other
    else:
        figure, met = f"{mine:,.0f}/s (bare fdatasync {bare:,.0f}/s; RocketMQ: {reason})", None
    table.add(
        f"sync flush, {threads} threads, 1 KiB", figure, f">= {target:g}x RocketMQ" if target else "-", met, "durable"
    )
