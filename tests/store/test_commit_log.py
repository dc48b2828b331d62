"""The log asked directly, past what a store lets through: offsets outside of it, files that must stay, and the table
of files that wait for a flush.

Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from golden_checks import read_queue
from laboratory import bodies, lab, open_still
from store.small_store import (
    SMALL,
)

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, FlushError, InternalError, OffsetError, StorageError, StoreFailed
from mqfast.store.base.event import Event
from mqfast.store.base.os_api import OsApi
from mqfast.store.log.service_loops import keep_prefaulted, wait_until_written
from mqfast.store.message_store import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from other_thread import in_another_thread

from mqfast.sim.simulated_os import Sim


def test_offsets_outside_of_the_log(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        log = store.log
        assert (log.store_timestamp(0, 100), log.read(0, 10), log.first_store_timestamp(0)) == (-1, b"", 0)
        assert (log.find_file(0), log.file_start_of(5)) == (None, log.min_offset)
        placed = [store.put("T", b"x" * 900) for _ in range(9)]
        end = log.written
        assert log.store_timestamp(placed[1].physical_offset, placed[1].size) == placed[1].store_timestamp
        for offset, size in ((0, 90), (end, 100), (end - 50, 100), (4096 - 90, 91), (1 << 40, 100), (-5, 100)):
            assert log.store_timestamp(offset, size) == -1, (offset, size)
        assert log.read(0, 1 << 40) == (tmp_path / "store" / "commitlog" / f"{0:020}").read_bytes()
        assert len(log.read(8192, 1 << 40)) == end - 8192
        assert log.read(0, 0) == log.read(end, 5) == log.read(-5, 3) == b""
        assert log.first_store_timestamp(4096) == placed[4].store_timestamp
        assert log.first_store_timestamp(1 << 40) == 0
        assert (log.file_start_of(5000), log.file_start_of(1 << 40)) == (4096, 0)
        for offset in (-1, end, 1 << 40):
            with pytest.raises(OffsetError):
                log.message(offset)
        with pytest.raises(CorruptFile, match="no record starts here"):
            log.message(1)


def test_the_checksum_is_looked_at_where_it_is_asked_for(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        placed = store.put("T", b"body")
        with (tmp_path / "store" / "commitlog" / f"{0:020}").open("r+b") as file:
            file.seek(88)
            file.write(b"B")
        assert bytes(store.log.message(placed.physical_offset).body) == b"Body"
        with pytest.raises(CorruptFile, match="body CRC differs"):
            store.log.message(placed.physical_offset, True)


def test_files_that_are_never_removed(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x" * 3000)
        with pytest.raises(InternalError, match="the last log file"):
            store.log.remove_first()
        store.put("T", b"x" * 3000)
        with pytest.raises(InternalError, match="unflushed"):
            store.log.remove_first()
        assert not store.log.first_is_flushed()
        store.log.flush()
        store.log.reap()
        lab(store).step_dispatch()
        assert store.log.first_is_flushed()
        assert store.log.remove_first().endswith(f"{0:020}")


def test_the_first_failure_is_reported(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        store.log.fail(errno.EIO)
        store.log.fail(errno.ENOSPC)
        assert store.log.error_number == errno.EIO
        with pytest.raises(StoreFailed) as raised:
            store.put("T", b"y")
        assert raised.value.errno == errno.EIO


@pytest.fixture
def sim(tmp_path: Path) -> Sim:
    (tmp_path / "live").mkdir()
    return Sim(tmp_path / "live", real_clocks=True)


def test_a_flush_without_patience_that_fails_says_so(sim: Sim) -> None:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8192)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    store.put("T", b"x")
    sim.fault("msync", 1, errno.EIO)
    with pytest.raises(FlushError):
        store.flush(0)
    sim.heal()
    store.close()
    sim.free()


def test_more_files_than_may_wait_for_a_flush(tmp_path: Path) -> None:
    """A roll then waits for one itself; nobody else flushes here."""
    settings = {**SMALL, "mappedFileSizeConsumeQueue": 40_000, "preallocate_files": 0}
    with open_still(tmp_path / "store", **settings) as store:
        body = b"x" * 3900
        for _ in range(1040):
            store.put("T", body)
        assert 0 < store.log.flushed < store.log.written
        assert len(bodies(store)) == 1040


def test_a_roll_that_would_have_to_flush_first_and_cannot(sim: Sim) -> None:
    config = StoreConfig.tiny(
        mapped_file_bytes_commit_log=4096, mapped_file_bytes_consume_queue=40_000, preallocate_files=0
    )
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    body = b"x" * 3900
    sim.fault("msync", 1, errno.EIO, True)
    with pytest.raises(StoreFailed):
        for _ in range(1040):
            store.put("T", body)
    assert 1000 < store.put_count < 1030
    sim.heal()
    store.close()
    sim.free()


def test_log_files_that_are_out_of_place(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for _ in range(9):
            store.put("T", b"x" * 900)
    log = tmp_path / "store" / "commitlog"
    (log / f"{4096:020}").rename(log / f"{4097:020}")
    with pytest.raises(CorruptFile, match="out of place"):
        mqfast.open(tmp_path / "store")
    (log / f"{4097:020}").unlink()
    with pytest.raises(CorruptFile, match=r"out of place.*expected 4096, found 8192"):
        mqfast.open(tmp_path / "store")
    (log / f"{0:020}").rename(log / f"{100:020}")
    with pytest.raises(CorruptFile, match="a multiple of 4096"):
        mqfast.open(tmp_path / "store")


def test_the_wait_for_records_ends_with_its_time_the_event_or_a_record(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        event, wait = Event(), lab(store).dispatcher.wait_for_records
        assert wait(event, 0.001) is False
        event.set()
        assert wait(event, 60) is False
        store.put("T", b"x")
        assert wait(event, 60) is True
        assert store.log.is_behind() is True


def test_a_thread_that_sleeps_for_good_hears_of_the_first_put_and_of_its_event(tmp_path: Path) -> None:
    """However long nothing was put: the sleep itself has no end."""
    with open_still(tmp_path / "store", dispatch="background") as store:
        store.put("T", b"x")
        lab(store).step_dispatch()
        event, found = Event(), list[bool]()
        for wake in (lambda: store.put("T", b"x"), event.set):
            thread = threading.Thread(target=lambda: found.append(lab(store).dispatcher.wait_for_records(event)))
            thread.start()
            time.sleep(0.5)  # long enough that it looks no more; shorter it hears of it all the same
            wake()
            thread.join(30)
            assert not thread.is_alive()
            lab(store).step_dispatch()
        assert found == [True, False]


def test_a_nap_ends_where_the_log_was_written_up_to(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        event = Event()
        end = store.put("T", b"x").size
        began = time.monotonic()
        wait_until_written(store.log, event, end, 60)
        event.set()
        wait_until_written(store.log, event, end + 1, 60)
        assert time.monotonic() - began < 30
        wait_until_written(store.log, event, end + 1, 0.001)
        sleeper = threading.Thread(target=wait_until_written, args=(store.log, event, end + 1, 60))
        sleeper.start()
        store.put("T", b"x")
        sleeper.join(30)
        assert not sleeper.is_alive()


def test_dispatch_follows_what_is_put_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for everything it ends behind what was put while it walked; asked for a part it ends there."""
    with open_still(tmp_path / "store", **SMALL) as store:
        current = lab(store).index.current

        def and_another() -> Any:
            if store.put_count < 3:
                store.put("T", b"later", keys="k")
            return current()

        end = store.put("T", b"first", keys="k").size
        monkeypatch.setattr(lab(store).index, "current", and_another)
        assert lab(store).step_dispatch(end) == 1
        assert (store.put_count, store.log.dispatched) == (3, end)
        store.put("T", b"last", keys="k")

        def one_more() -> Any:
            if store.put_count < wanted:
                store.put("T", b"meanwhile", keys="k")
            return current()

        wanted = 5
        monkeypatch.setattr(lab(store).index, "current", one_more)
        lab(store).dispatcher.follow_bytes = 1  # the walk asks once more, and goes to the end of a record all the same
        assert lab(store).step_dispatch() == 4
        assert (store.put_count, store.log.dispatched) == (5, store.log.written)
        assert bodies(store) == [b"first", b"later", b"later", b"last", b"meanwhile"]
        store.put("T", b"the end", keys="k")
        wanted = 7
        lab(store).dispatcher.follow_bytes = 0  # so far and no further, however much is put
        assert lab(store).step_dispatch() == 1
        assert (store.put_count, store.log.dispatched < store.log.written) == (7, True)


