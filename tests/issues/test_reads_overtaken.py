"""Reads that retention, a deletion or a close overtakes answer by what they mean."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still
from other_thread import in_another_thread

import mqfast
from mqfast.errors import OffsetError, StoreClosed
from mqfast.store.base.os_api import OsApi
from mqfast.store.queues.batch_queue import BatchConsumeQueue

QUEUE_BYTES = 20 * 20


def filled(tmp_path: Path, count: int = 200) -> mqfast.MessageStore:
    store = open_still(
        tmp_path / "store",
        mapped_file_bytes_commit_log=64 << 10,
        mapped_file_bytes_consume_queue=QUEUE_BYTES,
    )
    for _ in range(count):
        store.put("T", b"x" * 1000)
    store.max_offset("T", 0)  # dispatches
    return store


def test_a_search_by_time_while_files_of_the_queue_go(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue: Any = lab(store).queues.get("T", 0)

    class Log:
        """The log; the first look at it is when retention takes the older half of the queue."""

        def store_timestamp(self, physical: int, size: int) -> int:
            queue.delete_expired(queue.unit(190)[0])
            return store.log.store_timestamp(physical, size)

    log: Any = Log()
    found = lab(store).queues.offset_by_time(log, "T", 0, 0)
    assert queue.min_offset > 100, "nothing was removed"
    assert found >= 100, "an offset whose file is gone"
    store.close()


def test_a_get_on_what_was_closed_meanwhile_does_not_say_removed(tmp_path: Path) -> None:
    # A consumer would take the next offset of that answer and pass over messages that are all there.
    store = filled(tmp_path)
    lab(store).queues.close()
    store.log.close()
    with pytest.raises(StoreClosed):
        store.get("T", 0, 0)
    assert lab(store).queues.get("T", 0).readable_offset(store.log.readable) >= 0  # type: ignore[union-attr]


def test_a_closed_queue_makes_no_room(tmp_path: Path) -> None:
    # It took its directory for a new queue's and removed what was there.
    store = filled(tmp_path)
    queue: Any = lab(store).queues.get("T", 0)
    store.close()
    before = sorted((tmp_path / "store/consumequeue/T/0").iterdir())
    assert len(before) > 1
    with pytest.raises(StoreClosed):
        queue.put(store.log.written, 100, 0, 200)
    assert sorted((tmp_path / "store/consumequeue/T/0").iterdir()) == before


def test_a_batch_queue_that_grows_while_retention_takes_its_first_file(tmp_path: Path) -> None:
    # The file that went came back into the list, and every look at it failed.
    os_api = OsApi()
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    kept, kind = table[21], ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)  # in csrc/os_api.h
    removed: list[int] = []

    def sync_directory(os_: int, path: bytes) -> int:
        table[21] = kept
        removed.append(queue.delete_expired(400))
        return int(kind(kept)(os_, path))

    queue = BatchConsumeQueue(os_api, str(tmp_path), "T", 0, 46 * 4)
    for i in range(8):
        queue.put(100 * i, 90, 0, 1000, i, 1)
    hook = kind(sync_directory)
    table[21] = ctypes.cast(hook, ctypes.c_void_p).value
    queue.put(800, 90, 0, 1000, 8, 1)
    assert removed == [1]
    assert queue.min_offset == 4
    assert [unit.physical_offset for unit in queue.iterate(4)] == [400, 500, 600, 700, 800]
    assert queue.flush() > 0


def test_a_reader_whose_listing_is_older_than_a_deletion(tmp_path: Path) -> None:
    with filled(tmp_path) as store, mqfast.StoreReader(tmp_path / "store") as reader:
        store.put("U", b"x")
        store.max_offset("U", 0)
        reader.refresh()
        assert reader.topics() == ["T", "U"]
        store.delete_topic("U")
        assert [row.topic for row in reader.queues()] == ["T"]
        assert reader.get("U", 0, 0).status is mqfast.GetMessageStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_reader_whose_listing_is_older_than_retention(tmp_path: Path) -> None:
    with filled(tmp_path) as store, mqfast.StoreReader(tmp_path / "store") as reader:
        queue: Any = lab(store).queues.get("T", 0)
        store.flush()
        store.log.reap()
        while store.log.first_is_flushed():
            store.log.remove_first()
        assert queue.delete_expired(store.log.min_offset) > 0
        assert reader.min_offset("T", 0) == queue.min_offset
        assert reader.get("T", 0, 0).status is mqfast.GetMessageStatus.OFFSET_TOO_SMALL


def test_a_reader_that_is_slower_than_retention(tmp_path: Path) -> None:
    # Each file that it had just listed was gone before it opened it; it gave up the sixth time.
    class Door(OsApi):
        armed = False
        looks = 0

        def listdir(self, path: Any) -> list[str]:
            names = super().listdir(path)
            if self.armed and str(path).endswith("consumequeue/T/0") and self.looks < 20:
                self.looks += 1
                in_another_thread(overtake)
            return names

    def overtake() -> None:
        for _ in range(80):
            store.put("T", b"x" * 1000)
        store.flush()
        store.max_offset("T", 0)
        store.log.reap()
        while store.log.first_is_flushed():
            store.log.remove_first()
        assert queue.delete_expired(store.log.min_offset) >= 3

    os_api = Door()
    with filled(tmp_path) as store:
        queue: Any = lab(store).queues.get("T", 0)
        with mqfast.StoreReader(tmp_path / "store", os_api=os_api) as reader:
            os_api.armed = True
            reader.refresh()
            (row,) = reader.queues()
            assert os_api.looks == 20
            assert (row.min_offset, row.max_offset) == (queue.min_offset, 200 + 20 * 80)
            os_api.looks = 10
            reader.refresh()
            with pytest.raises(OffsetError, match=r"from \d+ to 2599, found 0"):
                reader.unit_at("T", 0, 0)
            assert os_api.looks == 20
