"""RawLog: the log as bytes, for replication. A master reads ranges; a slave appends the master's bytes, and truncates
its log where it diverged (RocketMQ: HAService, CommitLog.getData, appendData, DefaultMessageStore.truncateFiles).

Bytes of the log change only at its end, and only ``truncate_to`` cuts the log. log/raw_bytes.pyx checks and stores the
bytes. Record boundaries and end marks come from the master, so offsets are those of the master.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from errno import EIO
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, DiskFull, NotSlave, OffsetError
from mqfast.store.base.paths import OffsetFile
from mqfast.store.base.results import LogFlag
from mqfast.store.check.boundaries import look_behind
from mqfast.store.check.cut import record_head
from mqfast.store.check.kept import KeptRecordsWriter, new_folder, no_room
from mqfast.store.check.recovery import RecoveryMemory, cut_log
from mqfast.store.log.raw_bytes import RawEnd, get_confirm, read_range, rewind, set_confirm, wait_range
from mqfast.store.reader.scan import RecordPositions

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.message import Body
    from mqfast.store.base.os_api import Mutex
    from mqfast.store.dispatch.dispatch import CommitLogDispatcher
    from mqfast.store.index.index_service import IndexService
    from mqfast.store.log.allocate import AllocateMappedFileService
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.log.flush import FlushService
    from mqfast.store.log.retention import RetentionService
    from mqfast.store.meta.checkpoint import StoreCheckpoint
    from mqfast.store.queues.queue_store import QueueStore

__all__ = ["RawLog", "Rooms"]

_HEAD_BYTES: Final = 76  # bytes of a record up to its store time
_PLACE: Final = 28  # position of the record's physical offset, which the flags follow
_BORN_HOST: Final = 48
_BORN_HOST_V6: Final = 16
_NOTHING: Final = 2**63 - 1  # start offset of a dispatch that only reads


@dataclass(frozen=True)
class Rooms:
    """The parts of a store that a cut of the log changes."""

    log: CommitLog
    queues: QueueStore
    index: IndexService | None
    dispatcher: CommitLogDispatcher
    checkpoint: StoreCheckpoint
    config: StoreConfig
    memory: RecoveryMemory
    allocate: AllocateMappedFileService
    flush: FlushService
    retention: RetentionService
    closing: Mutex  # held by a close of the store


class RawLog:
    """The log of an open store as bytes. Offsets are physical offsets.

    Thread: any; one append or truncation at a time, the others wait.
    """

    def __init__(self, rooms: Rooms, confirmed: int) -> None:
        self._rooms: Final = rooms
        self._log: Final = rooms.log
        self._raw: Final = RawEnd(rooms.log)
        self._confirmed = confirmed  # the confirm offset of the checkpoint at the open
        self._known_start = -1  # start of a record from which a walk may begin

    # --- both sides ---

    @property
    def min_offset(self) -> int:
        """First byte of the log; -1 without a log file."""
        return self._log.min_offset

    @property
    def file_bytes(self) -> int:
        """Size of a log file (RocketMQ: mappedFileSizeCommitLog)."""
        return self._log.file_bytes

    @property
    def end(self) -> int:
        """End of the last whole record, where the log continues; the offset that a slave reports to its master."""
        return self._raw.end

    # --- a master ---

    def read(self, offset: int, max_bytes: int = 32768, *, unflushed: bool = False) -> list[memoryview]:
        """Return log bytes from ``offset`` on, at most ``max_bytes``: one read-only view a log file, without a copy.

        A view keeps its file mapped until the view is released, also when retention removes the file. The bytes are
        those that readers may see: with sync flush the flushed bytes, and none above a confirm offset that bounds
        readers. With ``unflushed`` all written bytes: slaves receive and confirm these. An empty list at the end.
        Raises: OffsetError below the first byte or above the end; CorruptFile, StoreClosed, StoreFailed.
        """
        return read_range(self._log, offset, max_bytes, unflushed)

    def wait_for(self, offset: int, timeout: float | None = None, *, unflushed: bool = False) -> bool:
        """Wait until ``read`` of ``offset`` returns a byte.

        Args: timeout: seconds, None for ever. Returns: False at the timeout.
        GIL: released; signal handlers run. Raises: StoreClosed, StoreFailed.
        """
        return wait_range(self._log, offset, timeout, unflushed)

    def age_ms(self, offset: int) -> int | None:
        """Return the age in ms of the record that begins at ``offset``, or behind the end mark there, confirmed or not.

        None if no record begins there. Raises: StoreClosed.
        """
        log = self._log
        try:
            file_rest = log.file_bytes - (offset - log.file_start_of(offset))
            size = int.from_bytes(b"".join(self.read(offset, 4, unflushed=True)), "big")
            at = offset + file_rest if file_rest < 8 or size == file_rest else offset
            head = b"".join(self.read(at, _HEAD_BYTES, unflushed=True))
            place, sys_flag = struct.unpack_from(">qi", head, _PLACE)
            if place != at:
                return None
            time_at = _BORN_HOST + (20 if sys_flag & _BORN_HOST_V6 else 8)
            stored_ms: int = struct.unpack_from(">q", head, time_at)[0]
            return max(0, log.os_api.now_ms() - stored_ms)
        except (OffsetError, CorruptFile, struct.error):
            return None

    def refuse_puts(self, refused: bool = True) -> None:
        """Make every put raise NotMaster because another broker is the master, or allow puts again."""
        self._log.set_flag(LogFlag.SLAVE, refused)

    # --- a slave ---

    @property
    def next_offset(self) -> int:
        """Offset at which the next bytes of the same connection must begin: ``end`` plus the bytes of an incomplete
        record.
        """
        return self._raw.next_offset

    def safe_end(self) -> int:
        """Return ``end``; with sync flush all bytes before that offset are on disk when the call returns.

        GIL: released during the wait. Raises: FlushError, StoreClosed, StoreFailed.
        """
        end = self.end
        if self._log.sync_flush:
            self._log.wait_flushed(end)
        return end

    def forget_part(self) -> None:
        """Drop the bytes of an incomplete record after a disconnect: the next connection begins at ``end``."""
        self._raw.forget_part()

    def append(self, offset: int, data: Body, *, check_crc: bool = True) -> int:
        """Append log bytes of the master that begin at ``offset``, cut anywhere. Returns: ``next_offset``.

        Whole records are stored at the same offsets as at the master, with the master's file boundaries and end marks,
        and
        are dispatched behind the append. An incomplete record at the end of ``data`` waits in memory for its rest. An
        empty log begins at any multiple of the file size.
        Args: check_crc: compare each body with its CRC before it is stored.
        Raises: NotSlave; LogGap, LogOverlap if ``offset`` is neither ``next_offset`` nor ``end``; CorruptFile for bytes
        that are no record of this offset, before any of them is stored (the records before them are stored); DiskFull,
        StorageError, StoreFailed, StoreClosed.
        Durability: as an append with async flush; flush with ``engine.log.flush`` or a watch.
        """
        return self._raw.append(offset, data, check_crc)

    def truncate_to(self, offset: int) -> list[str]:
        """Truncate an open slave's log at the end of a record. Returns: the names of removed log files.

        Log, queues, index and checkpoint end there together when the call returns. Bytes above are lost: compare them
        with
        the master's before. A message that a reader holds above ``offset`` may show zeros from now on.
        Dispatch, flushes of the queues, retention and a close of the store wait meanwhile.
        Raises: NotSlave; OffsetError for an offset outside the log or within a record, StorageError before the cut:
        nothing was changed then. StorageError of the cut itself: the log is latched, and the next open completes the
        cut; StoreClosed, StoreFailed.
        Durability: the cut is noted on disk before it begins, so a crash leaves the old log or the cut log.
        """
        rooms, log = self._rooms, self._log
        with rooms.closing, self._raw.held(), rooms.retention.paused():
            log.check_state()
            if not log.flags & LogFlag.SLAVE:
                raise NotSlave(f"store of {log.path}: expected broker_role SLAVE for a cut of the log, found a master")
            log.flush()
            last_start, last_timestamp = self._boundary(offset)
            if offset == log.written:
                return []
            with (
                rooms.allocate.without_spares(),
                rooms.dispatcher.locked(),
                rooms.queues.locked(),
                rooms.flush.paused(),
            ):
                # damage behind the cut does not matter; damage before the cut is found below
                with contextlib.suppress(CorruptFile):
                    # also what is not confirmed: the queues are cut with the log
                    rooms.dispatcher.step(-1 if get_confirm(log) is None else log.written, True)
                if rooms.dispatcher.error is not None:
                    if log.dispatched < offset:
                        raise rooms.dispatcher.error
                    rooms.dispatcher.error = None
                rooms.memory.notes.note_cut(offset, record_head(log, offset))
                try:
                    removed = self._cut(offset, last_start, last_timestamp)
                except BaseException as error:
                    # Half of the cut is done, and after a failed sync the kernel may have dropped the pages.
                    log.fail(getattr(error, "errno", None) or EIO)
                    raise
            rooms.flush.waiters.cut(offset)
            self._known_start = -1
        self.forget_part()
        return removed

    def keep_from(self, offset: int) -> str:
        """Copy the log from the end of a record on into a dated folder of the store, as a repair does.

        Returns: the path of the folder. The log is not changed: ``truncate_to`` cuts it.

        Raises: OffsetError outside the log, DiskFull, StorageError; nothing is kept then.
        Durability: synced when the call returns.
        """
        log = self._log
        log.flush()
        low, end = max(log.min_offset, 0), log.written
        if not low <= offset <= end:
            raise OffsetError(f"physical offset {offset} is outside the log: expected {low} to {end}")
        files = [
            OffsetFile(file.start_offset, file.path)
            for file in log.files
            if file.start_offset < end and file.start_offset + log.file_bytes > offset
        ]
        keeper = KeptRecordsWriter(log.os_api, new_folder(log.os_api, self._rooms.memory.paths.root))
        try:
            for start, path in files:
                keeper.copy_rest(path, max(0, offset - start))
            behind = look_behind(log.os_api, files, offset, RecordPositions)
            keeper.write_list(
                behind, cut_at=offset, reason="other bytes at the master", floors=self._rooms.queues.floors
            )
        except DiskFull as error:
            keeper.give_up()
            raise no_room(error, keeper.folder, end - offset) from None
        return keeper.folder

    def last_boundary(self, offset: int) -> int:
        """Return the end of the last whole record that ends at ``offset`` or before, or the start of its file.

        Raises: OffsetError for an offset outside the log. GIL: released during the walk through the file.
        """
        log = self._log
        low, end = max(log.min_offset, 0), log.written
        if not low <= offset <= end:
            raise OffsetError(f"physical offset {offset} is outside the log: expected {low} to {end}")
        at = log.file_start_of(max(offset - 1, low))
        return self._walk(at, offset)[0]

    def record_before(self, offset: int) -> tuple[int, int] | None:
        """Return start and end of the last whole record that ends at ``offset`` or before; None if the log has none.

        Raises: OffsetError for an offset outside the log. GIL: released during the walk through the file.
        """
        log = self._log
        low, end = max(log.min_offset, 0), log.written
        if not low <= offset <= end:
            raise OffsetError(f"physical offset {offset} is outside the log: expected {low} to {end}")
        while offset > low:
            file_start = max(log.file_start_of(offset - 1), low)
            start = self._walk(max(file_start, self._known_start), offset)[1] if self._known_start < offset else -1
            if start < 0:
                start = self._walk(file_start, offset)[1]
            if start >= 0:
                self._known_start = start
                size = int.from_bytes(b"".join(self.read(start, 4, unflushed=True)), "big")
                return start, start + size
            offset = file_start
        return None

    def _walk(self, at: int, offset: int) -> tuple[int, int, int, int, str, int]:
        """Walk the records from a file's start up to an offset, without dispatch."""
        return self._rooms.dispatcher.recover(
            at, offset, checked=False, property_crc=False, dispatch_from=_NOTHING, keys=False
        )

    def _cut(self, offset: int, last_start: int, last_timestamp: int) -> list[str]:
        rooms, log = self._rooms, self._log
        self._lower(offset, last_timestamp)
        rewind(log)
        removed = cut_log(
            log,
            rooms.queues,
            rooms.index,
            rooms.dispatcher,
            rooms.checkpoint,
            rooms.config,
            rooms.memory,
            end=offset,
            last_start=last_start,
            last_timestamp=last_timestamp,
        )
        rooms.dispatcher.hold_back(offset)
        rooms.flush.flush_queues()
        log.check_state()  # the flush has no effect once the log is latched
        rooms.memory.notes.forget_cut()
        return removed

    def _boundary(self, offset: int) -> tuple[int, int]:
        """Return start (-1: none in its file) and store time of the record that ends at ``offset``. Raises:
        OffsetError.
        """
        log = self._log
        low, end = max(log.min_offset, 0), log.written
        if not low <= offset <= end:
            raise OffsetError(f"physical offset {offset} is outside the log: expected {low} to {end}")
        at = log.file_start_of(max(offset - 1, low))
        stopped, last_start, timestamp, _, reason, _ = self._walk(at, offset)
        if stopped != offset and not (reason == "end of the last file" and offset % log.file_bytes == 0):
            raise OffsetError(f"physical offset {offset}: expected the end of a record, found a place within one")
        return last_start, timestamp if last_start >= 0 else max(self._rooms.checkpoint.physic_msg_timestamp, 0)

    def _lower(self, offset: int, last_timestamp: int) -> None:
        """Lower the times and offsets of the checkpoint to the cut."""
        checkpoint = self._rooms.checkpoint
        checkpoint.lower(last_timestamp)
        checkpoint.logics_physical_offset = min(checkpoint.logics_physical_offset, offset)
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, offset)
        checkpoint.master_flushed_offset = min(checkpoint.master_flushed_offset, offset)
        checkpoint.flush()
        if (bound := get_confirm(self._log)) is not None and bound > offset:
            set_confirm(self._log, offset)

    # --- the confirm offset ---

    @property
    def confirm_offset(self) -> int:
        """Confirmed end of the log: the offset that bounds readers. Without a bound, as in RocketMQ without a
        controller, the flushed offset with sync flush, and the written offset without.
        """
        bound = get_confirm(self._log)
        if bound is not None:
            return bound
        return self._log.flushed if self._log.sync_flush else self._log.written

    @property
    def stored_confirm_offset(self) -> int:
        """Return the confirm offset of the checkpoint at this open, limited to the bounds of the log."""
        return max(max(self.min_offset, 0), min(self._confirmed, self.end))

    def bound_readers(self, confirm_offset: int) -> None:
        """Limit readers and dispatch to this offset, as RocketMQ's controller does; ``confirm`` moves the offset. Puts
        leave their units to the dispatcher.
        """
        self._set(confirm_offset)

    def unbound_readers(self) -> None:
        """Remove the limit: readers see all that the log allows, and puts dispatch themselves again."""
        set_confirm(self._log, None)

    def confirm(self, offset: int) -> None:
        """Move the confirm offset. The next flush of the checkpoint stores it. Raises: OffsetError outside the log."""
        if get_confirm(self._log) is None:
            self._check(offset)
            self._rooms.checkpoint.confirm_phy_offset = offset
        else:
            self._set(offset)

    def _set(self, offset: int) -> None:
        self._check(offset)
        set_confirm(self._log, offset)
        self._rooms.checkpoint.confirm_phy_offset = offset

    def _check(self, offset: int) -> None:
        if not 0 <= offset <= self.end:
            raise OffsetError(f"confirm offset: expected 0 to {self.end}, found {offset}")

    @property
    def master_flushed_offset(self) -> int:
        """The master's flushed offset in the checkpoint; a slave sets it."""
        return self._rooms.checkpoint.master_flushed_offset

    @master_flushed_offset.setter
    def master_flushed_offset(self, offset: int) -> None:
        if offset < 0:
            raise OffsetError(f"master_flushed_offset: expected at least 0, found {offset}")
        self._rooms.checkpoint.master_flushed_offset = offset