def test_a_waiter_for_the_dispatch_lock_gets_it_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk behind a log that grew faster than queues were made kept the lock: a deletion and a close waited."""
    with open_still(tmp_path / "store") as store:
        keep_few_tails = lab(store).queues.keep_few_tails
        seen: list[int] = []
        mutex = lab(store).dispatcher.locked()

        def wait() -> None:
            with mutex:
                seen.append(store.put_count)

        waiter = threading.Thread(target=wait)

        def faster() -> None:
            if store.put_count == 1 and not waiter.ident:
                waiter.start()
            while not seen and not mutex.waiting:
                time.sleep(0)
            if not seen:
                # a queue that has to be made as well
                in_another_thread(lambda: store.put("T", b"x" * 16000, queue_id=store.put_count))
            keep_few_tails()

        monkeypatch.setattr(lab(store).queues, "keep_few_tails", faster)
        store.put("T", b"first")
        for _ in range(1000):
            lab(store).step_dispatch()  # once more at once, as the thread does whose work it is
            if seen:
                break
        waiter.join()
        assert seen[0] < 500  # of the thousand that a walk follows


def is_asleep(thread: threading.Thread) -> bool:
    """Does the system say so? Where it does not tell: True."""
    try:
        return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    except OSError:
        return True


def test_handoff_lets_a_waiter_own_the_dispatch_lock_first(tmp_path: Path) -> None:
    """It is awake, the other one is not yet: it had the lock up to 2,000 times in between."""
    with open_still(tmp_path / "store") as store:
        dispatcher, mutex, steps = lab(store).dispatcher, lab(store).dispatcher.locked(), 0

        def wait() -> None:
            with mutex:
                had.set()

        for _ in range(30):
            had = threading.Event()
            waiter = threading.Thread(target=wait)
            with mutex:
                waiter.start()
                while not (mutex.waiting and is_asleep(waiter)):
                    time.sleep(0)
                time.sleep(0.005)  # its processor rests by then: to wake it takes longer
                in_another_thread(lambda: store.put("T", b"x"))
            while not had.is_set() and steps < 10_000:
                store.put("T", b"x" * 2000)
                dispatcher.step()
                steps += 1
            waiter.join()
        assert steps < 1000


@pytest.mark.parametrize("index_entries", [7, 200])
def test_keys_and_queues_of_records_whose_topics_take_turns(tmp_path: Path, index_entries: int) -> None:
    """What the walk keeps of a topic from one record to the next is that topic's, whatever came in between: another
    queue, a half message, a record with more than one unit, the end of the index file in the middle of its keys."""
    settings = {**SMALL, "maxIndexNum": index_entries, "enableLmq": True, "enableMultiDispatch": True}
    kinds: list[dict[str, Any]] = [
        {"topic": "A"},
        {"topic": "A", "queue_id": 1},
        {"topic": "B"},
        {"topic": "H", "sys_flag": 4},  # a half message: keys, no unit
        {"topic": "B"},
        {"topic": "A", "properties": {"INNER_MULTI_DISPATCH": "%LMQ%x"}},
        {"topic": "AA"},
        {"topic": "A"},
    ]
    path = tmp_path / "store"
    wanted: dict[str, list[int]] = {}
    queues: dict[tuple[str, int], list[int]] = {}
    with open_still(path, **settings) as store:
        for number in range(60):
            kind = kinds[number % len(kinds)]
            message = mqfast.Message(body=b"x", keys=[f"k{number}", "all", f"l{number}"], **kind)
            at = store.put_message(message).physical_offset
            wanted.setdefault(message.topic, []).append(at)
            if "sys_flag" not in kind:
                queues.setdefault((message.topic, message.queue_id), []).append(at)

    def check() -> None:
        for (topic, queue_id), places in queues.items():
            assert [one.physical_offset for one in read_queue(store, topic, queue_id, 0)] == places
        for topic, places in wanted.items():
            assert sorted(one.physical_offset for one in store.query(topic, "all", 1000)) == places
            for at in places:
                for key in store.log.message(at).keys:
                    if key != "all":
                        assert [one.physical_offset for one in store.query(topic, key, 1000)] == [at]

    with open_still(path, **settings) as store:
        check()
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    with open_still(path, **settings) as store:
        assert store.recovery.records == 60
        check()


def test_dispatch_goes_on_where_the_log_begins(tmp_path: Path) -> None:
    """Files that went before their records were dispatched: they are not waited for."""
    with open_still(tmp_path / "store", **SMALL) as store:
        for number in range(9):
            store.put("T", b"%d" % number + b"x" * 900)
        store.log.flush()
        store.log.reap()
        assert store.log.remove_first().endswith(f"{0:020}")
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.written
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (4, 9)


def test_a_ticket_keeps_why_it_failed(sim: Sim) -> None:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8192, flush_interval_ms_commit_log=600_000)
    store = open_store(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    ticket = store.put_nowait("T", b"x")
    told = threading.Event()
    sim.fault("msync", 1, errno.EIO)
    ticket.add_done_callback(lambda _: told.set())
    assert told.wait(30)
    for _ in range(2):
        with pytest.raises(FlushError):
            ticket.wait()
    assert isinstance(ticket.error, FlushError)
    sim.heal()
    store.close()
    sim.free()


def test_flush_timeout_holds_while_another_thread_flushes(tmp_path: Path) -> None:
    os_api = OsApi()
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    under_way, go_on = threading.Event(), threading.Event()
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    real = signature(table[11])  # msync, in csrc/os_api.h

    def slow(os_: int, address: int, count: int) -> int:
        under_way.set()
        go_on.wait(30)
        return int(real(os_, address, count))

    kept = signature(slow)
    table[11] = ctypes.cast(kept, ctypes.c_void_p).value
    store = open_still(str(tmp_path / "store"), config=StoreConfig.tiny(), os_api=os_api)
    store.put("T", b"x")
    thread = threading.Thread(target=store.flush)
    thread.start()
    assert under_way.wait(30)
    assert store.flush(0) is False
    assert store.flush(0.01) is False
    go_on.set()
    thread.join()
    assert store.flush(0) is True
    store.close()


@pytest.mark.parametrize("settings", [{}, {"prefault_window_bytes": 0}])
def test_where_no_page_can_be_made_ready_ahead_the_thread_sleeps(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Before the first file until a put makes one; without a window until it is stopped."""
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 20, **settings)
    with open_still(str(tmp_path / "store"), config=config) as store:
        if settings:
            store.put("T", b"x")
        event, ended = Event(), threading.Event()

        def keep() -> None:
            keep_prefaulted(store.log, event)
            ended.set()

        threading.Thread(target=keep, daemon=True).start()
        assert not ended.wait(0.05)
        assert store.get_by_offset(store.put("T", b"y").physical_offset).body == b"y"
        if settings:
            event.set()
        assert ended.wait(20)


