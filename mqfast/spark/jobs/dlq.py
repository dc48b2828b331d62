"""``dlq``: dead letters of a store, filtered, back to the topics that they came from, each once.

Room: the Spark adapter. A first read without bodies says which letters are to be sent; then tasks read those, make new
messages of them and stage them, and the driver appends by the sink's protocol (``local/staging.py``). Which letters a
transaction has sent is noted beside it (``dead_letters.py``), so that later runs send only what has died since. It must
never write a store that somebody else has open, and never send a letter whose origin is not known.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError
from mqfast.message import check_topic
from mqfast.properties import DLQ_ATTEMPTS, ORIGINS
from mqfast.spark import options as table
from mqfast.spark.backend import LogAccess, ReadSettings, open_local
from mqfast.spark.jobs.arguments import carry_out, count, instant, job_parser, names
from mqfast.spark.jobs.dead_letters import (
    DLQ_PREFIX,
    Queue,
    Runs,
    SentLetters,
    marks_of,
    offsets_of,
    revived,
    runs_of,
)
from mqfast.spark.jobs.files import locked
from mqfast.spark.jobs.locations import ClusterLocation, Place, add_place, as_options, place_of
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import run_tasks, tell
from mqfast.spark.local.commit import SinkTransaction, check_target
from mqfast.spark.local.leases import HeldLease
from mqfast.spark.local.sink import QueueCounts
from mqfast.spark.local.staging import StagedFile, clean_staging
from mqfast.spark.options import Options, nearest_name
from mqfast.spark.plan import OffsetRange, Snapshot
from mqfast.spark.rows import RowWriter
from mqfast.spark.schema import chosen_columns
from mqfast.spark.source import cached_backend

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "DeadLetterGroup", "DlqSettings", "letters_of", "main", "options_of", "pieces_of", "queues_of", "run", "tell_of",
]  # fmt: skip

_COLUMNS: Final = "topic,queueId,queueOffset,storeTimestamp,tags,properties"
_TO_SEND: Final = "topic,queueId,queueOffset,bornTimestamp,bornHost,flag,sysFlag,properties,body"
_LETTERS_PER_TASK: Final = 20_000
SEND: Final = "send"
KINDS: Final = ("filteredOut", "overCap", "withoutOrigin")


@dataclass(frozen=True)
class DlqSettings:
    """``target``: None for the store itself; ``groups``: of consumers, None for all; ``since_ms``, ``until_ms``: when
    the letter was stored, that is, died; ``properties``: name and value, all of them must be there; ``where``: a
    condition in SQL over the columns of messages; ``topic``: for all letters, None for each one's own;
    ``max_attempts``: a letter that was sent back so often is not sent any more; ``txn_id``: the name under which each
    letter counts once, None for one made of the store's path.
    """

    store: Place
    target: str | None = None
    groups: tuple[str, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    properties: tuple[tuple[str, str], ...] = ()
    where: str | None = None
    topic: str | None = None
    max_attempts: int = 3
    txn_id: str | None = None
    staging: str | None = None
    dry_run: bool = False


def run(spark: SparkSession, settings: DlqSettings) -> JobReport:
    """Send back what is to be sent and was not yet.

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
        with _alone(transaction, settings.dry_run):
            _send(spark, settings, access, transaction, report)
    finally:
        access.close()
    if os.path.isdir(staging) and not settings.dry_run:
        clean_staging(staging, table.parse({"path": target}, table.SINK).staging_ttl)
    return report


@contextlib.contextmanager
def _alone(transaction: SinkTransaction, dry_run: bool) -> Iterator[None]:
    if dry_run:
        yield  # leaves no trace, a lock file neither
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
        # One that was cut off in the middle of its append; its staged files are all that it takes.
        report.facts["resumed"] = transaction.commit(known.batch - 1, ()).appended
    queues = queues_of(snapshot, settings)
    known.check(queues, access)
    tell("dlq: looking for letters")
    found = DeadLetterGroup(letters_of(spark, settings, queues).toArrow() if queues else None)
    now, before = found.new(known)
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
    tell_of(report, found, now, before)


