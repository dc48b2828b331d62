"""Waiters share syncs: who came too late leads the next one, nobody is forgotten, everybody hears of a failure. Blocks
are written ahead, so that a sync need not change their state.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from laboratory import open_still
from store.small_store import POOL, eventually

from mqfast.config import StoreConfig
from mqfast.errors import FlushError, StoreFailed
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.results import StoreState
from mqfast.store.message_store import MessageStore, open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import Msync, msync_by, until_asleep

from mqfast.sim.simulated_os import KINDS

PIECE = 512 << 10  # what is written ahead at once

with_and_without_a_pool = pytest.mark.parametrize("memory", [{}, POOL], ids=["mapped", "pool"])


@contextmanager
def store_with(
    path: Path, config: StoreConfig, msync: Callable[[Msync], Msync], services: bool
) -> Iterator[MessageStore]:
    """A store whose msync is another one; it gets the real one."""
    os_api = OsApi()
    with open_store(path, config=config, os_api=os_api, _start_services=services) as store, msync_by(os_api, msync):
        yield store


@contextmanager
def clock_by(os_api: OsApi, clock: Callable[[], int]) -> Iterator[None]:
    """Inside, the monotonic clock of the door is another one."""
    size = ctypes.sizeof(ctypes.c_void_p)
    place = ctypes.c_void_p.from_address(os_api.table_address + KINDS["monotonic_ns"] * size)
    real = place.value
    hook = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda table: clock())
    place.value = ctypes.cast(hook, ctypes.c_void_p).value
    try:
        yield
    finally:
        place.value = real


def come_late(store: MessageStore, count: int, heard: list[bool]) -> list[threading.Thread]:
    """Threads that put a message during a sync and sleep until theirs is over; should one be late, it leads at once."""
    threads = []
    for _ in range(count):
        ticket = store.put_nowait("T", b"late")
        threads.append(threading.Thread(target=lambda t=ticket: heard.append(t.wait()), daemon=True))
        threads[-1].start()
    until_asleep(*threads)
    return threads


def test_group_commit_a_late_waiter_leads_the_next_sync(tmp_path: Path) -> None:
    heard: list[bool] = []
    lengths: list[int] = []

    def slow(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            lengths.append(length)
            if len(lengths) == 1:
                threads.extend(come_late(store, 3, heard))
            return real(table, address, length)

        return msync

    threads: list[threading.Thread] = []
    with store_with(tmp_path / "s", StoreConfig.tiny(), slow, services=False) as store:
        assert store.put_nowait("T", b"first").wait()
        for thread in threads:
            thread.join(20)
        assert heard == [True] * 3
        assert store.log.flushed == store.log.written
        assert 2 <= len(lengths) <= 4


def test_group_commit_wakes_every_waiter(tmp_path: Path) -> None:
    """Many waiters, some of whom leave at a deadline, and syncs of any length."""
    draw = random.Random(1)
    pauses = [draw.choice([0.0, 0.0, 0.0001, 0.0003]) for _ in range(997)]
    made = 0

    def uneven(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            nonlocal made
            made += 1
            time.sleep(pauses[made % 997])
            return real(table, address, length)

        return msync

    with store_with(
        tmp_path / "s", StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 20), uneven, services=False
    ) as store:
        left: list[int] = []

        def work(number: int) -> None:
            own = random.Random(number)
            for _ in range(200):
                ticket = store.put_nowait("T", b"x" * own.randrange(300), number % 4)
                timeout = own.choice([None, None, 0.0, 0.00005, 0.0002])
                if not ticket.wait(timeout):
                    assert timeout is not None
                    left.append(number)
            assert ticket.wait()

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert left, "nobody left at a deadline: this tests nothing"
        assert store.log.flushed == store.log.written


def test_a_failed_sync_fails_all_waiters(tmp_path: Path) -> None:
    heard: list[str] = []

    def wait(number: int) -> None:
        ticket = tickets[number]
        try:
            ticket.wait()
        except FlushError as error:
            heard.append(error.strerror or "")

    def failing(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            tickets.extend(store.put_nowait("T", b"late") for _ in range(2))
            for number in range(1, len(tickets)):
                threads.append(threading.Thread(target=wait, args=(number,), daemon=True))
                threads[-1].start()
            time.sleep(0.1)
            return -errno.EIO

        return msync

    threads: list[threading.Thread] = []
    with store_with(tmp_path / "s", StoreConfig.tiny(), failing, services=False) as store:
        tickets = [store.put_nowait("T", b"%d" % i) for i in range(3)]
        wait(0)
        for thread in threads:
            thread.join(20)
        assert len(heard) == 5
        assert store.state is StoreState.FAILED


@contextmanager
def ahead(path: Path, piece: Callable[[], int], memory: dict[str, Any]) -> Iterator[MessageStore]:
    def counting(real: Msync) -> Msync:
        return lambda table, address, length: real(table, address, length) or (piece() if length >= PIECE else 0)

    config = StoreConfig(flush_disk_type="SYNC_FLUSH", mapped_file_bytes_commit_log=4 << 20, **memory)
    with store_with(path, config, counting, services=True) as store:
        yield store


@with_and_without_a_pool
def test_blocks_are_written_before_a_sync_needs_them(tmp_path: Path, memory: dict[str, Any]) -> None:
    pieces: list[None] = []

    def piece() -> int:
        pieces.append(None)
        return 0

    with ahead(tmp_path / "s", piece, memory) as store:
        for _ in range(3):
            store.put("T", b"x" * 1000)
        assert eventually(lambda: len(pieces) >= 7)  # 4 MiB less what the puts have begun
        first = store.put("T", b"y" * 1000)
        assert store.get_by_offset(first.physical_offset).body == b"y" * 1000


@with_and_without_a_pool
def test_a_sync_waits_for_the_result_of_a_concurrent_prefault_sync(tmp_path: Path, memory: dict[str, Any]) -> None:
    """The kernel may tell the one of what the other one's pages met."""
    begun, ended = threading.Event(), threading.Event()

    def told_the_wrong_one(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            if length >= PIECE:
                begun.set()
                ended.wait(20)
                time.sleep(0.2)  # long enough for a put that does not wait to be acknowledged
                return -errno.EIO
            rc = real(table, address, length)
            if begun.is_set():
                ended.set()
            return rc

        return msync

    config = StoreConfig(flush_disk_type="SYNC_FLUSH", mapped_file_bytes_commit_log=4 << 20, **memory)
    with store_with(tmp_path / "s", config, told_the_wrong_one, services=True) as store:
        with suppress(FlushError):  # the sync ahead may have begun before that of this put
            store.put("T", b"makes the file")
        assert begun.wait(20)
        with pytest.raises((FlushError, StoreFailed)):
            store.put("T", b"never durable")
        assert ended.is_set()
        assert store.state is StoreState.FAILED


@with_and_without_a_pool
def test_a_failure_ahead_of_the_records_latches_the_store(tmp_path: Path, memory: dict[str, Any]) -> None:
    """The kernel tells of a failed write once: it may have been that of a record."""
    with pytest.raises(StoreFailed), ahead(tmp_path / "s", lambda: -errno.EIO, memory) as store:
        with suppress(FlushError):  # the failure may come before the first message is durable
            store.put("T", b"x" * 1000)
        assert eventually(lambda: store.state is StoreState.FAILED)
        store.put("T", b"refused")


def test_a_stopped_clock_does_not_delay_a_sync(tmp_path: Path) -> None:
    """A sync waits for those whom the last one let go, by the clock; there is an end of it without one as well."""
    looks: list[None] = []
    heard: list[bool] = []
    company = 3

    def gathering(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            if not threads:
                threads.extend(come_late(store, company, heard))  # they share the next one
            return real(table, address, length)

        return msync

    threads: list[threading.Thread] = []
    with store_with(tmp_path / "s", StoreConfig.tiny(), gathering, services=False) as store:
        assert store.put_nowait("T", b"first").wait()
        for thread in threads:
            thread.join(20)
        assert heard == [True] * company
        with clock_by(store.os_api, lambda: looks.append(None) or 1):
            asked = []
            for _ in range(4):
                looks.clear()
                assert store.put_nowait("T", b"alone").wait()
                asked.append(len(looks))
        # At most once for as many as the last sync had; whoever is alone is used to it from then on.
        assert max(asked) <= 1010
        assert asked[-1] < 10
        assert store.log.flushed == store.log.written


def test_a_lone_waiter_does_not_gather(tmp_path: Path) -> None:
    looks = 0

    def clock() -> int:
        nonlocal looks
        looks += 1
        return looks * 1000

    def counted(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            nonlocal looks
            rc = real(table, address, length)
            looks = 0
            return rc

        return msync

    with store_with(tmp_path / "s", StoreConfig.tiny(flush_disk_type="SYNC_FLUSH"), counted, services=False) as store:
        store.put("T", b"the first one makes the log file")
        with clock_by(store.os_api, clock):
            for _ in range(3):
                store.put("T", b"x")
                assert looks == 1, "one to see how long the sync took"


def test_a_file_that_is_cut_short_right_after_its_sync_latches_the_store(tmp_path: Path) -> None:
    """The page of the next put is made ready by whoever synced: that it is gone must be told before it is written."""
    with open_hooked(tmp_path / "s") as (store, cut):
        store.put("T", b"x" * 100)
        cut.append(str(tmp_path / "s" / "commitlog" / f"{0:020}"))
        store.flush()
        assert store.state is StoreState.FAILED
        with pytest.raises(StoreFailed):
            store.put("T", b"refused")


@contextmanager
def open_hooked(path: Path) -> Iterator[tuple[MessageStore, list[str]]]:
    """A store, and a list: the file named in it is cut to nothing behind the next look at a file's length."""
    os_api, cut = OsApi(), []
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    place = ctypes.c_void_p.from_address(os_api.table_address + KINDS["fstat"] * ctypes.sizeof(ctypes.c_void_p))
    real = call(place.value or 0)

    def fstat(table: int, fd: int, out: int) -> int:
        rc = real(table, fd, out)
        while cut:
            os.truncate(cut.pop(), 0)
        return int(rc)

    hook = call(fstat)
    with suppress(StoreFailed), open_still(path, config=StoreConfig.tiny(), os_api=os_api) as store:
        place.value = ctypes.cast(hook, ctypes.c_void_p).value
        try:
            yield store, cut
        finally:
            place.value = ctypes.cast(real, ctypes.c_void_p).value
