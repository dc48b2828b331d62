"""Flushes and commits by the clock, in loops that leave the GIL alone; and the queue files that a flush looks at.

Who calls the loops: ``mqfast/store/log/flush.py``.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from laboratory import bodies, lab, open_still
from store.small_store import (
    POOL,
    eventually,
    still,
)

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, FlushError, StoreFailed
from mqfast.store.base.event import Event
from mqfast.store.base.os_api import OsApi
from mqfast.store.log.service_loops import FlushLoop, keep_committed
from mqfast.store.message_store import MessageStore

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import msync_behind

from mqfast.sim.simulated_os import STRICT, Sim, in_real_time

NEVER = 1000.0


def ends_by_itself(thread: threading.Thread, event: Event) -> bool:
    """Does it end without its event? It has ended when this returns."""
    thread.start()
    thread.join(20)
    ended = not thread.is_alive()
    event.set()
    thread.join()
    return ended


def test_an_interval_flushes_enough_pages_and_no_fewer(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.put("T", b"x")
        FlushLoop(store.log, 0.001, NEVER, 4).run(Event(), 0.02)
        assert store.log.flushed == 0
        store.put("T", b"x" * 4 * 4096)
        FlushLoop(store.log, 0.001, NEVER, 4).run(Event(), 0.02)
        assert store.log.flushed == store.log.written > 4 * 4096


def test_the_long_interval_flushes_whatever_there_is(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.put("T", b"x")
        FlushLoop(store.log, 0.001, 0.002, 4).run(Event(), 0.02)
        assert store.log.flushed == store.log.written > 0


def an_interval(store: MessageStore, least_pages: int = 4) -> None:
    """Let one interval pass: at most one flush, also where the machine is so busy that the first call is late."""
    syncs = store.stats()["sync_calls"]
    loop = FlushLoop(store.log, 0.001, NEVER, least_pages)
    loop.run(Event(), 0)  # begins the interval
    if store.stats()["sync_calls"] == syncs:
        time.sleep(0.002)
        loop.run(Event(), 0)


@pytest.mark.parametrize(
    "body_bytes,count,unit",
    [
        (1_000_000, 19, 2 << 20),  # 125 KiB into a huge page
        (500_000, 3, 4096),  # 1.4 MiB into the first huge page: to leave all of that would be too much
        (500_000, 2, 1),  # less than what a busy log takes
    ],
)
def test_an_interval_flush_skips_the_page_of_the_puts_while_the_log_is_busy(
    tmp_path: Path, body_bytes: int, count: int, unit: int
) -> None:
    with still(tmp_path / "store", mapped_file_bytes_commit_log=64 << 20) as store:
        an_interval(store)
        for _ in range(count):
            store.put("T", b"x" * body_bytes)
        an_interval(store)
        written = store.log.written
        assert store.log.flushed == written - written % unit
        an_interval(store, 1000)
        assert store.log.flushed == written, "what was left goes with the next flush, however little it is"


def test_a_flush_with_waiters_covers_the_page_of_the_puts(tmp_path: Path) -> None:
    for call in ("flush", "flush_pages"):
        with still(tmp_path / call, mapped_file_bytes_commit_log=64 << 20) as store:
            for _ in range(19):
                store.put("T", b"x" * 1_000_000)
            getattr(store.log, call)(*[4] * (call == "flush_pages"))
            assert store.log.flushed == store.log.written
            assert store.stats()["sync_calls"] == 1, "in one sync"


def test_the_time_that_is_flushed_is_not_that_of_a_record_that_was_left(tmp_path: Path) -> None:
    """The checkpoint would claim what the disk does not have."""
    os_api = OsApi()
    with still(tmp_path / "store", os_api, mapped_file_bytes_commit_log=64 << 20) as store:
        an_interval(store)
        flushed = []
        for ms in (1_000_000, 2_000_000, 3_000_000):
            os_api.fix_clock(ms)
            for _ in range(19 if ms < 3_000_000 else 0):
                store.put("T", b"x" * 1_000_000)
            an_interval(store)
            flushed.append((store.log.flushed_timestamp, store.log.flushed == store.log.written))
        assert flushed == [(0, False), (1_000_000, False), (2_000_000, True)]


def test_a_power_cut_behind_flushes_by_the_clock_takes_what_they_left_and_no_more(tmp_path: Path) -> None:
    """What the log says is flushed is recovered, to its last whole record, with its units."""
    sizes = {"mapped_file_bytes_commit_log": 8 << 20, "mapped_file_bytes_consume_queue": 150_000}
    with (
        in_real_time(tmp_path) as sim,
        still(Path(sim.root) / "store", sim.os_api, prefault_window_bytes=0, **sizes) as store,
    ):
        an_interval(store)
        ends = []
        for turn in range(3):
            for _ in range(5000):
                ends.append(store.put("T", b"%d" % len(ends) + b"x" * 300).physical_offset)
            ends.append(store.log.written)
            lab(store).step_dispatch()
            an_interval(store)
            lab(store).flush_queues(by_clock=True)
            flushed = store.log.flushed
            assert flushed < store.log.written, "nothing was left: the test does not show what it should"
            sim.image(str(tmp_path / str(turn)), STRICT)
            with still(tmp_path / str(turn) / "store", **sizes) as image:
                assert image.log.written == max(end for end in ends if end <= flushed)
                found = bodies(image)
            assert found == [b"%d" % number + b"x" * 300 for number in range(len(found))]
            ends.pop()
            assert len(found) == sum(end <= flushed for end in ends[1:])


def test_flush_intervals_continue_over_several_calls(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.put("T", b"x")
        loop = FlushLoop(store.log, 0.03, NEVER, 0)
        for _ in range(10):  # each much shorter than the interval
            loop.run(Event(), 0.005)
        assert store.log.flushed == store.log.written > 0


def test_the_event_ends_the_flushes_of_the_clock(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        event = Event()
        thread = threading.Thread(target=FlushLoop(store.log, 0.001, 0.001, 0).run, args=(event, NEVER))
        thread.start()
        for _ in range(3):
            store.put("T", b"x")
            assert eventually(lambda: store.log.flushed == store.log.written)
        event.set()
        thread.join(60)
        assert not thread.is_alive()


def test_flushes_that_are_always_due_still_end_with_their_time(tmp_path: Path) -> None:
    os_api, event = OsApi(), Event()

    def slower_than_the_interval() -> None:
        store.put("T", b"x")  # so that there is always something to flush
        time.sleep(0.003)

    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 20)  # no file ends, which would end the flushes
    with open_still(tmp_path / "store", config=config, os_api=os_api) as store:
        store.put("T", b"x")
        thread = threading.Thread(target=FlushLoop(store.log, 0.001, 0.001, 0).run, args=(event, 0.05))
        with msync_behind(os_api, slower_than_the_interval):
            ended = ends_by_itself(thread, event)
        assert ended
        assert store.log.flushed > 0


def test_a_file_that_is_durable_whole_ends_the_flushes_of_the_clock(tmp_path: Path) -> None:
    """A pool has few buffers: the one of a full file has to come back at once, not after a second."""
    with still(tmp_path / "store", **{**POOL, "mapped_file_bytes_commit_log": 4096}) as store:
        while store.log.written < 2 * 4096:
            store.put("T", b"x" * 900)
        pool = lab(store).pool
        assert pool is not None
        free = pool.free_count
        thread = threading.Thread(target=FlushLoop(store.log, 0.001, 0.001, 0).run, args=(event := Event(), NEVER))
        assert ends_by_itself(thread, event)
        store.log.reap()
        assert pool.free_count > free
        began = time.monotonic()
        FlushLoop(store.log, 0.001, 0.001, 0).run(Event(), 0.05)  # nothing is left that would end it at once
        assert time.monotonic() - began >= 0.05


def test_a_flush_of_the_clock_that_fails_latches_the_log(sim: Sim) -> None:
    store = open_still(os.path.join(sim.root, "s"), config=StoreConfig.tiny(), os_api=sim.os_api)
    store.put("T", b"x")
    sim.fault("msync", 1, errno.EIO)
    with pytest.raises(FlushError, match="latched"):
        FlushLoop(store.log, 0.001, 0.001, 0).run(Event(), NEVER)
    assert store.log.error_number == errno.EIO
    sim.heal()
    syncs = sim.count("msync")
    with pytest.raises(FlushError, match="latched"):
        FlushLoop(store.log, 0.001, 0.001, 0).run(Event(), NEVER)
    assert sim.count("msync") == syncs
    store.close()


def test_the_clock_commits_enough_pages_and_later_whatever_there_is(tmp_path: Path) -> None:
    with still(tmp_path / "store", **POOL) as store:
        event = Event()
        thread = threading.Thread(target=keep_committed, args=(store.log, event, 0.001, NEVER, 4))
        thread.start()
        store.put("T", b"x" * 5 * 4096)
        assert eventually(lambda: store.log.committed == store.log.written)
        event.set()
        thread.join(60)
        assert not thread.is_alive()
    with still(tmp_path / "another", **POOL) as store:
        event = Event()
        thread = threading.Thread(target=keep_committed, args=(store.log, event, 0.001, 0.002, 4))
        thread.start()
        store.put("T", b"x")
        assert eventually(lambda: store.log.committed == store.log.written)
        event.set()
        thread.join(60)


def test_a_commit_of_the_clock_that_fails_latches_the_log(sim: Sim) -> None:
    config = StoreConfig.tiny(**POOL)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    store.put("T", b"x")
    sim.fault("pwrite", 1, errno.EIO)
    with pytest.raises(StoreFailed, match="latched"):
        keep_committed(store.log, Event(), 0.001, 0.001, 0)
    sim.heal()
    with pytest.raises(StoreFailed):
        store.put("T", b"y")
    store.close()


def test_flushes_of_the_clock_do_not_meet_python(tmp_path: Path) -> None:
    """Each time that a thread of the store takes the GIL stops a thread that puts."""
    settings = {"flush_interval_ms_commit_log": 2, "flush_least_pages_commit_log": 0}
    config = StoreConfig.tiny(**settings, flush_interval_ms_consume_queue=60_000, mapped_file_bytes_commit_log=1 << 20)
    with mqfast.open(tmp_path / "store", config=config) as store:
        turns = 0
        finish = lab(store).flush.waiters.notify

        def count() -> None:
            nonlocal turns
            turns += 1
            finish()

        lab(store).flush.waiters.notify = count  # type: ignore[method-assign]
        began = time.monotonic()
        for _ in range(50):
            store.put("T", b"x")
            assert eventually(lambda: store.log.flushed == store.log.written)
        assert turns <= 2 + time.monotonic() - began  # once a second, for what else there is to do


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_queue_file_that_is_not_what_it_was_is_not_called_durable(tmp_path: Path, harm: str) -> None:
    store = still(tmp_path / "store")
    store.put("T", b"x")
    lab(store).step_dispatch()
    [file] = (tmp_path / "store" / "consumequeue" / "T" / "0").iterdir()
    left = file.stat().st_size - 20
    if harm == "removed":
        file.unlink()
    else:
        os.truncate(file, left)
    found = "no file" if harm == "removed" else f"{left} bytes"
    with pytest.raises(CorruptFile, match=f"queue file was cut short or removed.*{found}"):
        lab(store).flush_queues()
    assert lab(store).checkpoint.logics_msg_timestamp == 0
    with pytest.raises(CorruptFile):
        store.close()
