"""Streams of a store in a real session: restarts, limits, progress, groups.

What one reader does without a session is in ``test_stream.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqfast

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield Path(path)


def fill(path: Path, first: int, end: int) -> None:
    small = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    with mqfast.open(path, mapped_file_bytes_commit_log=1 << 16, **small) as store:
        for n in range(first, end):
            store.put("t", b"%d" % n, n % 2)


def stream(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.readStream.format("mqfast").options(**options).load(str(path))


class Collected:
    """What a query gave, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.batches.append([int(bytes(row.body)) for row in rows.select("body").collect()])

    @property
    def numbers(self) -> list[int]:
        return sorted(n for batch in self.batches for n in batch)


def run(rows: DataFrame, checkpoint: Path, name: str = "rows") -> tuple[Collected, Any]:
    """Everything that is there now."""
    collected = Collected()
    writing = rows.writeStream.foreachBatch(collected).option("checkpointLocation", str(checkpoint))
    query = writing.queryName(name).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    return collected, query


@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_restart_goes_on_where_the_last_run_ended(spark: SparkSession, place: Path, order: str) -> None:
    fill(place / "store", 0, 70)
    options = {"startingOffsets": "earliest", "order": order, "maxOffsetsPerTrigger": "30"}
    first, query = run(stream(spark, place / "store", **options), place / "checkpoint")
    assert [len(batch) for batch in first.batches] == [30, 30, 10]
    assert first.numbers == list(range(70))
    [source] = query.lastProgress["sources"]
    assert ("phy" in source["endOffset"]) == (order == "commitlog")
    fill(place / "store", 70, 75)
    second, _ = run(stream(spark, place / "store", **options), place / "checkpoint")
    assert second.numbers == list(range(70, 75))
    third, _ = run(stream(spark, place / "store", **options), place / "checkpoint")
    assert third.numbers == []


def test_a_batch_that_was_not_committed_is_read_again_the_same(spark: SparkSession, place: Path) -> None:
    fill(place / "store", 0, 40)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}
    first, _ = run(stream(spark, place / "store", **options), place / "checkpoint")
    fill(place / "store", 40, 60)
    for name in ("1", ".1.crc"):
        (place / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    second, _ = run(stream(spark, place / "store", **options), place / "checkpoint")
    assert second.batches[0] == first.batches[1]
    assert second.numbers == list(range(25, 60))


def test_a_running_query_sees_new_messages_and_its_lag(spark: SparkSession, place: Path) -> None:
    fill(place / "store", 0, 10)
    collected = Collected()
    rows = stream(spark, place / "store", stateDir=str(place / "state"), maxOffsetsPerTrigger="4", order="queue")
    writing = rows.writeStream.foreachBatch(collected).option("checkpointLocation", str(place / "c"))
    query = writing.trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + 3000
        while not (place / "state" / "first-offsets.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        fill(place / "store", 10, 22)
        while len(collected.numbers) < 12:
            assert time.monotonic() < deadline, query.exception()
            time.sleep(0.05)
        query.processAllAvailable()
    finally:
        query.stop()
    assert collected.numbers == list(range(10, 22))
    assert max(len(batch) for batch in collected.batches) <= 4
    reported = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert json.loads(reported[0]["latestOffset"])["queues"] == {"t/0": [11], "t/1": [11]}


def test_the_listener_notes_the_last_batch_as_well(spark: SparkSession, place: Path) -> None:
    from mqfast.spark.listener import GroupListener

    fill(place / "store", 0, 10)
    # Spark tells late: of the tests before as well.
    listener = GroupListener(str(place / "store"), "watchers", query="watched")
    spark.streams.addListener(listener)
    try:
        rows = stream(spark, place / "store", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        run(rows, place / "c", name="watched")
        deadline = time.monotonic() + 300
        while True:  # events come later than the query's end
            with mqfast.StoreReader(place / "store") as store:
                noted = store.consumer_offsets("watchers").get("t")
            if noted == {0: 5, 1: 5}:
                break
            assert time.monotonic() < deadline, noted
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)


def test_commit_group_notes_all_but_the_last_batch(spark: SparkSession, place: Path) -> None:
    fill(place / "store", 0, 10)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "commitGroup": "g", "subscribe": "t"}
    run(stream(spark, place / "store", **options), place / "c")
    with mqfast.StoreReader(place / "store") as store:
        noted = store.consumer_offsets("g")["t"]
    assert 4 <= sum(noted.values()) <= 10


def test_one_lease_moves_with_the_batches_and_ends(spark: SparkSession, place: Path) -> None:
    fill(place / "store", 0, 20)
    run(stream(spark, place / "store", startingOffsets="earliest", maxOffsetsPerTrigger="3"), place / "c")
    for lease in (place / "store" / "spark-leases").iterdir():  # Spark kills the process that planned, perhaps first
        found = json.loads(lease.read_bytes())
        assert found["expiresMs"] < time.time() * 1000 + 60_000
        with mqfast.StoreReader(place / "store") as store:
            assert found["minPhysicalOffset"] > store.scan().__next__().physical_offset
    assert len(list((place / "store" / "spark-leases").iterdir())) <= 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"subscribe": "tt"}, "did you mean t"),
        ({"view": "queues"}, "it is for batch"),
        ({"endingOffsets": "latest"}, "it is for batch"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number above 0"),
        ({"order": "commitlog", "startingOffsets": "-5"}, "need order=queue"),
    ],
)
def test_wrong_option_values_are_named(spark: SparkSession, place: Path, options: dict[str, str], message: str) -> None:
    from pyspark.errors import PySparkException

    fill(place / "store", 0, 1)
    with pytest.raises(PySparkException, match=message):
        run(stream(spark, place / "store", **options), place / "c")


def test_losses_are_counted_in_the_progress(spark: SparkSession, place: Path) -> None:
    options = {"startingOffsets": "earliest", "order": "queue"}
    fill(place / "store", 0, 40)
    first, _ = run(stream(spark, place / "store", **options), place / "checkpoint")
    assert first.numbers == list(range(40))
    shutil.rmtree(place / "store")
    fill(place / "store", 100, 115)
    with pytest.raises(StreamingQueryException, match="not the store that the stream was reading"):
        run(stream(spark, place / "store", **options), place / "checkpoint")
    lenient = stream(spark, place / "store", failOnDataLoss="false", **options)
    second, query = run(lenient, place / "checkpoint")
    assert second.numbers == list(range(100, 115))
    progress = [json.loads(p["sources"][0]["endOffset"]) for p in query.recentProgress]
    assert progress[-1]["lost"]["times"] == 1
