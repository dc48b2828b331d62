"""A stream that begins in an archive and goes on at the store: every message once, wherever it is started again.

Most tests call the reader as Spark does, in this process; the last one is a query of Spark. Streams
from archives of clusters are in ``test_cluster_jobs.py``.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqfast
from mqfast.errors import ConfigError, CorruptFile, DataLoss, UsageError

pytest.importorskip("pyspark")

from conftest import copy_of, golden_cases
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from test_stream import fill, small

from mqfast.spark import options as table
from mqfast.spark.archive_manifest import manifests
from mqfast.spark.archive_then_live import StreamFromArchive
from mqfast.spark.jobs import archive as archive_job
from mqfast.spark.listener import _offset, lag
from mqfast.spark.schema import VIEWS, chosen_columns
from mqfast.spark.source import BatchReader, MqFastSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()
Row = dict[str, Any]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive job's tasks, without a session."""

    def run_tasks(spark: object, items: Sequence[Any], task: Callable[[Any], Any], what: str) -> list[Any]:
        return [pickle.loads(pickle.dumps(task(pickle.loads(pickle.dumps(item))))) for item in items]

    monkeypatch.setattr("mqfast.spark.jobs.archive.run_tasks", run_tasks)


def put(store: Path, first: int, end: int, topic: str = "t") -> None:
    with small(str(store)) as opened:
        fill(opened, first, end, topic)


def archive(base: Path, **settings: Any) -> None:
    archive_job.run(None, archive_job.ArchiveSettings(str(base / "store"), str(base / "archive"), **settings))  # type: ignore[arg-type]


def reader(base: Path, **options: Any) -> StreamFromArchive:
    given = {
        "path": str(base / "store"), "startingFrom": f"archive:{base / 'archive'}",
        **{name: str(value) for name, value in options.items()},
    }  # fmt: skip
    source = MqFastSource(given)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamFromArchive)
    return made


def rows_of(one: StreamFromArchive, start: Row, end: Row) -> list[Row]:
    return [
        row
        for part in pickle.loads(pickle.dumps(one.partitions(start, end)))
        for batch in one.read(part)
        for row in batch.to_pylist()
    ]


def offsets(make: Callable[[], StreamFromArchive], start: Row | None = None) -> list[Row]:
    """Every offset of a stream up to its end; a reader of its own for each, as if each batch were the first one."""
    found = [make().initialOffset() if start is None else start]
    for _ in range(200):
        one = make()
        end = one.latestOffset(json.loads(json.dumps(found[-1])), one.getDefaultReadLimit())
        one.stop()
        if json.dumps(end) == json.dumps(found[-1]):
            return found
        found.append(json.loads(json.dumps(end)))
    raise AssertionError("the stream never reaches its end")


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["body"].split()[0]) for row in rows]


def batches(make: Callable[[], StreamFromArchive], start: Row | None = None) -> list[list[int]]:
    found = offsets(make, start)
    return [numbers(rows_of(make(), *pair)) for pair in itertools.pairwise(found)]


def flat(found: list[list[int]]) -> list[int]:
    return sorted(number for batch in found for number in batch)


def test_archive_then_store_each_message_once(base: Path) -> None:
    put(base / "store", 0, 200)
    archive(base, partition_bytes=5000)
    put(base / "store", 200, 350)
    found = batches(lambda: reader(base, maxOffsetsPerTrigger=40))
    assert flat(found) == list(range(350))
    assert len(found) > 6
    assert sorted(found[0]) != []
    assert max(found[0]) < 200 <= min(found[-1])
    # No batch has rows of both.
    assert all(max(batch) < 200 or min(batch) >= 200 for batch in found)
    assert len(batches(lambda: reader(base))) == 2


def test_a_start_at_any_offset_goes_on_from_there(base: Path) -> None:
    put(base / "store", 0, 120)
    archive(base, partition_bytes=5000)
    put(base / "store", 120, 200)

    def make() -> StreamFromArchive:
        return reader(base, maxOffsetsPerTrigger=30)

    chain = offsets(make)
    done = [numbers(rows_of(make(), *pair)) for pair in itertools.pairwise(chain)]
    for at, offset in enumerate(chain):
        assert sorted([*flat(done[:at]), *flat(batches(make, offset))]) == list(range(200))
        # The same batch once more has the same rows.
        if at:
            assert sorted(numbers(rows_of(make(), chain[at - 1], offset))) == sorted(done[at - 1])


