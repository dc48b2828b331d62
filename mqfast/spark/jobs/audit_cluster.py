"""``audit`` of a running cluster: checks that every counted message is readable, with a valid checksum.

Brokers return messages, not files: the audit compares what consumers get. Gaps between records, units of queues and the
index are checked on the broker's files. A message that retention removes during the job is not missing.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from mqfast.spark import options as table_of_options
from mqfast.spark.backends import open_backend, stores_of
from mqfast.spark.jobs.locations import as_options, name_of, queue_ends
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import print_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mqfast.spark.jobs.settings import AuditSettings

__all__ = ["audit_cluster"]

_KEY: Final = ("store", "topic", "queueId")
_HEADS: Final = ("store", "topic", "queueId", "records", "crcErrors", "missing", "repeated", "disordered")
_NOT_HERE: Final = "files of the log, units of the queues, index: audit STORE where the files of the broker are"


def audit_cluster(spark: SparkSession, settings: AuditSettings) -> JobReport:
    """Read every message of every queue; the report is ``damaged`` after any finding. Raises: Spark's errors."""
    report = JobReport("audit", {"store": name_of(settings.store), "notChecked": _NOT_HERE})
    print_progress("audit: asking for the queues")
    before = _queues(spark, settings)
    print_progress("audit: reading the messages")
    rows = _read(spark, settings, queue_ends(before)).collect()
    after = {tuple(row[name] for name in _KEY): row["minOffset"] for row in _queues(spark, settings).collect()}
    by_queue = {tuple(row[name] for name in _KEY): row for row in rows}
    unread = _unread(settings)
    table: list[tuple[Any, ...]] = []
    for queue in before.orderBy(*_KEY).collect():
        key = tuple(queue[name] for name in _KEY)
        row = by_queue.get(key)
        if row is None and key in unread:
            continue
        # Retention may have removed the first messages before they were read.
        first = max(queue["minOffset"], after.get(key, queue["maxOffset"]))
        if row is None:
            table.append((*key, 0, 0, max(0, queue["maxOffset"] - first), 0, 0))
            continue
        there = row["last"] - row["first"] + 1
        holes = there - row["distinct"]
        at_ends = max(0, row["first"] - first) + max(0, queue["maxOffset"] - 1 - row["last"])
        repeated = row["records"] - row["distinct"]
        table.append((*key, row["records"], row["crcErrors"], holes + at_ends, repeated, row["disordered"]))
    for number, name in enumerate(_HEADS[3:], 3):
        report.facts[name] = sum(row[number] for row in table)
    report.facts["queues"] = len(table)
    report.facts["unreadQueues"] = ", ".join(f"{store} {topic}/{number}" for store, topic, number in sorted(unread))
    report.facts["findings"] = sum(sum(row[4:]) for row in table)
    report.damaged = report.facts["findings"] > 0
    report.table("queues", _HEADS, [row for row in table if row[3] or any(row[4:])])
    return report


def _unread(settings: AuditSettings) -> set[tuple[str, str, int]]:
    """Return queues with messages that consumers may not read now, which brokers do not return."""
    options = table_of_options.parse(as_options(settings.store), table_of_options.BATCH)
    unread = set()
    for name, given in stores_of(options, begins=True):
        with closing(open_backend(given)) as access:
            queues = access.refresh().queues
        unread |= {(name, q.topic, q.queue_id) for q in queues if q.messages and not q.is_readable}
    return unread


def _queues(spark: SparkSession, settings: AuditSettings) -> DataFrame:
    options = {**as_options(settings.store), "view": "queues", "columns": "store,topic,queueId,minOffset,maxOffset"}
    rows = spark.read.format("mqfast").options(**options).load()
    return spark.createDataFrame(rows.collect(), rows.schema)  # a single request


def _read(spark: SparkSession, settings: AuditSettings, ends: str) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    reader = spark.read.format("mqfast").options(**as_options(settings.store), endingOffsets=ends)
    rows = reader.options(
        columns="store,topic,queueId,queueOffset,physicalOffset,crcOk", verifyCrc="mark", failOnDataLoss="false",
        partitionBytes=settings.partition_bytes,
    ).load()  # fmt: skip
    before = f.lag("physicalOffset").over(Window.partitionBy(*_KEY).orderBy("queueOffset", "physicalOffset"))
    return (
        rows.withColumn("before", before)
        .groupBy(*_KEY)
        .agg(
            f.count("*").alias("records"), f.count_if(~f.col("crcOk")).alias("crcErrors"),
            f.countDistinct("queueOffset").alias("distinct"), f.min("queueOffset").alias("first"),
            f.max("queueOffset").alias("last"),
            f.count_if(f.col("before") >= f.col("physicalOffset")).alias("disordered"),
        )
    )  # fmt: skip
