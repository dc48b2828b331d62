"""``compact``: the latest message of each key, as Parquet.

The offsets of the latest messages are found without bodies, then those messages are read. The key is the whole property
KEYS, as in RocketMQ's compaction topics. The store stays unchanged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.errors import UsageError
from mqfast.spark import options as table
from mqfast.spark.backends import open_local
from mqfast.spark.jobs.arguments import job_parser, names, run_job, size_argument
from mqfast.spark.jobs.locations import ClusterLocation, Place, add_place, as_options, name_of, place_of, queue_ends
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import print_progress
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CompactSettings", "main", "run"]

_KEY: Final = "coalesce(keys, '') AS key"


@dataclass(frozen=True)
class CompactSettings:
    """The settings. ``keep_deleted``: keep keys whose latest message has no body, which means deleted; ``compression``:
    of Spark's writer.
    """

    store: Place
    output: str
    topics: tuple[str, ...]
    keep_deleted: bool = False
    compression: str = "zstd"
    partition_bytes: int = 128 << 20


def run(spark: SparkSession, settings: CompactSettings) -> JobReport:
    """Write the latest messages of the topics, by topic; messages without a key are left out and counted.

    Raises: UsageError for an existing output, and Spark's errors.
    """
    from pyspark.sql import functions as f

    if os.path.exists(settings.output):
        raise UsageError(f"{settings.output}: expected no such directory yet, found one")
    load = _of_cluster(spark, settings) if isinstance(settings.store, ClusterLocation) else _of_store(spark, settings)
    # Each broker has a log: in a cluster the latest message is the last by store time.
    newest = ("storeTimestamp", "store") if isinstance(settings.store, ClusterLocation) else ()
    print_progress("compact: looking for the latest of each key")
    columns = ",".join((*newest, "topic", "keys", "physicalOffset", "bodySize"))
    keyed = load(columns=columns).selectExpr(
        "topic", _KEY, f"struct({', '.join((*newest, 'physicalOffset', 'bodySize'))}) AS place"
    )
    latest = keyed.groupBy("topic", "key").agg(f.max("place").alias("place"), f.count("*").alias("messages")).persist()
    try:
        live = latest.where("key <> ''" if settings.keep_deleted else "key <> '' AND place.bodySize > 0")
        counts = {
            row["topic"]: row
            for row in latest.groupBy("topic")
            .agg(
                f.sum("messages").alias("messages"), f.count_if(f.col("key") != "").alias("keys"),
                f.sum(f.when(f.col("key") == "", f.col("messages")).otherwise(0)).alias("keyless"),
                f.count_if((f.col("key") != "") & (f.col("place.bodySize") == 0)).alias("deleted"),
            )
            .collect()
        }  # fmt: skip
        print_progress("compact: writing")
        key = ["store", "physicalOffset"] if newest else ["physicalOffset"]
        places = live.select(*(f.col(f"place.{name}").alias(name) for name in key))
        rows = load().join(places, key, "left_semi")
        rows.write.option("compression", settings.compression).partitionBy("topic").parquet(settings.output)
    finally:
        latest.unpersist()
    report = JobReport("compact", {"store": name_of(settings.store), "output": settings.output})
    heads = ("messages", "keys", "deleted", "keyless")
    for head in heads:
        report.facts[head] = sum(row[head] for row in counts.values())
    report.facts["written"] = report.facts["keys"] - (0 if settings.keep_deleted else report.facts["deleted"])
    report.table("topics", ("topic", *heads), [(t, *(row[h] for h in heads)) for t, row in sorted(counts.items())])
    return report


def _reader(spark: SparkSession, settings: CompactSettings, **options: str) -> DataFrame:
    reader = spark.read.format("mqfast").options(**as_options(settings.store), **options)
    return reader.options(subscribe=",".join(settings.topics), partitionBytes=settings.partition_bytes).load()


def _of_store(spark: SparkSession, settings: CompactSettings) -> Callable[..., DataFrame]:
    """Return reads with the same end in the log, however the store grows meanwhile."""
    access = open_local(table.parse(as_options(settings.store), table.BATCH))
    try:
        end = access.snapshot().log_end
    finally:
        access.close()
    return lambda **options: _reader(spark, settings, **options).where(f"physicalOffset < {end}")


def _of_cluster(spark: SparkSession, settings: CompactSettings) -> Callable[..., DataFrame]:
    """Return reads with the same end offset of each queue."""
    ends = queue_ends(_reader(spark, settings, view="queues", columns="store,topic,queueId,minOffset,maxOffset"))
    return lambda **options: _reader(spark, settings, endingOffsets=ends, **options)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("compact", "Write the latest message of each key to Parquet, by topic. The key is KEYS.")
    add_place(parser, "root directory of the store, which may be in use")
    parser.add_argument("output", metavar="OUTPUT", help="directory to make")
    parser.add_argument("--topics", type=names, required=True, metavar="A,B", help="these topics")
    parser.add_argument("--keep-deleted", action="store_true", help="keep keys whose latest message has no body")
    parser.add_argument("--compression", choices=("zstd", "snappy", "lz4", "none"), default="zstd")
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    return parser


def settings_of(a: argparse.Namespace) -> CompactSettings:
    """Return the settings of a command line."""
    return CompactSettings(place_of(a), a.output, a.topics, a.keep_deleted, a.compression, a.partition_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the settings class for its former name."""
        return former_name(__name__, name, {"Settings": CompactSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import compact

    sys.exit(compact.main())
