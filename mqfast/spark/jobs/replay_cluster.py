"""``replay`` into a running cluster: an archive's messages to the brokers, each once, in the order of each queue.

The batches are those of a replay into a store. A task sends the messages of some queues of a topic, so no two tasks
share a queue. The brokers' write state shows the rows sent before (``remote/sink.py``). Messages of broker topics are
sent only if named: brokers refuse or execute such messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, UsageError
from mqfast.spark import options as table
from mqfast.spark.archive_manifest import ArchivedFile, batches_of, manifests
from mqfast.spark.backends import stores_of
from mqfast.spark.durable_files import crc_of
from mqfast.spark.jobs.locations import ClusterLocation, as_options
from mqfast.spark.jobs.merge import in_order, merged
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import context_of, print_progress, run_tasks
from mqfast.spark.schema import MESSAGES, struct_type
from mqfast.spark.selection import is_hidden

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqfast.spark.jobs.settings import ReplaySettings
    from mqfast.spark.remote.sink import RemoteBatchWriter, SentRows

__all__ = ["replay_to_cluster"]

_COLUMNS: Final = ("topic", "queueId", "bornTimestamp", "flag", "sysFlag", "reconsumeTimes", "properties", "body")
# Tasks of a topic in a batch. The write state is by task, so the number is the same in every run.
_SHARES: Final = 4


@dataclass(frozen=True)
class _Work:
    archive: str
    files: tuple[ArchivedFile, ...]
    share: int
    names_queues: bool
    writer: RemoteBatchWriter
    key: str
    batch: int


def replay_to_cluster(spark: SparkSession, settings: ReplaySettings) -> JobReport:
    """Send the messages that the brokers do not have yet.

    Raises: UsageError, ConfigError, CorruptFile, ClientError, and Spark's errors of failed tasks.
    """
    from mqfast.spark.remote.sink import RemoteBatchWriter, key_of

    assert isinstance(settings.store, ClusterLocation)
    context_of(spark, "replay")
    archive = os.path.abspath(settings.archive)
    runs = manifests(archive)
    if not runs:
        raise UsageError(f"{archive}: expected an archive, found no manifest")
    if settings.staging is not None:
        raise UsageError("--staging: it is for a store; brokers remember what was sent")
    brokers = [name for name, _ in stores_of(table.parse(as_options(settings.store), table.BATCH), begins=True)]
    names_queues = len(brokers) == 1
    options = table.parse(
        {
            **as_options(settings.store), "queueSelector": "column" if names_queues else "hash",
            "preserveTimestamps": str(not settings.new_times), "preserveIds": str(not settings.new_ids),
        },
        table.SINK,
    )  # fmt: skip
    every = sorted({file.topic for manifest in runs for file in manifest.files})
    topics = tuple(topic for topic in every if not is_hidden(topic)) if settings.topics is None else settings.topics
    kinds = {column.name: column for column in MESSAGES}
    schema = struct_type([kinds[name] for name in _sent_columns(names_queues)])
    writer = RemoteBatchWriter(options, schema, False)
    txn_id = settings.txn_id or f"replay of {archive}"
    key = key_of("replay", txn_id, ",".join(topics), str(settings.batch_bytes))
    batches = batches_of(runs, topics, settings.batch_bytes)
    rows = sent_rows = done_before = 0
    for number, pieces in enumerate(batches):
        files = [file for piece in pieces for file in piece]
        messages = sum(file.rows for file in files)
        rows += messages
        print_progress(f"replay: batch {number + 1} of {len(batches)}, {messages} messages")
        by_topic: dict[str, list[ArchivedFile]] = {}
        for file in sorted(files, key=lambda file: file.topic):
            by_topic.setdefault(file.topic, []).append(file)
        work = [
            _Work(archive, tuple(mine), share, names_queues, writer, key, number)
            for mine in by_topic.values()
            for share in range(_SHARES)
        ]
        sent = run_tasks(spark, work, _send, "replay")
        writer.check(sent)
        done_before += any(result.done for result in sent)
        sent_rows += sum(result.rows for result in sent)
    facts = {
        "archive": archive, "cluster": settings.store.namesrv, "txnId": txn_id, "messages": rows, "sent": sent_rows,
        "batches": len(batches), "doneBefore": done_before, "queuesKept": names_queues,
        "leftOutTopics": len(set(every) - set(topics)) if settings.topics is None else 0,
    }  # fmt: skip
    return JobReport("replay", facts)


def _sent_columns(names_queues: bool) -> Sequence[str]:
    return _COLUMNS if names_queues else tuple(name for name in _COLUMNS if name != "queueId")


def _send(work: _Work) -> SentRows:
    """Send the rows of some queues of a topic, in a task."""
    return work.writer.send(_rows(work), work.key, work.batch)


def _rows(work: _Work) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = []
    for file in work.files:
        path = os.path.join(work.archive, file.path)
        if file.queue_id >= 0 and file.queue_id % _SHARES != work.share:
            continue
        crc = crc_of(path)
        if crc != file.crc:
            raise CorruptFile("a file is not as its manifest says", path=path, expected=file.crc, found=crc)
        paths.append(path)
    for batches, order in merged(paths, ("physicalOffset", *_COLUMNS)) if paths else ():
        rows = in_order(batches, order)
        share = pc.bit_wise_and(rows.column("queueId"), pa.scalar(_SHARES - 1, pa.int32()))
        mine = rows.filter(pc.equal(share, work.share))
        if mine.num_rows:
            yield mine.select(list(_sent_columns(work.names_queues)))
