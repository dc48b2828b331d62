"""Reading a running cluster with Spark: a broker of mqfast on this machine, full rows, metadata, streams, the trigger.
Targets, by the figures of Spark's Kafka connector on such a machine (full rows 114 to 142 krow/s, stream 138 to 142):
full rows >= 2.5x, stream >= 2x, a trigger with 8 tasks <= 200 ms, memory of a Python worker <= 256 MiB.

Broker, JVM and Python workers share two processors, so beside each figure stands the same read of the files, in turn.
The store and the session are those of ``bench_spark.py``; the broker has a copy of the store.
"""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, Table, interleaved, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")
pytest.importorskip("msgspec", reason="needs mqfast[broker]")

from bench_spark import FULL, METADATA, PARTITION, Source, _most_memory, _read, _seconds, source
from bench_spark_stream import TRIGGER_QUEUES, _run, _triggers

from mqfast.client import Producer
from mqfast.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["source"]

ROUNDS = 2 if QUICK else 5
KAFKA_FULL, KAFKA_STREAM = 142e3, 142e3


@pytest.fixture(scope="module")
def broker(source: Source) -> Iterator[Broker]:
    """A broker on a copy of the store, in a process of its own."""
    path = source.store.parent / "served"
    shutil.copytree(source.store, path)
    size = max(file.stat().st_size for file in (path / "commitlog").iterdir())
    sizes = {
        "mappedFileSizeCommitLog": str(size), "mappedFileSizeConsumeQueue": "6000000", "maxHashSlotNum": "75000",
        "maxIndexNum": "300000", "flushDiskType": "ASYNC_FLUSH",
    }  # fmt: skip
    topics = {"trigger": TRIGGER_QUEUES}
    with Broker(store=path, topics=topics, config=sizes, process=True) as broker:
        yield broker


def remote(source: Source, broker: Broker, columns: str, **options: str) -> DataFrame:
    given = {"namesrv": broker.namesrv_addr, "columns": columns, "partitionBytes": PARTITION, **options}
    return source.spark.read.format("mqfast").options(subscribePattern="Topic.*", **given).load()


def stream(source: Source, broker: Broker) -> tuple[float, float]:
    given = {"namesrv": broker.namesrv_addr, "columns": FULL, "startingOffsets": "earliest"}
    rows = source.spark.readStream.format("mqfast").options(
        subscribePattern="Topic.*", partitionBytes=PARTITION, **given
    )
    return _run(source, rows.load(), "noop", None)


def test_a_cluster_beside_its_files(benchmark: BenchmarkFixture, source: Source, broker: Broker, table: Table) -> None:
    """Full rows, metadata columns, and the whole as a stream."""
    works = {
        "full rows": lambda: _seconds(remote(source, broker, FULL)),
        "full rows of the files": lambda: _seconds(_read(source, FULL, order="queue")),
        "metadata columns": lambda: _seconds(remote(source, broker, METADATA)),
        "metadata columns of the files": lambda: _seconds(_read(source, METADATA, order="queue")),
        "stream": lambda: stream(source, broker)[1],
    }
    assert remote(source, broker, "bodySize").count() == source.rows
    figures = dict(zip(works, interleaved(*works.values(), rounds=ROUNDS), strict=True))
    benchmark.pedantic(works["full rows"], rounds=1)
    targets = {"full rows": 2.5 * KAFKA_FULL, "stream": 2 * KAFKA_STREAM}
    for what, seconds in figures.items():
        rate = source.rows / statistics.median(seconds)
        text = f"{rate / 1000:.0f} krow/s"
        if f"{what} of the files" in figures:
            text += f", {ratio_of(seconds, figures[f'{what} of the files']):.2f}x the time of the files"
        target = targets.get(what)
        met = None if QUICK or target is None else rate >= target
        table.add(f"Spark, cluster: {what}", text, f">= {target / 1000:.0f} krow/s" if target else "", met)
    memory = _most_memory()
    table.add("Spark, cluster: memory of a Python worker", f"{memory:.0f} MiB at most", "<= 256 MiB", 0 < memory <= 256)


def test_the_shortest_trigger_of_a_cluster(
    benchmark: BenchmarkFixture, source: Source, broker: Broker, table: Table, tmp_path: Path
) -> None:
    """A message in each of 8 queues for each trigger."""
    with Producer("bench", broker.namesrv_addr) as producer:
        given = {"namesrv": broker.namesrv_addr, "subscribe": "trigger", "minPartitions": str(TRIGGER_QUEUES)}
        rows = source.spark.readStream.format("mqfast").options(startingOffsets="earliest", **given).load()
        writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / uuid.uuid4().hex))
        query = writing.trigger(processingTime="0 seconds").start()

        def put() -> None:
            for _ in range(TRIGGER_QUEUES):
                producer.send("trigger", b"x" * 100)
            query.processAllAvailable()

        began = time.perf_counter()
        figures = benchmark.pedantic(lambda: _triggers(query, put), rounds=1)
    median = statistics.median(figures)
    table.add(
        f"Spark, cluster: trigger, {TRIGGER_QUEUES} tasks",
        f"{median:.0f} ms (best {min(figures)}), {len(figures)} in {time.perf_counter() - began:.0f} s",
        "<= 200 ms",
        None if QUICK else median <= 200,
    )