def queues_of(snapshot: Snapshot, settings: DlqSettings, *, optional: bool = False) -> list[OffsetRange]:
    """The dead letters' queues that have something.

    Raises: UsageError for a group that has none, unless ``optional``: another broker may have its letters.
    """
    dead = [q for q in snapshot.queues if q.topic.startswith(DLQ_PREFIX)]
    if settings.groups is not None:
        groups = sorted({q.topic.removeprefix(DLQ_PREFIX) for q in dead})
        chosen = {group.removeprefix(DLQ_PREFIX) for group in settings.groups}
        for group in sorted(chosen.difference(groups)) if not optional else ():
            raise UsageError(
                f"group {group}: the store has no dead letters of it, no topic {DLQ_PREFIX}{group}"
                f"{nearest_name(group, groups)}"
            )
        dead = [q for q in dead if q.topic.removeprefix(DLQ_PREFIX) in chosen]
    return [OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in dead if q.messages]


# --- which letters ---------------------------------------------------------------------------------------------------


def letters_of(spark: SparkSession, settings: DlqSettings, queues: Sequence[OffsetRange]) -> DataFrame:
    """One row a letter: topic, queueId, queueOffset, kind, target (null unless it is to be sent).

    Raises: UsageError for a condition that Spark refuses.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    reader = spark.read.format("mqfast").options(
        assign=json.dumps(_by_topic(queues)), order="queue",
        startingOffsets=json.dumps({f"{q.topic}/{q.queue_id}": q.start for q in queues}),
        endingOffsets=json.dumps({f"{q.topic}/{q.queue_id}": q.end for q in queues}),
    )  # fmt: skip
    if settings.where is None:
        reader = reader.option("columns", _COLUMNS)
    letters = reader.options(**as_options(settings.store)).load()
    try:
        wanted = _wanted(settings)
        letters = letters.withColumn("wanted", wanted)
    except AnalysisException as error:
        raise UsageError(f"where: expected a condition over the columns of messages; {_first_line(error)}") from None

    def property_of(name: str) -> Column:
        return f.col("properties")[name]

    origin = f.coalesce(*(f.when(_is_topic(property_of(name)), property_of(name)) for name in ORIGINS))
    # What is no number counts as none, as in ``properties.attempts_of``.
    attempts = f.when(property_of(DLQ_ATTEMPTS).rlike("^[0-9]{1,9}$"), property_of(DLQ_ATTEMPTS).cast("int")).otherwise(
        0
    )
    target = f.lit(settings.topic) if settings.topic is not None else origin
    kind = (
        f.when(~f.col("wanted"), KINDS[0])
        .when(attempts >= settings.max_attempts, KINDS[1])
        .when(target.isNull(), KINDS[2])
        .otherwise(SEND)
    )
    return letters.select("topic", "queueId", "queueOffset", kind.alias("kind"), target.alias("target"))


def _is_topic(value: Column) -> Column:
    return (value != "") & ~value.startswith("%RETRY%") & ~value.startswith(DLQ_PREFIX)


def _wanted(settings: DlqSettings) -> Column:
    from pyspark.sql import functions as f

    wanted = f.lit(True)
    if settings.since_ms is not None:
        wanted &= f.col("storeTimestamp") >= f.timestamp_millis(f.lit(settings.since_ms))
    if settings.until_ms is not None:
        wanted &= f.col("storeTimestamp") < f.timestamp_millis(f.lit(settings.until_ms))
    if settings.tags is not None:
        wanted &= f.col("tags").isin(*settings.tags)
    for name, value in settings.properties:
        wanted &= f.col("properties")[name] == value
    if settings.where is not None:
        wanted &= f.expr(settings.where)
    return f.coalesce(wanted, f.lit(False))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _by_topic(queues: Sequence[OffsetRange]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for q in queues:
        found.setdefault(q.topic, []).append(q.queue_id)
    return found


class DeadLetterGroup:
    """What the first read found: counts, and the offsets of the letters that are to be sent."""

    def __init__(self, letters: pa.Table | None) -> None:
        import pyarrow.compute as pc

        self.kinds: Final[Counter[tuple[str, str]]] = Counter()
        self.chosen: Final[dict[Queue, Any]] = {}
        self._targets: Final[dict[Queue, tuple[Any, Any]]] = {}
        if letters is None:
            return
        for row in letters.group_by(["topic", "kind"]).aggregate([([], "count_all")]).to_pylist():
            self.kinds[row["topic"], row["kind"]] = row["count_all"]
        send = letters.filter(pc.equal(letters["kind"], SEND)).sort_by("queueOffset")
        for row in send.group_by(["topic", "queueId"]).aggregate([]).to_pylist():
            mine = send.filter(
                pc.and_(pc.equal(send["topic"], row["topic"]), pc.equal(send["queueId"], row["queueId"]))
            )
            queue = row["topic"], row["queueId"]
            self.chosen[queue] = mine["queueOffset"].to_numpy()
            self._targets[queue] = mine["queueOffset"].to_numpy(), mine["target"]

    def new(self, known: SentLetters) -> tuple[dict[Queue, Runs], Counter[str]]:
        """The letters that were not sent before, and how many were, by topic."""
        import numpy as np

        now: dict[Queue, Runs] = {}
        before: Counter[str] = Counter()
        for queue, offsets in sorted(self.chosen.items()):
            left = np.setdiff1d(offsets, offsets_of(known.sent.get(queue, [])))
            before[queue[0]] += len(offsets) - len(left)
            if len(left):
                now[queue] = runs_of(left)
        return now, before

    def targets(self, letters: dict[Queue, Runs]) -> Counter[str]:
        """How many of these letters go where."""
        import numpy as np
        import pyarrow as pa

        found: Counter[str] = Counter()
        for queue, runs in letters.items():
            offsets, targets = self._targets[queue]
            mine = targets.filter(pa.array(np.isin(offsets, offsets_of(runs))))
            found.update({row["values"]: row["counts"] for row in mine.value_counts().to_pylist()})
        return found


def tell_of(report: JobReport, found: DeadLetterGroup, now: dict[Queue, Runs], before: Counter[str]) -> None:
    chosen: Counter[str] = Counter()
    for (topic, _), runs in now.items():
        chosen[topic] += sum(end - start for start, end in runs)
    rows: list[tuple[Any, ...]] = []
    for topic in sorted({topic for topic, _ in found.kinds}):
        kinds = [found.kinds[topic, kind] for kind in KINDS]
        letters = sum(n for (name, _), n in found.kinds.items() if name == topic)
        rows.append((topic.removeprefix(DLQ_PREFIX), letters, *kinds, before[topic], chosen[topic]))
    heads = ("letters", *KINDS, "sentBefore", "chosen")
    report.facts.update({head: sum(row[i] for row in rows) for i, head in enumerate(heads, 1)})
    report.table("dead letters by group", ("group", *heads), rows)
    report.table("chosen by topic", ("topic", "letters"), sorted(found.targets(now).items()))


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


def options_of(settings: DlqSettings) -> Options:
    how = {"columns": _TO_SEND, "properties": "raw", "verifyCrc": "fail", "decompress": "false"}
    return table.parse({**as_options(settings.store), **how}, table.BATCH)


def pieces_of(letters: dict[Queue, Runs]) -> list[tuple[OffsetRange, Runs]]:
    """What each task sends."""
    pieces = []
    for (topic, queue_id), runs in sorted(letters.items()):
        offsets = offsets_of(runs)
        for at in range(0, len(offsets), _LETTERS_PER_TASK):
            mine = offsets[at : at + _LETTERS_PER_TASK]
            pieces.append((OffsetRange(topic, queue_id, int(mine[0]), int(mine[-1]) + 1), runs_of(mine)))
    return pieces


def _stage(work: _Work) -> StagedFile | None:
    """In a task: some letters of one queue, made new and staged in their order."""
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
    """The command line."""
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
    """The settings that a command line means."""
    return DlqSettings(
        place_of(a), a.to, a.groups, a.since, a.until, a.tags, tuple(a.property), a.where, a.topic, a.max_attempts,
        a.txn_id, a.staging, a.dry_run,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return carry_out(build_parser(), settings_of, run, argv)


if __name__ == "__main__":
    # Under its own name, so that tasks find its functions.
    from mqfast.spark.jobs import dlq

    sys.exit(dlq.main())
