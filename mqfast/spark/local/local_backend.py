"""The files of a store as a backend, read beside the writer, as ``StoreReader`` does.

Never writes into the log, the queues or the index. Interface: ``backend.py``.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import DataLoss, OffsetError, StorageError
from mqfast.spark.backend import LeftOut, ReadSettings, StoreReplaced
from mqfast.spark.bodies import decompressed
from mqfast.spark.columns import decompresses, gather_of
from mqfast.spark.groups import GroupProgress
from mqfast.spark.local import local_views
from mqfast.spark.local.follow import StoreTailer
from mqfast.spark.local.leases import HeldLease, TaskLease
from mqfast.spark.offsets import Place
from mqfast.spark.plan import OffsetRange, Queue, ScanRange, Snapshot, Split
from mqfast.spark.schema import Column
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import offset_name
from mqfast.store.meta.leases import write_lease
from mqfast.store.reader.column_scan import LogColumns, QueueColumns
from mqfast.store.reader.scan import LogTally
from mqfast.store.reader.store_reader import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.options import Options

__all__ = ["LocalBackend", "least_physical_offset"]

_log = logging.getLogger("mqfast.spark")


_HEAD_BYTES: Final = 128
_LEAST_RECORD: Final = 91
_BLANK_HEAD: Final = 8
_UNIT: Final = struct.Struct(">qiq")
# Attempts to read a range of a queue while retention removes messages.
_TRIES: Final = 5


class LocalBackend:
    """The files of a store in a local or mounted directory.

    Raises: StoreNotFound, StorageError.
    """

    def __init__(self, path: str, commit_logs: Sequence[str] = ()) -> None:
        self.root: Final = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
        self.commit_logs: Final = tuple(commit_logs)
        self.reader = StoreReader(self.root, commit_log=self.commit_logs)
        self._tailer: StoreTailer | None = None
        self._held: HeldLease | None = None
        self._progress: tuple[str, GroupProgress] | None = None

    @property
    def log(self) -> LocalBackend:
        """Return the backend itself: files have a log."""
        return self

    def release_files(self) -> None:
        """Close open files until the next use; cached data of the store stays."""
        self.reader.release_files()

    def close(self) -> None:
        """Close all files, and release the lease of a stream."""
        if self._held is not None:
            self._held.close()
            self._held = None
        self.reader.close()

    # --- planning ----------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Discard all cached data: the directory may hold another store now."""
        reader = StoreReader(self.root, commit_log=self.commit_logs)
        self.reader.close()
        self.reader = reader

    def snapshot(self) -> Snapshot:
        """Return the present snapshot of the store."""
        self.reader.release_files()  # a file of the same name may be a new file
        self.reader.refresh()
        taken_ms = time.time_ns() // 1_000_000
        # Dispatch follows the order of the log: queues read after the log's end have all records below the end.
        start, end = self.reader.readable_range()
        newest = self.reader.newest_record
        queues = tuple(Queue(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in self.reader.queues())
        end = self.reader.whole_until(end, LogTally())
        return Snapshot(self.root, self._store_id(), taken_ms, start, end, queues, max(newest, start), newest)

    def refresh(self, *, wait: bool = True) -> Snapshot:
        """Return the present snapshot of the store, at the cost of the records appended since the previous call."""
        if self._tailer is None:
            self._tailer = StoreTailer(self)
        return self._tailer.refresh()

    def message_mark(self, topic: str, queue_id: int, offset: int) -> tuple[int, int | None] | None:
        """See Backend."""
        place = self.unit_place(topic, queue_id, offset)
        return None if place is None else (place, self.mark(place))

    def mark(self, physical_offset: int) -> int | None:
        """Return a checksum of the head of the record at a physical offset; None if no record was written there."""
        for start, path in reversed(self.reader.log_starts()):
            if start <= physical_offset:
                head = _record_head(path, physical_offset - start)
                return zlib.crc32(head) if head.strip(b"\0") else None
        return None

    def file_start(self, physical_offset: int) -> int:
        """Return the start of the log file that holds a physical offset, -1 if none does."""
        return max((start for start, _ in self.reader.log_starts() if start <= physical_offset), default=-1)

    def behind(self, physical_offset: int) -> int:
        """Return the end of the record at a physical offset."""
        for start, path in reversed(self.reader.log_starts()):
            if start <= physical_offset:
                size = int.from_bytes(_record_head(path, physical_offset - start)[:4], "big")
                return physical_offset + size
        return physical_offset

    def unit_place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of a message that the queue has, even if retention removed the record."""
        unit = self.reader.unit_if_there(topic, queue_id, offset)
        return unit.physical_offset if unit is not None and not unit.is_filler else None

    def is_filler(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue that began above 0 never had a message at this offset."""
        unit = self.reader.unit_if_there(topic, queue_id, offset)
        return unit is not None and unit.is_filler

    def _store_id(self) -> str:
        """Return start and checksum of the last log file with a record: retention removes that file last."""
        for start, path in reversed(self.reader.log_starts()):
            head = _record_head(path, 0)
            if head.strip(b"\0"):
                return f"{start:020d}-{zlib.crc32(head):08x}"
        return "empty"

    def check(self, store_id: str) -> None:
        """Refuse a store other than the one of the snapshot.

        Raises: StoreNotFound.
        """
        if store_id == "empty":
            return
        start = int(store_id[:20])
        starts = self.reader.list_log()
        if starts and starts[0][0] > start:
            return  # retention removed the file: other losses are found while reading
        for first, path in starts:
            if first == start and f"{start:020d}-{zlib.crc32(_record_head(path, 0)):08x}" == store_id:
                return
        raise StoreReplaced(
            errno.ENOENT,
            f"not the store that was planned to be read: no file of the log is {store_id}. Every executor needs the "
            "same store under the same path",
            self.root,
        )

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first record at or after a physical offset, ``limit`` if there is none before
        ``limit``.
        """
        return self.reader.record_boundary(physical_offset, limit)

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """Return the record starts for several physical offsets, in ascending order."""
        return self.reader.record_boundaries(physical_offsets, limit)

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        """Return the range of the log that holds the messages still present; ``(0, 0)`` for none."""
        low, high = 1 << 63, 0
        for r in ranges:
            for at in (r.start, r.end - 1):
                unit = self.reader.unit_if_there(r.topic, r.queue_id, at)
                if unit is None:  # removed by retention, or a deleted topic
                    min_offset = self.reader.min_offset(r.topic, r.queue_id)
                    unit = (
                        self.reader.unit_if_there(r.topic, r.queue_id, min_offset) if at < min_offset < r.end else None
                    )
                if unit is not None:
                    low, high = min(low, unit.physical_offset), max(high, unit.physical_offset + unit.size)
        start = self.reader.log_starts()[0][0] if self.reader.log_starts() else 0
        low = max(low, start)
        return (low, high) if low < high else (0, 0)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time; the next offset if there is none."""
        return self.reader.offset_by_time(topic, queue_id, timestamp_ms)

    def group_offsets(self, group: str, queues: Iterable[Place] | None = None) -> dict[Place, int]:
        """Return the next queue offset of a consumer group, for all queues with an offset."""
        table = self.reader.consumer_offsets(group)
        return {(topic, queue_id): n for topic, queues in table.items() for queue_id, n in queues.items()}

    def _still_there(self, piece: OffsetRange, settings: ReadSettings) -> tuple[int, int]:
        """Return the part of a planned range that the store still has.

        Raises: DataLoss for missing messages, unless the settings allow losses.
        """
        low = self.reader.min_offset(piece.topic, piece.queue_id)
        high = self.reader.max_offset(piece.topic, piece.queue_id)
        first = min(max(piece.start, low), piece.end)
        end = max(first, min(piece.end, high))
        name = f"queue {piece.topic}/{piece.queue_id}"
        if first > piece.start:
            _report_loss(f"messages {piece.start} to {first - 1} of {name} were removed", settings)
        if end < piece.end:
            _report_loss(f"messages {end} to {piece.end - 1} of {name} are gone, which ends at {high},", settings)
        return first, end

    def unit_sizes(self, piece: OffsetRange) -> Sequence[int]:
        """Return the bytes of log of each message of a queue."""
        sizes: list[int] = []
        if self.reader.has_plain_units(piece.topic, piece.queue_id):
            for data in self.reader.unit_bytes(piece.topic, piece.queue_id, piece.start, piece.end):
                sizes += [size for _, size, _ in _UNIT.iter_unpack(data)]
            return sizes
        for units in self.reader.units(piece.topic, piece.queue_id, piece.start, piece.end):
            sizes += [unit.size for unit in units]
        return sizes

    def modified_ms(self, path: str) -> int:
        """Return the time of a file's last write, ms since the epoch; 0 for a missing file."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def log_path(self, physical_offset: int) -> str:
        """Return the log file that holds a physical offset; the expected path if there is no such file."""
        before = [path for start, path in self.reader.log_starts() if start <= physical_offset]
        if before and physical_offset < int(os.path.basename(before[-1])) + os.path.getsize(before[-1]):
            return before[-1]
        return os.path.join(self.reader.paths.commit_logs[0], offset_name(physical_offset))

    def lease(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """Write a lease, see ``leases.py``; None for a store that is not writable, which is read without a lease."""
        if ttl_ms > 0 and pieces:
            first = least_physical_offset(pieces, self)
            try:
                return TaskLease(write_lease(REAL, self.root, first, ttl_ms), first, ttl_ms)
            except StorageError as error:
                _log.info("no lease: %s", error)
        return None

    def keep(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """Move the lease of a stream to these splits."""
        if self._held is None:
            self._held = HeldLease(self.root, ttl_ms)
        return self._held.move(least_physical_offset(pieces, self))

    def commit_group(self, group: str, offset: Mapping[str, Any]) -> bool:
        """See Backend; the offsets of a store open for writing belong to the writer."""
        if self._progress is None or self._progress[0] != group:
            self._progress = group, GroupProgress(self.root, group, self.commit_logs)
        return self._progress[1].commit(offset)

    # --- views -------------------------------------------------------------------------------------------------------

    def view_pieces(self, snapshot: Snapshot, options: Options) -> list[Split]:
        """See Backend."""
        return local_views.view_pieces(self, snapshot, options)

    def view_rows(self, piece: Split, columns: Sequence[Column], options: Options) -> Iterator[pa.RecordBatch]:
        """See Backend."""
        self.reader.refresh()
        return local_views.view_rows(self, piece, columns, options)

    # --- reading -----------------------------------------------------------------------------------------------------

    def scan(
        self, piece: ScanRange, columns: Sequence[Column], settings: ReadSettings, left_out: LeftOut | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield records along the log; see Backend."""
        try:
            # A checkpoint of another store or a forged one: bytes of a body are no records.
            self.reader.check_boundary(piece.start)
        except OffsetError as error:
            raise DataLoss(f"the read was planned from a place where no record begins now: {error}") from None
        skip = settings.verify_crc in ("skip", "mark")
        run = LogColumns(
            self.reader, gather_of(columns, settings), piece.start, piece.end,
            skip_damage=skip, skip_lost=not settings.fail_on_data_loss,
        )  # fmt: skip
        return self._plain(_batches(run, f"log {piece.start} to {piece.end}", left_out), columns, settings)

    def _plain(
        self, batches: Iterator[pa.RecordBatch], columns: Sequence[Column], settings: ReadSettings
    ) -> Iterator[pa.RecordBatch]:
        if not decompresses(columns, settings):
            return batches
        return decompressed(batches, columns, settings.verify_crc, self.root, settings.max_body_bytes)

    def gather(self, piece: OffsetRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Yield messages along a queue; see Backend."""
        skip = settings.verify_crc in ("skip", "mark")
        for _ in range(_TRIES):
            start, end = self._still_there(piece, settings)
            if start >= end:
                return
            try:
                run = self.reader.queue_run(
                    piece.topic, piece.queue_id, start, end, gather_of(columns, settings),
                    check_crc=settings.verify_crc != "off", mark=settings.verify_crc == "mark",
                    skip_damage=skip, skip_lost=not settings.fail_on_data_loss,
                )  # fmt: skip
            except OffsetError:  # retention removed messages since the bounds were read
                continue
            batches = _batches(run, f"queue {piece.topic}/{piece.queue_id} {start} to {end}")
            yield from self._plain(batches, columns, settings)
            return
        raise DataLoss(f"queue {piece.topic}/{piece.queue_id}: retention removes it faster than it can be read")


def least_physical_offset(pieces: Sequence[Split], access: LocalBackend) -> int:
    """Return the smallest physical offset of the splits' messages."""
    scans = [piece.scan.start for piece in pieces if piece.scan is not None]
    return min(scans) if scans else access.physical_span([r for piece in pieces for r in piece.queues])[0]


def _report_loss(what: str, settings: ReadSettings) -> None:
    if settings.fail_on_data_loss:
        raise DataLoss(f"{what} since the read was planned; failOnDataLoss=false leaves them out")
    _log.warning("%s since the read was planned", what)


def _batches(run: LogColumns | QueueColumns, what: str, left_out: LeftOut | None = None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in run:
        yield pa.record_batch(batch)
    if left_out is not None:
        left_out.places += run.damage
        left_out.bytes += run.skipped_bytes
    if run.skipped_records or run.lost:
        _log.warning(
            "%s: left out %d damaged records and %d bytes; %d places were gone%s",
            what, run.skipped_records, run.skipped_bytes, len(run.lost), "".join(f"; {lost}" for lost in run.lost[:3]),
        )  # fmt: skip


def _record_head(path: str, position: int) -> bytes:
    """Return the fixed fields of the record at a position and the following bytes that never change."""
    try:
        with open(path, "rb") as file:
            head = os.pread(file.fileno(), _HEAD_BYTES, position)
    except FileNotFoundError:
        return b""
    size = int.from_bytes(head[:4], "big")
    return head[:size] if size >= _LEAST_RECORD else head[:_BLANK_HEAD]
