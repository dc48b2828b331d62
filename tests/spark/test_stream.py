"""The streaming source as Spark calls it, without Spark's own processes: offsets, limits, what a batch reads.

Queries in a real session are in ``test_stream_queries.py``.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import ConfigError, DataLoss, MqfastError, UsageError

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from mqfast.spark import options as table
from mqfast.spark.groups import GroupProgress, queue_offsets
from mqfast.spark.listener import _offset, lag
from mqfast.spark.offsets import decode
from mqfast.spark.schema import chosen_columns
from mqfast.spark.stream import StreamReader, reads_along_log

ALL = ReadAllAvailable()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        with small(path) as store:
            fill(store, 0, 60)
        yield path


def small(path: str) -> mqfast.MessageStore:
    sizes = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return mqfast.open(path, mapped_file_bytes_commit_log=1 << 16, **sizes)


def fill(store: mqfast.MessageStore, first: int, end: int, topic: str = "t") -> None:
    for n in range(first, end):
        store.put(topic, b"%d " % n + b"x" * (n % 7 * 100), n % 3, tags="even" if n % 2 == 0 else "odd")


def stream(root: str, **options: Any) -> StreamReader:
    given = {name: str(value) for name, value in options.items()}
    parsed = table.parse({"path": root, **given}, table.STREAM)
    return StreamReader(parsed, chosen_columns(parsed))


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The numbers in the bodies of one batch, read by copies as tasks have them."""
    found = []
    for part in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        task = StreamReader(reader.options, reader.columns)
        for batch in task.read(part):
            found += [int(body.split()[0]) for body in batch.column("body").to_pylist()]
    return found


def to_the_end(reader: StreamReader, start: dict[str, Any]) -> list[list[int]]:
    """All batches from an offset on until there is no new one."""
    batches = []
    for _ in range(500):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return batches
        batches.append(rows(reader, start, end))
        start = end
    raise AssertionError("the stream never reaches its end")


def at(spark: dict[str, Any]) -> dict[str, int]:
    """The numbers of an offset alone."""
    found = decode(spark, along_log="phy" in spark)
    if found.queues is None:
        assert found.position is not None
        return {"phy": found.position}
    return {f"{topic}/{queue_id}": n for (topic, queue_id), n in found.queues.items()}


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


ORDERS = pytest.mark.parametrize("order", ["queue", "commitlog"])


@ORDERS
def test_a_stream_reads_everything_once(root: str, order: str) -> None:
    reader = stream(root, order=order, startingOffsets="earliest")
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    assert ("phy" in start) == (order == "commitlog")
    assert sorted(flat(to_the_end(reader, start))) == list(range(60))
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == rows(reader, start, end)
    with small(root) as store:
        fill(store, 60, 70)
        fill(store, 70, 75, "new")
    more = to_the_end(reader, end)
    assert sorted(flat(more)) == list(range(60, 75))
    reader.stop()


@ORDERS
def test_latest_is_the_end_at_the_start(root: str, order: str) -> None:
    reader = stream(root, order=order)
    start = reader.initialOffset()
    with small(root) as store:
        fill(store, 60, 62)
    assert reader.initialOffset() == start  # asked again, it stays
    assert sorted(flat(to_the_end(reader, start))) == [60, 61]


