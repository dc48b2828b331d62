"""One running broker read twice, by its files and by its answers: the same rows for the same options.

No Spark processes: readers are called as Spark calls them. What only one access can do is elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("msgspec")

from places import EVERY, OTHER, TOPIC, Place, fill, flat, numbers, read, to_the_end
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqfast.errors import ConfigError, DataLoss
from mqfast.testing import Broker

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def running(base: Path) -> Iterator[tuple[Broker, str]]:
    """A broker with two topics; nobody adds to it."""
    root = str(base / "still")
    with Broker(topics={TOPIC: 3, OTHER: 2}, groups=["readers"], store=root) as broker:
        fill(broker, 0, 90)
        fill(broker, 500, 520, OTHER)
        with broker.admin() as admin:
            admin.reset_offset("readers", TOPIC, "first", dry_run=False)
        broker.wait_until(lambda: len(Place(broker, root, "files").batch()) == 110, timeout_s=60)
        yield broker, root


@pytest.fixture(params=["files", "broker"])
def place(request: pytest.FixtureRequest, running: tuple[Broker, str]) -> Place:
    return Place(*running, request.param)


@pytest.fixture(params=["files", "broker"])
def moving(request: pytest.FixtureRequest, tmp_path: Path, base: Path) -> Iterator[Place]:
    """A broker of this test's own, with 60 messages."""
    root = str(base / f"moving-{tmp_path.name}")
    with Broker(topics={TOPIC: 3}, store=root) as broker:
        fill(broker, 0, 60)
        place = Place(broker, root, request.param)
        broker.wait_until(
            lambda: len(place.batch(subscribePattern=TOPIC)) == 60, timeout_s=60
        )  # queues are written behind the log
        yield place


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [
    {}, {"verifyCrc": "fail"}, {"properties": "raw", "columns": "queueOffset,properties"}, {"decompress": "false"},
    {"partitionBytes": "4k"}, {"minPartitions": "7"}, {"batchBytes": "1k"},
])  # fmt: skip
def test_every_column_is_the_same(running: tuple[Broker, str], more: dict[str, str]) -> None:
    given = {"columns": EVERY, "subscribe": f"{TOPIC},{OTHER}", **more}
    by_files, by_broker = (Place(*running, way).batch(**given) for way in ("files", "broker"))
    assert len(by_files) == 110
    assert by_files == by_broker


@pytest.mark.parametrize("options, expected", [
    ({}, 110), ({"subscribe": TOPIC}, 90), ({"subscribe": f"{OTHER},{TOPIC}"}, 110), ({"assign": f"{TOPIC}/1"}, 30),
    ({"assign": f"{TOPIC}/0,{OTHER}/1"}, 40), ({"subscribePattern": "or.*"}, 90), ({"subscribePattern": "no.*"}, 0),
    ({"subscribe": TOPIC, "startingOffsets": "latest"}, 0), ({"subscribe": TOPIC, "startingOffsets": "-5"}, 15),
    ({"subscribe": TOPIC, "endingOffsets": '{"*": "latest", "orders/0": 4}'}, 64),
    ({"subscribe": TOPIC, "startingOffsets": '{"orders/0": 29, "orders": {"1": "latest"}}'}, 31),
    ({"subscribe": TOPIC, "startingOffsets": "group", "group": "nobody"}, 90),
    ({"subscribe": TOPIC, "startingOffsets": "group", "group": "readers"}, 90),
    ({"subscribe": TOPIC, "startingTimestamp": "0"}, 90), ({"subscribe": TOPIC, "endingTimestamp": "1000"}, 0),
    ({"subscribe": TOPIC, "startingTimestamp": "2099-01-01T00:00:00Z"}, 0),
    ({"subscribe": TOPIC, "startingOffsets": "-1h"}, 90), ({"subscribe": TOPIC, "tagFilter": "tag1"}, 30),
    ({"subscribe": TOPIC, "tagFilter": "tag1 || tag2"}, 60), ({"subscribe": TOPIC, "tagFilter": "nothing"}, 0),
])  # fmt: skip
def test_selection_of_messages(place: Place, options: dict[str, str], expected: int) -> None:
    assert len(place.batch(columns="topic,queueId,queueOffset,body", **options)) == expected


def test_the_time_of_a_message_is_where_a_read_begins(place: Place) -> None:
    rows = sorted(place.batch(subscribe=TOPIC, columns="storeTimestamp,body"), key=lambda row: row["body"][:6])
    moment = round(rows[45]["storeTimestamp"].timestamp() * 1000)
    expected = [row for row in rows if round(row["storeTimestamp"].timestamp() * 1000) >= moment]
    assert numbers(place.batch(subscribe=TOPIC, startingTimestamp=moment)) == numbers(expected)
    assert len(place.batch(subscribe=TOPIC, endingTimestamp=moment)) == 90 - len(expected)


