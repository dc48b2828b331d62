"""Recovery: from the files of a store that was closed, or was not, to a state that can go on (RocketMQ:
CommitLog.recoverNormally, recoverAbnormally, ConsumeQueueStore.recover).

It must never cut the log before a record that is whole, never trust a derived file over the log, and must be able to
start again when it is interrupted: the ``abort`` file stands until the store is closed in order, and every step may be
repeated.

Order: queues find their own end; the start file is chosen; the log is walked from there with CRC checks, dispatching
what queues and index do not have; everything behind the last good record is cut from log, queues and index; next
offsets continue the queues.

Where RocketMQ loses something on the way, this does not: a queue that is one unit short after a clean stop gets it;
keys of an index file that had to be dropped after a crash are put again from the log even when they lie before the
start file; what lies behind the cut is cleared, so that it cannot come back at the next recovery.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqfast.store.paths import list_queues, queue_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.config import StoreConfig
    from mqfast.store._commit_log import CommitLog
    from mqfast.store._dispatch import Dispatcher
    from mqfast.store._os import OsDoor
    from mqfast.store.checkpoint import StoreCheckpoint
    from mqfast.store.index_service import IndexService
    from mqfast.store.paths import StorePaths
    from mqfast.store.queue_store import QueueStore

__all__ = ["RecoveryReport", "recover", "sync_names"]

_log = logging.getLogger("mqfast.store")


@dataclass
class RecoveryReport:
    """What a recovery found and did.

    ``end`` is the physical offset behind the last good record; ``records`` and ``bytes`` were walked over; ``reason``
    says why the walk ended. ``seconds`` is the whole time, ``sync_seconds`` the part that waited for the disk: what no
    flush is known to have covered is made durable before the store goes on.
    """

    clean: bool
    start: int = 0
    end: int = 0
    last_start: int = -1
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    sync_seconds: float = 0.0
    reason: str = "no log"
    removed_log_files: list[str] = field(default_factory=list)
    removed_index_files: list[str] = field(default_factory=list)


def recover(
    log: CommitLog,
    queues: QueueStore,
    index: IndexService | None,
    dispatcher: Dispatcher,
    checkpoint: StoreCheckpoint,
    config: StoreConfig,
    *,
    clean: bool,
    progress: Callable[[int, int], None] | None = None,
) -> RecoveryReport:
    """Bring log, queues and index into agreement; they were loaded before.

    Args: clean: the last writer closed the store; progress: called with (bytes done, bytes to do).
    Raises: CorruptFile, StorageError; nothing that was stored is lost, and the next open starts over.
    """
    began = time.perf_counter()
    report = RecoveryReport(clean=clean)
    if index is not None:
        report.removed_index_files = index.load(last_exit_ok=clean).destroyed
    queues.recover()
    if not log.files:
        queues.destroy_all()
        if index is not None:
            index.destroy_all()  # else its end offset would keep new records out
        log.truncate(0, 0)
        queues.settle(0)
        checkpoint.logics_physical_offset = 0
        report.seconds = time.perf_counter() - began
        return report
    queues.check_ends(log)
    missing = queues.missing_from()
    largest = queues.largest_end()
    end_of_files = log.written
    start = _start_file(log, checkpoint, config, clean=clean, largest=largest)
    keys_from = _keys_from(log, index, clean=clean)
    if not clean and largest < start:
        # No queue reaches the start file: queues were lost whole.
        missing = max(0, largest) if missing is None else min(missing, max(0, largest))
    if not clean:
        # Units from here on are put again from the log: pages of theirs may be lost or torn where the power went.
        queues.truncate(start, doubtful=True)
        queues.missing_from()
        queues.check_ends(log)  # the last unit before them may be a damaged one
        lower = queues.missing_from()
        if lower is not None:
            missing = lower if missing is None else min(missing, lower)
    if missing is not None:
        report.records += _put_units_again(log, dispatcher, missing, largest if clean else start)

    def report_progress(at: int) -> None:
        if progress is not None:
            progress(max(0, at - start), end_of_files - start)

    if keys_from is not None and keys_from < start:
        # Only keys are missing there: the walk skips records that queues have, and reads no bodies.
        walked = log.file_start_of(keys_from)
        end, _, _, records, _, _ = dispatcher.recover(
            walked, start, checked=False, property_crc=False, dispatch_from=keys_from, progress=report_progress
        )
        report.records += records
        report.bytes += end - walked
    dispatch_from = max(0, largest) if clean else 0
    index_from = 0
    if clean and index is not None and index.files and index.files[-1].end_timestamp > 0:
        # The index takes a record at its end offset once more, for keys it may lack; after a clean stop it has them.
        index_from = min(index.end_offset, end_of_files) + 1  # a damaged one may be the largest number there is
    queues.only_known_topics = clean
    try:
        end, last_start, last_timestamp, records, reason, unflushed_from = dispatcher.recover(
            start,
            end_of_files,
            checked=config.check_crc_on_recover,
            property_crc=config.force_verify_prop_crc,
            dispatch_from=dispatch_from,
            index_from=index_from,
            flushed_time=max(checkpoint.physic_msg_timestamp, 0),
            progress=report_progress,
        )
        # Replication ends anywhere in a record, so a slave's last one may be torn after a clean stop as well.
        doubtful = not clean or config.broker_role == "SLAVE"
        torn = doubtful and last_start >= 0 and _is_torn(log, last_start)
        if torn:
            end, reason = last_start, "torn topic or properties"
    finally:
        queues.only_known_topics = False
    report.start, report.end, report.last_start, report.reason = start, end, last_start, reason
    report.records += records
    report.bytes += end - start
    if last_start < 0 or torn:
        last_timestamp = max(checkpoint.physic_msg_timestamp, 0)
    queues.truncate(end)
    queues.cut_gaps()
    missing = queues.missing_from()
    if missing is not None:
        report.records += _put_units_again(log, dispatcher, missing, end)
    waited = time.perf_counter()
    report.removed_log_files = log.truncate(end, last_timestamp, -1 if clean else unflushed_from)
    report.sync_seconds = time.perf_counter() - waited
    if index is not None and index.files and index.end_offset >= end:
        again = index.truncate(end)
        if again < end:
            walked = log.file_start_of(max(again, log.min_offset))
            dispatcher.recover(walked, end, checked=False, property_crc=False, dispatch_from=again, progress=None)
    queues.settle(log.min_offset)
    if last_start >= 0 and not torn:
        checkpoint.confirm_phy_offset = last_start
    # Units that were put again are not on the disk yet.
    checkpoint.logics_physical_offset = min(checkpoint.logics_physical_offset, end if clean else start)
    report.seconds = time.perf_counter() - began
    if not clean:
        _log.info(
            "recovered to physical offset %d (%s): %d records, %d bytes in %.3f s",
            end,
            reason,
            report.records,
            report.bytes,
            report.seconds,
        )
    return report


def sync_names(door: OsDoor, paths: StorePaths) -> None:
    """Make every name durable that a killed writer may have left in the page cache only. Raises: StorageError."""
    queues = (paths.consume_queue, paths.batch_consume_queue, paths.consume_queue_ext)
    for directory in (paths.root, *paths.commit_logs, paths.index, os.path.dirname(paths.topics), *queues):
        if door.is_dir(directory):
            door.fsync_dir(directory)
    for base in queues:
        for topic, ids in list_queues(door, base).items():
            door.fsync_dir(os.path.join(base, topic))
            for queue_id in ids:
                door.fsync_dir(queue_dir(base, topic, queue_id))


def _put_units_again(log: CommitLog, dispatcher: Dispatcher, missing: int, end: int) -> int:
    """Walk over records from ``missing`` to ``end`` for the units that damaged queues lost; returns the records. Reads
    no bodies, and leaves the index alone: it would take its last record twice.
    """
    if missing >= end:
        return 0
    walked = log.file_start_of(max(missing, log.min_offset))
    _, _, _, records, _, _ = dispatcher.recover(
        walked, end, checked=False, property_crc=False, dispatch_from=missing, keys=False, progress=None
    )
    return records


def _start_file(log: CommitLog, checkpoint: StoreCheckpoint, config: StoreConfig, *, clean: bool, largest: int) -> int:
    """Start offset of the file to walk from.

    Clean: the last file that begins at or before the end of what the queues have. Abnormal: the last file whose first
    record was stored before everything the checkpoint vouches for.
    """
    files = log.files
    if clean:
        for file in reversed(files):
            if file.start_offset <= largest:
                return int(file.start_offset)
        return int(files[0].start_offset)
    limit = checkpoint.get_min_timestamp()
    if config.message_index_enable and config.message_index_safe:
        limit = checkpoint.get_min_timestamp_index()
    for file in reversed(files):
        timestamp = log.first_store_timestamp(file.start_offset)
        if 0 < timestamp <= limit:
            return int(file.start_offset)
    return int(files[0].start_offset)


def _is_torn(log: CommitLog, last_start: int) -> bool:
    """Is the end of the last record missing, behind a body whose CRC is right? Nothing covers its topic and properties.

    What was not written yet is zero: no property text ends so, and no topic has it. Only of a record that nobody can
    have been told to be durable: after a crash, at the end of the log.
    """
    message = log.message(last_start)
    return "\0" in message.topic or message.properties_bytes.endswith(b"\0")


def _keys_from(log: CommitLog, index: IndexService | None, *, clean: bool) -> int | None:
    """Physical offset from which keys are missing after a crash dropped the newest index files."""
    if index is None or clean:
        return None
    return max(index.end_offset, int(log.min_offset))