def test_a_file_that_is_cut_short_ahead_of_the_records_latches_the_store(tmp_path: Path) -> None:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 20, prefault_window_bytes=64 << 10)
    with (
        pytest.raises(StoreFailed),
        open_still(str(tmp_path / "store"), config=config) as store,
    ):
        store.put("T", b"x" * (40 << 10))
        os.truncate(tmp_path / "store" / "commitlog" / f"{0:020}", 64 << 10)
        with pytest.raises(StorageError, match="prefault"):
            keep_prefaulted(store.log, Event())
        store.put("T", b"refused")


def test_a_further_queue_file_has_all_its_blocks_at_once(sim: Sim) -> None:
    """Else the dispatcher would come back for more of them while puts go on; on a full disk it takes what it needs."""
    settings = {"mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 40_000}
    config = StoreConfig.tiny(preallocate_files=0, **settings)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    put = store.producer("T", 0).put
    for _ in range(2001):
        put(b"x")
    lab(store).step_dispatch()
    first, second = (lab(store).queues.get("T", 0).file_list[number] for number in (0, 1))
    assert (first.allocated, second.allocated) == (40_000, 40_000)
    for _ in range(1999):
        put(b"x")
    lab(store).step_dispatch()
    sim.fault("fallocate", 1, errno.ENOSPC)
    put(b"x")
    lab(store).step_dispatch()
    assert lab(store).queues.get("T", 0).file_list[2].allocated == 4096
    assert store.max_offset("T", 0) == 4001
    store.close()
    sim.free()


@pytest.mark.parametrize("key", [None, "k"])
def test_the_end_of_a_busy_log_is_reached_with_the_put_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """For plain records: from then on puts write their units themselves. The lock is let go of, also before a key."""
    with open_still(tmp_path / "store", **SMALL) as store:
        store.put("T", b"first", keys="k")
        store.put("T", b"second")
        current = lab(store).index.current

        def meanwhile() -> Any:
            if store.put_count == 2:
                store.put("T", b"third")
                store.put("T", b"fourth", keys=key)
            return current()

        monkeypatch.setattr(lab(store).index, "current", meanwhile)
        assert lab(store).step_dispatch() == 4
        assert store.log.dispatched == store.log.written
        store.put("T", b"fifth")
        assert store.log.dispatched == store.log.written  # by the put
        assert lab(store).dispatcher.records == 4
        assert bodies(store) == [b"first", b"second", b"third", b"fourth", b"fifth"]
        assert len(store.query("T", "k")) == 1 + (key is not None)


def _of_every_kind(store: mqfast.MessageStore, os_api: OsApi, after_each: Any) -> None:
    """Records that differ from the one before in one thing only, which their units depend on."""
    delayed = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
    now = 1_700_000_000_000
    for number in range(120):
        body = b"x" * (number % 7)
        puts: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            *[(("SCHEDULE_TOPIC_XXXX", body), {"properties": delayed})] * (2 * (number % 5 == 0)),
            (("T", body, number % 3 // 2), {"tags": "A"}),
            (("T" if number % 2 else "U", body, 1), {"tags": "A"}),
            (("T", body, 1), {"tags": "B" if number % 4 else "C", "keys": "k" if number % 11 == 0 else None}),
            (("T", body, 1), {"tags": "A", "sys_flag": 4 if number % 13 == 0 else 0}),  # 4: prepared, without a unit
        ]
        for given, named in puts:
            now += 5
            os_api.fix_clock(now)
            store.put(*given, **named)
            after_each()


def test_a_walk_over_many_gives_what_a_walk_over_each_gives(tmp_path: Path) -> None:
    """What a walk remembers of the record before must not show in the units and keys of the next one."""
    found = []
    for way in ("each", "all"):
        os_api, place = OsApi(), tmp_path / way
        given = {**SMALL, "mappedFileSizeCommitLog": 64 << 10, "dispatch": "background"}
        with open_still(place, os_api=os_api, **given) as store:
            _of_every_kind(store, os_api, lab(store).step_dispatch if way == "each" else lambda: None)
            lab(store).step_dispatch()
            assert len(store.query("T", "k")) == 11
        found.append(
            {str(path.relative_to(place)): path.read_bytes() for path in (place / "consumequeue").rglob("0" * 16 + "*")}
        )
    assert found[0] == found[1]
    assert {"SCHEDULE_TOPIC_XXXX", "T", "U"} <= {Path(name).parts[1] for name in found[0]}


def test_a_walk_shows_how_far_it_is(tmp_path: Path) -> None:
    """Now and then while it goes on, so that who waits for it is not kept waiting to its end."""
    with open_still(tmp_path / "store", dispatch="background") as store:
        store.put("T", b"x")
        lab(store).step_dispatch()  # the queue has its room
        seen, current = [], lab(store).index.current

        def at_each_stop() -> Any:
            seen.append(store.log.dispatched)
            return current()

        first = store.log.written
        for number in range(100):
            store.put("T" if number < 99 else "U", b"x" * 10)
        lab(store).index.current = at_each_stop
        lab(store).step_dispatch()
        # the first unit of U needs room, for which the walk comes back
        assert seen == [first, store.get("U", 0, 0)[0].physical_offset]
        assert store.log.dispatched == store.log.written
