"""``analytics``: statistics of a store or a cluster: topics, sizes, latencies, tags, keys, rates, lag of groups.

Only the needed columns are read, never bodies, and only sums come to the driver. The store stays unchanged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError
from mqfast.spark.durable_files import DurableFile
from mqfast.spark.jobs.arguments import count, job_parser, names, run_job, size_argument
from mqfast.spark.jobs.charts import Bars, page
from mqfast.spark.jobs.locations import ClusterLocation, Place, add_place, as_options, name_of, place_of
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import print_progress
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AnalyticsSettings", "main", "run"]

_COLUMNS: Final = "topic,queueId,msgSize,bodySize,bornTimestamp,storeTimestamp,tags,keys"
_SHARES: Final = (0.5, 0.9, 0.99, 0.999)
# Precise to 1/1000 of the count.
_ACCURACY: Final = 1000


@dataclass(frozen=True)
class AnalyticsSettings:
    """The settings. ``html``: write charts to this file; ``top``: listed topics, tags and keys; ``since``: as the
    source's startingTimestamp.
    """

    store: Place
    html: str | None = None
    topics: tuple[str, ...] | None = None
    since: str | None = None
    top: int = 20
    partition_bytes: int = 128 << 20


def run(spark: SparkSession, settings: AnalyticsSettings) -> JobReport:
    """Analyse the selected messages.

    Raises: StorageError for the page, and Spark's errors.
    """
    from pyspark.sql import functions as f

    report = JobReport("analytics", {"store": name_of(settings.store)})
    rows = _messages(spark, settings).persist()
    try:
        print_progress("analytics: topics")
        topics = _topics(rows, report, settings.top)
        print_progress("analytics: latency and sizes")
        _percentiles(rows, report)
        print_progress("analytics: tags, keys and rates")
        tags = rows.where("tags IS NOT NULL").groupBy("topic", f.col("tags").alias("tag"))
        tag_bars = _most(tags, report, "tags", ("topic", "tag"), settings.top)
        single = f.explode(f.split("keys", " ")).alias("key")
        keys = rows.where("keys IS NOT NULL").select("topic", single).where("key <> ''").groupBy("topic", "key")
        key_bars = _most(keys, report, "keys", ("topic", "key"), settings.top)
        rates = _rates(rows)
    finally:
        rows.unpersist()
    print_progress("analytics: backlog")
    backlog = _backlog(spark, settings, report)
    report.facts["minutes"] = len(rates)
    report.facts["most per minute"] = int(max((value for _, value in rates), default=0))
    if settings.html is not None:
        by_name = {
            "messages by topic": topics, "backlog by group and topic": backlog, "most frequent tags": tag_bars,
            "most frequent keys": key_bars,
        }  # fmt: skip
        _save(settings.html, page(report, by_name, {"messages stored per minute": rates}))
        report.facts["charts"] = settings.html
    return report


def _options(settings: AnalyticsSettings) -> dict[str, str]:
    topics = {"subscribe": ",".join(settings.topics)} if settings.topics is not None else {}
    return {**as_options(settings.store), **topics}


def _messages(spark: SparkSession, settings: AnalyticsSettings) -> DataFrame:
    columns = f"{_COLUMNS},store" if isinstance(settings.store, ClusterLocation) else _COLUMNS
    options = {**_options(settings), "columns": columns, "partitionBytes": str(settings.partition_bytes)}
    options["includeSystemTopics"] = "true"  # the largest topics first
    if settings.since is not None:
        options["startingTimestamp"] = settings.since
    return spark.read.format("mqfast").options(**options).load()


def _topics(rows: DataFrame, report: JobReport, top: int) -> Bars:
    from pyspark.sql import functions as f

    topics = (
        rows.groupBy("topic", "queueId", *(name for name in rows.columns if name == "store"))
        .agg(f.count("*").alias("n"), f.sum("msgSize").alias("bytes"), f.sum("bodySize").alias("body"))
        .groupBy("topic")
        .agg(
            f.count("*").alias("queues"), f.sum("n").alias("n"), f.sum("bytes").alias("bytes"),
            f.sum("body").alias("body"), (f.max("n") * f.count("*") / f.sum("n")).alias("skew"),
        )
        .orderBy(f.desc("n"), "topic")
        .collect()
    )  # fmt: skip
    report.facts.update(
        topics=len(topics), messages=sum(r["n"] for r in topics), logBytes=sum(r["bytes"] for r in topics),
        bodyBytes=sum(r["body"] for r in topics),
    )  # fmt: skip
    # Skew: messages of the largest queue, relative to an even share.
    heads = ("topic", "queues", "messages", "logBytes", "bodyBytes", "queueSkew")
    report.table("topics", heads, [(*r[:5], round(r["skew"], 3)) for r in topics[:top]])
    return [(r["topic"], r["n"]) for r in topics[:top]]


def _percentiles(rows: DataFrame, report: JobReport) -> None:
    from pyspark.sql import functions as f

    latency = (f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")).alias("ms")
    measured = {"born to stored, ms": rows.select(latency), "body, bytes": rows.select("bodySize"),
                "record, bytes": rows.select("msgSize")}  # fmt: skip
    shown: list[tuple[Any, ...]] = []
    for what, column in measured.items():
        name = column.columns[0]
        percentiles = column.agg(
            f.min(name), f.percentile_approx(name, list(_SHARES), _ACCURACY), f.max(name), f.avg(name)
        ).collect()[0]
        if percentiles[0] is not None:
            shown.append((what, percentiles[0], *percentiles[1], percentiles[2], round(percentiles[3], 1)))
    report.table("percentiles", ("what", "least", "p50", "p90", "p99", "p99.9", "most", "mean"), shown)


def _most(groups: Any, report: JobReport, title: str, heads: tuple[str, str], top: int) -> Bars:
    """Return the groups with the most messages, and the share of each."""
    from pyspark.sql import functions as f

    largest = groups.count().orderBy(f.desc("count"), *heads).limit(top).collect()
    total = report.facts["messages"] or 1
    shown = [(*row[:3], round(100 * row["count"] / total, 2)) for row in largest]
    report.table(title, (*heads, "messages", "% of messages"), shown)
    return [(f"{row[0]}: {row[1]}", row["count"]) for row in largest]


def _rates(rows: DataFrame) -> Bars:
    """Return messages by minute of the store time; minutes without messages are left out."""
    from pyspark.sql import functions as f

    minute = (f.unix_seconds("storeTimestamp") / 60).cast("long").alias("minute")
    minutes = rows.groupBy(minute).count().orderBy("minute")
    shown = f.date_format(f.timestamp_seconds(f.col("minute") * 60), "yyyy-MM-dd HH:mm")
    return [(row[0], row[1]) for row in minutes.select(shown, "count").collect()]


def _backlog(spark: SparkSession, settings: AnalyticsSettings, report: JobReport) -> Bars:
    from pyspark.sql import functions as f

    groups = spark.read.format("mqfast").options(view="groups", **_options(settings)).load()
    rows = groups.where("lag IS NOT NULL").orderBy(f.desc("lag"), "group", "topic", "queueId").collect()
    report.facts["groups"] = len({row["group"] for row in rows})
    report.facts["backlog"] = sum(row["lag"] for row in rows)
    heads = ("group", "topic", "queueId", "committedOffset", "maxOffset", "lag")
    report.table("backlog", heads, [tuple(row[head] for head in heads) for row in rows])
    sums: dict[str, int] = {}
    for row in rows:
        name = f"{row['group']}: {row['topic']}"
        sums[name] = sums.get(name, 0) + row["lag"]
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[: settings.top]


def _save(path: str, text: str) -> None:
    if not path.endswith(".html"):
        raise UsageError(f"{path}: expected a name that ends in .html")
    file = DurableFile(path)
    try:
        file.write(text.encode("utf-8"))
        file.commit()
    finally:
        file.discard()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "analytics", "Tell what is in a store or a cluster: topics, sizes, latency, tags, keys, rates, backlogs."
    )
    add_place(parser, "root directory of the store, which may be in use")
    parser.add_argument("--html", metavar="FILE", help="write charts to this .html file, which needs nothing else")
    parser.add_argument("--topics", type=names, metavar="A,B", help="only these topics (default: all)")
    parser.add_argument("--since", metavar="TIME", help="only messages stored since: 2026-01-31T12:00, or ms")
    parser.add_argument("--top", type=count, default=20, metavar="N", help="list at most N of a kind (default: 20)")
    parser.add_argument(
        "--partition-bytes", type=size_argument, default=128 << 20, metavar="SIZE", help="log per task (default: 128m)"
    )
    return parser


def settings_of(a: argparse.Namespace) -> AnalyticsSettings:
    """Return the settings of a command line."""
    if a.html is not None and not a.html.endswith(".html"):
        raise UsageError(f"--html: expected a name that ends in .html, found {a.html}")
    return AnalyticsSettings(place_of(a), a.html, a.topics, a.since, a.top, a.partition_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the settings class for its former name."""
        return former_name(__name__, name, {"Settings": AnalyticsSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import analytics

    sys.exit(analytics.main())
