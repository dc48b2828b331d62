"""The sink for clusters: tasks send their rows to brokers, which store each row once where they can.

Room: the Spark adapter. A task that is repeated, and a batch that is repeated after a crash, send the same rows under
the same names; the brokers' memory of writes tells which are stored. The driver compares, before a batch counts as
written, what its tasks sent with what the brokers remember. It must never let a batch count whose rows differ from
those of an earlier try. Forms: ``mqfast/remoting/once.py``; the brokers' side: ``mqfast/broker/once``.
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
from mqfast.spark.remote.write_state import Batch, BatchDone
from mqfast.spark.rows import RowWriter, check_columns, refuse_complete

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["RemoteBatchWriter", "RemoteStreamWriter", "Sent"]

_log = logging.getLogger("mqfast.spark")
_BATCH_MESSAGES_MAX: Final = 4096
_DELAYS: Final = frozenset(("delayLevel", "delayTimeMs"))


@dataclass
class Sent(WriterCommitMessage):
    """What one task tells the driver. ``done_batch``: the newest batch that is stored as a whole, if this one is."""

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
        """Was there nothing to send, since an earlier try stored the batch as a whole?"""
        return self.done_batch >= 0


def key_of(*identity: str) -> str:
    """The name of a write, as marks have it."""
    return hashlib.sha256("\0".join(identity).encode("utf-8")).hexdigest()[:16]


class _RemoteSink:
    """What both writers share."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        settings_of(options)
        self.options: Final = options
        self._once = uuid.uuid4().hex  # of this job, or of this start of a query

    @property
    def is_careless(self) -> bool:
        """Rows of at_least_once have names of their own, which no other try has or remembers."""
        return self.options.delivery == "at_least_once"

    def send(self, batches: Iterator[pa.RecordBatch], key: str, batch: int) -> Sent:
        """In a task: encode and send all rows, and wait until they are acknowledged."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        first = next(batches, None)
        if first is None:
            return Sent(key, batch, partition, 0)
        try:
            return self._send(first, batches, key, batch, partition)
        except BatchDone as done:
            return Sent(key, batch, partition, 0, done_batch=done.newest)

    def _send(
        self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], key: str, batch: int, partition: int
    ) -> Sent:
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
            return Sent(key, batch, partition, elements.rows, ends, tuple(sorted(sender.forgetful)), sender.repeated)

    def check_newest(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """As ``check``, for a query, which begins a batch when the one before is done.

        Raises: UsageError also where a later batch is done: the checkpoint was set back, and batches have other rows.
        """
        for one in messages:
            if isinstance(one, Sent) and one.done_batch > one.batch:
                raise UsageError(
                    f"batch {one.batch} of write {one.key}: batch {one.done_batch} was written before as a whole, so "
                    "the checkpoint was set back, and this batch may have rows that were never written. To write its "
                    "rows, and have those of before twice, start with another txnId"
                )
        self.check(messages)

    def check(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: compare what the tasks sent with what the brokers remember, and tell them that this is all.

        Raises: UsageError where rows of this batch are stored that no task has sent now, or rows that tasks sent are
            not there any more.
        """
        sent = [one for one in messages if isinstance(one, Sent) and (one.rows or one.done)]
        if not sent:
            return
        if any(one.done for one in sent):
            _log.warning(
                "batch %d of write %s was written before as a whole, and its rows are not written again",
                sent[0].batch, sent[0].key,
            )  # fmt: skip
            return
        key, batch = sent[0].key, sent[0].batch
        forgetful = {name for one in sent for name in one.forgetful}
        for name in sorted(forgetful):
            _log.warning(
                "broker %s remembers no writes: rows are written at least once, and a try after a lost answer or a "
                "crash repeats them (delivery=exactly_once refuses such brokers, at_least_once says nothing)",
                name,
            )
        if self.is_careless:
            return
        if any(one.repeated for one in sent):
            _log.warning("batch %d of write %s: rows were stored by an earlier try, and not again", batch, key)
        expected = {
            (one.partition, end.topic, end.broker, end.queue_id): (end.row, end.crc)
            for one in sent
            for end in one.ends
            if end.broker not in forgetful
        }
        topics = {end.topic for one in sent for end in one.ends}
        brokers = {place[2] for place in expected}
        one = Batch(
            settings_of(self.options), key, batch, topics, brokers, forgetful, self.options.broker_timeout / 1000
        )
        found = one.rows()
        if found == expected:
            one.mark_stored(sum(task.rows for task in sent))
            return
        place = min(set(found.items()) ^ set(expected.items()))[0]
        partition, topic, broker, queue_id = place
        row, stored = expected.get(place, (-1,))[0], found.get(place, (-1,))[0]
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
    """In a task: the query and the batch of a stream that it belongs to."""
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        name = self.options.txn_id
        if name is None or self.is_careless:
            return self.send(iterator, key_of("job", self._once), 0)
        query, batch = _streaming()
        if query is not None and batch is not None:  # foreachBatch: the name means something in the query only
            return self.send(iterator, key_of("query", query, name), batch)
        return self.send(iterator, key_of("txn", name), 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Compare what was sent with what is stored. Raises: see ``check_newest``."""
        self.check_newest(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays: a log takes nothing back."""


class RemoteStreamWriter(_RemoteSink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("mqfast").option("namesrv", "host:9876").option("checkpointLocation", ...).start()``.

    Raises: ConfigError.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        refuse_complete(overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task. Raises: UsageError outside of a streaming query."""
        query, batch = _streaming()
        if query is None or batch is None:
            raise UsageError("the sink of a stream: expected the id of its query and batch from Spark, found none")
        name = self._once if self.is_careless else self.options.txn_id or ""
        return self.send(iterator, key_of("stream", query, name), batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Compare what was sent with what is stored. Raises: see ``check_newest``."""
        self.check_newest(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays: the batch is repeated, and stores no row twice."""
