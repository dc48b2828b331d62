"""``python -m mqfast.spark.demo``: stores and a running broker in Spark: rows, SQL, streams with restarts, the jobs.

The first store was written by a real broker, the second is created here. The broker's store is copied, never opened in
place. The demo fails if a figure differs from the expected one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import mqfast
from mqfast.config import StoreConfig
from mqfast.spark import conf
from mqfast.spark.demo_cluster import live_cluster
from mqfast.spark.jobs import analytics, archive, audit, replay
from mqfast.spark.options import size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["main"]

GOLDEN: Final = Path("tests", "golden", "golden-5.3.3", "normal-clean", "store")
TOPICS: Final = 8
QUEUES: Final = 4
CHUNK: Final = 64
GROUP: Final = "demo"

T = TypeVar("T")


class SparkDemoFailed(Exception):
    """A figure differs from the expected one."""


def _step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _timed(what: str, work: Callable[[], T]) -> T:
    start_s = time.perf_counter()
    result = work()
    print(f"   {what}: {time.perf_counter() - start_s:.1f} s", flush=True)
    return result


def _expect(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise SparkDemoFailed(f"{what}: expected {expected}, found {actual}")
    print(f"   {what}: {f'{actual:,}' if isinstance(actual, int) else actual}, as it must be", flush=True)


def make_store(path: Path, total_bytes: int) -> int:
    """Create a store of orders of about 1 KiB; return the number of orders."""
    bodies = [
        json.dumps({"order": i, "lines": [{"sku": f"s{(i * 7 + n) % 997:05d}", "n": n} for n in range(30)]}).encode()
        for i in range(1024)
    ]
    config = StoreConfig(mapped_file_bytes_commit_log=min(1 << 30, total_bytes))
    count = 0
    with mqfast.open(path, config=config) as store:
        producers = [
            store.producer(f"Orders{t}", q, tags=("new", "paid", "sent")[(t + q) % 3])
            for t in range(TOPICS)
            for q in range(QUEUES)
        ]
        while store.log.written < total_bytes * 0.98:
            for i, producer in enumerate(producers):
                at = (count + i * 97) % (len(bodies) - CHUNK)
                producer.put_many(bodies[at : at + CHUNK])
            count += CHUNK * len(producers)
    return count


def _load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("mqfast").options(**options).load(str(path))


def _broker_store(spark: SparkSession, golden: Path, base: Path) -> None:
    _step("A store that a RocketMQ 5.3.3 broker wrote")
    store = base / "broker-store"
    shutil.copytree(golden, store)
    rows = _load(spark, store, columns="topic,queueId,queueOffset,storeTimestamp,tags,keys,body")
    rows.orderBy("topic", "queueId", "queueOffset").show(5, truncate=24)
    _step("The same in SQL")
    options = f"path '{store}', includeBody 'false', includeSystemTopics 'true'"
    spark.sql(f"CREATE TEMPORARY VIEW messages USING mqfast OPTIONS ({options})")
    spark.sql(
        "SELECT topic, count(*) AS messages, sum(bodySize) AS bytes, count(DISTINCT tags) AS tags "
        "FROM messages GROUP BY topic ORDER BY messages DESC LIMIT 5"
    ).show()
    report = analytics.run(spark, analytics.AnalyticsSettings(str(store), str(base / "broker-store.html")))
    _expect("messages in the report", report.facts["messages"], spark.table("messages").count())


def _stream(spark: SparkSession, store: Path, base: Path, count: int) -> None:
    """Run a stream twice; the first run is stopped in the middle."""

    def run(stop_after: int | None) -> int:
        frame = (
            spark.readStream.format("mqfast")
            .options(
                columns="topic,queueId,queueOffset,bodySize", startingOffsets="earliest", commitGroup=GROUP,
                stateDir=str(base / "stream-state"), maxOffsetsPerTrigger=str(max(1, count // 4)),
            )
            .load(str(store))
        )  # fmt: skip
        query = (
            frame.writeStream.format("parquet")
            .options(path=str(base / "stream"), checkpointLocation=str(base / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(1):
            if stop_after is not None and len(query.recentProgress) >= stop_after:
                query.stop()
        return len(query.recentProgress)

    first = _timed("a run that is stopped", lambda: run(1))
    second = _timed("a run that goes on", lambda: run(None))
    print(f"   {first} batches, then {second}")
    rows = spark.read.parquet(str(base / "stream"))
    _expect("rows in the stream's output", rows.count(), count)
    _expect("different rows", rows.select("topic", "queueId", "queueOffset").distinct().count(), count)


def _jobs(spark: SparkSession, store: Path, base: Path, count: int) -> None:
    _step("The jobs: archive, replay, audit, analytics")
    to_parquet = archive.ArchiveSettings(str(store), str(base / "archive"))
    report = _timed("archive", lambda: archive.run(spark, to_parquet))
    _expect("archived messages", report.facts["messages"], count)
    _expect("archived by a second run", archive.run(spark, to_parquet).facts["messages"], 0)
    back = replay.ReplaySettings(str(base / "archive"), str(base / "replayed"))
    _expect("replayed messages", _timed("replay", lambda: replay.run(spark, back)).facts["appended"], count)
    _expect("replayed by a second run", replay.run(spark, back).facts["appended"], 0)
    report = _timed("audit", lambda: audit.run(spark, audit.AuditSettings(str(base / "replayed"))))
    _expect("records that are whole", report.facts["records"], count)
    _expect("findings", report.facts["findings"], 0)
    charts = analytics.AnalyticsSettings(str(store), str(base / "generated-store.html"))
    report = _timed("analytics", lambda: analytics.run(spark, charts))
    print(report.text())


def run(golden: Path, base: Path, total_bytes: int) -> None:
    """Run all steps. Raises: SparkDemoFailed."""
    from pyspark.sql import SparkSession

    from mqfast.spark import register

    builder: Any = SparkSession.builder.appName("mqfast demo")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        # Spark logs a page of text for a query that is stopped while writing.
        "spark.log.level": "OFF",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = conf(builder).getOrCreate()
    try:
        register(spark)
        _broker_store(spark, golden, base)
        store = base / "store"
        _step(f"A store of {total_bytes >> 20:,} MiB, {TOPICS} topics of {QUEUES} queues")
        count = _timed("made", lambda: make_store(store, total_bytes))
        _expect("rows", _timed("counted by Spark", _load(spark, store, columns="bodySize").count), count)
        _step("A stream, stopped and started again")
        _stream(spark, store, base, count)
        _jobs(spark, store, base, count)
        live_cluster(spark, base, _step, _expect)
    finally:
        spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 after SparkDemoFailed."""
    parser = argparse.ArgumentParser(prog="python -m mqfast.spark.demo", description="Stores in Spark, start to end.")
    parser.add_argument("--golden", type=Path, default=GOLDEN, metavar="DIR", help="a store that a broker wrote")
    parser.add_argument("--bytes", default="2g", metavar="SIZE", help="size of the generated store (default: 2g)")
    parser.add_argument("--charts", type=Path, default=Path(), metavar="DIR", help="where the pages go (default: here)")
    arguments = parser.parse_args(argv)
    if not arguments.golden.is_dir():
        parser.error(f"{arguments.golden}: expected a store, found none; run it from a checkout, or give --golden")
    base = Path(tempfile.mkdtemp(prefix="mqfast-demo-spark-"))
    start_s = time.perf_counter()
    try:
        run(arguments.golden, base, size(arguments.bytes))
        arguments.charts.mkdir(parents=True, exist_ok=True)
        for page in base.glob("*.html"):
            shutil.copy(page, arguments.charts)
            print(f"charts: {arguments.charts / page.name}")
    except SparkDemoFailed as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"done in {time.perf_counter() - start_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
