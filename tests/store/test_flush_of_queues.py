"""What the flush thread does by the clock without the GIL: syncs of queues, then the write of the checkpoint.

The code: ``flush_tails`` of ``mqfast/store/queues/queue_flush.pyx``, ``FlushLoop`` of
``mqfast/store/log/service_loops.pyx``. It must never start the thread: what the clock does is a call here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from laboratory import bodies, lab
from store.small_store import (
    still,
)

from mqfast.errors import CorruptFile, FlushError, StorageError, StoreFailed
from mqfast.store.base.event import Event
from mqfast.store.base.mapped_file import mapping_count
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.queues.consume_queue import ConsumeQueue

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import Msync, msync_behind, msync_by


def turn(store: MessageStore) -> None:
    """The queues are due."""
    lab(store).flush_turn()


def put_unit(store: MessageStore, queue_id: int = 0) -> None:
    store.put("T", b"x", queue_id=queue_id)
    lab(store).step_dispatch()


def flushed(store: MessageStore, queue_id: int = 0) -> int:
    queue = lab(store).queues.get("T", queue_id)
    assert isinstance(queue, ConsumeQueue)
    return queue.flushed_bytes


def on_disk(store: MessageStore) -> int:
    """Up to which store time the checkpoint file claims the queues."""
    return StoreCheckpoint.load(OsApi(), store.paths.checkpoint).logics_msg_timestamp


def failing(number: int, tried: list[int]) -> Callable[[Msync], Msync]:
    """An msync that fails with EIO the ``number``-th time."""

    def make(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            tried.append(address)
            return -errno.EIO if len(tried) == number else int(real(table, address, length))

        return msync

    return make


def test_queues_are_synced_and_then_the_checkpoint_tells_of_it(tmp_path: Path) -> None:
    os_api, claims = OsApi(), list[int]()
    with still(tmp_path / "store", os_api) as store:
        os_api.fix_clock(1_000_000)
        put_unit(store)
        turn(store)  # the first one makes the names durable, which is done with the GIL
        os_api.fix_clock(2_000_000)
        put_unit(store)
        with msync_behind(os_api, lambda: claims.append(on_disk(store))):
            turn(store)
        assert claims == [1_000_000], "one sync, and before it the checkpoint claims nothing of it"
        assert (flushed(store), on_disk(store)) == (40, 2_000_000)
        with msync_behind(os_api, lambda: claims.append(0)):
            turn(store)
        assert claims == [1_000_000], "nothing is left to sync"


def test_units_that_come_while_their_queue_is_synced_are_the_next_ones(tmp_path: Path) -> None:
    os_api = OsApi()
    with still(tmp_path / "store", os_api) as store:
        put_unit(store)
        turn(store)
        put_unit(store)
        with msync_behind(os_api, lambda: put_unit(store)):
            turn(store)
        assert flushed(store) == 40
        turn(store)
        assert flushed(store) == 60
        assert len(bodies(store)) == 3


def test_a_sync_that_fails_latches_the_log_and_is_the_last_one(tmp_path: Path) -> None:
    """At once: until the thread has the GIL again puts would be accepted that nobody may call durable."""
    os_api, tried = OsApi(), list[int]()
    with still(tmp_path / "store", os_api) as store:
        for queue_id in (0, 1):
            put_unit(store, queue_id)
        turn(store)
        for queue_id in (0, 1):
            put_unit(store, queue_id)
        with msync_by(os_api, failing(1, tried)):
            with pytest.raises(StorageError, match=r"msync.*consumequeue"):
                turn(store)
            assert store.log.error_number == errno.EIO
            for _ in range(2):
                turn(store)
        assert len(tried) == 1, "nothing is synced behind a sync that failed"
        assert [flushed(store, queue_id) for queue_id in (0, 1)] == [20, 20]
        with pytest.raises(StoreFailed):
            store.put("T", b"x")


@pytest.mark.parametrize("ticket", [False, True])
def test_nothing_is_synced_after_the_log_is_latched(tmp_path: Path, ticket: bool) -> None:
    """It may be latched by whoever puts."""
    os_api, syncs = OsApi(), list[int]()
    with still(tmp_path / "store", os_api) as store:
        put_unit(store)
        turn(store)
        put_unit(store)
        if ticket:
            lab(store).flush.waiters.add(store.put_nowait("T", b"x"))
        store.log.fail(errno.EIO)
        with msync_behind(os_api, lambda: syncs.append(1)):
            if ticket:
                with contextlib.suppress(FlushError):
                    lab(store).flush._run_once(Event())
            turn(store)
        assert not syncs
        assert flushed(store) == 20


def test_a_checkpoint_that_cannot_be_written_keeps_no_queue_from_the_disk(tmp_path: Path) -> None:
    """Each time it is told, puts go on, and it is written as soon as it can be."""
    os_api = OsApi()
    with still(tmp_path / "store", os_api) as store:
        os_api.fix_clock(1_000_000)
        put_unit(store)
        turn(store)
        os.rename(store.paths.checkpoint, tmp_path / "away")
        os.mkdir(store.paths.checkpoint)
        os_api.fix_clock(2_000_000)
        for _ in range(3):
            put_unit(store)
            with pytest.raises(StorageError, match="checkpoint"):
                turn(store)
        assert flushed(store) == 80
        assert store.log.error_number == 0
        os.rmdir(store.paths.checkpoint)
        os.rename(tmp_path / "away", store.paths.checkpoint)
        turn(store)
        assert on_disk(store) == 2_000_000


def test_a_removed_checkpoint_is_written_again_whole(tmp_path: Path) -> None:
    """48 bytes of it would be a damaged file."""
    os_api = OsApi()
    with still(tmp_path / "store", os_api) as store:
        os_api.fix_clock(1_000_000)
        put_unit(store)
        turn(store)
        os.unlink(store.paths.checkpoint)
        os_api.fix_clock(2_000_000)
        put_unit(store)
        turn(store)
        assert os.path.getsize(store.paths.checkpoint) == 4096
        assert on_disk(store) == 2_000_000


def test_a_truncated_queue_file_is_an_error_of_that_queue_only(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        for queue_id in (0, 1, 2):
            put_unit(store, queue_id)
        turn(store)
        for queue_id in (0, 1, 2):
            put_unit(store, queue_id)
        path = tmp_path / "store" / "consumequeue" / "T" / "1" / ("0" * 20)
        whole = path.stat().st_size
        os.truncate(path, whole - 20)
        for _ in range(2):
            with pytest.raises(CorruptFile, match=r"cut short or removed.*T/1/"):
                turn(store)
            assert [flushed(store, queue_id) for queue_id in (0, 1, 2)] == [40, 20, 40]
        os.truncate(path, whole)
        turn(store)
        assert flushed(store, 1) == 40


def test_a_queue_that_went_on_in_the_next_file_is_synced_in_both(tmp_path: Path) -> None:
    """Twice in one interval, too, which needs the GIL; and each file is let go of."""
    os_api, before = OsApi(), mapping_count()
    with still(tmp_path / "store", os_api, mapped_file_bytes_consume_queue=40) as store:
        for count in (1, 2, 1, 2, 5, 7, 1):
            for _ in range(count):
                put_unit(store)
            syncs = list[int]()
            with msync_behind(os_api, partial(syncs.append, 1)):
                turn(store)
            assert syncs
            queue = lab(store).queues.get("T", 0)
            assert flushed(store) == queue.max_offset * 20  # type: ignore[union-attr]
        assert len(bodies(store)) == 19
    assert mapping_count() == before
    with open_store(tmp_path / "store") as store:
        assert len(bodies(store)) == 19


def test_a_queue_file_that_is_bad_at_close_keeps_the_log_from_nothing(tmp_path: Path) -> None:
    store = still(tmp_path / "store")
    put_unit(store)
    turn(store)
    put_unit(store)
    path = tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)
    os.truncate(path, path.stat().st_size - 20)
    assert store.log.flushed < store.log.written
    with pytest.raises(CorruptFile, match="cut short or removed"):
        store.close()
    assert store.log.flushed == store.log.written


def test_a_topic_deleted_during_a_sync_raises_nothing(tmp_path: Path) -> None:
    os_api = OsApi()
    with still(tmp_path / "store", os_api) as store:
        put_unit(store)
        turn(store)
        put_unit(store)
        deletion = threading.Thread(target=store.delete_topic, args=("T",))
        with msync_behind(os_api, lambda: deletion.start() if deletion.ident is None else None):
            turn(store)
        deletion.join()
        turn(store)
        assert store.log.error_number == 0
        assert lab(store).queues.get("T", 0) is None


def test_flush_callbacks_do_not_delay_the_flush_of_queues(tmp_path: Path) -> None:
    """While such tickets come without a rest the thread never sleeps."""
    settings = {"flush_disk_type": "SYNC_FLUSH", "flush_interval_ms_consume_queue": 1}
    with still(tmp_path / "store", **settings) as store:
        for _ in range(2):
            store.flush()
            lab(store).step_dispatch()
            ticket = store.put_nowait("T", b"x")
            lab(store).flush.waiters.add(ticket)
            lab(store).flush._run_once(Event())
            assert ticket.done()
            time.sleep(0.002)
        lab(store).step_dispatch()
        lab(store).flush.waiters.add(store.put_nowait("T", b"x"))
        lab(store).flush._run_once(Event())
        assert flushed(store) >= 40


def test_many_queues_and_new_ones_are_synced_all_the_same(tmp_path: Path) -> None:
    """With the GIL: names are synced first, and many files together."""
    with still(tmp_path / "store") as store:
        put_unit(store)
        assert lab(store).flush.loop.flush_queues(), "a new queue"
        turn(store)
        assert flushed(store) == 20
        put_unit(store)
        assert not lab(store).flush.loop.flush_queues()
        assert flushed(store) == 40
        put_unit(store)
        lab(store).flush.loop.many = 1
        assert lab(store).flush.loop.flush_queues()
        turn(store)
        assert flushed(store) == 60
