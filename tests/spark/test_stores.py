"""Several stores in one read or stream, and logs that do not lie in their store.

No Spark processes but where a list of paths comes from Spark.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqfast
from mqfast.errors import ConfigError, DataLoss, StoreNotFound, UsageError

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from test_bodies import rows
from test_stream import ORDERS, small, stream

from mqfast.spark import options as table
from mqfast.spark.groups import GroupProgress
from mqfast.spark.schema import chosen_columns
from mqfast.spark.stream_of_stores import StreamOfStores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield Path(path)


def fill(path: Path, first: int, end: int, topic: str = "t") -> None:
    with small(str(path)) as store:
        for n in range(first, end):
            store.put(topic, b"%06d" % n, n % 3)


def two(base: Path) -> str:
    fill(base / "a", 0, 30)
    fill(base / "b", 100, 145)
    fill(base / "b", 500, 505, "only-b")
    return two_paths(base)


def two_paths(base: Path) -> str:
    return json.dumps({"broker-a": str(base / "a"), "broker-b": str(base / "b")})


def batch(**options: Any) -> list[dict[str, Any]]:
    from mqfast.spark.source import BatchReader

    parsed = table.parse({name: str(value) for name, value in options.items()}, table.BATCH)
    reader = BatchReader(parsed, chosen_columns(parsed))
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for part in parts for found in reader.read(part) for row in found.to_pylist()]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["auto", "queue", "commitlog"])
def test_the_column_store_names_the_store_of_a_row(base: Path, order: str) -> None:
    paths = two(base)
    found = batch(paths=paths, order=order, columns="store,topic,queueId,body")
    assert numbers([row for row in found if row["store"] == "broker-a"]) == list(range(30))
    assert numbers([row for row in found if row["store"] == "broker-b"]) == [*range(100, 145), *range(500, 505)]
    unnamed = batch(paths=f"{base}/a,{base}/b", order=order)
    assert next(iter(unnamed[0])) == "store"
    assert {row["store"] for row in unnamed} == {f"{base}/a", f"{base}/b"}
    assert {row["store"] for row in batch(paths=paths, columns="store")} == {"broker-a", "broker-b"}
    one = batch(path=base / "a", columns="store,body")
    assert {row["store"] for row in one} == {str(base / "a")}
    assert "store" not in batch(path=base / "a")[0]


def test_topics_and_offsets_of_several_stores(base: Path) -> None:
    paths = two(base)
    assert numbers(batch(paths=paths, subscribe="only-b")) == list(range(500, 505))
    assert len(batch(paths=paths, subscribe="t,only-b")) == 80
    assert len(batch(paths=paths, assign="t/0,only-b/2")) == 10 + 15 + 2
    starting = json.dumps({"broker-a": {"t/0": 9, "t/1": "latest"}, "broker-b": {"*": "latest"}})
    assert numbers(batch(paths=paths, startingOffsets=starting)) == sorted([27, *range(2, 30, 3)])
    assert len(batch(paths=paths, startingOffsets=json.dumps({"broker-a": {"t": {"0": 9}}, "*": "latest"}))) == 21
    for options, says in (
        ({"subscribe": "onlyb"}, "did you mean only-b"), ({"assign": "t/9"}, "no queue t/9"),
        ({"startingOffsets": '{"t/0": 1}'}, "the offsets of each store"),
        ({"startingOffsets": '{"broker-c": {"t/0": 1}}'}, "did you mean broker-[ab]"),
        ({"startingOffsetsByTimestamp": '{"t/0": 1}'}, "it is for one store"),
        ({"path": str(base / "a")}, "expected one of them"), ({"storePathCommitLog": "/x"}, "expected one of them"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            batch(paths=paths, **options)
    with pytest.raises(ConfigError, match="once"):
        batch(paths=f"{base}/a,{base}/a")
    with pytest.raises(ConfigError, match="for several stores"):
        batch(path=base / "a", startingOffsets='{"x": {"t/0": 1}}')
    with pytest.raises(StoreNotFound):
        batch(paths=f"{base}/a,{base}/nowhere")


@pytest.mark.parametrize("view", ["queues", "files", "audit", "consumequeue", "groups"])
def test_views_of_several_stores(base: Path, view: str) -> None:
    paths = two(base)
    for name in "ab":
        assert GroupProgress(str(base / name), "g").commit({"t/0": 3})
    found = batch(paths=paths, view=view)
    assert {row["store"] for row in found} == {"broker-a", "broker-b"}
    alone = batch(path=base / "a", view=view)
    assert [row for row in found if row.pop("store") == "broker-a"] == alone


def test_spark_passes_a_list_of_paths(spark: SparkSession, base: Path) -> None:
    two(base)
    frame = spark.read.format("mqfast").load([str(base / "a"), str(base / "b")])
    assert frame.groupBy("store").count().orderBy("store").collect() == [(f"{base}/a", 30), (f"{base}/b", 50)]


# --- streams ---------------------------------------------------------------------------------------------------------


def of_stores(paths: str, **options: Any) -> StreamOfStores:
    given = {name: str(value) for name, value in options.items()}
    parsed = table.parse({"paths": paths, "columns": "store,body", **given}, table.STREAM)
    return StreamOfStores(parsed, chosen_columns(parsed))


def read(reader: StreamOfStores, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return [row for part in parts for found in reader.read(part) for row in found.to_pylist()]


def to_the_end(reader: StreamOfStores, start: dict[str, Any]) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    batches = []
    for _ in range(500):
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if json.dumps(end) == json.dumps(start):
            return batches, end
        batches.append(read(reader, start, end))
        start = end
    raise AssertionError("the stream never reaches its end")


@ORDERS
@pytest.mark.parametrize(
    "limits", [{}, {"maxOffsetsPerTrigger": 7}, {"maxOffsetsPerTrigger": 1}, {"maxBytesPerTrigger": 900}]
)
def test_a_stream_over_several_stores_reads_everything_once(base: Path, order: str, limits: dict[str, int]) -> None:
    paths = two(base)
    reader = of_stores(paths, startingOffsets="earliest", order=order, **limits)
    start = reader.initialOffset()
    batches, end = to_the_end(reader, start)
    found = [row for rows in batches for row in rows]
    assert numbers(found) == sorted([*range(30), *range(100, 145), *range(500, 505)])
    most = limits.get("maxOffsetsPerTrigger")
    if most is not None:
        assert max(map(len, batches)) <= most
        assert len({row["store"] for rows in batches[:4] for row in rows}) == 2  # none starves
    fill(base / "a", 30, 33)
    reader.stop()
    again = of_stores(paths, order=order)
    assert numbers([row for rows in to_the_end(again, end)[0] for row in rows]) == [30, 31, 32]


@ORDERS
def test_available_now_and_waiting_over_several_stores(base: Path, order: str) -> None:
    paths = two(base)
    reader = of_stores(paths, startingOffsets="earliest", order=order, minOffsetsPerTrigger=81, maxTriggerDelay="1h")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    fill(base / "a", 30, 31)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(read(reader, start, end)) == 81
    now = of_stores(paths, startingOffsets="earliest", order=order, minOffsetsPerTrigger=1000)
    now.prepareForTriggerAvailableNow()
    start = now.initialOffset()
    fill(base / "b", 600, 610)
    assert sum(len(rows) for rows in to_the_end(now, start)[0]) == 81


@ORDERS
def test_a_store_that_joins_is_read_from_its_first_message(base: Path, order: str) -> None:
    paths = two(base)
    reader = of_stores(paths, startingOffsets="latest", order=order)
    start = reader.initialOffset()
    fill(base / "c", 900, 910)
    three = json.dumps({**json.loads(paths), "broker-c": str(base / "c")})
    batches, end = to_the_end(of_stores(three, order=order), start)
    assert numbers([row for rows in batches for row in rows]) == list(range(900, 910))
    left = json.dumps({"broker-a": str(base / "a")})
    fill(base / "a", 30, 31)
    batches, end = to_the_end(of_stores(left, order=order), end)
    assert numbers([row for rows in batches for row in rows]) == [30]
    assert set(end["stores"]) == {"broker-a", "broker-b", "broker-c"}  # kept for when they are back


@ORDERS
def test_a_store_that_leaves_between_plan_and_batch_is_named(base: Path, order: str) -> None:
    reader = of_stores(two(base), startingOffsets="earliest", order=order)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    left = of_stores(json.dumps({"broker-a": str(base / "a")}), order=order)
    with pytest.raises(UsageError, match="store broker-b: a batch that was planned reads it"):
        left.partitions(start, end)
    left.stop()


@ORDERS
def test_losses_of_a_joined_store_before_its_first_batch_are_reported(base: Path, order: str) -> None:
    reader = of_stores(two(base), startingOffsets="latest", order=order)
    start = reader.initialOffset()
    reader.stop()
    fill(base / "c", 900, 1800)
    three = json.dumps({**json.loads(two_paths(base)), "broker-c": str(base / "c")})
    planning = of_stores(three, order=order)
    end = json.loads(json.dumps(planning.latestOffset(start, ALL)))
    assert numbers(read(planning, start, end)) == list(range(900, 1800))
    planning.stop()
    first, *others = sorted((base / "c" / "commitlog").iterdir())
    assert others
    first.unlink()
    with pytest.raises(DataLoss, match="begins at"):
        of_stores(three, order=order).partitions(start, end)
    left = numbers(read(of_stores(three, order=order, failOnDataLoss="false"), start, end))
    assert left == list(range(left[0], 1800))
    assert left[0] > 900


@ORDERS
def test_losses_of_one_of_several_stores_are_reported(base: Path, order: str) -> None:
    paths = two(base)
    reader = of_stores(paths, startingOffsets="earliest", order=order)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    os.rename(base / "b", base / "old")
    fill(base / "b", 700, 720)
    with pytest.raises(DataLoss, match=f"{base}/b: not the store"):
        of_stores(paths, order=order).latestOffset(end, ALL)
    lenient = of_stores(paths, order=order, failOnDataLoss="false")
    batches, after = to_the_end(lenient, end)
    assert numbers([row for rows in batches for row in rows]) == list(range(700, 720))
    assert after["stores"]["broker-b"]["lost"]["times"] >= 1
    with pytest.raises(UsageError, match="path, not paths"):
        reader.latestOffset({"phy": 3}, ALL)


def test_topics_that_only_one_of_the_stores_has(base: Path) -> None:
    paths = two(base)
    reader = of_stores(paths, startingOffsets="earliest", subscribe="only-b", stateDir=str(base / "state"))
    start = reader.initialOffset()
    assert len(list((base / "state").iterdir())) == 2
    assert numbers([row for rows in to_the_end(reader, start)[0] for row in rows]) == list(range(500, 505))
    with pytest.raises(ConfigError, match="did you mean only-b"):
        of_stores(paths, subscribe="onlyb").initialOffset()


@ORDERS
def test_groups_and_lag_of_one_of_several_stores(base: Path, order: str) -> None:
    from mqfast.spark.listener import _offset, lag

    reader = of_stores(two(base), startingOffsets="earliest", order=order, commitGroup="g")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    text = json.dumps(end)
    assert _offset(text, "broker-b") == end["stores"]["broker-b"]
    assert _offset(text, "broker-c") is None
    assert lag(str(base / "b"), start, end, store="broker-b") == 50
    reader.commit(end)
    for name, count in (("a", 30), ("b", 45)):
        with mqfast.StoreReader(base / name) as store:
            assert sum(store.consumer_offsets("g")["t"].values()) == count


# --- logs elsewhere --------------------------------------------------------------------------------------------------


@ORDERS
def test_a_log_outside_of_the_store_on_several_disks(base: Path, order: str) -> None:
    """As RocketMQ's storePathCommitLog with several directories: files of the log in turn on each."""
    path = base / "s"
    fill(path, 0, 1500)
    disks = [base / "disk1", base / "disk2", base / "disk3"]
    for number, file in enumerate(sorted((path / "commitlog").iterdir())):
        disk = disks[number % 3]
        disk.mkdir(exist_ok=True)
        file.rename(disk / file.name)
    (path / "commitlog").rmdir()
    with pytest.raises(StoreNotFound):
        rows(path)
    places = ",".join(str(disk) for disk in disks)
    assert numbers(rows(path, order=order, storePathCommitLog=places)) == list(range(1500))
    reader = stream(str(path), startingOffsets="earliest", order=order, storePathCommitLog=places)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    found = [row for part in reader.partitions(start, end) for one in reader.read(part) for row in one.to_pylist()]
    assert numbers(found) == list(range(1500))
    GroupProgress(str(path), "g", commit_log=list(map(str, disks))).commit(end)
    with pytest.raises(StoreNotFound):
        rows(path, storePathCommitLog=f"{places},{base}/nowhere")
    with mqfast.StoreReader(path, commit_log=[str(disk) for disk in disks]) as store:
        assert len(store.log_starts()) > 2
        assert store.consumer_offsets("g") == {"t": dict.fromkeys(range(3), 500)}