@ORDERS
@pytest.mark.parametrize("most", [1, 2, 7, 59, 60, 1000])
def test_a_row_limit_cuts_batches_and_loses_nothing(root: str, order: str, most: int) -> None:
    reader = stream(root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=most)
    assert reader.getDefaultReadLimit() == ReadMaxRows(most)
    batches = to_the_end(reader, reader.initialOffset())
    assert [len(batch) for batch in batches] == [most] * (60 // most) + ([60 % most] if 60 % most else [])
    assert sorted(flat(batches)) == list(range(60))


@ORDERS
@pytest.mark.parametrize("most", [1, 3000, 100_000])
def test_a_byte_limit_cuts_batches_and_loses_nothing(root: str, order: str, most: int) -> None:
    reader = stream(root, order=order, startingOffsets="earliest", maxBytesPerTrigger=most)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(most)
    sizes = {}
    with mqfast.StoreReader(root) as store:
        for message in store.scan():
            sizes[int(bytes(message.body).split()[0])] = message.size
    batches = to_the_end(reader, reader.initialOffset())
    assert sorted(flat(batches)) == list(range(60))
    for batch in batches:
        total = sum(sizes[n] for n in batch)
        # Along the log a batch ends with the record that reaches the limit.
        assert total <= most or len(batch) == 1 or (order == "commitlog" and total - sizes[max(batch)] < most)
    assert len(batches) == {1: 60, 100_000: 1}.get(most, len(batches))


@ORDERS
def test_all_available_overrides_every_limit(root: str, order: str) -> None:
    reader = stream(
        root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=1, maxBytesPerTrigger=1,
        minOffsetsPerTrigger=1000,
    )  # fmt: skip
    start = reader.initialOffset()
    assert len(rows(reader, start, reader.latestOffset(start, ALL))) == 60


@ORDERS
def test_both_limits_hold_together(root: str, order: str) -> None:
    reader = stream(root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=5, maxBytesPerTrigger=1)
    batches = to_the_end(reader, reader.initialOffset())
    assert {len(batch) for batch in batches} == {1}


@ORDERS
def test_few_rows_wait_up_to_the_maximum_trigger_delay(root: str, order: str) -> None:
    reader = stream(
        root, order=order, startingOffsets="earliest", minOffsetsPerTrigger=61, maxTriggerDelay="1h"
    )  # fmt: skip
    assert reader.getDefaultReadLimit() == ReadMinRows(61)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMinRows(61)) == start
    with small(root) as store:
        fill(store, 60, 61)
    end = reader.latestOffset(start, ReadMinRows(61))
    assert sorted(rows(reader, start, end)) == list(range(61))
    with small(root) as store:
        fill(store, 61, 62)
    assert reader.latestOffset(end, ReadMinRows(61)) == end
    reader._last_batch -= 3601
    assert rows(reader, end, reader.latestOffset(end, ReadMinRows(61))) == [61]


@ORDERS
def test_available_now_ends_where_the_store_ended_and_waits_for_nothing(root: str, order: str) -> None:
    reader = stream(
        root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=25, minOffsetsPerTrigger=1000
    )  # fmt: skip
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    with small(root) as store:
        fill(store, 60, 90)
        fill(store, 90, 95, "new")
    batches = to_the_end(reader, start)
    assert [len(batch) for batch in batches] == [25, 25, 10]
    assert sorted(flat(batches)) == list(range(60))


@ORDERS
def test_a_restart_begins_where_the_first_start_did(root: str, tmp_path: Path, order: str) -> None:
    state = str(tmp_path / "state" / "here")
    first = stream(root, order=order, stateDir=state).initialOffset()
    with small(root) as store:
        fill(store, 60, 65)
    again = stream(root, order=order, stateDir=state)
    assert again.initialOffset() == first
    assert sorted(flat(to_the_end(again, first))) == list(range(60, 65))
    assert stream(root, order=order).initialOffset() != first  # without it: later
    Path(state, "first-offsets.json").write_text("{")
    with pytest.raises(ConfigError, match="stateDir"):
        stream(root, order=order, stateDir=state).initialOffset()


@ORDERS
def test_a_first_batch_that_runs_again_has_the_rows_that_were_planned(root: str, order: str) -> None:
    reader = stream(root, order=order)
    start = reader.initialOffset()
    with small(root) as store:
        fill(store, 60, 65)
    planned = reader.latestOffset(start, ALL)
    with small(root) as store:
        fill(store, 65, 67)
    after = stream(root, order=order)
    assert sorted(rows(after, after.initialOffset(), planned)) == list(range(60, 65))
    assert sorted(flat(to_the_end(after, planned))) == [65, 66]


