"""``replay``: an archive back into a store or a cluster, each message once, in the order of storing.

Tasks read Parquet, encode and stage; the driver appends by the sink's protocol, in batches of pieces
(``local/staging.py``). The next run with the same id finishes an interrupted run. A store that another process has open
is never written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, UsageError
from mqfast.spark import options as table
from mqfast.spark.archive_manifest import FileGroup, batches_of, manifests
from mqfast.spark.durable_files import crc_of
from mqfast.spark.jobs.arguments import job_parser, names, run_job, size_argument
from mqfast.spark.jobs.locations import ClusterLocation, add_cluster, place_of
from mqfast.spark.jobs.merge import in_order, merged
from mqfast.spark.jobs.replay_cluster import replay_to_cluster
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import ReplaySettings
from mqfast.spark.jobs.tasks import print_progress, run_tasks
from mqfast.spark.local.commit import Committed, SinkTransaction, check_target
from mqfast.spark.local.staging import StagedFile, clean_staging
from mqfast.spark.options import Options
from mqfast.spark.rows import RowWriter
from mqfast.util.deprecated import former_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqfast.store.message_store import MessageStore

__all__ = ["ReplaySettings", "main", "run"]

_COLUMNS: Final = (
    "physicalOffset", "topic", "queueId", "bornTimestamp", "bornHost", "flag", "sysFlag", "reconsumeTimes",
    "properties", "body",
)  # fmt: skip


def run(spark: SparkSession, settings: ReplaySettings) -> JobReport:
    """Append the messages that the store does not have yet.

    Raises: UsageError, StoreLocked, CorruptFile, StorageError, and Spark's errors of failed tasks.
    """
    if isinstance(settings.store, ClusterLocation):
        return replay_to_cluster(spark, settings)
    archive, store = os.path.abspath(settings.archive), os.path.abspath(settings.store)
    runs = manifests(archive)
    if not runs:
        raise UsageError(f"{archive}: expected an archive, found no manifest")
    staging = os.path.abspath(settings.staging or os.path.join(store, "spark-staging"))
    options = table.parse(
        {
            "path": store, "queueSelector": "column", "preserveTimestamps": str(not settings.new_times),
            "preserveIds": str(not settings.new_ids),
        },
        table.SINK,
    )  # fmt: skip
    txn_id = settings.txn_id or f"replay of {archive}"
    owner = f"replay of {','.join(settings.topics or ('all topics',))} by {settings.batch_bytes} bytes"
    check_target(store)
    # A part of an archive gives the same rows in every run: staged files need not be durable.
    transaction = SinkTransaction(store, staging, txn_id, owner=owner, repeatable=True)
    batches = batches_of(runs, settings.topics, settings.batch_bytes)
    appended = rows = skipped = 0
    committing: Future[Committed] | None = None
    # A batch is appended while the tasks stage the next.
    with ExitStack() as held, ThreadPoolExecutor(1, "replay") as appender:
        opened: list[MessageStore] = []

        def append(number: int, staged: list[StagedFile]) -> Committed:
            if not opened:
                opened.append(held.enter_context(transaction.open_store()))
            return transaction.commit(number, staged, opened=opened[0])

        for number, pieces in enumerate(batches):
            messages = sum(file.rows for piece in pieces for file in piece)
            rows += messages
            if transaction.is_done(number):
                skipped += 1
                continue
            print_progress(f"replay: batch {number + 1} of {len(batches)}, {messages} messages")
            work = [
                _Work(archive, piece, options, transaction, number, partition) for partition, piece in enumerate(pieces)
            ]
            staged = [file for file in run_tasks(spark, work, _stage, "replay") if file is not None]
            if committing is not None:
                appended += committing.result().appended
            committing = appender.submit(append, number, staged)
        if committing is not None:
            appended += committing.result().appended
    if os.path.isdir(staging):
        clean_staging(staging, options.staging_ttl)
    facts = {
        "archive": archive, "store": store, "txnId": txn_id, "messages": rows, "appended": appended,
        "batches": len(batches), "doneBefore": skipped,
    }  # fmt: skip
    return JobReport("replay", facts)


@dataclass(frozen=True)
class _Work:
    archive: str
    piece: FileGroup
    options: Options
    transaction: SinkTransaction
    batch: int
    partition: int


def _stage(work: _Work) -> StagedFile | None:
    """Encode and stage the rows of a piece in log order, in a task."""
    import pyarrow as pa
    from pyspark import TaskContext

    paths = []
    for file in work.piece:
        path = os.path.join(work.archive, file.path)
        crc = crc_of(path)
        if crc != file.crc:
            raise CorruptFile("a file is not as its manifest says", path=path, expected=file.crc, found=crc)
        paths.append(path)
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    stamp = work.transaction.stamp(work.batch, work.partition)
    # Every row has a queue id: the number of queues is not used.
    rows = RowWriter(work.options, stamp, work.partition, lambda topic: 1)
    with work.transaction.writer(work.batch, work.partition, attempt) as writer:
        for batches, order in merged(paths, _COLUMNS):
            plain = not pa.types.is_map(batches[0].schema.field("properties").type)
            writer.write(rows.copy(batches, order) if plain else rows.encode(in_order(batches, order)))
        return writer.close(rows.rows)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser(
        "replay",
        "Append the messages of an archive to a store or a cluster, once: a repeated run goes on.",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="what the job archive has written")
    parser.add_argument(
        "store", nargs="?", metavar="STORE",
        help="root directory of a store that nobody has open, or a new one; or --namesrv",
    )  # fmt: skip
    add_cluster(parser)
    parser.add_argument("--topics", type=names, metavar="A,B", help="only these topics (default: all)")
    parser.add_argument("--txn-id", metavar="ID", help="name under which it counts once (default: the archive's path)")
    parser.add_argument("--staging", metavar="DIR", help="directory for staged files (default: STORE/spark-staging)")
    parser.add_argument(
        "--batch-bytes",
        type=size_argument,
        default=128 << 20,
        metavar="SIZE",
        help="Parquet that is appended at once, and staged twice over; many executors need more of it (default: 128m)",
    )
    parser.add_argument("--new-times", action="store_true", help="born times of now instead of the archived ones")
    parser.add_argument("--new-ids", action="store_true", help="without the unique keys of the archived messages")
    return parser


def settings_of(a: argparse.Namespace) -> ReplaySettings:
    """Return the settings of a command line."""
    return ReplaySettings(a.archive, place_of(a), a.topics, a.txn_id, a.staging, a.batch_bytes, a.new_times, a.new_ids)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run_job(build_parser(), settings_of, run, argv)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return the class of a former name."""
        return former_name(__name__, name, {"Settings": ReplaySettings})


if __name__ == "__main__":
    # Import by name, so that tasks find the functions.
    from mqfast.spark.jobs import replay

    sys.exit(replay.main())
