"""Streams and the sink: a whole store read as a stream beside the same batch read, the shortest trigger, and rows
written into a store exactly once.
Targets: stream with AvailableNow >= 0.7x the batch read; a trigger with 8 tasks <= 200 ms.

The store and the session are those of ``bench_spark.py``.
"""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, Table, interleaved, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")

from bench_spark import FULL, Source, _read, _seconds, source

import mqfast

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["source"]

ROUNDS = 2 if QUICK else 5
BATCH_BYTES = "16m" if QUICK else "512m"
TRIGGER_QUEUES = 8
TRIGGERS = 20 if QUICK else 100


def _finished(query: StreamingQuery) -> None:
    query.awaitTermination()
    assert query.exception() is None


def _stream(source: Source, target: str, path: Path | None, **options: str) -> float:
    """Seconds of one AvailableNow run over the whole store, from a checkpoint of its own."""
    checkpoint = source.store.parent / f"checkpoint-{uuid.uuid4().hex}"
    given = {"columns": FULL, "startingOffsets": "earliest", "maxBytesPerTrigger": BATCH_BYTES, **options}
    rows = source.spark.readStream.format("mqfast").options(**given).load(str(source.store))
    began = time.perf_counter()
    writing = rows.writeStream.format(target).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    _finished(writing.start(str(path)) if path is not None else writing.start())
    seconds = time.perf_counter() - began
    shutil.rmtree(checkpoint)
    return seconds


def test_a_whole_store_as_a_stream(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """Batches of 512 MiB, to noop, beside the batch read."""
    works = {"batch": lambda: _seconds(_read(source, FULL)), "stream": lambda: _stream(source, "noop", None)}
    batch, stream = interleaved(*works.values(), rounds=ROUNDS)
    benchmark.pedantic(works["stream"], rounds=1)
    ratio, median = ratio_of(batch, stream), statistics.median(stream)
    table.add(
        "Spark: stream, AvailableNow",
        f"{source.bytes / median / 1e9:.2f} GB/s, {source.rows / median / 1e6:.2f} M rows/s, {ratio:.2f}x batch",
        ">= 0.7x batch",
        QUICK or ratio >= 0.7,
    )


def test_the_shortest_trigger(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """A message in each of 8 queues for each trigger: what a trigger takes when there is next to nothing to read."""
    base = source.store.parent / f"trickle-{uuid.uuid4().hex}"
    place = base / "store"
    base.mkdir()
    with mqfast.open(place, mapped_file_bytes_commit_log=16 << 20) as store:
        for queue in range(TRIGGER_QUEUES):
            store.put("t", b"first", queue)
        options = {"order": "queue", "minPartitions": str(TRIGGER_QUEUES), "stateDir": str(base / "state")}
        rows = source.spark.readStream.format("mqfast").options(**options).load(str(place))
        writing = rows.writeStream.format("noop").option("checkpointLocation", str(base / "checkpoint"))
        query = writing.trigger(processingTime="0 seconds").start()
        done: dict[int, int] = {}

        def trickle() -> None:
            deadline = time.monotonic() + 120
            while len(done) < TRIGGERS and time.monotonic() < deadline:
                for queue in range(TRIGGER_QUEUES):
                    store.put("t", b"x" * 100, queue)
                query.processAllAvailable()
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        done[progress["batchId"]] = progress["durationMs"]["triggerExecution"]

        benchmark.pedantic(trickle, rounds=1)
        query.stop()
    warm = [done[batch] for batch in sorted(done)[len(done) // 4 :]]
    median = statistics.median(warm)
    table.add(
        f"Spark: trigger, {TRIGGER_QUEUES} tasks",
        f"{median:.0f} ms (best {min(warm)})",
        "<= 200 ms",
        QUICK or median <= 200,
    )
    shutil.rmtree(base)


def test_rows_into_a_store_exactly_once(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """A stream of the whole store into another one, and a batch of the same rows."""

    def fresh() -> Path:
        target = source.store.parent / f"target-{uuid.uuid4().hex}"
        with mqfast.open(target, mapped_file_bytes_commit_log=256 << 20) as store:
            store.put("first", b"")
        return target

    def gone(target: Path, rows: int) -> None:
        with mqfast.StoreReader(target) as reader:
            assert sum(q.max_offset for q in reader.queues()) == rows + 1
        shutil.rmtree(target)

    def stream() -> float:
        target = fresh()
        seconds = _stream(source, "mqfast", target)
        gone(target, source.rows)
        return seconds

    def batch() -> float:
        target = fresh()
        began = time.perf_counter()
        _read(source, FULL).write.format("mqfast").mode("append").save(str(target))
        seconds = time.perf_counter() - began
        gone(target, source.rows)
        return seconds

    rounds = 1 if QUICK else 3
    for what, seconds in zip(("stream", "batch"), interleaved(stream, batch, rounds=rounds), strict=True):
        median = statistics.median(seconds)
        text = f"{source.bytes / median / 1e9:.2f} GB/s, {source.rows / median / 1e3:.0f} k rows/s"
        table.add(f"Spark: {what} into a store, exactly once", text, "", None)
    benchmark.pedantic(batch, rounds=1)
