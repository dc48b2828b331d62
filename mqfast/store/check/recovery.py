"""Recovery: brings log, queues and index into agreement, after a clean close or a crash (RocketMQ:
CommitLog.recoverNormally, recoverAbnormally, ConsumeQueueStore.recover).

Invariants: the log is never cut before a whole record. Whole records behind damage are copied to a folder
(``kept.py``) before they are cut. The log decides over derived files. Every step can be repeated after an
interruption: the ``abort`` file stays until the store is closed in order.

Order: queues find their own end; the start file is chosen; the log is walked from there with CRC checks, and records
that queues or index lack are dispatched; bytes behind the last good record are cut from log, queues and index; the
next offsets continue the queues.

Differences from RocketMQ, which loses data in these cases: a queue that lacks one unit after a clean stop gets the
unit. Keys of an index file that was dropped after a crash are put again from the log, also from before the start file.
Bytes behind the cut are cleared, so that the next recovery cannot restore them. Records of a topic that was deleted
and created again stay out of its queues (``notes.py``). A queue without files is rebuilt.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, DiskFull, OffsetError
from mqfast.store.base.paths import OffsetFile, list_offset_files, list_queues, queue_dir
from mqfast.store.check.boundaries import Behind, closes_file, gather_places, look_behind, resume
from mqfast.store.check.kept import KeptRecordsWriter, new_folder, no_room
from mqfast.store.dispatch.dispatch import ODD_BLANK
from mqfast.store.meta.notes import Deletion
from mqfast.store.queues.queue_store import DroppedUnits
from mqfast.store.reader.scan import LogWalk, PreadFile, RecordPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqfast.config import StoreConfig
    from mqfast.store.base.mapped_file import MappedFile
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.base.paths import StorePaths
    from mqfast.store.dispatch.dispatch import CommitLogDispatcher
    from mqfast.store.index.index_service import IndexService
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.checkpoint import StoreCheckpoint
    from mqfast.store.meta.metadata import TopicConfigTable
    from mqfast.store.meta.notes import StoreNotes
    from mqfast.store.queues.queue_store import QueueStore
    from mqfast.store.record.record import StoredMessage

__all__ = ["RecoveryMemory", "RecoveryReport", "cut_log", "recover", "refuse_damage", "sync_names"]

_log = logging.getLogger("mqfast.store")
_NOTHING: Final = 2**63 - 1  # start offset of a dispatch that only reads

_ENDS: Final = ("end of the log", "end of the last file")  # reasons of a walk without damage


@dataclass
class RecoveryReport:
    """The report of a recovery.

    ``end`` is the physical offset behind the last good record. ``records`` and ``bytes`` count the walked log once;
    ``reason`` says why the walk ended. ``seconds`` is the whole time, ``sync_seconds`` its part for the disk: bytes
    that no flush is known to have covered are made durable before the store is used.

    If whole records were behind damage: ``kept_in`` is the folder with their copies, ``kept_records`` their number,
    ``kept_by_scan`` the number found by a scan only, ``kept_ranges`` their places (physical offsets, records, found by
    scan), ``damaged_ranges`` the bytes between them.
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
    kept_in: str = ""
    kept_records: int = 0
    kept_by_scan: int = 0
    kept_ranges: list[tuple[int, int, int, bool]] = field(default_factory=list)
    damaged_ranges: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class RecoveryMemory:
    """The notes and tables of a store that recovery needs, and its way to report warnings."""

    notes: StoreNotes
    topics: TopicConfigTable
    paths: StorePaths
    warn: Callable[[str], None]
    left_over: list[str] = field(default_factory=list)
    """Topics whose interrupted deletion recovery has completed. Their group offsets may still exist."""


def recover(
    log: CommitLog,
    queues: QueueStore,
    index: IndexService | None,
    dispatcher: CommitLogDispatcher,
    checkpoint: StoreCheckpoint,
    config: StoreConfig,
    memory: RecoveryMemory,
    *,
    clean: bool,
    progress: Callable[[int, int], None] | None = None,
) -> RecoveryReport:
    """Bring log, queues and index into agreement after they were loaded.

    Args: clean: the last writer closed the store; progress: called with (bytes done, bytes to do).
    Raises: CorruptFile, also with ``on_damage="stop"`` if whole records follow damage; DiskFull if the records cannot
    be kept; StorageError. No stored message is lost then, and the next open starts over.
    """
    return _Recovery(log, queues, index, dispatcher, checkpoint, config, memory, clean, progress).run()


