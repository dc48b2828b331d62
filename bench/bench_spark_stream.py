"""Streams and the sink: a whole store read as a stream beside the same batch read, the shortest trigger, and rows
written into a store exactly once.
Targets: stream with AvailableNow >= 0.7x the batch read; a trigger with 8 tasks <= 200 ms.

A stream takes about a second to begin and to end, whatever it reads: most of it is a Python process of its own that
imports pyspark, and the query's metadata. So the rate that counts for the target is that of its batches; the whole run
stands beside it, and both beside the floor: a source that does nothing (``spark_floor.py``).

The store and the session are those of ``bench_spark.py``.
"""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, Table, interleaved, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")

from bench_spark import FULL, STORE_BYTES, Source, _read, _seconds, source

import mqfast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamReader, StreamingQuery
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["source"]

ROUNDS = 2 if QUICK else 5
BATCHES = 4
BATCH_BYTES = str(STORE_BYTES // BATCHES + (1 << 20))
TRIGGER_QUEUES = 8
TRIGGERS = 20 if QUICK else 60


def _finished(query: StreamingQuery) -> None:
    query.awaitTermination()
    assert query.exception() is None


def _run(source: Source, rows: DataFrame, target: str, path: Path | None) -> tuple[float, float]:
    """Seconds of one AvailableNow run from a checkpoint of its own, and those of its batches."""
    checkpoint = source.store.parent / f"checkpoint-{uuid.uuid4().hex}"
    began = time.perf_counter()
    writing = rows.writeStream.format(target).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writing.start(str(path)) if path is not None else writing.start()
    _finished(query)
    seconds = time.perf_counter() - began
    shutil.rmtree(checkpoint)
    return seconds, sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000


def _stream(source: Source, target: str, path: Path | None, **options: str) -> tuple[float, float]:
    """The whole store, by default in one batch; see _run."""
    given = {"columns": FULL, "startingOffsets": "earliest", **options}
    return _run(source, source.spark.readStream.format("mqfast").options(**given).load(str(source.store)), target, path)


def _floor_stream(source: Source) -> tuple[float, float]:
    """As many rows in as many batches and tasks, of a source that does nothing; see _run."""
    given = {"columns": FULL, "tasks": "4", "rows": str(source.rows // BATCHES), "batches": str(BATCHES)}
    return _run(source, source.spark.readStream.format("floor").options(**given).load(), "noop", None)


def test_a_whole_store_as_a_stream(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """To noop, beside the batch read: without a limit, which is one batch, and in four batches."""
    whole: dict[str, list[float]] = {"one": [], "four": [], "floor": []}

    def noted(what: str, run: tuple[float, float]) -> float:
        whole[what].append(run[0])
        return run[1]

    works = {
        "batch": lambda: _seconds(_read(source, FULL)),
        "one": lambda: noted("one", _stream(source, "noop", None)),
        "four": lambda: noted("four", _stream(source, "noop", None, maxBytesPerTrigger=BATCH_BYTES)),
        "floor": lambda: noted("floor", _floor_stream(source)),
    }
    batch, one, four, floor = interleaved(*works.values(), rounds=ROUNDS)
    benchmark.pedantic(works["one"], rounds=1)
    for what, seconds, target in (("its batch", one, 0.7), (f"in {BATCHES} batches", four, None)):
        ratio, median = ratio_of(batch, seconds), statistics.median(seconds)
        table.add(
            f"Spark: stream, AvailableNow, {what}",
            f"{source.bytes / median / 1e9:.2f} GB/s, {source.rows / median / 1e6:.2f} M rows/s, {ratio:.2f}x batch, "
            f"{ratio_of(seconds, floor):.2f}x the time of the floor in {BATCHES} batches",
            f">= {target}x batch" if target else "",
            None if QUICK or target is None else ratio >= target,
        )
    begun = {what: statistics.median(whole[what][1 : 1 + ROUNDS]) for what in whole}
    text = f"{begun['one']:.2f} s, in {BATCHES} batches {begun['four']:.2f} s, floor {begun['floor']:.2f} s"
    table.add("Spark: stream, AvailableNow, with start and end", text, "", None)


def _triggers(query: StreamingQuery, put: Callable[[], None]) -> list[int]:
    """Milliseconds of each trigger that had rows, without the first quarter."""
    done: dict[int, int] = {}
    deadline = time.monotonic() + 120
    while len(done) < TRIGGERS and time.monotonic() < deadline:
        put()
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                done[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    query.stop()
    return [done[batch] for batch in sorted(done)[len(done) // 4 :]]


def test_the_shortest_trigger(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """A message in each of 8 queues for each trigger: what a trigger takes when there is next to nothing to read. Three
    turns of the source that does nothing and of ours.
    """
    base = source.store.parent / f"trickle-{uuid.uuid4().hex}"
    base.mkdir()
    tasks = str(TRIGGER_QUEUES)
    figures: dict[str, list[int]] = {"ours": [], "floor": []}
    with mqfast.open(base / "store", mapped_file_bytes_commit_log=16 << 20, profile="broker") as store:
        for queue in range(TRIGGER_QUEUES):
            store.put("t", b"first", queue)

        def start(rows: DataStreamReader, path: Path | None, turn: int) -> StreamingQuery:
            writing = rows.load(str(path) if path is not None else None).writeStream.format("noop")
            writing = writing.option("checkpointLocation", str(base / f"checkpoint-{turn}-{path is None}"))
            return writing.trigger(processingTime="0 seconds").start()

        def turn(number: int) -> None:
            options = {"columns": "bodySize", "tasks": tasks, "rows": tasks, "batches": str(10 * TRIGGERS)}
            floor = start(source.spark.readStream.format("floor").options(**options), None, number)
            figures["floor"] += _triggers(floor, lambda: time.sleep(0.1))
            options = {"order": "queue", "minPartitions": tasks, "stateDir": str(base / f"state-{number}")}
            ours = start(source.spark.readStream.format("mqfast").options(**options), base / "store", number)

            def put() -> None:
                for queue in range(TRIGGER_QUEUES):
                    store.put("t", b"x" * 100, queue)
                ours.processAllAvailable()

            figures["ours"] += _triggers(ours, put)

        turns = iter(range(3))
        benchmark.pedantic(lambda: turn(next(turns)), rounds=1 if QUICK else 3)
    median, least = (statistics.median(figures[what]) for what in figures)
    table.add(
        f"Spark: trigger, {TRIGGER_QUEUES} tasks",
        f"{median:.0f} ms (best {min(figures['ours'])}), {median / least:.2f}x the baseline",
        "<= 200 ms",
        None if QUICK else median <= 200,
        baseline=f"a source that does nothing {least:.0f} ms",
    )
    shutil.rmtree(base)


def test_rows_into_a_store_exactly_once(benchmark: BenchmarkFixture, source: Source, table: Table) -> None:
    """A stream of the whole store into another one, and a batch of the same rows."""

    def fresh() -> Path:
        target = source.store.parent / f"target-{uuid.uuid4().hex}"
        with mqfast.open(target, mapped_file_bytes_commit_log=256 << 20, profile="broker") as store:
            store.put("first", b"")
        return target

    def gone(target: Path, rows: int) -> None:
        with mqfast.StoreReader(target) as reader:
            assert sum(q.max_offset for q in reader.queues()) == rows + 1
        shutil.rmtree(target)

    def stream() -> float:
        target = fresh()
        seconds, _ = _stream(source, "mqfast", target)
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
