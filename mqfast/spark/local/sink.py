"""The sink for local stores: tasks encode and stage rows, the driver appends the rows exactly once.

Spark creates a writer at planning, sends copies to the tasks, and creates another writer in each commit of a stream:
the data of a commit travels in the messages of the tasks. ``commit.py`` describes crash recovery. A store that another
process has open is never written.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, UsageError
from mqfast.spark.local.commit import SinkTransaction, check_target
from mqfast.spark.local.staging import StagedFile, clean_staging
from mqfast.spark.options import Options
from mqfast.spark.rows import RowWriter, check_columns, refuse_complete
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import StorePaths
from mqfast.store.meta.metadata import TopicConfigTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "QueueCounts", "Staged", "StreamWriter"]

_log = logging.getLogger("mqfast.spark")

_BATCH_OWNER: Final = "batch write"


@dataclass(frozen=True)
class Identity:
    """The identity under which a write counts once; see SinkTransaction."""

    txn_id: str
    owner: str
    within: tuple[str, int] | None = None
    single: bool = False


@dataclass
class Staged(WriterCommitMessage):
    """The message of a task to the driver."""

    identity: Identity
    file: StagedFile | None


class _Sink:
    """The common part of both writers: options, staging in a task, and the end of a batch."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        assert options.path is not None
        path = options.path
        self.options: Final = options
        self.store_path: Final = os.path.abspath(
            path.removeprefix("file://" if path.startswith("file:///") else "file:")
        )
        staging = options.staging or os.path.join(self.store_path, "spark-staging")
        self.staging: Final = os.path.abspath(staging.removeprefix("file:"))

    def transaction(self, identity: Identity) -> SinkTransaction:
        return SinkTransaction(
            self.store_path, self.staging, identity.txn_id,
            owner=identity.owner, within=identity.within, single=identity.single,
        )  # fmt: skip

    def stage(self, batches: Iterator[pa.RecordBatch], identity: Identity, batch: int) -> Staged:
        """Encode, write and sync the rows of a task, in the task."""
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        transaction = self.transaction(identity)
        stamp = transaction.stamp(batch, partition) if self.options.delivery != "at_least_once" else b""
        rows = RowWriter(self.options, stamp, partition, QueueCounts(self.store_path))
        with transaction.writer(batch, partition, attempt) as writer:
            for records in batches:
                encoded = rows.encode(records)
                if encoded:
                    writer.write(encoded)
            return Staged(identity, writer.close(rows.rows))

    def append(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> SinkTransaction | None:
        """Append the staged rows of all tasks, in the driver."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return None
        transaction = self.transaction(staged[0].identity)
        files = [message.file for message in staged if message.file is not None]
        if self.options.delivery != "at_least_once":
            if transaction.commit(batch, files).repeated:
                _log.warning(
                    "txnId %r: batch %d was written before, and its %d rows are not written again",
                    transaction.txn_id, batch, sum(file.rows for file in files),
                )  # fmt: skip
        else:
            transaction.append_at_least_once(batch, files)
        try:
            clean_staging(self.staging, self.options.staging_ttl)
        except OSError as error:  # written rows stay
            _log.warning("staging is not cleaned: %s", error)
        return transaction

    def drop(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Remove the staged rows of all tasks, in the driver."""
        for message in messages:
            if isinstance(message, Staged) and message.file is not None:
                self.transaction(message.identity).abort(batch, [message.file])


def _streaming() -> tuple[str | None, int | None]:
    """Return query and batch of the stream that a task belongs to, in the task."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return query, int(batch) if batch is not None else None


class QueueCounts:
    """The number of queues of a topic: as configured, or the default of a new topic."""

    def __init__(self, store_path: str) -> None:
        os_api = OsApi()
        self._table: Final = TopicConfigTable.load(os_api, StorePaths(store_path).topics)
        self._usual: Final = StoreConfig().default_topic_queue_nums
        self._known: Final[dict[str, int]] = {}

    def __call__(self, topic: str) -> int:
        count = self._known.get(topic)
        if count is None:
            config = self._table.get(topic)
            count = max(1, config.write_queue_nums) if config is not None else self._usual
            self._known[topic] = count
        return count


class BatchWriter(_Sink, DataSourceArrowWriter):
    """``df.write.format("mqfast").mode("append").save(path)``.

    Raises: ConfigError, StoreLocked.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            raise ConfigError('mode: expected append, found overwrite; a log is only ever added to: .mode("append")')
        check_target(self.store_path)
        # A job has an id: a repeated task keeps the id, a repeated job only with an id of the user.
        self._txn_id: Final = options.txn_id or f"job-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        named = self.options.txn_id is not None
        query, batch = _streaming()
        if named and query is not None and batch is not None:  # foreachBatch: the name is valid in the query only
            return self.stage(iterator, Identity(self._txn_id, query, (query, batch)), 0)
        return self.stage(iterator, Identity(self._txn_id, _BATCH_OWNER, single=named), 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows of all tasks. Raises: see SinkTransaction.commit."""
        transaction = self.append(messages, 0)
        if transaction is not None and self.options.txn_id is None:
            transaction.forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged rows, unless the append has begun."""
        self.drop(messages, 0)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("mqfast").option("checkpointLocation", ...).start(path)``.

    Raises: ConfigError; StoreLocked if no batch was staged before.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        refuse_complete(overwrite)
        if not os.path.isdir(self.staging):
            check_target(self.store_path)  # later another sink may lock the store for a moment: commits wait

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task. Raises: UsageError outside of a streaming query."""
        query, batch = _streaming()
        if query is None or batch is None:
            raise UsageError("the sink of a stream: expected the id of its query and batch from Spark, found none")
        return self.stage(iterator, Identity(self.options.txn_id or query, query), batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the batch exactly once. Raises: see SinkTransaction.commit."""
        self.append(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged rows, unless the append has begun."""
        self.drop(messages, batchId)
