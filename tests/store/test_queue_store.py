"""All queues of a store together: topics that are deleted whatever their kind, records that can have no queue, damage
at the end of a batch queue, searches in queues that are empty.

Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, lab, open_still
from store.small_store import (
    SMALL,
)

import mqfast
from mqfast import Message
from mqfast.errors import CorruptFile, StoreClosed
from mqfast.store.base.results import BoundaryType
from mqfast.store.queues import queue_store

BATCH = {"queue.type": "BatchCQ"}
UNITS: dict[str, Any] = {**SMALL, "mapperFileSizeBatchConsumeQueue": 460}


def put_inner_batches(store: mqfast.MessageStore, count: int = 12) -> None:
    store.topic_table.ensure("B", 1, attributes=BATCH)
    for number in range(count):
        store.put_message(Message("B", b"%d" % number, sys_flag=0x80, properties={"INNER_NUM": "3"}))


def test_a_batch_topic_is_deleted_whole_and_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_still(path, **UNITS) as store:
        put_inner_batches(store)
        store.put("T", b"stays")
        assert (store.max_offset("B", 0), lab(store).queues.topics()) == (36, ["B", "T"])
        assert list((path / "batchconsumequeue" / "B" / "0").iterdir())
        store.delete_topic("B")
        assert not (path / "batchconsumequeue" / "B").exists()
        assert lab(store).queues.get("B", 0) is None
        assert store.offset_by_time("B", 0, 0) == 0
        put_inner_batches(store, 2)
        assert (store.min_offset("B", 0), store.max_offset("B", 0)) == (0, 6)
        assert bodies(store) == [b"stays"]


def test_damaged_units_at_the_end_of_a_batch_queue_are_put_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **UNITS) as store:
        put_inner_batches(store)
        before = bodies(store, "B")
    files = sorted((path / "batchconsumequeue" / "B" / "0").iterdir())
    whole = [file.read_bytes() for file in files]
    data = bytearray(whole[-1])
    struct.pack_into(">q", data, 46, struct.unpack_from(">q", data, 0)[0])  # the twelfth unit: at the eleventh's record
    files[-1].write_bytes(data)
    with mqfast.open(path, **UNITS) as store:
        assert bodies(store, "B") == before
        assert any("does not point at its record" in text for text in store.stats()["warnings"])
    assert [file.read_bytes() for file in files] == whole
    # A unit that points behind the log is no better.
    struct.pack_into(">q", data, 46, 1 << 40)
    files[-1].write_bytes(data)
    with mqfast.open(path, **UNITS) as store:
        assert bodies(store, "B") == before


def record_of(path: Path, number: int) -> tuple[Path, int]:
    """The log file and the byte of a record of the first file."""
    file = path / "commitlog" / f"{0:020}"
    data, at = file.read_bytes(), 0
    for _ in range(number):
        at += struct.unpack_from(">i", data, at)[0]
    return file, at


@pytest.mark.parametrize(
    ("place", "form", "value", "what"),
    [
        (12, ">i", -1, "queue id: expected 0 to"),
        (20, ">q", -1, "queue offset: expected 0 to"),
        (20, ">q", 1 << 62, "queue offset: expected 0 to"),
    ],
)
def test_a_record_whose_numbers_are_no_place_gets_no_queue(
    tmp_path: Path, place: int, form: str, value: int, what: str
) -> None:
    """It stays in the log; the others are not kept from their queues."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        for number in range(3):
            store.put("A" if number != 1 else "Odd", b"%d" % number)
    file, at = record_of(path, 1)
    with file.open("r+b") as handle:
        handle.seek(at + place)
        handle.write(struct.pack(form, value))
    for unit in path.glob("consumequeue/*/*/*"):
        unit.unlink()
    (path / "abort").touch()
    with mqfast.open(path, **SMALL) as store:
        assert bodies(store, "A") == [b"0", b"2"]
        assert bytes(store.get_by_offset(at).body) == b"1"
        assert any(what in text for text in store.stats()["warnings"])


def test_names_of_several_queues_that_are_none(tmp_path: Path) -> None:
    """INNER_MULTI_DISPATCH of somebody else's record: names that are no topic are left out, the rest is dispatched."""
    path = tmp_path / "store"
    text = "INNER_MULTI_DISPATCH\x01%LMQ%a,x/y,,b\x02INNER_MULTI_QUEUE_OFFSET\x010,1,2,x\x02"
    with mqfast.open(path, **SMALL) as store:
        store.put("T", b"several", properties=text.encode())
    for unit in path.glob("consumequeue/*/*/*"):
        unit.unlink()
    (path / "abort").touch()
    with mqfast.open(path, enableLmq=True, enableMultiDispatch=True, **SMALL) as store:
        assert bodies(store) == bodies(store, "%LMQ%a") == bodies(store, "b") == [b"several"]
        assert lab(store).queues.topics() == ["%LMQ%a", "T", "b"]


