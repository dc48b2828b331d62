"""``audit``: checks of records, checksums, queues and index of a store.

The log is checked file by file (view ``audit``); then each unit of the queues is joined with its record; then the index
is compared with the keys of the log. Damage is defined as in ``mqfast store verify``. The store stays unchanged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.config import StoreConfig
from mqfast.spark import options as table
from mqfast.spark.backends import open_local
from mqfast.spark.jobs.arguments import count, job_parser, run_job, size_argument
from mqfast.spark.jobs.audit_cluster import audit_cluster
from mqfast.spark.jobs.index_check import check_index, rows_of
from mqfast.spark.jobs.locations import ClusterLocation, add_place, as_options, directory, place_of
from mqfast.spark.jobs.queue_files import LEAST_DELAY_MS, SCHEDULE_TOPIC, tag_hashes
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import AuditSettings
from mqfast.spark.jobs.tasks import print_progress
from mqfast.spark.plan import Snapshot
from mqfast.store.base.paths import StorePaths
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditSettings", "main", "run"]

CRC: Final = "the body does not match its checksum"
NO_RECORD: Final = "a unit points at no record of its queue"
NO_UNIT: Final = "a record has no unit"
OTHER_SIZE: Final = "a unit gives another length than the record"
OTHER_PLACE: Final = "a unit is in another place of the queue than its record says"
OTHER_TAGS: Final = "a unit has another tags code than the tags of the record"
OTHER_TIME: Final = "a unit of a delay level has another delivery time than the level gives"
NOT_YET: Final = "a record behind its queue's last unit, of a store that is in use or was killed"
KINDS: Final = (CRC, NO_RECORD, NO_UNIT, OTHER_SIZE, OTHER_PLACE, OTHER_TAGS, OTHER_TIME)
_OF_SEGMENTS: Final = ("records", "recordBytes", "crcErrors", "gaps", "gapBytes")


def run(spark: SparkSession, settings: AuditSettings) -> JobReport:
    """Check a store; the report is ``damaged`` after any finding.

    Raises: StoreNotFound, and Spark's errors of failed tasks.
    """
    if isinstance(settings.store, ClusterLocation):
        return audit_cluster(spark, settings)
    access = open_local(table.parse(as_options(settings.store), table.BATCH))
    try:
        snapshot = access.snapshot()
    finally:
        access.close()
    report = JobReport("audit", {"store": settings.store, "start": snapshot.log_start, "end": snapshot.log_end})
    print_progress("audit: checking the log")
    _segments(spark, settings, report)
    if settings.queues:
        print_progress("audit: comparing queues and log")
        _queues(spark, settings, report, snapshot)
    if settings.index:
        print_progress("audit: comparing index and log")
        _index(spark, settings, report, snapshot)
    return report


def _load(spark: SparkSession, settings: AuditSettings, **options: str) -> DataFrame:
    reader = spark.read.format("mqfast").options(partitionBytes=settings.partition_bytes, includeSystemTopics="true")
    return reader.options(**as_options(settings.store), **options).load()


def _segments(spark: SparkSession, settings: AuditSettings, report: JobReport) -> None:
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


def compared(spark: SparkSession, settings: AuditSettings, snapshot: Snapshot) -> DataFrame:
    """Return records and units side by side: topic, queueId, physicalOffset, queue offsets, sizes and tags codes of
    both, and ``kind``, null without a difference.
    """
    from pyspark.sql import functions as f

    levels_ms = _levels_ms(settings)

    def inside(frame: DataFrame) -> DataFrame:
        return frame.where(f.col("physicalOffset").between(snapshot.log_start, snapshot.log_end - 1))

    records = _load(
        spark, settings, columns="topic,queueId,physicalOffset,queueOffset,msgSize,storeTimestamp,tags,crcOk",
        order="commitlog", verifyCrc="mark", failOnDataLoss="false",
    ).withColumnsRenamed({"queueOffset": "recordOffset", "msgSize": "recordSize"})  # fmt: skip
    scheduled = f.col("topic") == SCHEDULE_TOPIC
    # Queue n holds level n + 1; units have the delivery time instead of the tags code.
    delay_ms = f.element_at(f.array(*map(f.lit, levels_ms)), f.least(f.col("queueId") + 1, f.lit(len(levels_ms))))
    code = f.when(scheduled, f.unix_millis("storeTimestamp") + delay_ms).otherwise(_hash_of_tags()("tags"))
    records = records.withColumn("recordCode", code).drop("storeTimestamp", "tags")
    units = _load(
        spark, settings, view="consumequeue",
        columns="topic,queueId,physicalOffset,queueOffset,msgSize,tagsCode,messages",
    ).withColumnsRenamed({"queueOffset": "unitOffset", "msgSize": "unitSize", "tagsCode": "unitCode"})  # fmt: skip
    queue, units = ["topic", "queueId"], inside(units)
    both = inside(records).join(units, [*queue, "physicalOffset"], "full_outer")
    without_unit = f.lit(NO_UNIT)
    if os.path.exists(StorePaths(snapshot.root).abort):
        ends = units.groupBy(*queue).agg(f.max("physicalOffset").alias("lastUnit"))
        both = both.join(f.broadcast(ends), queue, "left")
        behind = f.col("physicalOffset") > f.coalesce(f.col("lastUnit"), f.lit(-1))
        without_unit = f.when(behind, NOT_YET).otherwise(NO_UNIT)
    kind: Any = (
        f.when(f.col("unitOffset").isNull(), without_unit)
        .when(f.col("recordOffset").isNull(), NO_RECORD)
        .when(f.col("recordSize") != f.col("unitSize"), OTHER_SIZE)
        .when((f.col("messages") == 1) & (f.col("recordOffset") != f.col("unitOffset")), OTHER_PLACE)
        .when(~f.col("crcOk"), CRC)
        .when(f.col("recordCode") != f.col("unitCode"), f.when(scheduled, OTHER_TIME).otherwise(OTHER_TAGS))
    )
    return both.withColumn("kind", kind)


def _levels_ms(settings: AuditSettings) -> list[int]:
    """Return the delays by level, from the first level on. Raises: ConfigError."""
    levels = settings.delay_levels
    config = StoreConfig() if levels is None else StoreConfig(message_delay_level=levels)
    return [delay_ms or LEAST_DELAY_MS for delay_ms in config.delay_levels_ms]


def _hash_of_tags() -> Any:
    """Return a Spark function: tags to the tags code of a unit."""
    from pyspark.sql.pandas import functions

    make: Any = functions.arrow_udf
    # A lambda: Spark would evaluate the type hints of the function, whose names are missing at run time.
    return make(lambda tags: _hashes(tags), "bigint")


def _hashes(tags: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(tag_hashes(tags))


def _queues(spark: SparkSession, settings: AuditSettings, report: JobReport, snapshot: Snapshot) -> None:
    from pyspark.sql import functions as f

    both = compared(spark, settings, snapshot)
    counts = [f.count(f.when(f.col("kind") == kind, 1)).alias(kind) for kind in (*KINDS, NOT_YET)]
    rows = (
        both.groupBy("topic", "queueId")
        .agg(f.count("recordOffset").alias("records"), f.count("unitOffset").alias("units"), *counts)
        .orderBy("topic", "queueId")
        .collect()
    )
    findings = {kind: sum(row[kind] for row in rows) for kind in KINDS}
    report.facts.update(
        units=sum(row["units"] for row in rows), unitsNotYetThere=sum(row[NOT_YET] for row in rows),
        findings=sum(findings.values()),
    )  # fmt: skip
    report.table(
        "queues", ("topic", "queueId", "records", "units", "findings"),
        [(r["topic"], r["queueId"], r["records"], r["units"], sum(r[kind] for kind in KINDS)) for r in rows],
    )  # fmt: skip
    if any(findings.values()):
        report.damaged = True
        report.table("findings by kind", ("kind", "count"), [(kind, n) for kind, n in findings.items() if n])
        columns = (
            "topic", "queueId", "physicalOffset", "recordOffset", "unitOffset", "recordSize", "unitSize", "recordCode",
            "unitCode", "kind",
        )  # fmt: skip
        first = both.where(f.col("kind") != NOT_YET).select(*columns).orderBy("physicalOffset")
        report.table("first findings", columns, [tuple(row) for row in first.limit(settings.findings).collect()])


def _index(spark: SparkSession, settings: AuditSettings, report: JobReport, snapshot: Snapshot) -> None:
    store = directory(settings.store, "audit", "the index is a file")
    checked = check_index(spark, store, snapshot, settings.partition_bytes, settings.findings)
    report.damaged = report.damaged or checked.damaged
    report.facts.update(
        indexFiles=checked.files, keys=checked.keys, indexEntries=checked.entries, keysNotYetIndexed=checked.behind,
        indexFindings=sum(checked.counts.values()),
    )  # fmt: skip
    report.table("findings in the index by kind", ("kind", "count"), sorted(checked.counts.items()))
    report.table("first findings in the index", ("kind", "file", "offset", "key"), rows_of(checked))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "audit", "Check every record, checksum, unit and index entry of a store, which may be in use. Changes nothing."
    )
    add_place(parser, "root directory of the store")
    parser.add_argument("--log-only", action="store_true", help="compare neither queues nor index with the log")
    parser.add_argument("--no-index", action="store_true", help="do not compare the index with the log")
    parser.add_argument("--delay-levels", metavar="TEXT", help="messageDelayLevel, where it is not RocketMQ's own")
    parser.add_argument("--findings", type=count, default=100, metavar="N", help="list at most N (default: 100)")
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    return parser


def settings_of(a: argparse.Namespace) -> AuditSettings:
    """Return the settings of a command line."""
    store = place_of(a)
    if a.delay_levels is not None:
        directory(store, "audit --delay-levels", "units of delay levels are in the files of the queues")
    index = not (a.log_only or a.no_index)
    return AuditSettings(store, a.partition_bytes, a.findings, not a.log_only, index, a.delay_levels)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the settings class for its former name."""
        return former_name(__name__, name, {"Settings": AuditSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import audit

    sys.exit(audit.main())
