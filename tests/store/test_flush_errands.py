"""What the flush thread takes into its next sleep: syncs of queues, and the write of the checkpoint behind them.

Room: tests/store. Who prepares and believes them: ``mqfast/store/log/flush.py``. It must never start the thread: a turn
is a call here, and its sleep is over before it begins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from laboratory import bodies, lab
from store.small_store import (
    still,
)

from mqfast.errors import CorruptFile, FlushError, StorageError
from mqfast.store.base._mapped_file import mapping_count
from mqfast.store.base._os import OsDoor
from mqfast.store.log._commit_log import Bell
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.queues._consume_queue import ConsumeQueue

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import Msync, msync_behind, msync_by

NEVER = 1000.0


def turn(store: MessageStore) -> None:
    """A turn of the flush thread, at whose end the queues are due."""
    lab(store).flush._queues_due = 0
    lab(store).flush._turn(Bell())


def put_unit(store: MessageStore, queue_id: int = 0) -> None:
    store.put("T", b"x", queue_id=queue_id)
    lab(store).step_dispatch()


def prepare_second_unit(store: MessageStore, door: OsDoor) -> None:
    """A unit of 1,000 s on the disk, one of 2,000 s as an errand that was not carried out yet."""
    door.fix_clock(1_000_000)
    put_unit(store)
    lab(store).flush_queues()
    door.fix_clock(2_000_000)
    put_unit(store)
    turn(store)


def flushed(store: MessageStore, queue_id: int = 0) -> int:
    queue = lab(store).queues.get("T", queue_id)
    assert isinstance(queue, ConsumeQueue)
    return queue.flushed_bytes


def on_disk(store: MessageStore) -> int:
    """Up to which store time the checkpoint file claims the queues."""
    return StoreCheckpoint.load(OsDoor(), store.paths.checkpoint).logics_msg_timestamp


def failing(number: int, tried: list[int]) -> Callable[[Msync], Msync]:
    """An msync that fails with EIO the ``number``-th time."""

    def make(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            tried.append(address)
            return -errno.EIO if len(tried) == number else int(real(table, address, length))

        return msync

    return make


def test_queues_are_synced_in_the_next_sleep_and_the_checkpoint_tells_of_it_in_the_one_behind(tmp_path: Path) -> None:
    door, syncs = OsDoor(), list[int]()
    with still(tmp_path / "store", door) as store:
        door.fix_clock(1_000_000)
        put_unit(store)
        lab(store).flush_queues()
        door.fix_clock(2_000_000)
        put_unit(store)
        with msync_behind(door, lambda: syncs.append(1)):
            turn(store)
            assert (len(syncs), flushed(store), on_disk(store)) == (0, 20, 1_000_000)
            turn(store)
            assert (len(syncs), flushed(store), on_disk(store)) == (1, 40, 1_000_000)
            turn(store)
            assert (len(syncs), flushed(store), on_disk(store)) == (1, 40, 2_000_000)


def test_units_that_come_while_their_queue_is_synced_are_the_next_ones(tmp_path: Path) -> None:
    door = OsDoor()
    with still(tmp_path / "store", door) as store:
        put_unit(store)
        lab(store).flush_queues()
        put_unit(store)
        turn(store)
        with msync_behind(door, lambda: put_unit(store)):
            turn(store)
        assert flushed(store) == 40
        turn(store)
        assert flushed(store) == 60
        assert len(bodies(store)) == 3


def test_a_sync_that_fails_ends_the_sleep_and_latches_the_log(tmp_path: Path) -> None:
    """At once: until the thread has the GIL again puts would be accepted that nobody may call durable."""
    door, tried = OsDoor(), list[int]()
    with still(tmp_path / "store", door) as store:
        for queue_id in (0, 1):
            put_unit(store, queue_id)
        lab(store).flush_queues()
        for queue_id in (0, 1):
            put_unit(store, queue_id)
        errand = lab(store).queues.prepare_flush()
        assert errand is not None
        lab(store).flush._syncs = errand
        bell = Bell()
        sleeper = threading.Thread(
            target=store.log.keep_flushed, args=(bell, NEVER, NEVER, NEVER, 4, None, errand), daemon=True
        )
        with msync_by(door, failing(1, tried)):
            sleeper.start()
            sleeper.join(20)
            slept_on = sleeper.is_alive()
            bell.ring()
            sleeper.join()
            assert not slept_on
            with pytest.raises(StorageError, match="msync"):
                lab(store).flush._finish_errands()
            assert store.log.error_number == errno.EIO
            for _ in range(2):
                turn(store)
        assert len(tried) == 1, "nothing is synced behind a sync that failed"
        assert [flushed(store, queue_id) for queue_id in (0, 1)] == [20, 20]


@pytest.mark.parametrize("ticket", [False, True])
def test_behind_a_log_that_is_latched_nothing_is_carried_out(tmp_path: Path, ticket: bool) -> None:
    """It may be latched by whoever puts, between the preparation and the sleep."""
    door, syncs = OsDoor(), list[int]()
    with still(tmp_path / "store", door) as store:
        put_unit(store)
        lab(store).flush_queues()
        put_unit(store)
        turn(store)
        assert lab(store).flush._syncs is not None
        if ticket:
            lab(store).flush.waiters.add(store.put_nowait("T", b"x"))
        store.log.fail(errno.EIO)
        with msync_behind(door, lambda: syncs.append(1)), contextlib.suppress(FlushError):
            turn(store)
        assert not syncs
        assert flushed(store) == 20


def test_a_checkpoint_that_cannot_be_written_keeps_no_queue_from_the_disk(tmp_path: Path) -> None:
    """Each turn says so, puts go on, and it is written as soon as it can be."""
    door = OsDoor()
    with still(tmp_path / "store", door) as store:
        door.fix_clock(1_000_000)
        put_unit(store)
        lab(store).flush_queues()
        os.rename(store.paths.checkpoint, tmp_path / "away")
        os.mkdir(store.paths.checkpoint)
        door.fix_clock(2_000_000)
        put_unit(store)
        turn(store)
        turn(store)
        for _ in range(2):
            put_unit(store)
            with pytest.raises(StorageError, match="checkpoint"):
                turn(store)
            turn(store)
            turn(store)
        with pytest.raises(StorageError, match="checkpoint"):
            turn(store)
        assert flushed(store) == 80
        assert store.log.error_number == 0
        os.rmdir(store.paths.checkpoint)
        os.rename(tmp_path / "away", store.paths.checkpoint)
        for _ in range(3):
            turn(store)
        assert on_disk(store) == 2_000_000


def test_a_file_that_was_cut_short_is_told_in_the_turn_behind(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        for queue_id in (0, 1, 2):
            put_unit(store, queue_id)
        lab(store).flush_queues()
        for queue_id in (0, 1, 2):
            put_unit(store, queue_id)
        path = tmp_path / "store" / "consumequeue" / "T" / "1" / ("0" * 20)
        whole = path.stat().st_size
        turn(store)
        os.truncate(path, whole - 20)
        with pytest.raises(CorruptFile, match=r"cut short or removed.*T/1/"):
            turn(store)
        assert [flushed(store, queue_id) for queue_id in (0, 1, 2)] == [40, 20, 40]
        os.truncate(path, whole)
        turn(store)
        turn(store)
        assert flushed(store, 1) == 40


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_store_that_is_closed_in_between_keeps_everything_and_lets_go_of_its_files(
    tmp_path: Path, carried_out: bool
) -> None:
    door = OsDoor()
    before = mapping_count()
    with still(tmp_path / "store", door) as store:
        prepare_second_unit(store, door)
        errand = lab(store).flush._syncs
        assert errand is not None
        if carried_out:
            errand.run()
    assert mapping_count() == before
    assert on_disk(store) == 2_000_000
    with open_store(tmp_path / "store") as store:
        assert len(bodies(store)) == 2


def test_a_queue_file_that_is_bad_at_close_keeps_the_log_from_nothing(tmp_path: Path) -> None:
    door = OsDoor()
    store = still(tmp_path / "store", door)
    prepare_second_unit(store, door)
    path = tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)
    os.truncate(path, path.stat().st_size - 20)
    assert lab(store).flush._syncs is not None
    lab(store).flush._syncs.run()
    assert store.log.flushed < store.log.written
    with pytest.raises(CorruptFile, match="cut short or removed"):
        store.close()
    assert store.log.flushed == store.log.written


def test_what_was_not_carried_out_is_not_believed(tmp_path: Path) -> None:
    """The thread was stopped before its sleep."""
    door = OsDoor()
    with still(tmp_path / "store", door) as store:
        prepare_second_unit(store, door)
        lab(store).checkpoint.physic_msg_timestamp += 1
        lab(store).flush._writes = lab(store).checkpoint.prepare_flush()
        assert None not in (lab(store).flush._syncs, lab(store).flush._writes)
        lab(store).flush._finish_errands()
        assert flushed(store) == 20
        assert lab(store).checkpoint.logics_msg_timestamp == 1_000_000
        assert lab(store).checkpoint.flush(), "it is still to be written"


def test_a_topic_that_is_deleted_in_between_is_nobodys_error(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        put_unit(store)
        lab(store).flush_queues()
        put_unit(store)
        turn(store)
        store.delete_topic("T")
        turn(store)
        turn(store)
        assert store.log.error_number == 0
        assert lab(store).queues.get("T", 0) is None


def test_whoever_waits_for_the_disk_by_callback_keeps_no_queue_from_it(tmp_path: Path) -> None:
    """While such tickets come without a rest the thread never sleeps."""
    with still(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as store:
        store.put_nowait("T", b"x")
        store.flush()
        lab(store).step_dispatch()
        lab(store).flush_queues()
        ticket = store.put_nowait("T", b"x")
        store.flush()
        lab(store).step_dispatch()
        turn(store)
        lab(store).flush.waiters.add(store.put_nowait("T", b"x"))
        turn(store)
        assert flushed(store) == 40
        assert ticket.done()


def test_many_queues_and_new_ones_are_no_errand(tmp_path: Path) -> None:
    """Names are synced first, and many files take more than one step."""
    with still(tmp_path / "store") as store:
        put_unit(store)
        assert lab(store).queues.prepare_flush() is None
        turn(store)
        assert flushed(store) == 20, "it was flushed as ever"
        put_unit(store)
        lab(store).queues.many = 1
        assert lab(store).queues.prepare_flush() is None