@pytest.mark.parametrize("topic", ["%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"])
def test_system_topics_are_not_dispatched_further(tmp_path: Path, topic: str) -> None:
    path = tmp_path / "store"
    text = "INNER_MULTI_DISPATCH\x01b\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    with mqfast.open(path, **SMALL) as store:
        store.put(topic, b"x", properties=text.encode())
    for unit in path.glob("consumequeue/*/*/*"):
        unit.unlink()
    (path / "abort").touch()
    with mqfast.open(path, enableLmq=True, enableMultiDispatch=True, **SMALL) as store:
        assert store.max_offset(topic, 0) == 1
        assert lab(store).queues.topics() == [topic]


def test_offset_by_time_in_a_queue_of_deleted_messages(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        for _ in range(30):
            store.put("T", b"x" * 900)
        store.put("Other", b"x")
        assert store.max_offset("T", 0) == 30
        queue: Any = lab(store).queues.get("T", 0)
        queue.correct_min(store.log.written)
        assert queue.min_offset == 30
        for boundary in BoundaryType:
            assert store.offset_by_time("T", 0, 0, boundary) == 30


def test_a_unit_that_cannot_be_flushed_is_an_error_unless_its_topic_went(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        assert store.max_offset("T", 0) == 1
        queue: Any = lab(store).queues.get("T", 0)
        for file in queue.file_list:
            file.drop()
        (tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020}").unlink()
        with pytest.raises(StoreClosed):
            lab(store).queues.flush()
        store.engine.mark_deleted([queue])
        assert lab(store).queues.flush() == 0


def _a_store_of_every_kind_of_queue(path: Path) -> None:
    with mqfast.open(path, **SMALL) as store:
        for queue_id, units in enumerate((1, 7, 20, 21, 65, 3, 4, 5, 6)):
            for _ in range(units):
                store.put("T", b"x", queue_id)
    base = path / "consumequeue" / "T"
    (base / "9").mkdir()  # no file
    (base / "10").mkdir()
    (base / "10" / f"{0:020d}").write_bytes(b"")  # made, but never given its length
    (base / "11").mkdir()
    (base / "11" / f"{400:020d}").write_bytes(b"\0" * 400)  # no unit, and not the first file
    (base / "12").mkdir()
    (base / "12" / f"{0:020d}").mkdir()
    (base / "13").mkdir()
    (base / "13" / "notes.txt").write_bytes(b"not ours")
    with open(base / "5" / f"{0:020d}", "r+b") as file:  # something behind the last unit
        file.seek(300)
        file.write(b"\x01")


@pytest.mark.parametrize(
    ("queue_id", "name", "content"),
    [
        (None, "", b""),
        (6, f"{0:020d}", b"\0" * 380),  # shorter than the others
        (7, f"{20:020d}", b"\0" * 400),  # where no file begins
        (8, f"{800:020d}", b"\0" * 400),  # a gap
        (3, f"{2**63 - 1:020d}", b"\0" * 400),
    ],
)
@pytest.mark.parametrize("threads", [True, False])
def test_many_queues_are_opened_as_few_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: bool, queue_id: int | None, name: str, content: bytes
) -> None:
    """Read ahead by two threads, or by none because no thread can be had: the same queues, or the same error."""
    _a_store_of_every_kind_of_queue(tmp_path / "made")
    if queue_id is not None:
        (tmp_path / "made" / "consumequeue" / "T" / str(queue_id) / name).write_bytes(content)

    def opened(many: int) -> list[str]:
        shutil.copytree(tmp_path / "made", tmp_path / "store")
        monkeypatch.setattr(queue_store, "_MANY_QUEUES", many)
        try:
            with open_still(tmp_path / "store", **SMALL) as store:
                return [
                    *(
                        f"{queue.topic}/{queue.queue_id} {queue.min_offset} {queue.max_offset} {queue.max_physical}"
                        f" {queue.next_offset} {[one.path for one in queue.file_list]}"
                        for queue in lab(store).queues.table.all()
                    ),
                    *lab(store).queues.warnings,
                ]
        except CorruptFile as error:
            return [str(error)]
        finally:
            shutil.rmtree(tmp_path / "store")

    one_by_one = opened(10**9)
    assert len(one_by_one) > 1 or queue_id is not None
    if not threads:

        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
    assert opened(1) == one_by_one