@pytest.mark.parametrize("options, says", [
    ({"subscribe": "ordrs"}, "did you mean orders"), ({"assign": "orders/7"}, "no queue orders/7"),
    ({"subscribe": TOPIC, "startingOffsets": '{"orders/8": 1}'}, "not among those that are read"),
    ({"subscribePattern": "rmq_sys_.*|SCHEDULE.*"}, "only system topics fit"),
])  # fmt: skip
def test_missing_stores_and_topics_are_errors(place: Place, options: dict[str, str], says: str) -> None:
    if "Pattern" in "".join(options) and place.way == "files":
        pytest.skip("no message of a system topic is in the files")
    with pytest.raises(ConfigError, match=says):
        place.batch(**options)


def test_offsets_that_are_not_there(place: Place) -> None:
    beyond = {"subscribe": TOPIC, "endingOffsets": '{"orders/0": 400}'}
    with pytest.raises(DataLoss, match="ending offset 400"):
        place.batch(**beyond)
    assert len(place.batch(failOnDataLoss="false", **beyond)) == 90


def test_queues_and_groups_as_rows(running: tuple[Broker, str]) -> None:
    views = {}
    for way in ("files", "broker"):
        place = Place(*running, way)
        views[way] = place.batch(view="queues", subscribe=f"{TOPIC},{OTHER}"), place.batch(view="groups")
    unknown = {"minPhysicalOffset": None, "maxPhysicalOffset": None}  # brokers do not tell
    assert [row | unknown for row in views["files"][0]] == views["broker"][0]
    assert len(views["broker"][0]) == 5
    assert {row["minOffset"] for row in views["broker"][0]} == {0}
    progress = [row for row in views["broker"][1] if row["topic"] == TOPIC]
    assert [(row["group"], row["committedOffset"], row["lag"]) for row in progress] == [("readers", 0, 30)] * 3


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_reads_everything_once(moving: Place) -> None:
    reader = moving.stream(subscribe=TOPIC, startingOffsets="earliest")
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    batches, end = to_the_end(reader, start)
    assert flat(batches) == list(range(60))
    fill(moving.broker, 60, 75)
    moving.broker.wait_until(lambda: len(moving.broker.messages(TOPIC)) == 75, timeout_s=60)
    more, end = to_the_end(moving.stream(subscribe=TOPIC), end)  # as after a restart
    assert flat(more) == list(range(60, 75))
    assert read(reader, start, end) == list(range(75))
    assert to_the_end(reader, end)[0] == []
    reader.stop()


def test_latest_is_the_end_at_the_start(moving: Place) -> None:
    reader = moving.stream(subscribe=TOPIC)
    start = reader.initialOffset()
    fill(moving.broker, 60, 63)
    moving.broker.wait_until(lambda: reader.latestOffset(start, ALL) != start, timeout_s=60)
    moving.broker.wait_until(lambda: flat(to_the_end(reader, start)[0]) == [60, 61, 62], timeout_s=60)
    reader.stop()


def test_the_first_batch_that_runs_again_has_the_rows_that_were_planned(moving: Place) -> None:
    reader = moving.stream(subscribe=TOPIC)
    start = reader.initialOffset()
    fill(moving.broker, 60, 75)
    moving.broker.wait_until(lambda: len(read(reader, start, reader.latestOffset(start, ALL))) == 15, timeout_s=60)
    planned = reader.latestOffset(start, ALL)
    reader.stop()
    fill(moving.broker, 75, 78)
    after = moving.stream(subscribe=TOPIC)  # Spark asks a new process where the stream begins: latest is later now
    moving.broker.wait_until(lambda: flat(to_the_end(after, planned)[0]) == [75, 76, 77], timeout_s=60)
    begins = moving.stream(subscribe=TOPIC)
    assert read(begins, begins.initialOffset(), planned) == list(range(60, 75))
    assert read(begins, planned, planned) == []
    for each in (after, begins):
        each.stop()


def test_a_topic_that_is_not_named_any_more_keeps_its_place(moving: Place) -> None:
    with moving.broker.admin() as admin:
        admin.create_topic(OTHER, queues=2)
    fill(moving.broker, 500, 510, OTHER)
    both, fit = {"subscribe": f"{TOPIC},{OTHER}", "startingOffsets": "earliest"}, f"{TOPIC}|{OTHER}"
    moving.broker.wait_until(lambda: len(moving.batch(subscribePattern=fit)) == 70, timeout_s=60)
    reader = moving.stream(**both)
    start = reader.initialOffset()
    _, end = to_the_end(reader, start)
    narrow = moving.stream(subscribe=TOPIC)
    assert read(narrow, start, end) == [*range(60), *range(500, 510)]  # a batch that was planned stays as it is
    fill(moving.broker, 60, 63)
    fill(moving.broker, 510, 514, OTHER)
    moving.broker.wait_until(lambda: len(moving.batch(subscribePattern=fit)) == 77, timeout_s=60)
    batches, end = to_the_end(narrow, end)
    assert flat(batches) == [60, 61, 62]
    assert flat(to_the_end(moving.stream(assign=f"{TOPIC}/0"), end)[0]) == []
    assert flat(to_the_end(moving.stream(subscribe=f"{OTHER},{TOPIC}"), end)[0]) == [510, 511, 512, 513]
    with moving.broker.admin() as admin:
        admin.delete_topic(OTHER)
    fill(moving.broker, 63, 64)
    after = moving.stream(subscribe=TOPIC)
    moving.broker.wait_until(lambda: flat(to_the_end(after, end)[0]) == [63], timeout_s=60)
    with pytest.raises(DataLoss, match=f"queue {OTHER}/0"):
        moving.stream(subscribePattern=".*").latestOffset(end, ALL)
    for each in (reader, narrow, after):
        each.stop()


