"""``dlq`` of a running cluster: dead letters back to their topics over the network, each once.

Each broker's dead letters are a transaction with notes in a directory of the user (``dead_letters.py``). The note is
written before the letters are sent. After an interruption the same tasks send the same letters again, and the brokers
store each once (``remote/sink.py``). A letter of unknown origin is never sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqfast.errors import UsageError
from mqfast.message import check_topic
from mqfast.spark import options as table
from mqfast.spark.backend import Backend, ReadSettings
from mqfast.spark.backends import open_backend, stores_of
from mqfast.spark.durable_files import locked, write_json
from mqfast.spark.jobs.dead_letters import Queue, Runs, SentLetters, marks_of, offsets_of, revived
from mqfast.spark.jobs.dlq_selection import (
    DeadLetterGroup,
    add_letter_tables,
    letters_of,
    options_of,
    pieces_of,
    queues_of,
)
from mqfast.spark.jobs.locations import ClusterLocation, as_options
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.settings import DlqSettings
from mqfast.spark.jobs.tasks import context_of, print_progress, run_tasks
from mqfast.spark.options import Options
from mqfast.spark.partitions import cached_backend
from mqfast.spark.plan import OffsetRange
from mqfast.spark.remote.sink import RemoteBatchWriter, SentRows, key_of
from mqfast.spark.schema import MESSAGES, chosen_columns, struct_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["resend_in_cluster"]


@dataclass(frozen=True)
class _Notes:
    """The notes of a transaction: letters, intent and end of each batch."""

    directory: str
    key: str

    def is_done(self, batch: int) -> bool:
        """Return whether the letters of a batch, or of a later batch, are sent."""
        return any(int(name.partition(".")[0]) >= batch for name in self._named(".done"))

    def _named(self, end: str) -> list[str]:
        if not os.path.isdir(self.directory):
            return []
        return [name for name in os.listdir(self.directory) if name.endswith(end)]

    def note(self, batch: int, end: str) -> None:
        """Write a note; durable on return."""
        write_json(os.path.join(self.directory, f"{batch}.{end}"), {"key": self.key})


@dataclass(frozen=True)
class _Work:
    settings: DlqSettings
    options: Options
    store_id: str
    piece: OffsetRange
    runs: Runs
    writer: RemoteBatchWriter
    key: str
    batch: int


def resend_in_cluster(spark: SparkSession, settings: DlqSettings) -> JobReport:
    """Send the selected letters that were not sent before.

    Raises: UsageError, ConfigError, StoreLocked, CorruptFile, ClientError, and Spark's errors of failed tasks.
    """
    assert isinstance(settings.store, ClusterLocation)
    context_of(spark, "dlq")
    if settings.target is not None:
        raise UsageError("--to: dead letters of a cluster go back to that cluster")
    if settings.staging is None and not settings.dry_run:
        raise UsageError(
            "--staging: expected a directory for the notes of what was sent, found none; --dry-run needs none"
        )
    if settings.topic is not None:
        check_topic(settings.topic)
    txn_id = settings.txn_id or f"dlq of {settings.store.namesrv}"
    facts = {"store": settings.store.namesrv, "target": settings.store.namesrv, "txnId": txn_id}
    report = JobReport("dlq", {**facts, "dryRun": settings.dry_run, "resumed": 0, "sent": 0})
    several = stores_of(table.parse(as_options(settings.store), table.BATCH), begins=True)
    for name, _ in several:
        others = tuple(option for option in settings.store.options if option[0] != "brokers")
        place = ClusterLocation(settings.store.namesrv, (*others, ("brokers", name)))
        key = key_of("dlq", txn_id, name)
        notes = _Notes(os.path.join(os.path.abspath(settings.staging or os.curdir), f"dlq-{key}"), key)
        of_broker = JobReport("dlq")
        alone = (
            nullcontext() if settings.dry_run else locked(os.path.join(notes.directory, "lock"), f"dlq as {txn_id!r}")
        )
        with alone:
            _resend(spark, dataclasses.replace(settings, store=place), notes, of_broker)
        _merge_report(report, of_broker, name, len(several) > 1)
    return report


def _merge_report(report: JobReport, of_broker: JobReport, broker: str, several: bool) -> None:
    for name, value in of_broker.facts.items():
        report.facts[name] = report.facts.get(name, 0) + value
    for table_of_broker in of_broker.tables:
        report.table(
            f"{table_of_broker.title}, {broker}" if several else table_of_broker.title,
            table_of_broker.heads,
            table_of_broker.rows,
        )


def _resend(spark: SparkSession, settings: DlqSettings, notes: _Notes, report: JobReport) -> None:
    options = options_of(settings)
    with closing(open_backend(options)) as access:
        snapshot = access.snapshot()
        known = SentLetters.load(notes) if not settings.dry_run else SentLetters()
        if known.store_id != "empty":
            access.check(known.store_id)
        queues = queues_of(snapshot, settings, optional=True)
        if not snapshot.may_lag:
            known.check(queues, access)
        if known.batch and not notes.is_done(known.batch - 1):
            # Repeat an interrupted batch: the brokers store only the missing letters.
            report.facts["resumed"] = _send(
                spark, settings, options, known.store_id, known.last, notes, known.batch - 1
            )
        print_progress("dlq: looking for letters")
        letters = DeadLetterGroup(letters_of(spark, settings, queues).toArrow() if queues else None)
        now, before = letters.new(known)
        report.facts["sent"] = 0
        if now and not settings.dry_run:
            known.save(notes, snapshot.store_id, now, marks_of(now, access))
            notes.note(known.batch, "intent")
            report.facts["sent"] = _send(spark, settings, options, snapshot.store_id, now, notes, known.batch)
            known.forget_older(notes)
        add_letter_tables(report, letters, now, before)


def _send(
    spark: SparkSession, settings: DlqSettings, options: Options, store_id: str, letters: dict[Queue, Runs],
    notes: _Notes, batch: int,
) -> int:  # fmt: skip
    """Send letters as a batch. Returns: their number."""
    sink = {**as_options(settings.store), "preserveTimestamps": "true", "preserveIds": "true"}
    sink.pop("brokers", None)
    kinds = {column.name: column for column in MESSAGES}
    names = ("topic", "properties", "bornTimestamp", "bornHost", "flag", "sysFlag", "body")
    writer = RemoteBatchWriter(table.parse(sink, table.SINK), struct_type([kinds[name] for name in names]), False)
    work = [
        _Work(settings, options, store_id, piece, runs, writer, notes.key, batch) for piece, runs in pieces_of(letters)
    ]
    sent = run_tasks(spark, work, _send_part, "dlq")
    writer.check(sent)
    notes.note(batch, "done")
    return sum(end - start for runs in letters.values() for start, end in runs)


def _send_part(work: _Work) -> SentRows:
    """Convert and send letters of a queue in order, in a task."""
    access = cached_backend(work.options, work.store_id)
    try:
        return work.writer.send(_letters_of(work, access), work.key, work.batch)
    finally:
        access.release_files()


def _letters_of(work: _Work, access: Backend) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    settings = ReadSettings(batch_bytes=work.options.batch_bytes, verify_crc=work.options.verify_crc)
    wanted = offsets_of(work.runs)
    for batch in access.gather(work.piece, chosen_columns(work.options), settings):
        mine = batch.filter(pa.array(np.isin(batch.column("queueOffset").to_numpy(), wanted)))
        if mine.num_rows:
            yield revived(mine, work.settings.topic)