def test_runs_of_the_archive_that_come_later_are_live(base: Path) -> None:
    put(base / "store", 0, 60)
    archive(base)
    first = reader(base, maxOffsetsPerTrigger=20)
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    done = numbers(rows_of(first, start, end))
    put(base / "store", 60, 100)
    archive(base)
    put(base / "store", 100, 130)
    assert len(manifests(str(base / "archive"))) == 2
    assert sorted([*done, *flat(batches(lambda: reader(base), end))]) == list(range(130))
    # Spark asks for the first offset again where the first batch was planned and not done: the plan counts.
    again = reader(base).initialOffset()
    assert again["archive"]["manifests"] == 2
    assert sorted(numbers(rows_of(reader(base), again, end))) == sorted(done)
    # A new stream takes both runs.
    assert flat(batches(lambda: reader(base))) == list(range(130))


def test_the_first_live_batch_begins_where_its_plan_says(base: Path) -> None:
    """An archive without a wanted message: the first batch is live, and was planned before the archive grew."""
    put(base / "store", 0, 30, "other")
    archive(base)
    put(base / "store", 30, 60)
    one = reader(base, subscribe="t")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    archive(base)
    again = reader(base, subscribe="t").initialOffset()
    assert again != start
    assert sorted(numbers(rows_of(reader(base, subscribe="t"), again, end))) == list(range(30, 60))


def test_lag_and_groups_know_the_live_part(base: Path) -> None:
    put(base / "store", 0, 60)
    archive(base, partition_bytes=5000)
    put(base / "store", 60, 100)
    chain = offsets(lambda: reader(base, maxOffsetsPerTrigger=30))
    one = reader(base)
    assert one.latestOffset(chain[-1], ALL) == chain[-1]
    newest = one.reportLatestOffset()
    assert newest is not None
    assert lag(str(base / "store"), chain[0], newest) == 40
    assert lag(str(base / "store"), chain[-1], newest) == 0
    # A group is not told of messages of the archive that nobody has read yet.
    assert _offset(json.dumps(chain[1])) is None
    assert _offset(json.dumps(chain[-1])) == chain[-1]["live"]


def test_state_of_the_first_start_is_kept(base: Path) -> None:
    put(base / "store", 0, 30)
    archive(base)
    start = reader(base, stateDir=base / "state").initialOffset()
    put(base / "store", 30, 50)
    archive(base)
    assert reader(base, stateDir=base / "state").initialOffset() == start
    assert reader(base).initialOffset() != start


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["normal-clean", "ipv6", "timer", "prop-crc"])
@pytest.mark.parametrize("properties", ["raw", "map"])
def test_rows_of_an_archive_are_those_of_the_store(base: Path, name: str, properties: str) -> None:
    found = golden_cases("5.3.3", (name,))
    if not found:
        pytest.skip(f"no golden store {name}")
    store = copy_of(found[0], base)
    store.rename(base / "store")
    columns = ",".join(c.name for c in VIEWS["messages"] if c.name not in ("crcOk",)) + ",store"
    archive(base, properties=properties, partition_bytes=40_000)
    for more in ({}, {"properties": "raw"} if properties == "raw" else {"includeSystemTopics": "true"}):
        options = {"columns": columns, "order": "queue", **more}
        one = reader(base, **{k: v for k, v in options.items() if k != "order"})
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        got = rows_of(one, start, end)
        parsed = table.parse({"path": str(base / "store"), **options}, table.BATCH)
        batch = BatchReader(parsed, chosen_columns(parsed))
        expected = [row for part in batch.partitions() for rows in batch.read(part) for row in rows.to_pylist()]
        assert len(got) == len(expected) > 0
        key = ("topic", "queueId", "queueOffset", "physicalOffset")
        for row in (*got, *expected):
            if not isinstance(row["properties"], str):
                row["properties"] = dict(row["properties"])
        assert sorted(got, key=lambda row: [row[k] for k in key]) == sorted(
            expected, key=lambda row: [row[k] for k in key]
        )


def test_selection_in_a_cluster_equals_selection_in_a_store(base: Path) -> None:
    put(base / "store", 0, 60)
    put(base / "store", 100, 130, "u")
    archive(base)
    put(base / "store", 60, 70)
    put(base / "store", 130, 140, "u")
    put(base / "store", 200, 210, "later")
    choices: list[tuple[dict[str, str], list[int]]] = [
        ({"subscribe": "t"}, list(range(70))),
        ({"subscribe": "t", "tagFilter": "even"}, list(range(0, 70, 2))),
        ({"assign": "t/1,u/1"}, [*range(1, 70, 3), *range(100, 140, 3)]),
        ({"subscribePattern": "u|later"}, [*range(100, 140), *range(200, 210)]),
        ({}, [*range(70), *range(100, 140), *range(200, 210)]),
    ]
    for options, expected in choices:
        found = flat(batches(lambda options=options: reader(base, **options)))
        assert found == sorted(expected), options


