"""``archive`` of a running cluster: each queue of each broker from the end of the previous run, over the network.

As for a store, tasks write files and the driver writes the manifest last. A file holds a range of a queue, and the
manifest the end offset of each queue. Messages that retention removed before a run are reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConnectError, DataLoss, UsageError
from mqfast.spark import options as table
from mqfast.spark.archive_manifest import (
    CLUSTER,
    ArchivedFile,
    ArchivedQueue,
    DamagedFile,
    Manifest,
    last_places,
    only_run,
    queue_ends,
    recreated_queues,
    save,
)
from mqfast.spark.backends import known_topics, open_backend, stores_of
from mqfast.spark.jobs.locations import as_options
from mqfast.spark.jobs.parquet_files import PieceFiles
from mqfast.spark.jobs.tasks import run_tasks
from mqfast.spark.options import Options
from mqfast.spark.partitions import ScanPartition, cached_backend, partitions_of, read_settings
from mqfast.spark.plan import OffsetRange, Queue, Selection, Snapshot, plan
from mqfast.spark.schema import chosen_columns
from mqfast.spark.selection import check_names, present, readable, selected_queues

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqfast.spark.jobs.settings import ArchiveSettings

__all__ = ["archive_cluster"]

_MOST_PLACES: Final = 1000


@dataclass(frozen=True)
class _Work:
    part: ScanPartition
    archive: str
    settings: ArchiveSettings
    run: int


@dataclass(frozen=True)
class _Done:
    """The result of a task: files, and the physical offsets of the records left out, by broker."""

    files: list[ArchivedFile]
    damaged: dict[str, list[int]]
    damaged_bytes: int


def archive_cluster(spark: SparkSession, settings: ArchiveSettings, columns: str) -> tuple[Manifest, int]:
    """Archive the new messages.

    Returns: the manifest, and the number of messages that were removed before any run.
    Raises: ConfigError, UsageError, DataLoss, StoreLocked, StorageError, ClientError, and Spark's errors.
    """
    marked = settings.verify_crc == "skip"
    options = table.parse(
        {
            **as_options(settings.store), "properties": settings.properties, "batchBytes": "4m", "decompress": "false",
            "columns": f"{columns},crcOk" if marked else columns,
            "verifyCrc": "mark" if marked else settings.verify_crc, "failOnDataLoss": str(not settings.allow_loss),
            **({"subscribe": ",".join(settings.topics)} if settings.topics is not None else {}),
        },
        table.BATCH,
    )  # fmt: skip
    archive = os.path.abspath(settings.archive)
    with only_run(archive) as done:
        _check_runs(settings, done)
        ends = queue_ends(done) or {}
        stores = _snapshots_of(options)
        lost = _check_known(settings, ends, stores)
        for key in _recreated(settings, done, ends, stores):
            del ends[key]  # a new queue of this name: from the first message on
            lost += 1
        new: list[ArchivedQueue] = []
        parts: list[ScanPartition] = []
        for name, given, snapshot, queues in stores:
            ranges: list[OffsetRange] = []
            for queue in queues:
                end = ends.get((name, queue.topic, queue.queue_id))
                start, gone = _start(settings, name, queue, end, snapshot.may_lag)
                lost += gone
                if start < queue.max_offset:
                    ranges.append(OffsetRange(queue.topic, queue.queue_id, start, queue.max_offset))
                    new.append(ArchivedQueue(name, queue.topic, queue.queue_id, start, queue.max_offset))
            selection = Selection(tuple(ranges))
            pieces = plan(snapshot, selection, None, partition_bytes=settings.partition_bytes)
            for part in partitions_of(given, chosen_columns(given), snapshot, pieces, read_settings(given, selection)):
                part.store = name
                parts.append(part)
        run = len(done) + 1
        done_parts = run_tasks(spark, [_Work(part, archive, settings, run) for part in parts], _archive_part, "archive")
        files = [file for result in done_parts for file in result.files]
        manifest = Manifest(
            number=run, store_id=CLUSTER, start=0, end=0, topics=settings.topics,
            properties=settings.properties, made_ms=time.time_ns() // 1_000_000,
            files=tuple(sorted(files, key=lambda file: (file.broker, file.topic, file.queue_id, file.piece_start,
                                                        file.path))),
            left_out=_left_out(done_parts), left_out_bytes=sum(result.damaged_bytes for result in done_parts),
            queues=tuple(sorted(new, key=lambda queue: (queue.broker, queue.topic, queue.queue_id))),
        )  # fmt: skip
        if new or not done:
            save(archive, manifest)
    return manifest, lost


def _check_runs(settings: ArchiveSettings, done: Sequence[Manifest]) -> None:
    if not done:
        return
    last = done[-1]
    if last.store_id != CLUSTER:
        raise UsageError(
            f"{settings.archive}: expected the archive of a cluster, found that of a store; an archive of its own is "
            "needed"
        )
    if (last.topics, last.properties) != (settings.topics, settings.properties):
        raise UsageError(
            f"{settings.archive}: expected the topics and the form of properties of the runs before, "
            f"{last.topics or 'all topics'} and {last.properties}, found {settings.topics or 'all topics'} and "
            f"{settings.properties}; another choice needs an archive of its own"
        )


def _snapshots_of(options: Options) -> list[tuple[str, Options, Snapshot, list[Queue]]]:
    """Return the brokers, each with options, snapshot and selected queues."""
    stores = stores_of(options, begins=True)
    snapshots = []
    for _, given in stores:
        with closing(open_backend(given)) as access:
            snapshots.append(access.snapshot())
    check_names(snapshots, options, known_topics)
    return [
        (name, given, snapshot, readable(selected_queues(snapshot, present(snapshot, given))))
        for (name, given), snapshot in zip(stores, snapshots, strict=True)
    ]


def _check_known(
    settings: ArchiveSettings,
    ends: dict[tuple[str, str, int], int],
    stores: Sequence[tuple[str, Options, Snapshot, list[Queue]]],
) -> int:
    """Return the number of archived queues that no longer exist. Raises: DataLoss, unless losses are allowed."""
    # A queue that is unreadable now continues later at the archive's end.
    there = {(name, topic) for name, _, snapshot, _ in stores for topic in snapshot.topics}
    may_lag = {name for name, _, snapshot, _ in stores if snapshot.may_lag}  # a slave may not have a topic yet
    gone = sorted(place for place in ends if place[:2] not in there and place[0] not in may_lag)
    if gone and not settings.allow_loss:
        broker, topic, queue_id = gone[0]
        raise DataLoss(
            f"the archive has queue {topic}/{queue_id} of broker {broker} up to {ends[gone[0]]}, and the cluster has "
            f"no such queue{f' ({len(gone)} such queues)' if len(gone) > 1 else ''}; --allow-loss goes on without"
        )
    return len(gone)


def _recreated(
    settings: ArchiveSettings,
    done: Sequence[Manifest],
    ends: dict[tuple[str, str, int], int],
    stores: Sequence[tuple[str, Options, Snapshot, list[Queue]]],
) -> list[tuple[str, str, int]]:
    """Return grown queues whose last archived message has changed: the topic was deleted and created again.

    Raises: DataLoss, unless losses are allowed.
    """
    places = last_places(done)
    recreated: list[tuple[str, str, int]] = []
    for name, given, _, queues in stores:
        known = {(name, queue.topic, queue.queue_id): queue for queue in queues}
        grown = {
            key: ends[key] for key, queue in known.items() if queue.min_offset < ends.get(key, 0) < queue.max_offset
        }
        with closing(open_backend(given)) as access:
            recreated += recreated_queues(access, grown, places)
    if recreated and not settings.allow_loss:
        broker, topic, queue_id = recreated[0]
        raise DataLoss(
            f"queue {topic}/{queue_id} of broker {broker}: message {ends[recreated[0]] - 1} is not the one that the "
            "archive has: another topic of this name; --allow-loss archives it from its first message"
        )
    return recreated


def _start(settings: ArchiveSettings, broker: str, queue: Queue, end: int | None, may_lag: bool) -> tuple[int, int]:
    """Return the start of this run in a queue, and the number of messages that were removed before any run.

    Args: may_lag: the bounds come from a slave.
    Raises: DataLoss; ConnectError if only the master can have the messages.
    """
    what = f"queue {queue.topic}/{queue.queue_id} of broker {broker}"
    if may_lag and (end or 0) < queue.min_offset and not settings.allow_loss:
        raise ConnectError(
            f"the archive has {what} up to {end or 0}, the slave begins at {queue.min_offset}, and the master, which "
            "may have what is between, is away; --allow-loss goes on without"
        )
    if end is None:
        return queue.min_offset, 0
    if may_lag and end > queue.max_offset:
        return end, 0  # the slave is behind the archive: no new messages
    if end > queue.max_offset:
        if not settings.allow_loss:
            raise DataLoss(
                f"{what} ends at {queue.max_offset}, and the archive has it up to {end}: another topic of this name, "
                "or a broker that was set back; --allow-loss archives it from its first message"
            )
        return queue.min_offset, 1
    lost = max(0, queue.min_offset - end)
    if lost and not settings.allow_loss:
        raise DataLoss(
            f"the archive has {what} up to {end}, and it begins at {queue.min_offset}: {lost} messages were removed "
            "before they were archived; --allow-loss goes on without them"
        )
    return max(end, queue.min_offset), lost


def _archive_part(work: _Work) -> _Done:
    """Write ranges of queues of a broker into files, in a task."""
    part, settings = work.part, work.settings
    done = _Done([], {}, 0)
    left_out_bytes = 0
    access = cached_backend(part.options, part.store_id)
    try:
        for piece in part.piece.queues:
            queue = (part.store, piece.queue_id)
            with PieceFiles(
                work.archive, piece.start, piece.end, settings.compression, settings.level, queue, work.run
            ) as files:  # fmt: skip
                for batch in access.gather(piece, part.columns, part.settings):
                    for rows, bad, size in _with_valid_crc(batch, settings.verify_crc == "skip"):
                        files.add(rows)
                        if bad:
                            done.damaged.setdefault(part.store, []).extend(bad)
                            left_out_bytes += size
                done.files.extend(files.close())
    finally:
        access.release_files()
    return _Done(done.files, done.damaged, left_out_bytes)


def _with_valid_crc(batch: pa.RecordBatch, marked: bool) -> Iterator[tuple[pa.RecordBatch, list[int], int]]:
    """Yield the rows with a valid checksum, without the column ``crcOk``; offsets and bytes of the other rows."""
    if not marked:
        yield batch, [], 0
        return
    import pyarrow.compute as pc

    ok = batch.column("crcOk")
    rows = batch.drop_columns(["crcOk"])
    bad = rows.filter(pc.invert(ok))
    yield rows.filter(ok), bad.column("physicalOffset").to_pylist(), pc.sum(bad.column("msgSize")).as_py() or 0


def _left_out(parts: Sequence[_Done]) -> tuple[DamagedFile, ...]:
    places: dict[str, list[int]] = {}
    for part in parts:
        for broker, offsets in part.damaged.items():
            places.setdefault(broker, []).extend(offsets)
    return tuple(
        DamagedFile(f"broker {broker}", len(offsets), tuple((at, "crc") for at in sorted(offsets)[:_MOST_PLACES]))
        for broker, offsets in sorted(places.items())
    )
