"""Every call of the system that an operation makes fails once and for ever; and what waits for the disk hears of it."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from laboratory import lab, open_still
from sampling import Sample

from mqfast.config import StoreConfig
from mqfast.errors import DiskFull, FlushError, StoreFailed
from mqfast.store.base.event import Event
from mqfast.store.base.results import StoreState
from mqfast.store.log.service_loops import keep_prefaulted
from mqfast.store.message_store import MessageStore, open_store

sys.path.append(str(Path(__file__).resolve().parent))

from faults import OPERATIONS, Count, kinds_called, run_kind

from mqfast.sim.simulated_os import Sim, in_real_time, scratch_root


def _kinds_of(number: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="mqfast-fault-", dir=scratch_root()) as base:
        return kinds_called(OPERATIONS[number], base)


def _fail(pairs: list[tuple[int, str]]) -> tuple[Count, list[str]]:
    """Every fault of these kinds in these operations."""
    logging.disable()  # what every failure says
    count = Count()
    with tempfile.TemporaryDirectory(prefix="mqfast-fault-", dir=scratch_root()) as base:
        return count, [bad for number, kind in pairs for bad in run_kind(OPERATIONS[number], kind, base, count)]


@pytest.mark.slow
@pytest.mark.sampled
def test_every_call_of_every_operation_may_fail(sample: Sample) -> None:
    # Of the kind that tells of a process that ended, in place of waiting for what it had to do.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        kinds = pool.map(_kinds_of, range(len(OPERATIONS)), chunksize=4)
        pairs = [(number, kind) for number, called in enumerate(kinds) for kind in called]
        pairs = sample.of(pairs, len(pairs) // 8, "pairs of an operation and a kind of call that fails in it")
        found = list(pool.map(_fail, [pairs[at : at + 7] for at in range(0, len(pairs), 7)]))
    bad = [text for _, texts in found for text in texts]
    assert not bad, "\n".join(bad[:20])
    assert sum(count.faults for count, _ in found) >= 3 * len(pairs)
    if sample.whole:
        assert sum(count.faults for count, _ in found) >= 1200
        assert sum(count.latched for count, _ in found) >= 50
        assert sum(count.full for count, _ in found) >= 100


def test_every_operation_makes_calls_that_can_fail(tmp_path: Path) -> None:
    count = Count()
    assert not list(run_kind(OPERATIONS[0], "open", str(tmp_path), count))
    assert count.faults > 5


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    with in_real_time(tmp_path) as sim:
        yield sim


def _open(sim: Sim, **settings: object) -> MessageStore:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8192, **settings)
    return open_store(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)


def test_every_waiting_ticket_fails_with_the_flush_and_nothing_is_synced_again(sim: Sim) -> None:
    # Zeros ahead of the log are synced by a thread of their own: without them every sync is one of messages or units.
    by_hand = {
        "flush_interval_ms_commit_log": 60_000,
        "flush_interval_ms_consume_queue": 60_000,
        "zeros_ahead_bytes": 0,
    }
    store = _open(sim, flush_disk_type="SYNC_FLUSH", **by_hand)
    store.put("t", b"durable")
    sim.fault("msync", 1, errno.EIO)
    failed: list[object] = []
    told = threading.Event()
    tickets = [store.put_nowait("t", b"waits %d" % i) for i in range(8)]

    def note(ticket: object) -> None:
        failed.append(ticket)
        if len(failed) == len(tickets):
            told.set()

    def wait(ticket: object) -> None:
        with pytest.raises((FlushError, StoreFailed)):
            ticket.wait(20)  # type: ignore[attr-defined]
        errors.append(ticket)

    errors: list[object] = []
    threads = [threading.Thread(target=wait, args=(ticket,)) for ticket in tickets]
    for ticket in tickets:
        ticket.add_done_callback(note)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == len(tickets)
    assert told.wait(20)
    assert sim.fault_hits == 1
    sim.heal()
    assert store.state is StoreState.FAILED
    assert store.stats()["state"] == str(StoreState.FAILED)
    syncs = sim.count("msync")
    for _ in range(3):
        with pytest.raises(StoreFailed):
            store.put("t", b"too late")
        with pytest.raises(StoreFailed):
            store.flush()
    lab(store).flush_queues()  # as its thread does every second: the unit of the first message is not synced yet
    store.close()
    assert sim.count("msync") == syncs
    assert sim.resyncs == 0
    with _open(sim) as again:
        assert bytes(again.get("t", 0, 0)[0].body) == b"durable"


def test_a_full_disk_ends_by_itself(sim: Sim) -> None:
    store = _open(sim)
    sim.fault("fallocate", 1, errno.ENOSPC, True)
    stored = 0
    with pytest.raises(DiskFull):
        for _ in range(100):
            store.put("t", bytes(900))
            stored += 1
    assert store.state is StoreState.FULL
    assert "No space" in str(store.stats()["allocation_error"])
    sim.heal()
    began = time.monotonic()
    while True:
        try:
            store.put("t", bytes(900))
            break
        except DiskFull:
            assert time.monotonic() - began < 60
    for _ in range(30):
        store.put("t", bytes(900))
    assert time.monotonic() - began < 60
    store.close()
    with _open(sim) as again:
        assert again.max_offset("t", 0) == stored + 31


def test_no_mapping_and_no_descriptor_of_the_process_is_left(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(tmp_path))
        return maps, sum(str(tmp_path) in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))

    for round_ in range(3):
        with open_store(tmp_path / "s", config=StoreConfig.tiny(mapped_file_bytes_commit_log=8192)) as store:
            for i in range(40):
                store.put("t", bytes(500), keys=f"k{i}")
            store.get("t", 0, 0)
            assert held() > (0, 0), round_
        assert held() == (0, 0)


def test_no_zeros_go_to_the_disk_ahead_of_a_log_that_failed(sim: Sim) -> None:
    """The page where the log ends may be the one whose sync failed: nothing syncs it again."""
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=64 << 10, flush_disk_type="SYNC_FLUSH")
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    store.put("t", b"durable")
    sim.fault("msync", 1, errno.EIO)
    with pytest.raises(FlushError):
        store.put("t", b"lost")
    sim.heal()
    syncs = sim.count("msync")
    event = Event()
    timer = threading.Timer(0.1, event.set)
    timer.start()
    keep_prefaulted(store.log, event)  # its first look would sync the zeros
    timer.join()
    store.close()
    assert sim.count("msync") == syncs
    assert sim.resyncs == 0