def test_other_topics_while_a_stream_is_in_its_archive_are_refused(base: Path) -> None:
    put(base / "store", 0, 30)
    put(base / "store", 100, 130, "u")
    archive(base)
    for topics, others in (("t,u", "t"), ("t", "u")):  # fewer files, and as many
        began = reader(base, subscribe=topics, maxOffsetsPerTrigger=1)
        start = began.initialOffset()
        first = began.latestOffset(start, ReadMaxRows(1))
        with pytest.raises(UsageError, match="files that the stream began with"):
            reader(base, subscribe=others).latestOffset(start, ALL)
        with pytest.raises(UsageError, match="files that the stream began with"):
            reader(base, subscribe=others).partitions(start, first)
        began.stop()


def test_a_topic_that_was_made_again_since_the_archive_is_no_part_of_it(base: Path) -> None:
    put(base / "store", 0, 60)
    put(base / "store", 60, 90, "u")
    archive(base)
    put(base / "store", 90, 100, "u")
    with small(str(base / "store")) as store:
        store.delete_topic("t")
    put(base / "store", 200, 350)  # more than the archive has
    with pytest.raises(DataLoss, match="of queue t/0 is another one now: its topic was made again"):
        reader(base).initialOffset()
    found = flat(batches(lambda: reader(base, failOnDataLoss="false")))
    assert sorted(found) == [*range(100), *range(200, 350)]


def test_manifests_without_queues_are_read(base: Path) -> None:
    """As the first releases of the job wrote them."""
    put(base / "store", 0, 90)
    archive(base)
    put(base / "store", 90, 120)
    (note,) = (base / "archive" / "_manifest").glob("0*.json")
    value = json.loads(note.read_text())
    assert value.pop("queues")
    note.write_text(json.dumps(value))
    assert flat(batches(lambda: reader(base))) == list(range(120))


def test_options_that_exclude_starting_from_are_refused(base: Path) -> None:
    put(base / "store", 0, 60)
    with pytest.raises(UsageError, match="found no manifest"):
        reader(base).initialOffset()
    archive(base)
    for options, says in (
        ({"startingOffsets": "earliest"}, "expected one of them"),
        ({"startingOffsetsByTimestamp": '{"t/0": 1}'}, "startingOffsetsByTimestamp: expected one of them"),
        ({"order": "commitlog"}, "goes along the queues"),
        ({"startingFrom": "elsewhere"}, "expected archive:PATH"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            reader(base, **options).initialOffset()
    with pytest.raises(ConfigError, match="crcOk"):
        reader(base, verifyCrc="mark").initialOffset()
    of_cluster = table.parse({"namesrv": "h:1", "startingFrom": "archive:/a", "sqlFilter": "a > 1"}, table.STREAM)
    with pytest.raises(ConfigError, match="startingFrom and sqlFilter"):
        StreamFromArchive(of_cluster, (), lambda _: None)
    one = reader(base)
    with pytest.raises(UsageError, match="began without startingFrom"):
        one.latestOffset({"version": 2, "queues": {}}, ALL)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(1))
    for file in (base / "archive").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-1] + b"X")
    with pytest.raises(CorruptFile, match="not as its manifest says"):
        rows_of(one, start, end)


def test_messages_that_retention_took_before_the_archive_had_them(base: Path) -> None:
    put(base / "store", 0, 60)
    archive(base)
    put(base / "store", 60, 2000)
    for log in sorted((base / "store" / "commitlog").iterdir())[:3]:
        log.unlink()
    with pytest.raises(DataLoss, match="starting offset"):
        reader(base).initialOffset()
    found = flat(batches(lambda: reader(base, failOnDataLoss="false")))
    assert found[:60] == list(range(60))
    assert found[-1] == 1999
    assert 60 < len(found) < 2000


def test_a_query_of_spark_that_is_started_again(spark: SparkSession, base: Path) -> None:
    put(base / "store", 0, 300)
    archive(base, partition_bytes=20_000)

    def run(stop_after: int | None) -> None:
        frame = spark.readStream.format("mqfast").options(
            startingFrom=f"archive:{base / 'archive'}", maxOffsetsPerTrigger=120, columns="queueId,queueOffset,body"
        )
        stream = frame.load(str(base / "store")).writeStream.format("parquet")
        query = stream.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True)
        running = query.start(str(base / "out"))
        while not running.awaitTermination(1):
            if stop_after is not None and len(running.recentProgress) >= stop_after:
                running.stop()
                break

    run(1)
    put(base / "store", 300, 400)
    run(None)
    with mqfast.StoreReader(base / "store") as check:
        assert sum(q.max_offset for q in check.queues()) == 400
    rows = [row.asDict() for row in spark.read.parquet(str(base / "out")).collect()]
    assert sorted(numbers(rows)) == list(range(400))
