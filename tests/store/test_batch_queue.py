"""BatchConsumeQueue against RocketMQ's files and answers, a model made of lists, and damage."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from conftest import GOLDEN, golden_cases
from hypothesis import given
from hypothesis import strategies as st
from reference import Record, batch_unit

from mqfast.errors import CorruptFile, OffsetError, StoreClosed
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.results import BoundaryType
from mqfast.store.queues.batch_queue import BatchConsumeQueue, BatchUnit, check_unit, claimed_places
from mqfast.store.record.record import decode_record

(CASE,) = golden_cases("5.3.3", ("batch-cq",))
FILE = 46 * 4


def new(tmp_path: Path, file_bytes: int = FILE) -> BatchConsumeQueue:
    return BatchConsumeQueue(OsApi(), str(tmp_path / "batchconsumequeue"), "T", 0, file_bytes)


def reopened(queue: BatchConsumeQueue) -> BatchConsumeQueue:
    queue.close()
    again = BatchConsumeQueue(
        OsApi(), str(Path(queue.path).parent.parent), queue.topic, queue.queue_id, queue.file_bytes
    )
    again.load()
    again.recover()
    return again


def fill(queue: BatchConsumeQueue, count: int, batch: int = 3) -> list[BatchUnit]:
    units = [BatchUnit(100 * i, 90, i, 1000 + 10 * i, i * batch, batch, -1) for i in range(count)]
    for unit in units:
        queue.put(*unit[:6])
    return units


def bytes_of(queue: BatchConsumeQueue) -> bytes:
    return b"".join(Path(file.path).read_bytes() for file in queue.file_list)


def golden_queues() -> list[dict[str, Any]]:
    return list(CASE.expected["queues"])


def golden_units(row: dict[str, Any]) -> list[BatchUnit]:
    return [
        BatchUnit(
            m["physicalOffset"], m["size"], m["tagsCode"], m["storeTimestamp"], m["cqOffset"], m.get("batchNum", 1), -1
        )
        for m in CASE.expected["messages"]
        if (m["topic"], m["queueId"]) == (row["topic"], row["queueId"])
    ]


@pytest.mark.parametrize("row", golden_queues(), ids=lambda row: f"{row['topic']}-{row['queueId']}")
def test_golden_queue_reads_as_in_java(row: dict[str, Any], tmp_path: Path) -> None:
    base = shutil.copytree(CASE.store / "batchconsumequeue", tmp_path / "b")
    size = CASE.settings["mapperFileSizeBatchConsumeQueue"]
    queue = BatchConsumeQueue(OsApi(), str(base), row["topic"], row["queueId"], size)
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    queue.load()
    queue.recover()
    queue.correct_min(CASE.expected["minPhyOffset"])
    assert (queue.min_offset, queue.max_offset) == (row["minOffset"], row["maxOffset"])
    assert queue.max_physical == row["maxPhysicOffset"]
    assert queue.unit_count == row["units"]
    units = golden_units(row)
    assert list(queue.iterate(0)) == units
    for unit in units:
        for offset in range(unit.base_offset, unit.next_offset):
            assert queue.find(offset) == unit
    for timestamp, boundary, offset in row["offsetByTime"]:
        assert (timestamp, boundary, queue.offset_by_time(timestamp, BoundaryType[boundary])) == (
            timestamp,
            boundary,
            offset,
        )
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("row", golden_queues(), ids=lambda row: f"{row['topic']}-{row['queueId']}")
def test_puts_give_the_bytes_of_java(row: dict[str, Any], tmp_path: Path) -> None:
    size = CASE.settings["mapperFileSizeBatchConsumeQueue"]
    queue = BatchConsumeQueue(OsApi(), str(tmp_path), row["topic"], row["queueId"], size)
    for unit in golden_units(row):
        queue.put(*unit[:6])
    folder = CASE.store / "batchconsumequeue" / row["topic"] / str(row["queueId"])
    theirs = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {Path(file.path).name: Path(file.path).read_bytes() for file in queue.file_list} == theirs


def test_v11_batch_queue_units(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(OsApi(), str(tmp_path), "BTopic", 0, 184)
    t = 0x1A1F9B9F560
    for row in ((321, 241, 0, t, 0, 3), (562, 209, 0, t + 1, 3, 2), (771, 108, 2598919, t + 1, 5, 1)):
        queue.put(*row)
    golden = GOLDEN / "golden-engine/data3_C/batchconsumequeue/BTopic/0" / f"{0:020}"
    assert bytes_of(queue) == golden.read_bytes()
    assert (queue.min_offset, queue.max_offset, queue.max_physical) == (0, 6, 771)


def test_empty_queue(tmp_path: Path) -> None:
    queue = new(tmp_path)
    for _ in range(2):
        assert (queue.min_offset, queue.max_offset, queue.max_physical, queue.unit_count) == (-1, 0, -1, 0)
        assert queue.find(0) is None
        assert list(queue.iterate(0)) == []
        assert queue.offset_by_time(0) == 0
        assert (queue.flush(), queue.delete_expired(10**9)) == (0, 0)
        queue.correct_min(5)
        queue.truncate(0)
        queue.load()
        queue.recover()
    with pytest.raises(OffsetError, match="T/0 has no offset 0"):
        queue.unit(0)


def test_rolls_and_survives_a_reopen(tmp_path: Path) -> None:
    queue = new(tmp_path)
    units = fill(queue, 11)
    assert [file.start_offset for file in queue.file_list] == [0, FILE, 2 * FILE]
    data = bytes_of(queue)
    assert data == b"".join(batch_unit(*unit[:6]) for unit in units).ljust(3 * FILE, b"\0")
    queue = reopened(queue)
    assert list(queue.iterate(0)) == units
    assert (queue.max_physical, queue.max_offset) == (1000, 33)
    queue.put(1100, 90, 0, 2000, 33, 5)
    queue.put(1200, 90, 0, 2000, 38, 1)  # the first of a fourth file
    assert queue.unit(37).base_offset == 33
    assert (queue.unit(38).physical_offset, queue.max_offset) == (1200, 39)
    assert reopened(queue).max_offset == 39


def test_bytes_that_hold_no_whole_unit_stay_unused(tmp_path: Path) -> None:
    queue = new(tmp_path, FILE + 7)
    units = fill(queue, 9)
    assert [file.start_offset for file in queue.file_list] == [0, FILE + 7, 2 * (FILE + 7)]
    assert list(reopened(queue).iterate(0)) == units


def test_repeated_put_is_passed_over(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 3)
    before = bytes_of(queue)
    queue.put(200, 90, 7, 1, 6, 3)
    queue.put(0, 90, 7, 1, 0, 3)
    assert (bytes_of(queue), queue.unit_count) == (before, 3)


@pytest.mark.parametrize("unit", [(0, 0, 0, 0, 0, 1), (0, 9, 0, 0, -1, 1), (0, 9, 0, 0, 0, 0), (0, 9, 0, 0, 0, 2**15)])
def test_put_refuses_what_recovery_would_not_take(unit: tuple[int, ...], tmp_path: Path) -> None:
    queue = new(tmp_path)
    with pytest.raises(ValueError, match="physical offset 0"):
        queue.put(*unit)
    assert queue.file_list == []


@pytest.mark.parametrize("cut", [0, 1, 300, 301, 400, 401, 850, 10**6])
def test_truncate(cut: int, tmp_path: Path) -> None:
    queue = new(tmp_path)
    units = fill(queue, 10)
    queue.flush()
    kept = [unit for unit in units if unit.physical_offset < cut]
    queue.truncate(cut)
    assert list(queue.iterate(0)) == kept
    assert queue.max_physical == (kept[-1].physical_offset if kept else -1)
    assert queue.max_offset == (kept[-1].next_offset if kept else 0)
    # nothing that was cut off can come back, and the queue goes on behind it
    assert bytes_of(queue).rstrip(b"\0") == b"".join(batch_unit(*unit[:6]) for unit in kept).rstrip(b"\0")
    assert list(reopened(queue).iterate(0)) == kept
    queue = reopened(queue)
    queue.put(10**6, 90, 0, 9999, len(kept) * 3, 2)
    assert queue.max_offset == len(kept) * 3 + 2
    assert [unit.physical_offset for unit in reopened(queue).iterate(0)] == [u.physical_offset for u in kept] + [10**6]


def test_recovery_stops_at_the_first_unit_that_is_none(tmp_path: Path) -> None:
    for field, bad in ((0, b"\xff"), (8, b"\x80"), (28, b"\x80"), (36, b"\x80")):
        queue = new(tmp_path / str(field), FILE)
        units = fill(queue, 7)
        queue.close()
        path = Path(queue.path) / f"{0:020}"
        data = bytearray(path.read_bytes())
        data[2 * 46 + field : 2 * 46 + field + 1] = bad
        path.write_bytes(data)
        queue = reopened(queue)
        assert list(queue.iterate(0)) == units[:2]
        assert len(queue.file_list) == 1
        assert bytes_of(queue)[2 * 46 :] == bytes(2 * 46)


def test_recovery_reads_the_last_three_files(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 20)
    queue.close()
    path = Path(queue.path) / f"{0:020}"
    path.write_bytes(b"\xff" * FILE)  # RocketMQ does not look there either
    queue = reopened(queue)
    assert queue.max_offset == 60
    queue.close()
    path = Path(queue.path) / f"{2 * FILE:020}"
    path.write_bytes(b"\xff" * FILE)
    queue = reopened(queue)
    assert (queue.unit_count, queue.max_physical) == (8, 700)
    assert [file.start_offset for file in queue.file_list] == [0, FILE, 2 * FILE]


def test_recovery_keeps_an_empty_last_file(tmp_path: Path) -> None:
    queue = new(tmp_path)
    units = fill(queue, 4)
    (Path(queue.path) / f"{FILE:020}").write_bytes(bytes(FILE))
    queue = reopened(queue)
    assert len(queue.file_list) == 2
    assert list(queue.iterate(0)) == units
    queue.put(400, 90, 0, 2000, 12, 1)
    assert (len(queue.file_list), queue.unit(12).physical_offset) == (2, 400)


def test_lower_bound_follows_the_log(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 10)
    for gone, minimum in ((0, 0), (1, 3), (100, 3), (450, 15), (900, 27), (901, 30), (0, 0)):
        queue.correct_min(gone)
        assert (gone, queue.min_offset) == (gone, minimum)
    queue.correct_min(450)
    assert queue.find(14) is None
    assert queue.unit(15).physical_offset == 500
    assert queue.offset_by_time(0) == 15


def test_expired_files_go_but_never_the_last(tmp_path: Path) -> None:
    queue = new(tmp_path)
    units = fill(queue, 10)
    assert queue.delete_expired(300) == 0
    assert queue.delete_expired(301) == 1
    assert (queue.min_offset, queue.unit_count) == (12, 6)
    assert list(queue.iterate(12)) == units[4:]
    assert sorted(path.name for path in Path(queue.path).iterdir()) == [f"{FILE:020}", f"{2 * FILE:020}"]
    queue = reopened(queue)
    queue.correct_min(301)
    assert list(queue.iterate(12)) == units[4:]
    queue.put(1000, 90, 0, 3000, 30, 3)
    assert queue.delete_expired(10**9) == 1
    assert (queue.min_offset, queue.max_offset) == (33, 33)
    queue.truncate(0)
    assert (queue.file_list, queue.max_offset, queue.min_offset) == ([], 0, -1)
    queue.put(0, 90, 0, 1, 0, 1)
    assert queue.unit(0).physical_offset == 0


def test_search_by_time_over_several_files(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 10)  # store times 1000, 1010, ...; files begin at 1000, 1040, 1080
    lower = {0: 0, 1000: 0, 1005: 3, 1030: 9, 1039: 9, 1040: 12, 1041: 15, 1090: 27, 9999: 27}
    assert {t: queue.offset_by_time(t) for t in lower} == lower


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=25),
    st.integers(1, 5),
)
def test_lookups_equal_a_model_of_lists(tmp_path: Path, steps: list[tuple[int, int, int]], per_file: int) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        queue = new(Path(folder), 46 * per_file)
        units, physical, time, base = [], 0, 100, 0
        for later, size, batch in steps:
            time += later
            units.append(BatchUnit(physical, size, 5, time, base, batch, -1))
            queue.put(*units[-1][:6])
            physical += size
            base += batch
        queue = reopened(queue)
        assert list(queue.iterate(0)) == units
        for offset in range(-1, base + 2):
            expected = next((u for u in units if u.base_offset <= offset < u.next_offset), None)
            assert queue.find(offset) == expected
        for at in range(99, time + 2):
            # the file that is searched is the last one that starts at or before the time
            first = max((i for i in range(0, len(units), per_file) if units[i].store_timestamp <= at), default=0)
            file = units[first : first + per_file]
            answer = next((u for u in file if u.store_timestamp >= at), file[-1])
            if at >= file[-1].store_timestamp:
                answer = file[-1]
            assert queue.offset_by_time(at) == answer.base_offset
        queue.close()


def test_load_refuses_files_of_another_length_and_gaps(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 10)
    queue.close()
    again = new(tmp_path, FILE * 2)
    with pytest.raises(CorruptFile, match=f"{FILE} bytes"):
        again.load()
    (Path(queue.path) / f"{FILE:020}").unlink()
    with pytest.raises(CorruptFile, match="out of place"):
        new(tmp_path).load()


def test_a_file_without_its_length_is_removed(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 4)
    (Path(queue.path) / f"{FILE:020}").touch()
    queue = reopened(queue)
    assert (queue.max_offset, len(list(Path(queue.path).iterdir()))) == (12, 1)


def test_flush_syncs_what_is_new(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 6)
    assert queue.flush() >= 6 * 46
    assert queue.flush() == 0
    queue.put(600, 90, 0, 5000, 18, 1)
    assert queue.flush() >= 46
    assert queue.flush() == 0
    queue.truncate(300)
    assert queue.flush() == 0
    queue.put(700, 90, 0, 5000, 9, 1)
    assert queue.flush() >= 46


def test_rest_close_destroy(tmp_path: Path) -> None:
    queue = new(tmp_path)
    units = fill(queue, 6)
    queue.unmap_idle()
    assert not any(file.is_mapped for file in queue.file_list)
    assert list(queue.iterate(0)) == units
    files = queue.file_list
    queue.close()
    queue.close()
    assert not any(file.is_mapped for file in files)
    assert queue.find(0) is None
    queue = reopened(queue)
    queue.destroy()
    assert queue.deleted
    assert not Path(queue.path).exists()


def test_numbers_that_are_none_and_units_that_belong_elsewhere() -> None:
    text = b"INNER_BASE\x01x\x02INNER_NUM\x015\x02"
    record = Record("T", b"body", queue_id=2, queue_offset=30, properties=text, sys_flag=0x80)
    message = decode_record(record.encode())
    assert claimed_places(message) == (30, 1)
    right = BatchUnit(0, message.size, 0, 0, 30, 1, -1)
    check_unit(right, message, "T", 2)
    for topic, queue_id, unit in (("U", 2, right), ("T", 3, right), ("T", 2, right._replace(base_offset=29))):
        with pytest.raises(CorruptFile, match="does not point at its record"):
            check_unit(unit, message, topic, queue_id)


def test_a_queue_that_was_closed_has_no_unit_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file_bytes"):
        new(tmp_path, 45)
    queue = new(tmp_path)
    fill(queue, 6)
    assert "T/0 0..18" in repr(queue)
    files = queue._files
    queue._files = []  # as dispatch sees it that met a deletion halfway
    assert (queue.max_offset, queue.find(3), queue.find_after(3), queue.offset_by_time(5)) == (0, None, None, 0)
    with pytest.raises(OffsetError):
        queue.unit(3)
    queue._files = files
    files[0].drop()
    with pytest.raises(StoreClosed):  # it is in the list, and nobody took it away
        queue.find(0)
    with pytest.raises(StoreClosed):
        queue.flush()
    queue.close()


@contextmanager
def between_lines_of(code: CodeType, work: Callable[[], None]) -> Iterator[None]:
    """Do the work before each line of a function, as another thread could."""
    before = sys.gettrace()

    def in_between(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line":
            sys.settrace(None)
            work()
            sys.settrace(in_between)
        return in_between

    sys.settrace(in_between)
    try:
        yield
    finally:
        sys.settrace(before)


def test_a_queue_that_moves_on_while_its_end_is_asked_for_is_never_empty(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 9)
    count = 9

    def move_on() -> None:
        nonlocal count
        for i in range(count, count + 9):
            queue.put(100 * i, 90, i, 1000 + 10 * i, i * 3, 3)
        count += 9
        queue.delete_expired(100 * (count - 1))

    with between_lines_of(BatchConsumeQueue.max_offset.fget.__code__, move_on):  # type: ignore[attr-defined]
        found = queue.max_offset
    assert count > 18
    assert 27 <= found <= count * 3


def test_retention_of_everything_in_the_middle_of_a_put_leaves_the_end(tmp_path: Path) -> None:
    queue = new(tmp_path)
    fill(queue, 8)  # two full files: the next put makes the third
    seen: list[int] = []

    def retention() -> None:
        queue.delete_expired(1 << 40)
        seen.append(queue.max_offset)

    with between_lines_of(BatchConsumeQueue.put.__code__, retention):
        queue.put(800, 90, 8, 1080, 24, 3)
    assert (seen, set(seen)) == (sorted(seen), {24, 27})
    assert [file.start_offset for file in queue.file_list] == [2 * FILE]