@ORDERS
def test_a_start_behind_the_planned_end_is_an_empty_batch(root: str, order: str) -> None:
    """After a crash before the first commit Spark may ask from a later start than it planned to end at."""
    reader = stream(root, order=order, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert reader.partitions(end, start) == []
    assert reader.partitions(end, end) == []


def test_a_subscription_along_the_log_reads_its_topics_only(root: str) -> None:
    with small(root) as store:
        fill(store, 100, 110, "other")
        fill(store, 60, 70)
    reader = stream(
        root, order="commitlog", subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=9
    )  # fmt: skip
    batches = to_the_end(reader, reader.initialOffset())
    assert flat(batches) == list(range(70))
    assert max(len(batch) for batch in batches) == 9


def test_queue_order_takes_from_every_queue(root: str) -> None:
    reader = stream(root, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=6, maxPartitions=1)
    start = reader.initialOffset()
    assert at(start) == {"t/0": 0, "t/1": 0, "t/2": 0}
    assert at(reader.latestOffset(start, ReadMaxRows(6))) == {"t/0": 2, "t/1": 2, "t/2": 2}


def test_starts_by_offset_and_time(root: str) -> None:
    reader = stream(root, startingOffsets='{"t/0": 5, "t/1": -1, "*": "earliest"}')
    assert not reader.along_log
    assert at(reader.initialOffset()) == {"t/0": 5, "t/1": 20, "t/2": 0}
    assert at(stream(root, startingOffsets="-3").initialOffset()) == {"t/0": 17, "t/1": 17, "t/2": 17}
    with mqfast.StoreReader(root) as store:
        message = store.get("t", 2, 7)[0]
    for order in ("queue", "commitlog"):
        timed = stream(root, order=order, startingTimestamp=message.store_timestamp)
        found = flat(to_the_end(timed, timed.initialOffset()))
        with mqfast.StoreReader(root) as store:
            wanted = [m for m in store.scan() if m.store_timestamp >= message.store_timestamp]
        assert sorted(found) == sorted(int(bytes(m.body).split()[0]) for m in wanted)
    assert at(stream(root, startingOffsets="-1h", order="commitlog").initialOffset()) == {"phy": 0}


def test_the_order_follows_from_the_options() -> None:
    def along(**options: str) -> bool:
        return reads_along_log(table.parse({"path": "x", **options}, table.STREAM))

    assert along()
    assert along(startingOffsets="earliest")
    assert along(startingOffsets="-10m")
    assert along(subscribe="t", order="commitlog")
    assert not along(subscribe="t")
    assert not along(subscribePattern="t.*")
    assert not along(startingOffsets="-100")
    assert not along(startingOffsets="group", group="g")
    assert not along(order="queue")
    with pytest.raises(ConfigError, match="need order=queue"):
        along(order="commitlog", startingOffsets='{"t/0": 1}')


def test_a_checkpoint_of_another_order_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="order"):
        stream(root, order="commitlog").latestOffset({"t/0": 3}, ALL)
    with pytest.raises(UsageError, match="expected topic/queue"):
        stream(root, order="queue").latestOffset({"phy": 3}, ALL)


@ORDERS
def test_messages_removed_by_retention_are_an_error_or_left_out(root: str, order: str) -> None:
    reader = stream(root, order=order, startingOffsets="earliest")
    start = reader.initialOffset()
    with small(root) as store:
        for n in range(60, 400):
            fill(store, n, n + 1)
    before = reader.latestOffset(start, ALL)
    files = sorted(Path(root, "commitlog").iterdir())
    assert len(files) > 2
    files[0].unlink()
    with mqfast.StoreReader(root) as store:
        kept = [int(bytes(m.body).split()[0]) for m in store.scan()]
    with pytest.raises(DataLoss, match="begins at"):
        reader.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match="begins at"):
        reader.partitions(start, before)  # it went after the batch was planned
    lenient = stream(root, order=order, startingOffsets="earliest", failOnDataLoss="false")
    assert sorted(rows(lenient, start, before)) == kept
    end = lenient.latestOffset(start, ALL)
    assert sorted(rows(lenient, start, end)) == kept
    assert end["lost"]["times"] == (3 if order == "queue" else 1)
    assert end["lost"]["messages"] == (400 - len(kept) if order == "queue" else 0)
    assert end["lost"]["bytes"] == (0 if order == "queue" else int(files[1].name))
    with small(root) as store:
        fill(store, 400, 401)
    after = lenient.latestOffset(end, ALL)
    assert rows(lenient, end, after) == [400]
    assert after["lost"] == end["lost"]  # counted once


