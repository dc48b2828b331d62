"""The sink for clusters: tasks send rows to brokers; brokers with write state store each row exactly once.

A repeated task, and a batch repeated after a crash, send the same rows with the same marks; the brokers' write state
shows which rows are stored. Before a batch counts as written, the driver compares the rows that the tasks sent with the
write state. A batch with other rows than in an earlier attempt never counts. Forms: ``mqfast/remoting/once.py``; broker
side: ``mqfast/broker/idempotence``.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mqfast.errors import ConfigError, UsageError
from mqfast.remoting.once import STAMP
from mqfast.spark.options import Options
from mqfast.spark.remote.client import settings_of
from mqfast.spark.remote.send_elements import Elements
from mqfast.spark.remote.sender import How, TaskResult, TaskSender
from mqfast.spark.remote.write_state import BatchDone, WriteBatch
from mqfast.spark.rows import RowWriter, check_columns, refuse_complete

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["RemoteBatchWriter", "RemoteStreamWriter", "SentRows"]

_log = logging.getLogger("mqfast.spark")
_BATCH_MESSAGES_MAX: Final = 4096
_DELAYS: Final = frozenset(("delayLevel", "delayTimeMs"))


@dataclass
class SentRows(WriterCommitMessage):
    """The message of a task to the driver. ``done_batch``: the newest completely stored batch, if this batch is
    stored.
    """

    key: str
    batch: int
    partition: int
    rows: int
    ends: list[TaskResult] = field(default_factory=list)
    forgetful: tuple[str, ...] = ()
    repeated: int = 0
    done_batch: int = -1

    @property
    def done(self) -> bool:
        """Return whether the task sent nothing because an earlier attempt stored the whole batch."""
        return self.done_batch >= 0


def key_of(*identity: str) -> str:
    """Return the key of a write in the marks."""
    return hashlib.sha256("\0".join(identity).encode("utf-8")).hexdigest()[:16]


class _RemoteSink:
    """The common part of both writers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        settings_of(options)
        self.options: Final = options
        self._once = uuid.uuid4().hex  # unique to this job, or to this start of a query

    @property
    def is_careless(self) -> bool:
        """Return whether delivery is at_least_once: the marks of each attempt are unique, and no write state is
        used.
        """
        return self.options.delivery == "at_least_once"

    def send(self, batches: Iterator[pa.RecordBatch], key: str, batch: int) -> SentRows:
        """Encode and send all rows, and wait for the acknowledgements, in a task."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        first = next(batches, None)
        if first is None:
            return SentRows(key, batch, partition, 0)
        try:
            return self._send(first, batches, key, batch, partition)
        except BatchDone as done:
            return SentRows(key, batch, partition, 0, done_batch=done.newest)

    def _send(
        self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], key: str, batch: int, partition: int
    ) -> SentRows:
        options = self.options
        names = set(first.schema.names)
        how = How(
            key, batch, partition, options.delivery, options.broker_timeout / 1000, options.max_in_flight,
            "queueId" in names,
        )  # fmt: skip
        stamp = f"{STAMP}\x01{key}:{batch}:{partition}:".encode("ascii")
        unique = hashlib.sha256(stamp).hexdigest()[:20].upper().encode("ascii")
        with TaskSender(settings_of(options), how) as sender:
            rows = RowWriter(options, b"", partition, sender.queue_count, parks=False)
            elements = Elements(
                stamp, unique, sender.counts, options.preserve_ids, options.preserve_timestamps, options.send_bytes,
                _BATCH_MESSAGES_MAX,
            )  # fmt: skip
            delayed = not _DELAYS.isdisjoint(names)
            records: pa.RecordBatch | None = first
            while records is not None:
                for ready in elements.add(rows.encode(records), delayed):
                    sender.send(ready)
                if elements.pending > options.max_in_flight:
                    for ready in elements.rest():
                        sender.send(ready)
                records = next(batches, None)
            for ready in elements.rest():
                sender.send(ready)
            sender.finish()
            ends = [sender.result_of(*end) for end in elements.ends()]
            return SentRows(
                key, batch, partition, elements.rows, ends, tuple(sorted(sender.forgetful)), sender.repeated
            )

    def check_newest(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check as ``check`` does, for a query, which begins a batch after the previous is done.

        Raises: UsageError also if a later batch is done: the checkpoint was set back, and batches have other rows.
        """
        for result in messages:
            if isinstance(result, SentRows) and result.done_batch > result.batch:
                raise UsageError(
                    f"batch {result.batch} of write {result.key}: batch {result.done_batch} was written before as a "
                    "whole, so the checkpoint was set back, and this batch may have rows that were never written. To "
                    "write its rows, and have those of before twice, start with another txnId"
                )
        self.check(messages)

    def check(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Compare the sent rows with the brokers' write state, and mark the batch as stored, in the driver.

        Raises: UsageError if rows of this batch are stored that no task sent now, or if sent rows are missing.
        """
        sent = [result for result in messages if isinstance(result, SentRows) and (result.rows or result.done)]
        if not sent:
            return
        if any(result.done for result in sent):
            _log.warning(
                "batch %d of write %s was written before as a whole, and its rows are not written again",
                sent[0].batch, sent[0].key,
            )  # fmt: skip
            return
        key, batch = sent[0].key, sent[0].batch
        forgetful = {name for result in sent for name in result.forgetful}
        for name in sorted(forgetful):
            _log.warning(
                "broker %s remembers no writes: rows are written at least once, and a try after a lost answer or a "
                "crash repeats them (delivery=exactly_once refuses such brokers, at_least_once says nothing)",
                name,
            )
        if self.is_careless:
            return
        if any(result.repeated for result in sent):
            _log.warning("batch %d of write %s: rows were stored by an earlier try, and not again", batch, key)
        expected = {
            (result.partition, end.topic, end.broker, end.queue_id): (end.row, end.crc)
            for result in sent
            for end in result.ends
            if end.broker not in forgetful
        }
        topics = {end.topic for result in sent for end in result.ends}
        brokers = {place[2] for place in expected}
        state = WriteBatch(
            settings_of(self.options), key, batch, topics, brokers, forgetful, self.options.broker_timeout / 1000
        )
        stored_rows = state.rows()
        if stored_rows == expected:
            state.mark_stored(sum(task.rows for task in sent))
            return
        place = min(set(stored_rows.items()) ^ set(expected.items()))[0]
        partition, topic, broker, queue_id = place
        row, stored = expected.get(place, (-1,))[0], stored_rows.get(place, (-1,))[0]
        where = f"batch {batch} of write {key}: topic {topic}, queue {queue_id} of {broker}: task {partition}"
        if stored < row:
            raise UsageError(
                f"{where} was told that its rows up to {row} are stored, and the broker has rows up to {stored}: the "
                "topic was deleted, or another broker took over without them. Run the batch again: it writes them"
            )
        raise UsageError(
            f"{where} sent rows up to {row}, and the broker has rows up to {stored} of an earlier try. The rows of a "
            "repeated batch have to be the same, in the same order and tasks. To go on, and have these rows twice, run "
            "this batch with delivery=at_least_once or another txnId"
        )


def _streaming() -> tuple[str | None, int | None]:
    """Return query and batch of the stream that a task belongs to, in the task."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return query, int(batch) if batch is not None else None


class RemoteBatchWriter(_RemoteSink, DataSourceArrowWriter):
    """``df.write.format("mqfast").mode("append").option("namesrv", "host:9876").save()``.

    Raises: ConfigError.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            raise ConfigError('mode: expected append, found overwrite; a log is only ever added to: .mode("append")')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        """Send the rows of a task."""
        name = self.options.txn_id
        if name is None or self.is_careless:
            return self.send(iterator, key_of("job", self._once), 0)
        query, batch = _streaming()
        if query is not None and batch is not None:  # foreachBatch: the name is valid in the query only
            return self.send(iterator, key_of("query", query, name), batch)
        return self.send(iterator, key_of("txn", name), 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Compare sent and stored rows. Raises: see ``check_newest``."""
        self.check_newest(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: sent rows stay in the log."""


class RemoteStreamWriter(_RemoteSink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("mqfast").option("namesrv", "host:9876").option("checkpointLocation", ...).start()``.

    Raises: ConfigError.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        refuse_complete(overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        """Send the rows of a task. Raises: UsageError outside of a streaming query."""
        query, batch = _streaming()
        if query is None or batch is None:
            raise UsageError("the sink of a stream: expected the id of its query and batch from Spark, found none")
        name = self._once if self.is_careless else self.options.txn_id or ""
        return self.send(iterator, key_of("stream", query, name), batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Compare sent and stored rows. Raises: see ``check_newest``."""
        self.check_newest(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch is repeated, and stores no row twice."""
