"""Beside Apache RocketMQ's own store, on the same machine in the same run. Targets: sync flush with 1, 16 and 64
threads >= 2x its rate; get >= its getMessage; recovery >= 10x.

Needs Java and Maven; the Java side is the test suite's oracle (tests/compat).
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import QUICK, ROOT, Floor, Table, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

sys.path.insert(0, str(ROOT / "tests" / "compat"))
from java_oracle import JavaOracle

SECONDS_AS_COUNT = 20_000


def _ours(path: Path, threads: int, count: int, size: int) -> float:
    """Puts a second with sync flush."""
    body = b"x" * size
    with mqfast.open(path, flushDiskType="SYNC_FLUSH", profile="broker") as store:
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


@pytest.mark.parametrize(("threads", "target"), [(1, 2.0), (16, 2.0), (64, 2.0)])
def test_sync_flush(
    benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor, threads: int, target: float | None
) -> None:
    """Durable puts: every acknowledged message is on the disk. Interleaved with the Java store, medians of the
    rounds.
    """
    available, reason = JavaOracle.available()
    count = scaled(SECONDS_AS_COUNT if threads > 1 else 3_000)
    ours: list[float] = []
    theirs: list[float] = []
    bare: list[float] = []
    rounds = 1 if QUICK else 7
    oracle = JavaOracle(for_speed=True) if available else None
    try:

        def work(number: list[int] = [0]) -> None:  # noqa: B006
            number[0] += 1
            each = max(20, count // threads)
            bare.append(
                1e9 / floor.sync_ns(place, 1024, each) if threads == 1 else floor.group(place, 1024, threads, each)[0]
            )
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
    mine, least = statistics.median(ours), statistics.median(bare)
    in_c = f"as many threads {least:,.0f}/s"
    if theirs:
        other = statistics.median(theirs)
        figure = f"{mine:,.0f}/s = {mine / other:.1f}x RocketMQ's {other:,.0f}/s"
        met = None if target is None else mine >= target * other
    else:
        figure, met = f"{mine:,.0f}/s (RocketMQ: {reason})", None
    limit = f">= {target:g}x RocketMQ" if target else "-"
    table.add(f"sync flush, {threads} threads, 1 KiB", figure, limit, met, "durable", in_c)


def _recovery(path: Path, index: bool) -> float:
    """Bytes a second of opening a copy without its checkpoint: the whole log is walked, as the oracle does."""
    killed = path.with_name(path.name + "-killed")
    # as a killed store has them: blocks that nothing was written to are no data
    subprocess.run(["cp", "-r", "--sparse=always", path, killed], check=True)
    (killed / "checkpoint").unlink(missing_ok=True)
    with mqfast.open(killed, create=False, message_index_enable=index, profile="broker") as store:
        taken = store.recovery.seconds - store.recovery.sync_seconds
        end = store.recovery.end
    shutil.rmtree(killed)
    return end / taken


def _our_reads(path: Path, count: int) -> dict[str, float]:
    """The reads that the oracle measures, of the same messages: 1 KiB, a key each, in one queue."""
    with mqfast.open(path, profile="broker") as store:
        put, body = store.producer("Bench").put, b"x" * 1024
        for number in range(count):
            put(body, f"k{number}")
        store.query("Bench", "k0")
        row: dict[str, float] = {}
        for name in ("messages", "bytes"):
            began, offset = time.perf_counter(), 0
            while offset < count:
                found = store.get("Bench", 0, offset, 32)
                if name == "bytes":
                    found.bodies()
                else:
                    for _ in found:
                        pass
                offset = found.next_offset
            row[name] = count / (time.perf_counter() - began)
        queries = min(count, 1000)
        began = time.perf_counter()
        for number in range(queries):
            assert len(store.query("Bench", f"k{number * count // queries}", 1)) == 1
        row["query_us"] = (time.perf_counter() - began) / queries * 1e6
        store.flush()
        row["recovery, a key each"] = _recovery(path, True)
    shutil.rmtree(path)
    plain = path.with_name(path.name + "-plain")
    with mqfast.open(plain, message_index_enable=False, profile="broker") as store:
        store.put_many("Bench", [b"x" * 1024] * count)
        store.flush()
        row["recovery, no index"] = _recovery(plain, False)
    shutil.rmtree(plain)
    return row


def test_reads(benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor) -> None:
    """get, key query and recovery of the same messages, turn about."""
    available, reason = JavaOracle.available()
    if not available:
        pytest.skip(reason)
    count = scaled(200_000)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []

    def work() -> None:
        number = len(ours)
        ours.append(_our_reads(place / f"ours{number}", count))
        result = oracle.bench(place / f"java{number}", count=count, body_size=1024, warm_up=scaled(50_000))
        without = oracle.bench(
            place / f"java{number}-plain",
            count=count,
            body_size=1024,
            warm_up=scaled(50_000),
            key_queries=0,
            settings={"messageIndexEnable": False},
        )
        theirs.append(
            {
                **result,
                "recovery, a key each": result["recovery_bytes"] / result["recovery_s"],
                "recovery, no index": without["recovery_bytes"] / without["recovery_s"],
            }
        )
        shutil.rmtree(place / f"java{number}")
        shutil.rmtree(place / f"java{number}-plain")

    with JavaOracle(for_speed=True) as oracle:
        benchmark.pedantic(work, rounds=1 if QUICK else 7)

    def median(rows: list[dict[str, float]], name: str) -> float:
        return statistics.median(row[name] for row in rows)

    java = median(theirs, "get_per_s")
    for name in ("messages", "bytes"):
        mine = median(ours, name)
        figure = f"{mine / java:.1f}x ({mine / 1e6:.1f} M/s, getMessage {java / 1e6:.1f} M/s)"
        table.add(f"get 32 of 1 KiB, {name}, beside RocketMQ", figure, ">= 1x RocketMQ", mine >= java)
    mine, java = median(ours, "query_us"), median(theirs, "query_us")
    table.add("key query beside RocketMQ", f"{java / mine:.1f}x ({mine:.2f} us, {java:.2f} us)", "-", None)
    walk = statistics.median(floor.walk_rate(place, 1024, count) for _ in range(5))
    for name in ("recovery, no index", "recovery, a key each"):
        mine, java = median(ours, name), median(theirs, name)
        figure = f"{mine / java:.1f}x ({mine / 1e9:.2f} GB/s, {java / 1e9:.2f} GB/s)"
        in_c = f"CRC alone {walk / 1e9:.2f} GB/s"
        table.add(f"{name}, beside RocketMQ", figure, ">= 10x RocketMQ", mine >= 10 * java, baseline=in_c)
