"""A stream whose store was replaced, set back, copied, trimmed, or whose topics were deleted and made again.

Each case asks twice: strictly, where the error must name what is gone, and with ``failOnDataLoss=false``,
where the stream goes on with everything that is there. No Spark processes: queries are in ``test_stream_queries.py``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import DataLoss, StoreNotFound

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from test_stream import ORDERS, at, flat, rows, small, stream, to_the_end

ALL = ReadAllAvailable()
Spark = dict[str, Any]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield Path(path)


def fill(path: Path, first: int, end: int, topic: str = "t") -> None:
    """Records of one size, so that another store has records at the same places."""
    with small(str(path)) as store:
        for n in range(first, end):
            store.put(topic, b"%06d " % n + b"x" * 40, n % 3)


def read_all(path: Path, **options: Any) -> tuple[list[int], Spark]:
    """Everything that is there, by a run of its own, and where it ended."""
    reader = stream(str(path), startingOffsets="earliest", **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    found = rows(reader, start, end)
    reader.stop()
    return found, end


def resumed(path: Path, start: Spark, **options: Any) -> tuple[list[int], Spark]:
    """What a run with ``failOnDataLoss=false`` reads from an offset on, in batches of 7, and where it ended."""
    reader = stream(str(path), failOnDataLoss="false", maxOffsetsPerTrigger=7, **options)
    found: list[int] = []
    for _ in range(1000):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return sorted(found), end
        found += rows(reader, start, end)
        start = end
    raise AssertionError("the stream never reaches its end")


def refused(path: Path, start: Spark, match: str, **options: Any) -> None:
    """The strict stream names what is lost, in a plain run and in one of AvailableNow."""
    for available_now in (False, True):
        reader = stream(str(path), **options)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        with pytest.raises(DataLoss, match=match):
            reader.latestOffset(start, ALL)
        reader.stop()


# --- another store ---------------------------------------------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("end", [1001, 1100, 1300, 1900])
def test_a_replaced_store_is_named_and_read_from_its_beginning(base: Path, order: str, end: int) -> None:
    path = base / "s"
    fill(path, 0, 300)
    _, offset = read_all(path, order=order)
    shutil.rmtree(path)
    fill(path, 1000, end)
    refused(path, offset, "not the store that the stream was reading", order=order)
    found, after = resumed(path, offset, order=order)
    assert found == list(range(1000, end))
    assert after["lost"]["times"] >= 1


@ORDERS
def test_a_store_that_is_replaced_under_a_running_stream_is_named(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 300)
    strict = stream(str(path), startingOffsets="earliest", order=order)
    lenient = stream(str(path), startingOffsets="earliest", order=order, failOnDataLoss="false")
    start = strict.initialOffset()
    offset = strict.latestOffset(start, ALL)
    assert sorted(rows(lenient, start, lenient.latestOffset(start, ALL))) == list(range(300))
    shutil.rmtree(path)
    fill(path, 1000, 1300)
    with pytest.raises(DataLoss, match="not the store"):
        strict.latestOffset(offset, ALL)
    with pytest.raises(DataLoss, match="not the store"):
        strict.partitions(start, offset)  # planned of the other one
    assert sorted(flat(to_the_end(lenient, offset))) == list(range(1000, 1300))


@ORDERS
def test_a_batch_of_another_store_is_not_read_again_by_a_restart(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 300)
    reader = stream(str(path), startingOffsets="earliest", order=order)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    shutil.rmtree(path)
    fill(path, 1000, 1300)
    with pytest.raises(DataLoss, match="not the store"):
        stream(str(path), order=order).partitions(start, end)
    lenient = stream(str(path), order=order, failOnDataLoss="false")
    first = rows(lenient, start, end)
    assert sorted({*first, *flat(to_the_end(lenient, end))}) == list(range(1000, 1300))


@ORDERS
def test_a_copy_and_a_moved_directory_go_on(base: Path, order: str) -> None:
    fill(base / "s", 0, 100)
    _, offset = read_all(base / "s", order=order)
    shutil.copytree(base / "s", base / "copy")
    fill(base / "copy", 100, 110)
    os.rename(base / "s", base / "moved")
    fill(base / "moved", 200, 220)
    for path, numbers in (("copy", range(100, 110)), ("moved", range(200, 220))):
        reader = stream(str(base / path), order=order)
        assert sorted(flat(to_the_end(reader, offset))) == list(numbers)
    # The copy went its own way: its end is not in the store that was moved.
    _, ahead = read_all(base / "copy", order=order)
    refused(base / "moved", ahead, "set back|not the store", order=order)


@ORDERS
@pytest.mark.parametrize("again", [0, 2, 10, 60])
def test_a_store_that_was_set_back_is_named_and_nothing_new_is_missed(base: Path, order: str, again: int) -> None:
    path = base / "s"
    fill(path, 0, 100)
    shutil.copytree(path, base / "backup")
    fill(path, 100, 130)
    _, offset = read_all(path, order=order)
    shutil.rmtree(path)
    os.rename(base / "backup", path)
    if again:
        fill(path, 1000, 1000 + again)
    refused(path, offset, "not the store|set back|ends at", order=order)
    found, _ = resumed(path, offset, order=order)
    assert set(range(1000, 1000 + again)) <= set(found)


def test_unread_messages_are_lost_when_a_store_is_set_back(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 100)
    shutil.copytree(path, base / "backup")
    fill(path, 100, 130)
    reader = stream(str(path), startingOffsets="earliest", order="queue", maxOffsetsPerTrigger=30)
    start = reader.initialOffset()
    offset = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows(reader, start, offset)
    shutil.rmtree(path)
    os.rename(base / "backup", path)
    refused(path, offset, "set back", order="queue")
    found, after = resumed(path, offset, order="queue")
    assert sorted([*first, *found]) == list(range(100))  # nothing twice
    assert after["lost"]["times"] == 1


@ORDERS
def test_retention_of_what_was_read_is_no_loss(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 1500)
    _, offset = read_all(path, order=order)
    fill(path, 1500, 3000)
    files = sorted((path / "commitlog").iterdir())
    reader = stream(str(path), order=order, startingOffsets="earliest")
    position = stream(str(path), order="commitlog").initialOffset()["phy"] if order == "queue" else offset["phy"]
    for file in files:
        if int(file.name) + file.stat().st_size <= min(position, int(offset["marks"][-1][0])):
            file.unlink()
    assert len(list((path / "commitlog").iterdir())) < len(files)
    assert sorted(flat(to_the_end(reader, offset))) == list(range(1500, 3000))


@ORDERS
def test_a_store_set_back_repeats_only_messages_after_the_last_common_mark(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 10)
    _, offset = read_all(path, order=order)
    reader = stream(str(path), order=order)
    for n in range(10, 400, 10):
        if n == 370:
            shutil.copytree(path, base / "backup")
        fill(path, n, n + 10)
        offset = reader.latestOffset(offset, ALL)
    assert len(offset["marks"]) <= 16
    reader.stop()
    shutil.rmtree(path)
    os.rename(base / "backup", path)
    fill(path, 1000, 1040)
    found, _ = resumed(path, offset, order=order)
    assert set(range(1000, 1040)) <= set(found)
    assert len(found) < 40 + 150


# --- topics and queues -----------------------------------------------------------------------------------------------


def delete(path: Path, topic: str) -> None:
    with small(str(path)) as store:
        store.delete_topic(topic)


@pytest.mark.parametrize("numbers", [1, 30, 60, 90])
def test_a_topic_that_was_made_again_is_named_and_read_from_its_beginning(base: Path, numbers: int) -> None:
    path = base / "s"
    fill(path, 0, 60)
    fill(path, 500, 503, "other")
    _, offset = read_all(path, order="queue")
    delete(path, "t")
    fill(path, 1000, 1000 + numbers)
    refused(path, offset, "queue t/[012]", order="queue")
    found, after = resumed(path, offset, order="queue")
    assert found == list(range(1000, 1000 + numbers))
    assert after["lost"]["times"] == 3
    fill(path, 600, 604, "other")
    assert resumed(path, after, order="queue")[0] == list(range(600, 604))


def test_a_topic_that_is_made_again_under_a_running_stream_is_named(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 60)
    fill(path, 500, 503, "other")
    reader = stream(str(path), startingOffsets="earliest", subscribe="t")
    lenient = stream(str(path), startingOffsets="earliest", subscribe="t", failOnDataLoss="false")
    start = reader.initialOffset()
    offset = reader.latestOffset(start, ALL)
    delete(path, "t")
    fill(path, 1000, 1070)
    with pytest.raises(DataLoss, match="queue t/0: made again"):
        reader.latestOffset(offset, ALL)
    assert sorted(flat(to_the_end(lenient, offset))) == list(range(1000, 1070))


def test_a_topic_that_was_deleted_is_named(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 60)
    fill(path, 500, 503, "u")
    _, offset = read_all(path, subscribe="t,u")
    delete(path, "u")
    fill(path, 60, 63)
    refused(path, offset, "queue u/[012]: .* is gone", subscribe="t,u")
    found, after = resumed(path, offset, subscribe="t,u")
    assert found == [60, 61, 62]
    assert not [name for name in after["queues"] if name.startswith("u/")]
    fill(path, 700, 703, "u")
    assert resumed(path, after, subscribe="t,u")[0] == [700, 701, 702]


@pytest.mark.parametrize("more", [0, 9])
def test_queue_files_that_are_away_for_a_time_are_read_once(base: Path, more: int) -> None:
    """As while an operator has them made again: their loss is told, and the same queues go on where they were."""
    path = base / "s"
    fill(path, 0, 60)
    fill(path, 500, 506, "u")
    _, offset = read_all(path, subscribe="t,u")
    (path / "consumequeue" / "u").rename(base / "u")
    refused(path, offset, "queue u/[012]: .* is gone", subscribe="t,u")
    found, after = resumed(path, offset, subscribe="t,u")
    assert found == []
    assert after["lost"]["times"] == 3
    (base / "u").rename(path / "consumequeue" / "u")
    fill(path, 60, 63)
    fill(path, 506, 506 + more, "u")
    for start in (offset, after):
        found, end = resumed(path, start, subscribe="t,u")
        assert found == [60, 61, 62, *range(506, 506 + more)]
        assert "gone" not in end
        assert end.get("lost") == start.get("lost")
    strict = stream(str(path), subscribe="t,u")
    assert sorted(flat(to_the_end(strict, offset))) == [60, 61, 62, *range(506, 506 + more)]


def test_unread_messages_of_a_deleted_topic_count_as_data_loss(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 60)
    fill(path, 500, 503, "other")
    reader = stream(str(path), startingOffsets="earliest", subscribe="t")
    start = reader.initialOffset()
    assert set(at(start).values()) == {0}
    delete(path, "t")
    fill(path, 1000, 1009)
    refused(path, start, "queue t/0: made again", subscribe="t")
    assert resumed(path, start, subscribe="t")[0] == list(range(1000, 1009))


@pytest.mark.parametrize("ways", [{"subscribe": "t,u"}, {"subscribePattern": "t|u.*"}, {"assign": "t/0,t/1,t/2,u/0"}])
def test_along_the_log_a_deleted_topic_is_still_read(base: Path, ways: dict[str, str]) -> None:
    path = base / "s"
    fill(path, 0, 6)
    fill(path, 102, 103, "u")
    reader = stream(str(path), startingOffsets="earliest", order="commitlog", **ways)
    start = reader.initialOffset()
    fill(path, 105, 106, "u")
    delete(path, "u")
    fill(path, 6, 9)
    again = stream(str(path), order="commitlog", **ways)
    assert flat(to_the_end(again, start)) == [0, 1, 2, 3, 4, 5, 102, 105, 6, 7, 8]


def trim(path: Path, files: int) -> None:
    for file in sorted((path / "commitlog").iterdir())[:files]:
        file.unlink()


def test_loss_in_a_queue_created_and_trimmed_between_batches_is_reported(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 60)
    _, offset = read_all(path, subscribePattern=".*")
    fill(path, 1000, 2200, "born")
    trim(path, 2)
    with mqfast.StoreReader(path) as store:
        low = {q.queue_id: q.min_offset for q in store.queues() if q.topic == "born"}
    assert all(low.values())
    refused(path, offset, f"queue born/0: it is new to the stream and begins at {low[0]}", subscribePattern="born")
    found, after = resumed(path, offset, subscribePattern=".*")
    assert found == list(range(2200 - len(found), 2200))
    assert len(found) == 1200 - sum(low.values())
    assert after["lost"]["messages"] == sum(low.values())


def test_a_queue_that_is_new_and_whole_is_no_loss(base: Path) -> None:
    path = base / "s"
    fill(path, 0, 60)
    _, offset = read_all(path, order="queue")
    fill(path, 1000, 1050, "born")
    assert sorted(flat(to_the_end(stream(str(path), order="queue"), offset))) == list(range(1000, 1050))


def test_a_queue_that_expired_after_it_was_read_is_no_loss(base: Path) -> None:
    """RocketMQ removes queues whose messages all expired; such a queue begins anew at 0."""
    path = base / "s"
    fill(path, 0, 60, "idle")
    fill(path, 0, 1500)
    _, offset = read_all(path, order="queue")
    fill(path, 1500, 1600)
    trim(path, 1)
    shutil.rmtree(path / "consumequeue" / "idle")
    reader = stream(str(path), order="queue")
    end = reader.latestOffset(offset, ALL)
    assert sorted(rows(reader, offset, end)) == list(range(1500, 1600))
    assert not [name for name in end["queues"] if name.startswith("idle/")]
    assert "lost" not in end


# --- between plan and read -------------------------------------------------------------------------------------------


def _delete_topic(path: Path) -> None:
    delete(path, "t")


def _trim(path: Path) -> None:
    trim(path, 1)


def _trim_all_but_the_last(path: Path) -> None:
    trim(path, len(list((path / "commitlog").iterdir())) - 1)


@ORDERS
@pytest.mark.parametrize("harm", [_delete_topic, _trim, _trim_all_but_the_last])
def test_messages_removed_between_plan_and_read_are_reported_or_left_out(
    base: Path, order: str, harm: Callable[[Path], None]
) -> None:
    path = base / "s"
    fill(path, 0, 1500)
    fill(path, 5000, 5010, "u")
    strict = stream(str(path), startingOffsets="earliest", order=order)
    lenient = stream(str(path), startingOffsets="earliest", order=order, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    plans = {reader: reader.partitions(start, end) for reader in (strict, lenient)}
    harm(path)
    found = [
        int(body.split()[0])
        for part in plans[lenient]
        for batch in lenient.read(part)
        for body in batch.column("body").to_pylist()
    ]
    assert set(range(5000, 5010)) <= set(found)
    if order == "queue" or harm is not _delete_topic:
        assert len(found) < 1510
        with pytest.raises(DataLoss, match=r"removed|gone|no file"):
            for part in plans[strict]:
                list(strict.read(part))
    else:
        assert len(found) == 1510  # the log has them still


@ORDERS
def test_a_store_that_is_replaced_between_plan_and_read(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 60)
    strict = stream(str(path), startingOffsets="earliest", order=order)
    lenient = stream(str(path), startingOffsets="earliest", order=order, failOnDataLoss="false")
    start = strict.initialOffset()
    end = lenient.latestOffset(start, ALL)
    plans = {reader: reader.partitions(start, end) for reader in (strict, lenient)}
    shutil.rmtree(path)
    fill(path, 1000, 1070)
    with pytest.raises(StoreNotFound, match="not the store"):
        list(strict.read(plans[strict][0]))
    assert list(lenient.read(plans[lenient][0])) == []
    assert sorted(flat(to_the_end(lenient, end))) == list(range(1000, 1070))
    shutil.rmtree(path)
    with pytest.raises(StoreNotFound, match="no store here"):
        list(lenient.read(plans[lenient][0]))


# --- offsets of earlier versions -------------------------------------------------------------------------------------


@ORDERS
def test_an_old_checkpoint_goes_on_and_becomes_a_new_one(base: Path, order: str) -> None:
    path = base / "s"
    fill(path, 0, 60)
    _, offset = read_all(path, order=order)
    fill(path, 60, 70)
    old = at(offset)
    reader = stream(str(path), order=order)
    end = reader.latestOffset(old, ALL)
    assert sorted(rows(reader, old, end)) == list(range(60, 70))
    assert end["version"] == 2
    shutil.rmtree(path)
    fill(path, 1000, 1070)
    refused(path, end, "not the store", order=order)
    refused(
        path,
        {name: n + 100 for name, n in old.items()} if order == "queue" else {"phy": 1 << 40},
        "ends at",
        order=order,
    )