def test_limits_of_a_batch(moving: Place) -> None:
    by_rows = moving.stream(subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    batches, _ = to_the_end(by_rows, by_rows.initialOffset())
    assert flat(batches) == list(range(60))
    assert max(map(len, batches)) == 7
    by_bytes = moving.stream(subscribe=TOPIC, startingOffsets="earliest", maxBytesPerTrigger="4k")
    batches, _ = to_the_end(by_bytes, by_bytes.initialOffset())
    assert flat(batches) == list(range(60))
    assert 3 <= len(batches) <= 30  # records are some 250 to 550 bytes long; brokers are estimated
    for reader in (by_rows, by_bytes):
        reader.stop()


def test_a_run_that_ends_where_the_store_ended(moving: Place) -> None:
    reader = moving.stream(subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=25)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(moving.broker, 60, 80)
    assert flat(to_the_end(reader, start)[0]) == list(range(60))
    reader.stop()


def test_a_queue_and_a_topic_that_are_added(moving: Place) -> None:
    reader = moving.stream(subscribePattern="orders.*", startingOffsets="earliest")
    _, end = to_the_end(reader, reader.initialOffset())
    with moving.broker.admin() as admin:
        admin.create_topic(TOPIC, queues=5)
        admin.create_topic("orders-more", queues=1)
    fill(moving.broker, 60, 90)
    fill(moving.broker, 90, 95, "orders-more")
    found: list[int] = []

    def all_are_there() -> bool:
        nonlocal end
        batches, end = to_the_end(reader, end)
        found.extend(flat(batches))
        return len(found) >= 35

    moving.broker.wait_until(all_are_there, timeout_s=60)
    assert sorted(found) == list(range(60, 95))
    reader.stop()


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_in_mid_stream(moving: Place, again: bool) -> None:
    strict = moving.stream(subscribe=TOPIC, startingOffsets="earliest")
    lax = moving.stream(subscribe=TOPIC, startingOffsets="earliest", failOnDataLoss="false")
    _, end = to_the_end(strict, strict.initialOffset())
    with moving.broker.admin() as admin:
        admin.delete_topic(TOPIC)
        if again:
            admin.create_topic(TOPIC, queues=3)
            fill(moving.broker, 700, 790)
    strict.stop()
    strict = moving.stream(subscribe=TOPIC)
    with pytest.raises(DataLoss, match=r"queue orders/\d"):
        strict.latestOffset(end, ALL)
    batches, _ = to_the_end(lax, end)
    assert flat(batches) == (list(range(700, 790)) if again else [])
    for reader in (strict, lax):
        reader.stop()


@pytest.mark.parametrize("most", [25, 1000])
def test_a_topic_that_was_made_again_with_as_many_messages_is_read_once(moving: Place, most: int) -> None:
    reader = moving.stream(subscribe=TOPIC, startingOffsets="earliest")
    _, end = to_the_end(reader, reader.initialOffset())
    reader.stop()
    with moving.broker.admin() as admin:
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, queues=3)
    for n in range(700, 760):
        moving.broker.send(TOPIC, b"%06d" % n, queue_id=n % 3)
    again = list(range(700, 760))
    moving.broker.wait_until(lambda: numbers(moving.batch(subscribePattern=TOPIC)) == again, timeout_s=60)
    lax = moving.stream(subscribe=TOPIC, failOnDataLoss="false", maxOffsetsPerTrigger=most)
    batches, end = to_the_end(lax, end)
    assert flat(batches) == again
    assert max(map(len, batches)) == min(most, 60)
    assert to_the_end(moving.stream(subscribe=TOPIC), end)[0] == []
    lax.stop()


def test_the_progress_of_a_stream_as_a_group(moving: Place) -> None:
    if moving.way == "files":
        pytest.skip("the writer of the store has the offsets while it runs")
    reader = moving.stream(subscribe=TOPIC, startingOffsets="earliest", commitGroup="spark-progress")
    start = reader.initialOffset()
    _, end = to_the_end(reader, start)
    reader.commit(end)  # the group is not there: a warning, and the stream goes on
    moving.broker.create_topics(groups=["spark-progress"])
    assert sorted(moving.broker.offset("spark-progress", TOPIC).values()) == []
    reader.commit(end)
    assert sorted(moving.broker.offset("spark-progress", TOPIC).values()) == [20, 20, 20]
    reader.commit(start)  # a batch that runs again takes nothing back
    assert sorted(moving.broker.offset("spark-progress", TOPIC).values()) == [20, 20, 20]
    reader.stop()