@ORDERS
@pytest.mark.parametrize("version", [1, 2])
def test_a_store_set_back_is_an_error_or_is_read_on(root: str, order: str, version: int) -> None:
    reader = stream(root, order=order, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    ahead: dict[str, Any] = {name: offset + 10_000 for name, offset in at(end).items()}
    if version == 2:
        numbers = {name: [n, *end["queues"][name][1:]] for name, n in ahead.items()} if order == "queue" else {}
        ahead = {**end, "queues": numbers} if order == "queue" else {**end, **ahead}
        del ahead["from"]  # which the end of the first batch alone has
    with pytest.raises(DataLoss, match="ends at"):
        reader.latestOffset(ahead, ALL)
    with pytest.raises(DataLoss, match="ends at"):
        reader.partitions(end, ahead)
    lenient = stream(root, order=order, startingOffsets="earliest", failOnDataLoss="false")
    assert lenient.partitions(end, ahead) == []
    after = lenient.latestOffset(ahead, ALL)
    # What an old offset says cannot be compared with the store: rather twice than never.
    assert sorted(rows(lenient, ahead, after)) == (list(range(60)) if version == 1 else [])
    with small(root) as store:
        fill(store, 60, 63)
    assert sorted(rows(lenient, after, lenient.latestOffset(after, ALL))) == [60, 61, 62]


def test_a_topic_that_was_deleted_ends_no_stream(root: str) -> None:
    with small(root) as store:
        fill(store, 100, 103, "u")
    reader = stream(root, subscribe="t,u", startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with small(root) as store:
        store.delete_topic("u")
        fill(store, 60, 62)
    assert rows(reader, end, reader.latestOffset(end, ALL)) == [60, 61]


@ORDERS
def test_the_latest_offset_is_reported_for_the_lag(root: str, order: str) -> None:
    reader = stream(root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(15))
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert lag(root, end, latest) == 45
    assert lag(root, latest, latest) == 0


@ORDERS
def test_the_stream_offset_is_committed_to_a_consumer_group(root: str, order: str) -> None:
    reader = stream(root, order=order, startingOffsets="earliest", maxOffsetsPerTrigger=15, commitGroup="watchers")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(15))
    read = rows(reader, start, end)
    reader.commit(end)
    with mqfast.StoreReader(root) as store:
        noted = store.consumer_offsets("watchers")["t"]
        assert noted == {queue: sum(n % 3 == queue for n in read) for queue in range(3)}
    reader.commit(start)  # a group never goes back
    with mqfast.StoreReader(root) as store:
        assert store.consumer_offsets("watchers")["t"] == noted


def test_a_store_with_a_writer_gets_no_group_offsets_and_no_error(root: str) -> None:
    progress = GroupProgress(root, "watchers")
    with small(root):
        assert not progress.commit({"t/0": 3})
    assert progress.commit({"t/0": 3})
    assert not GroupProgress(root + "/nowhere", "g").commit({"t/0": 1})
    with mqfast.StoreReader(root) as store:
        assert store.consumer_offsets("watchers") == {"t": {0: 3}}
        assert queue_offsets(store, {"phy": 0}) == {("t", q): 0 for q in range(3)}
        assert queue_offsets(store, {"phy": 1 << 40}) == {("t", q): 20 for q in range(3)}


@pytest.mark.parametrize("text", [None, "", "null", "{}", "[1]", "17", '{"logOffset": 3}', '{"a": "b"}', "{"])
def test_offsets_of_other_sources_are_left_alone(text: str | None) -> None:
    assert _offset(text) is None
    assert _offset('{"t/1": 4}') == {"t/1": 4}


def test_an_unknown_topic_is_an_error_with_the_nearest_name(root: str) -> None:
    with pytest.raises(MqfastError, match="did you mean t"):
        stream(root, subscribe="tt").initialOffset()
