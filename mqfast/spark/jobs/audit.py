"""``audit``: is every record whole, does every checksum agree, and do the queues say what the log says?

Room: the Spark adapter. The log is checked file by file (view ``audit``); then each unit of the queues is joined with
the record that it should point at. It must never change the store.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqfast.spark import options as table
from mqfast.spark.access import open_access
from mqfast.spark.jobs.arguments import carry_out, count, job_parser, size_argument
from mqfast.spark.jobs.report import Report
from mqfast.spark.jobs.tasks import tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Settings", "main", "run"]

CRC: Final = "the body does not match its checksum"
NO_RECORD: Final = "a unit points at no record of its queue"
NO_UNIT: Final = "a record has no unit"
OTHER_SIZE: Final = "a unit gives another length than the record"
OTHER_PLACE: Final = "a unit is in another place of the queue than its record says"
KINDS: Final = (CRC, NO_RECORD, NO_UNIT, OTHER_SIZE, OTHER_PLACE)
_OF_SEGMENTS: Final = ("records", "recordBytes", "crcErrors", "gaps", "gapBytes")


@dataclass(frozen=True)
class Settings:
    """``findings``: at most so many are listed; ``queues``: compare the queues with the log as well."""

    store: str
    partition_bytes: int = 128 << 20
    findings: int = 100
    queues: bool = True


def run(spark: SparkSession, settings: Settings) -> Report:
    """Check a store; the report is ``damaged`` when anything is wrong.

    Raises: StoreNotFound, and Spark's errors of failed tasks.
    """
    access = open_access(table.parse({"path": settings.store}, table.BATCH))
    try:
        snapshot = access.snapshot()
    finally:
        access.close()
    report = Report("audit", {"store": settings.store, "start": snapshot.log_start, "end": snapshot.log_end})
    tell("audit: checking the log")
    _segments(spark, settings, report)
    if settings.queues:
        tell("audit: comparing queues and log")
        _queues(spark, settings, report, (snapshot.log_start, snapshot.log_end))
    return report


def _load(spark: SparkSession, settings: Settings, **options: str) -> DataFrame:
    reader = spark.read.format("mqfast").option("partitionBytes", settings.partition_bytes)
    return reader.options(**options).load(settings.store)


def _segments(spark: SparkSession, settings: Settings, report: Report) -> None:
    rows = _load(spark, settings, view="audit").orderBy("startOffset").collect()
    for name in _OF_SEGMENTS:
        report.facts[name] = sum(row[name] for row in rows)
    bad = [row for row in rows if row["firstBadOffset"] is not None]
    report.damaged = report.damaged or bool(bad)
    report.table(
        "damage in the log",
        ("file", "from", "to", "crcErrors", "gaps", "gapBytes", "firstBadOffset", "reason"),
        [
            (row["path"], row["startOffset"], row["endOffset"], row["crcErrors"], row["gaps"], row["gapBytes"],
             row["firstBadOffset"], row["firstBadReason"])
            for row in bad
        ],
    )  # fmt: skip


def compared(spark: SparkSession, settings: Settings, span: tuple[int, int]) -> DataFrame:
    """Records and units side by side: topic, queueId, physicalOffset, both queue offsets and lengths, and ``kind``,
    which is null where they agree.
    """
    from pyspark.sql import functions as f

    def inside(frame: DataFrame) -> DataFrame:
        return frame.where(f.col("physicalOffset").between(span[0], span[1] - 1))

    records = _load(
        spark, settings, columns="topic,queueId,physicalOffset,queueOffset,msgSize,crcOk", order="commitlog",
        verifyCrc="mark", failOnDataLoss="false",
    ).withColumnsRenamed({"queueOffset": "recordOffset", "msgSize": "recordSize"})  # fmt: skip
    units = _load(
        spark, settings, view="consumequeue", columns="topic,queueId,physicalOffset,queueOffset,msgSize,messages"
    ).withColumnsRenamed({"queueOffset": "unitOffset", "msgSize": "unitSize"})
    both = inside(records).join(inside(units), ["topic", "queueId", "physicalOffset"], "full_outer")
    kind: Any = (
        f.when(f.col("unitOffset").isNull(), NO_UNIT)
        .when(f.col("recordOffset").isNull(), NO_RECORD)
        .when(f.col("recordSize") != f.col("unitSize"), OTHER_SIZE)
        .when((f.col("messages") == 1) & (f.col("recordOffset") != f.col("unitOffset")), OTHER_PLACE)
        .when(~f.col("crcOk"), CRC)
    )
    return both.withColumn("kind", kind)


def _queues(spark: SparkSession, settings: Settings, report: Report, span: tuple[int, int]) -> None:
    from pyspark.sql import functions as f

    both = compared(spark, settings, span)
    counts = [f.count(f.when(f.col("kind") == kind, 1)).alias(kind) for kind in KINDS]
    rows = (
        both.groupBy("topic", "queueId")
        .agg(f.count("recordOffset").alias("records"), f.count("unitOffset").alias("units"), *counts)
        .orderBy("topic", "queueId")
        .collect()
    )
    found = {kind: sum(row[kind] for row in rows) for kind in KINDS}
    report.facts.update(units=sum(row["units"] for row in rows), findings=sum(found.values()))
    report.table(
        "queues", ("topic", "queueId", "records", "units", "findings"),
        [(r["topic"], r["queueId"], r["records"], r["units"], sum(r[kind] for kind in KINDS)) for r in rows],
    )  # fmt: skip
    if any(found.values()):
        report.damaged = True
        report.table("findings by kind", ("kind", "count"), [(kind, n) for kind, n in found.items() if n])
        columns = ("topic", "queueId", "physicalOffset", "recordOffset", "unitOffset", "recordSize", "unitSize", "kind")
        first = both.where(f.col("kind").isNotNull()).select(*columns).orderBy("physicalOffset")
        report.table("first findings", columns, [tuple(row) for row in first.limit(settings.findings).collect()])


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = job_parser(
        "audit", "Check every record, every checksum and every unit of a store, which may be in use. Changes nothing."
    )
    parser.add_argument("store", metavar="STORE", help="root directory of the store")
    parser.add_argument("--log-only", action="store_true", help="do not compare the queues with the log")
    parser.add_argument("--findings", type=count, default=100, metavar="N", help="list at most N (default: 100)")
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    return parser


def settings_of(a: argparse.Namespace) -> Settings:
    """The settings that a command line means."""
    return Settings(a.store, a.partition_bytes, a.findings, not a.log_only)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return carry_out(build_parser(), settings_of, run, argv)


if __name__ == "__main__":
    # Under its own name, so that tasks find its functions.
    from mqfast.spark.jobs import audit

    sys.exit(audit.main())
