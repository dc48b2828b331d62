"""The live part of ``python -m mqfast.spark.demo``: Spark beside a running broker.

A name server and a broker run in their own process; a producer sends orders. Spark reads the orders over the network,
by SQL and as a stream that is stopped and started again, archives them, continues a stream from the archive, and writes
results back. The broker's process ends with the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqfast.spark.jobs import archive, audit
from mqfast.spark.jobs.locations import ClusterLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLUSTER_MESSAGES", "live_cluster"]

CLUSTER_MESSAGES: Final = 20_000
TOPIC: Final = "LiveOrders"
BACK: Final = "LiveTotals"
TAGS: Final = ("new", "paid")
_END_S: Final = 20

Expect = Callable[[str, Any, Any], None]


@contextmanager
def running(store: Path) -> Iterator[str]:
    """Run a name server and a broker. Yields: the name server's address. Raises: RuntimeError if the start fails."""
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    command = ["up", "--namesrv-port", "0", "--broker-port", "0", "--store", str(store)]
    log = store.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "mqfast.cli", *command], stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        banner = process.stdout.readline()
        if not banner.startswith("NAMESRV_ADDR="):
            raise RuntimeError(f"mqfast up said {banner!r}, expected its address:\n{log.read_text()}")
        yield banner.removeprefix("NAMESRV_ADDR=").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def send(namesrv: str, first: int, end: int) -> None:
    """Send orders from a producer."""
    from mqfast.client import Message, Producer

    with Producer("demo-spark", namesrv) as producer:
        orders = (
            Message(
                TOPIC, b'{"order": %d, "cents": %d}' % (n, n * 37 % 10_000), tags=("new", "paid")[n % 2], keys=str(n)
            )
            for n in range(first, end)
        )
        for _ in producer.send_many(orders):
            pass


def _stream(spark: SparkSession, namesrv: str, base: Path, name: str, **options: Any) -> Any:
    """Run a stream of the topic into Parquet up to the present end."""
    given = {"namesrv": namesrv, "subscribe": TOPIC, "columns": "queueId,queueOffset,body", **options}
    frame = spark.readStream.format("mqfast").options(**given).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(base / f"{name}-checkpoint"))
    return writer.trigger(availableNow=True).start(str(base / name))


def _numbers(spark: SparkSession, path: Path) -> tuple[int, int]:
    """Return the number of rows, and of different messages."""
    rows = spark.read.parquet(str(path))
    return rows.count(), rows.select("queueId", "queueOffset").distinct().count()


def live_cluster(
    spark: SparkSession, base: Path, step: Callable[[str], None], expect: Expect, messages: int = CLUSTER_MESSAGES
) -> None:
    """Run all steps; ``expect`` gets the actual and the expected figures."""
    step("A running broker, reached over the network")
    with running(base / "live") as namesrv:
        half = messages // 2
        send(namesrv, 0, half)
        options = f"namesrv '{namesrv}', subscribe '{TOPIC}', columns 'tags,queueId,body'"
        spark.sql(f"CREATE TEMPORARY VIEW live USING mqfast OPTIONS ({options})")
        spark.sql(
            "SELECT tags, count(*) AS orders, sum(from_json(string(body), 'cents INT').cents) AS cents FROM live "
            "GROUP BY tags ORDER BY tags"
        ).show()
        expect("orders that Spark sees", spark.table("live").count(), half)
        step("A stream from the broker, stopped and started again")
        query = _stream(spark, namesrv, base, "live-out", startingOffsets="earliest", maxOffsetsPerTrigger=half // 4)
        while not query.awaitTermination(0.2):
            if query.recentProgress:
                query.stop()
                break
        send(namesrv, half, messages)
        _stream(
            spark, namesrv, base, "live-out", startingOffsets="earliest", maxOffsetsPerTrigger=messages
        ).awaitTermination()
        expect("rows, and different ones", _numbers(spark, base / "live-out"), (messages, messages))
        step("An archive of the cluster, and a stream that begins in it")
        place = ClusterLocation(namesrv)
        report = archive.run(spark, archive.ArchiveSettings(place, str(base / "live-archive"), topics=(TOPIC,)))
        expect("archived messages", report.facts["messages"], messages)
        send(namesrv, messages, messages + half)
        _stream(spark, namesrv, base, "handed-over", startingFrom=f"archive:{base / 'live-archive'}").awaitTermination()
        every = messages + half
        expect("rows, and different ones", _numbers(spark, base / "handed-over"), (every, every))
        step("Results back into the broker, each once")
        orders = spark.read.format("mqfast").options(namesrv=namesrv, subscribe=TOPIC, columns="tags,queueId").load()
        totals = (
            orders.groupBy("tags").count().selectExpr(f"'{BACK}' AS topic", "tags AS keys", "string(count) AS body")
        )
        for _ in range(2):  # the second write stores no row
            sink = totals.coalesce(1).write.format("mqfast").mode("append")
            sink.options(namesrv=namesrv, txnId="totals").save()
        back = spark.read.format("mqfast").options(namesrv=namesrv, subscribe=BACK, columns="keys,body").load()
        written = {row["keys"]: int(bytes(row["body"])) for row in back.collect()}
        expect("totals in the broker", written, {"new": every // 2, "paid": every // 2})
        report = audit.run(spark, audit.AuditSettings(place))
        expect("records that the audit of the cluster read", report.facts["records"], every + 2)
        expect("findings", report.facts["findings"], 0)
