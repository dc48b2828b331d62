"""``dlq``: dead letters of a store, filtered, back to their original topics, each once.

A first read without bodies selects the letters. Then tasks read the letters, make new messages and stage them, and the
driver appends by the sink's protocol (``local/staging.py``). ``dead_letters.py`` records the sent letters of a
transaction, so later runs send only new letters. A store that another process has open is never written, and a letter
of unknown origin is never sent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqfast.message import check_topic
from mqfast.properties import DLQ_ATTEMPTS
from mqfast.spark import options as table
from mqfast.spark.backend import LogAccess, ReadSettings
from mqfast.spark.backends import open_local
from mqfast.spark.durable_files import locked
from mqfast.spark.jobs.arguments import count, instant, job_parser, names, run_job
from mqfast.spark.jobs.dead_letters import (
    Runs,
    SentLetters,
    marks_of,
    offsets_of,
    revived,
)
from mqfast.spark.jobs.dlq_selection import (
    DeadLetterGroup,
    add_letter_tables,
    letters_of,
    options_of,
    pieces_of,
    queues_of,
)
from mqfast.spark.jobs.locations import ClusterLocation, add_place, place_of
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import DlqSettings
from mqfast.spark.jobs.tasks import print_progress, run_tasks
from mqfast.spark.local.commit import SinkTransaction, check_target
from mqfast.spark.local.leases import HeldLease
from mqfast.spark.local.sink import QueueCounts
from mqfast.spark.local.staging import StagedFile, clean_staging
from mqfast.spark.options import Options
from mqfast.spark.partitions import cached_backend
from mqfast.spark.plan import OffsetRange
from mqfast.spark.rows import RowWriter
from mqfast.spark.schema import chosen_columns
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DlqSettings", "main", "run"]


def run(spark: SparkSession, settings: DlqSettings) -> JobReport:
    """Send the selected letters that were not sent before.

    Raises: UsageError, StoreLocked, CorruptFile, DataLoss, StorageError, and Spark's errors of failed tasks.
    """
    if isinstance(settings.store, ClusterLocation):
        from mqfast.spark.jobs.dlq_cluster import resend_in_cluster

        return resend_in_cluster(spark, settings)
    store = os.path.abspath(settings.store)
    target = os.path.abspath(settings.target or store)
    staging = os.path.abspath(settings.staging or os.path.join(target, "spark-staging"))
    if settings.topic is not None:
        check_topic(settings.topic)
    access = open_local(table.parse({"path": store}, table.BATCH))
    try:
        if not settings.dry_run:
            check_target(target)
        txn_id = settings.txn_id or f"dlq of {store}"
        transaction = SinkTransaction(target, staging, txn_id, owner=f"dlq of {store}")
        report = JobReport("dlq", {"store": store, "target": target, "txnId": txn_id, "dryRun": settings.dry_run})
        with _exclusive(transaction, settings.dry_run):
            _send(spark, settings, access, transaction, report)
    finally:
        access.close()
    if os.path.isdir(staging) and not settings.dry_run:
        clean_staging(staging, table.parse({"path": target}, table.SINK).staging_ttl)
    return report


@contextlib.contextmanager
def _exclusive(transaction: SinkTransaction, dry_run: bool) -> Iterator[None]:
    if dry_run:
        yield  # writes no file, not even a lock file
        return
    with locked(os.path.join(transaction.directory, "lock"), f"dlq as {transaction.txn_id!r}"):
        yield


def _send(
    spark: SparkSession, settings: DlqSettings, access: LogAccess, transaction: SinkTransaction, report: JobReport
) -> None:
    snapshot = access.snapshot()
    known = SentLetters.load(transaction)
    if known.store_id != "empty" and int(known.store_id[:20]) >= snapshot.log_start:
        access.check(known.store_id)
    report.facts["resumed"] = 0
    if not settings.dry_run and known.batch:
        # Finish an interrupted append, which needs only its staged files.
        report.facts["resumed"] = transaction.commit(known.batch - 1, ()).appended
    queues = queues_of(snapshot, settings)
    known.check(queues, access)
    print_progress("dlq: looking for letters")
    letters = DeadLetterGroup(letters_of(spark, settings, queues).toArrow() if queues else None)
    now, before = letters.new(known)
    pieces = pieces_of(now)
    if pieces and not settings.dry_run:
        known.save(transaction, snapshot.store_id, now, marks_of(now, access))
        work = [
            _Work(settings, options_of(settings), snapshot.store_id, piece, runs, transaction, known.batch, partition)
            for partition, (piece, runs) in enumerate(pieces)
        ]
        with HeldLease(snapshot.root, options_of(settings).lease_ttl) as held:
            held.move(access.physical_span([piece for piece, _ in pieces])[0])
            staged = [file for file in run_tasks(spark, work, _stage, "dlq") if file is not None]
        report.facts["sent"] = transaction.commit(known.batch, staged).appended
        known.forget_older(transaction)
    else:
        report.facts["sent"] = 0
    add_letter_tables(report, letters, now, before)


# --- sending ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    settings: DlqSettings
    options: Options
    store_id: str
    piece: OffsetRange
    runs: Runs
    transaction: SinkTransaction
    batch: int
    partition: int


def _stage(work: _Work) -> StagedFile | None:
    """Convert and stage letters of a queue in order, in a task."""
    import numpy as np
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    sink = table.parse(
        {"path": work.transaction.store_path, "preserveTimestamps": "true", "preserveIds": "true"}, table.SINK
    )
    stamp = work.transaction.stamp(work.batch, work.partition)
    rows = RowWriter(sink, stamp, work.partition, QueueCounts(work.transaction.store_path))
    settings = ReadSettings(batch_bytes=work.options.batch_bytes, verify_crc=work.options.verify_crc)
    wanted = offsets_of(work.runs)
    access = cached_backend(work.options, work.store_id)
    try:
        with work.transaction.writer(work.batch, work.partition, attempt) as writer:
            for batch in access.gather(work.piece, chosen_columns(work.options), settings):
                mine = batch.filter(pa.array(np.isin(batch.column("queueOffset").to_numpy(), wanted)))
                if mine.num_rows:
                    writer.write(rows.encode(revived(mine, work.settings.topic)))
            return writer.close(rows.rows)
    finally:
        access.release_files()


# --- the command -----------------------------------------------------------------------------------------------------


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _tags(text: str) -> tuple[str, ...]:
    return tuple(tag.strip() for tag in text.split("||") if tag.strip())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "dlq",
        "Send dead letters back to the topics that they came from, each once: a run that is repeated sends what has "
        "died since.",
    )
    add_place(parser, "root directory of the store that has the dead letters")
    parser.add_argument("--to", metavar="STORE", help="store to send them to, which nobody has open (default: STORE)")
    parser.add_argument("--topic", metavar="TOPIC", help="topic for all of them (default: each one's own)")
    chosen = parser.add_argument_group("which letters; what is given must all hold")
    chosen.add_argument("--groups", type=names, metavar="A,B", help="of these consumer groups (default: all)")
    chosen.add_argument("--since", type=instant, metavar="TIME", help="died at or after: ms, or 2026-01-31T12:00:00Z")
    chosen.add_argument("--until", type=instant, metavar="TIME", help="died before")
    chosen.add_argument("--tags", type=_tags, metavar="'A || B'", help="with one of these tags")
    chosen.add_argument(
        "--property", type=_property, action="append", default=[], metavar="NAME=VALUE",
        help="with this property; may be given repeatedly",
    )  # fmt: skip
    chosen.add_argument("--where", metavar="SQL", help="a condition over the columns of messages")
    chosen.add_argument(
        "--max-attempts", type=count, default=3, metavar="N",
        help=f"not those that were sent back N times, as their property {DLQ_ATTEMPTS} says (default: 3)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be sent")
    parser.add_argument(
        "--txn-id", metavar="ID",
        help="name under which each letter is sent once (default: the store's path); another one sends all again",
    )  # fmt: skip
    parser.add_argument(
        "--staging",
        metavar="DIR",
        help="directory for staged files and notes (default: <target>/spark-staging; needed with --namesrv)",
    )
    return parser


def settings_of(a: argparse.Namespace) -> DlqSettings:
    """Return the settings of a command line."""
    return DlqSettings(
        place_of(a), a.to, a.groups, a.since, a.until, a.tags, tuple(a.property), a.where, a.topic, a.max_attempts,
        a.txn_id, a.staging, a.dry_run,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the settings class for its former name."""
        return former_name(__name__, name, {"Settings": DlqSettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import dlq

    sys.exit(dlq.main())