def cut_log(
    log: CommitLog,
    queues: QueueStore,
    index: IndexService | None,
    dispatcher: CommitLogDispatcher,
    checkpoint: StoreCheckpoint,
    config: StoreConfig,
    memory: RecoveryMemory,
    *,
    end: int,
    last_start: int,
    last_timestamp: int,
) -> list[str]:
    """Cut log, queues and index of an open store at ``end``, behind the record that starts at ``last_start``.

    No append or dispatch runs meanwhile, and the log was rewound. Returns: the names of removed log files.
    Raises: StorageError.
    """
    run = _Recovery(log, queues, index, dispatcher, checkpoint, config, memory, True, None)
    run.end_of_files = run.counted_from = run.report.start = end
    run.report.last_start = last_start
    run._cut(end, last_timestamp, -1, None)
    return run.report.removed_log_files


class _Recovery:
    """One run of ``recover``."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueStore,
        index: IndexService | None,
        dispatcher: CommitLogDispatcher,
        checkpoint: StoreCheckpoint,
        config: StoreConfig,
        memory: RecoveryMemory,
        clean: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.log = log
        self.queues = queues
        self.index = index
        self.dispatcher = dispatcher
        self.checkpoint = checkpoint
        self.config = config
        self.memory = memory
        self.clean = clean
        self.progress = progress
        self.report = RecoveryReport(clean=clean)
        self.counted_from = 0  # records and bytes from here on are counted by the walk to the end
        self.end_of_files = 0
        self.fell = False  # True if the clock went back behind the checkpoint's times
        self.dropped = DroppedUnits()

    def run(self) -> RecoveryReport:
        started_s = time.perf_counter()
        log, queues, index, report = self.log, self.queues, self.index, self.report
        if index is not None:
            report.removed_index_files = index.load(last_exit_ok=self.clean).destroyed
        queues.recover()
        if not log.files:
            self._start_anew()
            report.seconds = time.perf_counter() - started_s
            return report
        self._leave_out_deleted()
        queues.check_ends(log, expected=not self.clean)
        largest = self._prepare()
        end, last_timestamp, unflushed_from, torn = self._walk(largest)
        keeper = self._keep_what_is_cut(report.end)
        report.end = end
        self._cut(end, last_timestamp, unflushed_from, keeper)
        if report.last_start >= 0 and not torn:
            self.checkpoint.confirm_phy_offset = report.last_start
        # Units that were put again are not on the disk yet.
        vouched = end if self.clean else report.start
        self.checkpoint.logics_physical_offset = min(self.checkpoint.logics_physical_offset, vouched)
        report.seconds = time.perf_counter() - started_s
        if not self.clean:
            _log.info(
                "recovered to physical offset %d (%s): %d records, %d bytes in %.3f s",
                end,
                report.reason,
                report.records,
                report.bytes,
                report.seconds,
            )
        return report

    def _start_anew(self) -> None:
        """Remove all derived files: there is no log."""
        self.queues.destroy_all()
        if self.index is not None:
            self.index.destroy_all()  # otherwise the end offset of the index would exclude new records
        self.log.truncate(0, 0)
        self.queues.end_recovery(0)
        self.checkpoint.logics_physical_offset = 0
        self.memory.notes.keep_deletions(())

    # --- before the walk ---

    def _leave_out_deleted(self) -> None:
        """Apply the noted deletions of topics, as far as the log is still the same."""
        notes, log = self.memory.notes, self.log
        deletions = notes.deletions
        if not deletions:
            return
        floors = notes.floors(lambda offset: _record_at(log, offset), log.min_offset)
        self.memory.left_over += self.queues.exclude_deleted(floors)
        for topic in notes.keep_deletions(floors):
            if deletions[topic].end > log.min_offset:
                self.memory.warn(
                    f"topic {topic} was deleted up to physical offset {deletions[topic].end}, but the log does not have"
                    " there what was deleted: records of the topic that are still in the log count as not deleted"
                )

    def _prepare(self) -> int:
        """Choose the start offset, empty the queues from there on, and put earlier units and keys again.

        Returns: the end of the records that the queues have.
        """
        log, queues, config, clean = self.log, self.queues, self.config, self.clean
        missing = queues.missing_from()
        topics = self.memory.topics
        missed = self.memory.notes.missed(queues.present(), topics.version_ms, topics.__contains__)
        largest = queues.largest_end()
        self.end_of_files = log.written
        self.fell = not clean and _clock_fell(log, self.dispatcher, self.checkpoint)
        start = _start_file(log, self.checkpoint, config, clean=clean, largest=largest)
        if self.fell:
            start = int(log.files[0].start_offset)
        keys_from = _keys_from(log, self.index, clean=clean)
        if missed and largest >= 0:
            missing = 0
            more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
            self.memory.warn(
                f"queues without files that had messages when the store was last open, {', '.join(missed[:3])}{more}:"
                " made anew from the log; to be rid of a topic, delete it with delete_topic"
            )
        if not clean and largest < start:
            # No queue reaches the start file: whole queues were lost.
            missing = max(0, largest) if missing is None else min(missing, max(0, largest))
        if not clean:
            queues.infer_floors(log, start)
            # Units from here on are put again from the log: after a power cut their pages may be lost or torn.
            queues.truncate(start, doubtful=True, dropped=self.dropped)
            queues.missing_from()
            queues.check_ends(log)  # the last unit before them may be damaged
            lower = queues.missing_from()
            if lower is not None:
                missing = lower if missing is None else min(missing, lower)
        self.report.start = self.counted_from = start
        if missing is not None:
            self._put_units_again(missing, largest if clean else start)
        if keys_from is not None and keys_from < start:
            # Only keys are missing there: the walk skips records that queues have, and reads no bodies.
            self._walk_before(keys_from, start, progress=self._report_progress)
        return largest

    def _report_progress(self, at: int) -> None:
        if self.progress is not None:
            self.progress(max(0, at - self.report.start), self.end_of_files - self.report.start)

    # --- walks ---

    def _walk_before(
        self, first: int, end: int, *, keys: bool = True, progress: Callable[[int], None] | None = None
    ) -> None:
        """Dispatch the records from ``first`` up to ``end`` again, without reading bodies. Records that no walk has
        counted yet are counted.
        """
        if first >= end:
            return
        walked = self.log.file_start_of(max(first, self.log.min_offset))
        counted = min(max(self.counted_from, walked), end)
        for low, high in ((walked, counted), (counted, end)):
            if low >= high:
                continue
            records, size = self._dispatch_again(low, high, first, keys, progress)
            if high == counted:
                self.report.records += records
                self.report.bytes += size
        self.counted_from = min(self.counted_from, walked)

    def _dispatch_again(
        self, at: int, end: int, first: int, keys: bool, progress: Callable[[int], None] | None
    ) -> tuple[int, int]:
        """Dispatch one range again, across damage: the range is before the part of the log that recovery checks, and is
        not
        cut.

        Returns: (records, bytes).
        """
        records = size = 0
        while at < end:
            stopped, _, _, walked, reason, _ = self.dispatcher.recover(
                at,
                end,
                checked=False,
                property_crc=False,
                dispatch_from=first,
                keys=keys,
                odd_blanks_stop=True,
                progress=progress,
            )
            records += walked
            size += stopped - at
            if stopped >= end or reason in _ENDS:
                break
            at = self._behind_damage(stopped)
            file = self.log.find_file(stopped)
            if reason == ODD_BLANK and (file is None or at == file.start_offset + self.log.file_bytes):
                continue  # no record follows: the blank closes its file
            self.memory.warn(
                f"the log is damaged at physical offset {stopped} ({reason}); units were put again from {at} on."
                f" 'mqfast store verify {self.memory.paths.root}' tells more"
            )
        return records, size

    def _behind_damage(self, at: int) -> int:
        """Return the next known boundary: in the same file, or the start of the next file."""
        file = self.log.find_file(at)
        if file is None:
            return self.end_of_files
        opened = PreadFile(self.log.os_api, file.path, file.start_offset)
        walk = LogWalk(opened, at, False)
        stop = walk.skip()
        following, by_scan, _ = resume(opened, walk.at, stop, self._known_places(at))
        opened.close()
        return following if following > at and not by_scan else file.start_offset + self.log.file_bytes

    def _known_places(self, low: int) -> RecordPositions:
        """Return the record positions that the units give, including dropped units."""
        places = gather_places(self.log.os_api, self.memory.paths, low)
        for units in self.dropped.plain:
            places.add(units, 20, low)
        for units in self.dropped.batch:
            places.add(units, 46, low)
        return places

    def _put_units_again(self, missing: int, end: int) -> None:
        """Put the units again that damaged queues lost. The index is not changed: its last record would be indexed
        twice.
        """
        self._walk_before(missing, end, keys=False)

    def _walk(self, largest: int) -> tuple[int, int, int, bool]:
        """Walk to the end with CRC checks; ``report.end`` is the offset where the walk stopped.

        Returns: (end of the last good record, its store time, the first record that is not known to be durable, True if
        a torn record was left out).
        """
        log, index, config, report = self.log, self.index, self.config, self.report
        index_from = 0
        if self.clean and index is not None and index.files and index.files[-1].end_timestamp > 0:
            # The index takes the record at its end offset again, for keys it may lack; after a clean stop no key is
            # missing.
            index_from = (
                min(index.end_offset, self.end_of_files) + 1
            )  # a damaged value may be the largest 64-bit number
        at, last_start, last_timestamp, records, unflushed_from = report.start, -1, 0, 0, -1
        while True:
            end, start, timestamp, walked, reason, unflushed = self.dispatcher.recover(
                at,
                self.end_of_files,
                checked=config.check_crc_on_recover,
                property_crc=config.force_verify_prop_crc,
                dispatch_from=max(0, largest) if self.clean else 0,
                index_from=index_from,
                flushed_time=0 if self.fell else max(self.checkpoint.physic_msg_timestamp, 0),
                odd_blanks_stop=True,
                progress=self._report_progress,
            )
            records += walked
            if start >= 0:
                last_start, last_timestamp = start, timestamp
            if unflushed_from < 0:
                unflushed_from = unflushed
            file = log.find_file(end)
            if reason != ODD_BLANK or file is None or not self._closes_file(file, end):
                break
            at = file.start_offset + log.file_bytes
            if log.find_file(at) is None or at > self.end_of_files:
                reason = _ENDS[1]
                break
        report.end, report.last_start, report.reason = end, last_start, reason
        # Replication ends at any byte of a record, so a slave's last record may be torn after a clean stop as well.
        doubtful = not self.clean or config.broker_role == "SLAVE"
        torn = doubtful and last_start >= 0 and _is_torn(log, last_start)
        if torn:
            end, report.reason = last_start, "torn topic or properties"
        report.records += records
        report.bytes += end - report.start
        if last_start < 0 or torn:
            last_timestamp = max(self.checkpoint.physic_msg_timestamp, 0)
        return end, last_timestamp, unflushed_from, torn

    def _closes_file(self, file: MappedFile, at: int) -> bool:
        """Return True if the blank there closes the file, as a blank that a store wrote does."""
        opened = PreadFile(self.log.os_api, file.path, file.start_offset)
        walk = LogWalk(opened, at, False)
        walk.skip()
        closes = closes_file(opened, walk, lambda: self._known_places(at))
        opened.close()
        return closes

    # --- the cut ---

    def _keep_what_is_cut(self, stopped: int) -> KeptRecordsWriter | None:
        """Copy the whole records behind the offset where the walk stopped. Returns: None without a whole record."""
        log, report, memory = self.log, self.report, self.memory
        if report.reason in _ENDS or stopped >= self.end_of_files:
            return None
        os_api, paths = log.os_api, memory.paths
        places: list[RecordPositions] = []

        def known() -> RecordPositions:
            if not places:
                places.append(self._known_places(stopped))
            return places[0]

        files = [OffsetFile(file.start_offset, file.path) for file in log.files]
        behind = look_behind(os_api, files, stopped, known)
        if not behind.stretches and not behind.doubtful:
            return None
        if self.config.on_damage == "stop":
            raise refusal(files, behind)
        keeper = KeptRecordsWriter(os_api, new_folder(os_api, paths.root))
        try:
            for start, path in files:
                # A file that begins at the cut is moved whole, except the first file of the log.
                if start < stopped < start + log.file_bytes or start == stopped == files[0].start_offset:
                    keeper.copy_rest(path, stopped - start)
            keeper.write_list(behind, cut_at=stopped, reason=report.reason, floors=self.queues.floors)
        except DiskFull as error:
            keeper.give_up()
            raise no_room(error, keeper.folder, log.file_bytes) from None
        report.kept_in = keeper.folder
        report.kept_records, report.kept_by_scan = behind.records, behind.by_scan
        report.kept_ranges = [(s.start, s.end, s.records, s.by_scan) for s in behind.stretches]
        report.damaged_ranges = [(damaged.start, damaged.end) for damaged in behind.damaged]
        scanned = f" ({behind.by_scan} of them found by a scan)" if behind.by_scan else ""
        memory.warn(
            f"the log is damaged at physical offset {stopped} ({report.reason}) and was cut there; {behind.records}"
            f" whole records{scanned} stood behind and are kept in {keeper.folder}; "
            f"'mqfast store repair --salvage {paths.root}' puts them back as new messages"
        )
        return keeper

    def _cut(self, end: int, last_timestamp: int, unflushed_from: int, keeper: KeptRecordsWriter | None) -> None:
        """Cut everything behind the last good record from log, queues and index."""
        log, queues, index = self.log, self.queues, self.index
        self._cut_floors(end)
        queues.truncate(end)
        queues.cut_gaps()
        missing = queues.missing_from()
        if missing is not None:
            self._put_units_again(missing, end)
        waited = time.perf_counter()
        self.report.removed_log_files = log.truncate(
            end, last_timestamp, -1 if self.clean else unflushed_from, None if keeper is None else keeper.keep_file
        )
        self.report.sync_seconds = time.perf_counter() - waited
        if index is not None and index.files and index.end_offset >= end:
            again = index.truncate(end)
            if again < end:
                self._walk_before(again, end)
        queues.end_recovery(log.min_offset)
        queues.drop_expired_files(log.min_offset)

    def _cut_floors(self, end: int) -> None:
        """Lower the noted deletions to the cut: messages that are stored behind the cut later are not deleted."""
        last = self.report.last_start
        for topic in self.queues.cut_floors(end):
            if 0 <= last < end:
                message = self.log.message(last)
                deletion = Deletion(last, message.size, message.store_timestamp)
                self.memory.notes.note_deletion(topic, deletion)


def refusal(files: Sequence[OffsetFile], behind: Behind) -> CorruptFile:
    """Return the error of an open with ``on_damage="stop"``."""
    start, _, reason = behind.damaged[0]
    path = next((path for first, path in reversed(files) if first <= start), "")
    return CorruptFile(
        f"the log is damaged and {behind.records} whole records stand behind the damage; nothing was changed"
        " (on_damage is 'stop'). Look at it with 'mqfast store verify'; with on_damage='keep' the open cuts the log"
        " there, and keeps them in a folder that 'mqfast store repair --salvage' puts back",
        path=path,
        offset=start,
        expected="a whole record",
        found=reason,
    )


def refuse_damage(
    os_api: OsApi, paths: StorePaths, config: StoreConfig, checkpoint: StoreCheckpoint, clean: bool
) -> None:
    """Check read-only whether recovery would cut whole records. Raises: CorruptFile if it would."""
    files = list_offset_files(os_api, paths.commit_logs[0])[0]
    stamps = []
    for start, path in files:
        file = PreadFile(os_api, path, start)
        first = file.record(start, check_body=False) if file.bytes else ""
        file.close()
        stamps.append(0 if isinstance(first, str) else first.store_timestamp)
    used = [number for number, stamp in enumerate(stamps) if stamp > 0]
    if not used:
        return
    first_file = max(0, used[-1] - 1)
    if not clean:
        limit = _vouched_for(checkpoint, config)
        first_file = next((number for number in reversed(used) if stamps[number] <= limit), 0)
    if not any(list_queues(os_api, base) for base in (paths.consume_queue, paths.batch_consume_queue)):
        first_file = 0  # the whole log is walked for the queues
    start = files[first_file].start_offset
    places: list[RecordPositions] = []

    def known() -> RecordPositions:
        if not places:
            places.append(gather_places(os_api, paths, start))
        return places[0]

    behind = look_behind(os_api, files[first_file:], start, known, check_crc=config.check_crc_on_recover)
    if behind.damaged and (behind.doubtful or any(s.start > behind.damaged[0].start for s in behind.stretches)):
        behind.stretches = [s for s in behind.stretches if s.start > behind.damaged[0].start]
        raise refusal(files, behind)


def _record_at(log: CommitLog, physical_offset: int) -> StoredMessage | None:
    try:
        return log.message(physical_offset)
    except (CorruptFile, OffsetError):
        return None


def sync_names(os_api: OsApi, paths: StorePaths) -> None:
    """Make every name durable that a killed writer may have left in the page cache only. Raises: StorageError."""
    queues = (paths.consume_queue, paths.batch_consume_queue, paths.consume_queue_ext)
    for directory in (paths.root, *paths.commit_logs, paths.index, os.path.dirname(paths.topics), *queues):
        if os_api.is_dir(directory):
            os_api.fsync_dir(directory)
    for base in queues:
        for topic, ids in list_queues(os_api, base).items():
            os_api.fsync_dir(os.path.join(base, topic))
            for queue_id in ids:
                os_api.fsync_dir(queue_dir(base, topic, queue_id))


def _clock_fell(log: CommitLog, dispatcher: CommitLogDispatcher, checkpoint: StoreCheckpoint) -> bool:
    """Return True if the checkpoint has a time behind the end of the log.

    The record of that time is durable. If a later record is older, store times no longer give the order.
    """
    for file in reversed(log.files):
        if log.first_store_timestamp(file.start_offset) > 0:
            _, _, last, records, _, _ = dispatcher.recover(
                file.start_offset, log.written, checked=False, property_crc=False, dispatch_from=_NOTHING, keys=False
            )
            return bool(records and last < checkpoint.get_min_timestamp())
    return False


def _start_file(log: CommitLog, checkpoint: StoreCheckpoint, config: StoreConfig, *, clean: bool, largest: int) -> int:
    """Return the start offset of the file to walk from.

    Clean: the last file that begins at or before the end of the records that the queues have. After a crash: the last
    file whose first record is older than every time of the checkpoint.
    """
    files = log.files
    if clean:
        for file in reversed(files):
            if file.start_offset <= largest:
                return int(file.start_offset)
        return int(files[0].start_offset)
    limit = _vouched_for(checkpoint, config)
    for file in reversed(files):
        timestamp = log.first_store_timestamp(file.start_offset)
        if 0 < timestamp <= limit:
            return int(file.start_offset)
    return int(files[0].start_offset)


def _vouched_for(checkpoint: StoreCheckpoint, config: StoreConfig) -> int:
    """Return the store time up to which the checkpoint covers all files."""
    if config.message_index_enable and config.message_index_safe:
        return checkpoint.get_min_timestamp_index()
    return checkpoint.get_min_timestamp()


def _is_torn(log: CommitLog, last_start: int) -> bool:
    """Return True if the end of the last record is missing behind a body with a valid CRC, which covers neither topic
    nor properties.

    Unwritten bytes are zero; no property text ends with zero and no topic contains zero. Applies only to a record that
    was never reported as durable: after a crash, at the end of the log.
    """
    message = log.message(last_start)
    return "\0" in message.topic or message.properties_bytes.endswith(b"\0")


def _keys_from(log: CommitLog, index: IndexService | None, *, clean: bool) -> int | None:
    """Return the physical offset from which keys are missing after a crash dropped the newest index files."""
    if index is None or clean:
        return None
    return max(index.end_offset, int(log.min_offset))
