"""Sync flush beside a bare loop of append and fdatasync on a sibling file, pair by pair. Targets: one waiter <= 1.2
times the bare loop; a group of 16 or 64 costs <= 1.2 times a bare append and sync of the group's bytes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from pathlib import Path

import pytest
from harness import QUICK, Floor, Table, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

PAIRS = 400
FILE_BYTES = 256 << 20
RECORD = 1024 + 91 + 5
NO_FLUSH_NS = 20_000


class _Bare:
    """Append and fdatasync, into blocks that are allocated as a log file's are."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.posix_fallocate(self._file, 0, FILE_BYTES)
        os.fsync(self._file)
        self._at = 0

    def one(self, size: int) -> int:
        """ns for one of them."""
        data = b"x" * size
        began = time.perf_counter_ns()
        os.pwrite(self._file, data, self._at)
        os.fdatasync(self._file)
        took = time.perf_counter_ns() - began
        self._at = (self._at + size) % (FILE_BYTES // 2)
        return took

    def close(self) -> None:
        os.close(self._file)


@pytest.mark.parametrize("how", ["mapped", "pool"])
def test_one_waiter(benchmark: BenchmarkFixture, place: Path, table: Table, how: str) -> None:
    """One thread, one put, one bare append and sync, and so on."""
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 3} if how == "pool" else {}
    bare = _Bare(place / "bare")
    ours: list[int] = []
    theirs: list[int] = []
    with mqfast.open(
        place / "store", flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=FILE_BYTES, **pool, profile="broker"
    ) as store:
        put = store.producer("Bench").put
        body = b"x" * 1024
        for _ in range(20):
            put(body)
            bare.one(RECORD)

        def pairs() -> None:
            for _ in range(scaled(PAIRS)):
                began = time.perf_counter_ns()
                put(body)
                ours.append(time.perf_counter_ns() - began)
                theirs.append(bare.one(RECORD))

        benchmark.pedantic(pairs, rounds=1)
    bare.close()
    mine, floor = statistics.median(ours), statistics.median(theirs)
    note = ", no real flush on this disk" if floor < NO_FLUSH_NS else ""
    figure = f"{mine / floor:.2f}x ({mine / 1e3:.0f} us{note})"
    bare_sync = f"append and fdatasync {floor / 1e3:.0f} us"
    table.add(f"sync flush, 1 waiter, {how}, 1 KiB", figure, "<= 1.2x bare", mine <= 1.2 * floor, "durable", bare_sync)


@pytest.mark.parametrize("threads", [16, 64])
def test_group(benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor, threads: int) -> None:
    """Many waiting threads: what a group costs, beside a bare append and sync of as many bytes."""
    bare = _Bare(place / "bare")
    groups: list[float] = []
    floors: list[float] = []
    rates: list[float] = []
    sizes: list[float] = []
    of_c: list[tuple[float, float]] = []
    count = max(200, scaled(1000))  # so long that starting the threads does not count
    with mqfast.open(
        place / "store", flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=FILE_BYTES, profile="broker"
    ) as store:
        body = b"x" * 1024
        store.put("Bench", body)

        def work(number: int) -> None:
            put = store.producer("Bench", number % 4).put
            for _ in range(count):
                put(body)

        def one_round() -> None:
            syncs = store.stats()["sync_calls"]
            workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
            began = time.perf_counter_ns()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            took = time.perf_counter_ns() - began
            made = store.stats()["sync_calls"] - syncs
            groups.append(took / made)
            rates.append(count * threads * 1e9 / took)
            sizes.append(count * threads / made)
            floors.append(statistics.median(bare.one(round(sizes[-1] * RECORD)) for _ in range(20)))
            of_c.append(floor.group(place, RECORD, threads, count))

        benchmark.pedantic(lambda: [one_round() for _ in range(3 if QUICK else 7)], rounds=1)
    bare.close()
    ratio = statistics.median(mine / floor for mine, floor in zip(groups, floors, strict=True))
    rate_of_c, group_of_c = (statistics.median(column) for column in zip(*of_c, strict=True))
    figure = (
        f"{ratio:.2f}x ({statistics.median(rates):,.0f}/s, {statistics.median(sizes):.1f} messages a group of "
        f"{statistics.median(groups) / 1e3:.0f} us)"
    )
    in_c = (
        f"append and fdatasync {statistics.median(floors) / 1e3:.0f} us; as many threads {rate_of_c:,.0f}/s, "
        f"{group_of_c / 1e3:.0f} us a group"
    )
    table.add(f"sync flush, {threads} waiters, a group", figure, "<= 1.2x bare", ratio <= 1.2, "durable", in_c)


@pytest.mark.parametrize("waiters", [64, 10_000])
def test_tasks(benchmark: BenchmarkFixture, place: Path, table: Table, waiters: int) -> None:
    """Tasks of one event loop that each wait for their own message to be durable: one call into the loop a sync."""
    rates: list[float] = []
    calls: list[float] = []
    each = max(1, scaled(12_800) // waiters)
    with mqfast.open(
        place / "store", flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=FILE_BYTES, profile="broker"
    ) as store:
        body = b"x" * 1024

        async def work(number: int) -> None:
            for _ in range(each):
                await store.aput("Bench", body, number % 4)

        async def one_round() -> None:
            syncs = store.stats()["sync_calls"]
            began = time.perf_counter_ns()
            await asyncio.gather(*(work(number) for number in range(waiters)))
            rates.append(each * waiters * 1e9 / (time.perf_counter_ns() - began))
            calls.append(each * waiters / (store.stats()["sync_calls"] - syncs))

        benchmark.pedantic(lambda: [asyncio.run(one_round()) for _ in range(3 if QUICK else 7)], rounds=1)
    rate, group = statistics.median(rates), statistics.median(calls)
    figure = f"{rate / 1e3:.1f} k/s ({group:.0f} messages a sync)"
    table.add(f"sync flush, {waiters} tasks of aput, 1 KiB", figure, "", None, "durable")
