"""BatchConsumeQueue: 46-byte units of a queue whose records may hold several messages (RocketMQ: BatchConsumeQueue).

A unit represents a whole record: first queue offset and number of messages. The position of a unit does not determine
the queue offset, so every lookup is a search. The log is not read here, and a unit is visible only after all bytes are
written. Layout: FORMAT.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile, DiskFull, OffsetError, StoreClosed
from mqfast.message import SysFlag
from mqfast.store.base import paths as _paths
from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.results import BoundaryType
from mqfast.store.queues.unit_bytes import (
    BATCH_UNIT_BYTES,
    read_batch_unit,
    read_bytes,
    sync,
    valid_batch_units,
    write_batch_unit,
)
from mqfast.util.java_text import java_whole

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.record.record import StoredMessage

__all__ = ["BatchConsumeQueue", "BatchUnit", "check_unit", "claimed_places", "crossed_bounds", "places_in"]

_EVERYTHING: Final = 2**63 - 1
_STORE_TIMESTAMP: Final = 3
_BASE_OFFSET: Final = 4
# Blocks are allocated in steps: a queue of a few units shall not take megabytes.
_GROWTH: Final = 64 << 10


class BatchUnit(NamedTuple):
    """A unit; fields in the order of the file."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    """Queue offset of the record's first message."""
    batch_size: int
    """Messages of the record."""
    compacted_offset: int
    """-1 unless the topic was compacted."""

    @property
    def next_offset(self) -> int:
        """Queue offset behind the record's last message."""
        return self.base_offset + self.batch_size


def claimed_places(message: StoredMessage) -> tuple[int, int]:
    """Return the queue offset of a record's first message, and the number of messages, as the record states them.

    The properties count in an inner batch only: in any other record a producer has set them.
    """
    if not message.sys_flag & SysFlag.INNER_BATCH:
        return message.record_queue_offset, 1
    return places_in(message.properties, message.record_queue_offset)


def places_in(properties: Mapping[str, str], record_queue_offset: int) -> tuple[int, int]:
    """Return the same from the properties and the queue offset of an inner batch."""
    base, count = properties.get("INNER_BASE"), properties.get("INNER_NUM")
    try:
        first = record_queue_offset if base is None else java_whole(base)
        messages = 1 if count is None else java_whole(count, 2**31 - 1)
    except ValueError:
        return record_queue_offset, 1
    return first, max(1, min(messages, 32767))


def check_unit(unit: BatchUnit, message: StoredMessage, topic: str, queue_id: int) -> None:
    """Check that the record of a unit belongs to the unit. Raises: CorruptFile."""
    actual = (message.topic, message.queue_id, message.size, *claimed_places(message))
    expected = (topic, queue_id, unit.size, unit.base_offset, unit.batch_size)
    if actual != expected:
        raise CorruptFile(
            f"queue {topic}/{queue_id} offset {unit.base_offset} does not point at its record",
            offset=unit.physical_offset,
            expected=f"topic, queue, size, queue offset and messages {expected}",
            found=actual,
        )


def crossed_bounds(topic: str, queue_id: int, first: int, last: int, path: str) -> CorruptFile:
    """Return the error for a queue whose first unit begins behind the end of the last unit: no offset is inside."""
    return CorruptFile(
        f"queue {topic}/{queue_id} begins behind its own end: its first or its last unit is damaged;"
        " mqfast.repair makes the queue anew from the log",
        path=path,
        expected=f"a first queue offset up to {last}",
        found=first,
    )


class BatchConsumeQueue:
    """A queue: files, bounds, units.

    A unit has a number: 0 for the first unit of a file that starts at byte 0, then counted through full files.
    ``file_bytes`` need not be a multiple of 46; bytes that hold no whole unit stay unused.

    Thread: one thread at a time may put, truncate or delete; any thread may read meanwhile.
    """

    def __init__(self, os_api: OsApi, directory: str, topic: str, queue_id: int, file_bytes: int) -> None:
        if file_bytes < BATCH_UNIT_BYTES:
            raise ValueError(f"file_bytes: expected {BATCH_UNIT_BYTES} or more, found {file_bytes}")
        self.os_api = os_api
        self.topic = topic
        self.queue_id = queue_id
        self.path = _paths.queue_dir(directory, topic, queue_id)
        self.file_bytes = file_bytes
        self.next_offset = 0
        """Queue offset of the next record; kept by the part that assigns offsets."""
        self.max_physical = -1
        """Start of the last record that has a unit, -1 for none (a ConsumeQueue keeps the end)."""
        self.deleted = False
        self.waits = False
        """True while units wait for space on the disk. Kept by the dispatcher."""
        self._doomed: list[MappedFile] | None = None
        self.was_cut = False
        """True if bytes behind the end were cleared since this was last set."""
        self._per_file: Final = file_bytes // BATCH_UNIT_BYTES
        self._files: list[MappedFile] = []  # replaced, never changed: a reader uses the list that it took
        self._lock = Mutex()  # for replacements of `_files`: dispatch adds files, retention removes files
        self._end = 0  # number behind the last unit
        self._flushed = 0  # units below this number are durable
        self._min_offset = -1

    # --- bounds ---

    @property
    def min_offset(self) -> int:
        """First valid queue offset; -1 without a unit."""
        return self._min_offset

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message; 0 without a unit."""
        first = self._first  # read before the end: files may be added at the end and removed here
        end = self._end
        try:
            return self._unit(end - 1).next_offset if end > first else 0
        except OffsetError:
            return 0

    def readable_offset(self, limit: int) -> int:
        """Return the queue offset behind the last message whose record ends at or before a physical offset; 0 without a
        message.
        """
        first, end = self._first, self._end
        try:
            while end > first:
                unit = self._unit(end - 1)
                if unit.physical_offset + unit.size <= limit:
                    return unit.next_offset
                end -= 1
        except OffsetError:
            pass
        return 0

    def check_bounds(self) -> None:
        """Check that the bounds can hold a message. Raises: CorruptFile if the first unit begins behind the last
        unit.
        """
        first, last = self._min_offset, self.max_offset
        if first > last > 0:
            raise crossed_bounds(self.topic, self.queue_id, first, last, self._files[0].path)

    @property
    def unit_count(self) -> int:
        """Number of units in the files, including units of deleted records."""
        first = self._first
        return self._end - first

    @property
    def file_list(self) -> list[MappedFile]:
        """The files, oldest first."""
        return list(self._files)

    @property
    def _first(self) -> int:
        files = self._files
        return self._number(files[0]) if files else self._end

    def _number(self, file: MappedFile) -> int:
        return file.start_offset // self.file_bytes * self._per_file

    def _unit(self, number: int) -> BatchUnit:
        while files := self._files:
            first = self._number(files[0])
            # The search may have begun before the oldest files were removed.
            index, place = divmod(max(number, first) - first, self._per_file)
            try:
                return BatchUnit(*read_batch_unit(files[index], place * BATCH_UNIT_BYTES))
            except StoreClosed:
                if files is self._files:
                    raise
        raise OffsetError(f"queue {self.topic}/{self.queue_id} was deleted or closed")

    def _search(self, field: int, value: int) -> int:
        """Return the number of the first unit whose field is larger than ``value``; the field is monotonic."""
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            if self._unit(middle)[field] > value:
                high = middle
            else:
                low = middle + 1
        return low

    # --- load, recover, truncate ---

    def load(self) -> None:
        """Load the files of the directory; the units count once ``recover`` has checked them.

        Raises: CorruptFile for a file of another length or a gap between files.
        """
        segments = _paths.list_offset_files(self.os_api, self.path)[0]
        expected: int | None = None
        for number, (start, path) in enumerate(segments, 1):
            if number == len(segments) and self.os_api.file_size(path) == 0:
                self.os_api.unlink(path)  # created, but without its length
                continue
            if start % self.file_bytes or (expected is not None and start != expected):
                raise CorruptFile(
                    "queue file out of place",
                    path=path,
                    expected=expected if expected is not None else f"a multiple of {self.file_bytes}",
                    found=start,
                )
            self._files = [*self._files, MappedFile.load(self.os_api, path, start, self.file_bytes)]
            expected = start + self.file_bytes
        self._end = self._first

    def recover(self) -> None:
        """Find the end of the valid units, from the third-last file on; clear the bytes behind the end.

        A unit is valid when the offsets are not negative, the sizes are above 0, and the queue offset is below 2^62, so
        that later offsets fit 64 bits.
        """
        self.max_physical = -1
        if not self._files:
            self._revise()
            return
        end = self._first
        for file in self._files[-3:]:
            end = self._number(file)
            count, last = valid_batch_units(file, self._per_file, _EVERYTHING)
            end += count
            if count:
                self.max_physical = last
            if count < self._per_file:
                break
        self._cut(end, end + 1)

    def truncate(self, physical_offset: int, dropped: list[bytes] | None = None) -> None:
        """Drop every unit whose record starts at or behind ``physical_offset``, and all later units.

        Args: dropped: gets the bytes of the dropped units.
        Source: BatchConsumeQueue.truncateDirtyLogicFiles.
        """
        self.max_physical = -1
        end, old_end, files = self._first, self._end, self._files
        for file in reversed(self._files):
            end = self._number(file)
            count, last = valid_batch_units(file, self._per_file, physical_offset)
            if count:
                end += count
                self.max_physical = last
                break
        for file in files if dropped is not None and end < old_end else ():
            first, last_number = max(end, self._number(file)), min(old_end, self._number(file) + self._per_file)
            if dropped is not None and first < last_number:
                position = (first - self._number(file)) * BATCH_UNIT_BYTES
                dropped.append(read_bytes(file, position, (last_number - first) * BATCH_UNIT_BYTES))
        # RocketMQ removes a file that this empties, even the only file, but keeps an empty file at recovery.
        self._cut(end, end)

    def last_unit(self) -> BatchUnit | None:
        """Return the newest unit; None without a unit."""
        return self._unit(self._end - 1) if self.unit_count else None

    def drop_last(self) -> None:
        """Drop the newest unit; recovery puts the unit again from the log."""
        self.max_physical = -1
        self._cut(self._end - 1, self._end)
        self.was_cut = True

    def _cut(self, end: int, remove_from: int) -> None:
        gone = [file for file in self._files if self._number(file) >= remove_from]
        self._end = end
        self._flushed = min(self._flushed, end)
        self._files = self._files[: len(self._files) - len(gone)]
        for file in gone:
            file.destroy()
        if gone:
            self.was_cut = True
            self.os_api.fsync_dir(self.path)
        if not self._files:
            self._end = self._flushed = 0
        if self._files:
            file = self._files[-1]
            position = (end - self._number(file)) * BATCH_UNIT_BYTES
            # A unit that reappears after a power cut would point to any record that is at that offset then.
            if file.zero_tail(position):
                self.was_cut = True
                sync(file, position, self.file_bytes)
        self._revise()

    def _revise(self) -> None:
        first, end = self._first, self._end
        self._min_offset = self._unit(first).base_offset if first < end else -1
        if self.max_physical < 0 and first < end:
            # The files that recovery read hold no unit; RocketMQ would now put units of some records twice.
            self.max_physical = self._unit(end - 1).physical_offset

    def correct_min(self, min_physical: int) -> None:
        """Move the lower bound past units whose records were deleted.

        Source: BatchConsumeQueue.correctMinOffset.
        """
        low, high = self._first, self._end
        if low == high:
            self._min_offset = -1
            return
        gone: BatchUnit | None = None
        while low < high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit.physical_offset < min_physical:
                gone = unit  # always the last deleted unit seen
                low = middle + 1
            else:
                high = middle
        self._min_offset = self._unit(self._first).base_offset if gone is None else gone.next_offset

    # --- write ---

    def put(
        self,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,
        base_offset: int,
        batch_size: int,
    ) -> None:
        """Put the unit of a record; a record that has a unit already (by physical offset) is skipped.

        Args: ``base_offset``: queue offset of the first message; ``batch_size``: number of messages, 1 to 32,767.
        Raises: ValueError for a unit that recovery would reject; DiskFull, StorageError. Nothing changed then.
        """
        if physical_offset <= self.max_physical:
            return
        if size <= 0 or not 0 <= base_offset < 2**62 or not 0 < batch_size < 2**15:
            raise ValueError(
                f"unit of physical offset {physical_offset}: expected size > 0, base offset 0 to 2^62 - 1, batch size"
                f" 1 to 32767, found {size}, {base_offset}, {batch_size}"
            )
        self.make_room(base_offset)
        number = self._end
        file = self._files[-1]
        position = (number - self._number(file)) * BATCH_UNIT_BYTES
        write_batch_unit(file, position, physical_offset, size, tags_code, store_timestamp, base_offset, batch_size)
        self.max_physical = physical_offset
        self._end = number + 1
        if self._min_offset < 0:
            self._min_offset = base_offset

    def make_room(self, queue_offset: int) -> None:
        """Allocate blocks for the next unit; ``queue_offset`` has no effect. Raises: DiskFull, StorageError."""
        if not self._files or self._end - self._number(self._files[-1]) == self._per_file:
            self._append_file()
        file = self._files[-1]
        position = (self._end - self._number(file)) * BATCH_UNIT_BYTES
        end = position + BATCH_UNIT_BYTES
        if end > file.allocated:
            try:
                file.grow(position + _GROWTH)
            except DiskFull:
                file.grow(end)

    def _append_file(self) -> None:
        start = self._files[-1].start_offset + self.file_bytes if self._files else 0
        self.os_api.makedirs(self.path)
        path = os.path.join(self.path, _paths.offset_name(start))
        # Sparse: make_room allocates blocks when needed.
        setting = "mapped_file_bytes_batch_consume_queue"
        file = MappedFile.create(self.os_api, path, start, self.file_bytes, False, setting=setting)
        try:
            with self._lock:
                self._files = [*self._files, file]
        except MemoryError:
            file.destroy()  # the name would block the next attempt
            raise

    # --- read ---

    def find(self, queue_offset: int) -> BatchUnit | None:
        """Return the unit of the record that holds this queue offset, or that precedes a hole there; None out of
        bounds.
        """
        if self._min_offset < 0 or not self._min_offset <= queue_offset < self.max_offset:
            return None
        try:
            number = self._search(_BASE_OFFSET, queue_offset) - 1
            return self._unit(number) if number >= self._first else None
        except OffsetError:
            return None  # the queue was deleted or closed meanwhile

    def find_after(self, queue_offset: int) -> BatchUnit | None:
        """Return the first unit whose first message is behind this queue offset; None without such a unit."""
        try:
            number = self._search(_BASE_OFFSET, queue_offset)
            return self._unit(number) if self._first <= number < self._end else None
        except OffsetError:
            return None

    def iterate(self, queue_offset: int) -> Iterator[BatchUnit]:
        """Yield the units from this queue offset on, up to the current end; nothing out of bounds."""
        if self.find(queue_offset) is None:
            return
        for number in range(self._search(_BASE_OFFSET, queue_offset) - 1, self._end):
            yield self._unit(number)

    def unit(self, queue_offset: int) -> BatchUnit:
        """Return the unit as ``find`` does. Raises: OffsetError outside the queue."""
        unit = self.find(queue_offset)
        if unit is None:
            raise OffsetError(
                f"queue {self.topic}/{self.queue_id} has no offset {queue_offset}:"
                f" expected {self.min_offset} to {self.max_offset - 1}"
            )
        return unit

    def offset_by_time(self, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER) -> int:
        """Return the queue offset for a store time, ms, within the bounds of the queue; 0 for an empty queue.

        As RocketMQ, which is less than the names promise: a time at or behind the end of the searched file gives the
        base offset of the last record in that file. Otherwise LOWER gives the base of the first record at or after the
        time. UPPER gives the base of the last record of exactly that time if the binary search hits such a record, else
        that of a later record or the min offset.

        Source: BatchConsumeQueue.getOffsetInQueueByTime, binarySearchRight; ConsumeQueueStore clips the result.
        """
        try:
            return self._offset_by_time(timestamp, boundary)
        except OffsetError:
            return 0  # the queue was deleted or closed meanwhile

    def _offset_by_time(self, timestamp: int, boundary: BoundaryType) -> int:
        first, end = self._first, self._end
        if first == end:
            return 0
        low = max(first, self._search(_STORE_TIMESTAMP, timestamp) - 1)
        low -= low % self._per_file  # the last file that starts at or before the time, else the first
        high = min(end, low + self._per_file) - 1
        last = self._unit(high)
        if timestamp >= last.store_timestamp:
            offset = last.base_offset
        else:
            offset = self._search_in_file(low, high, timestamp, boundary)
        return min(max(offset, self._min_offset), self.max_offset)

    def _search_in_file(self, low: int, high: int, timestamp: int, boundary: BoundaryType) -> int:
        while low < high:
            middle = (low + high) // 2
            at = self._unit(middle).store_timestamp
            if middle == low:
                if at >= timestamp:
                    high = low
                else:
                    low += 1
            elif boundary is BoundaryType.LOWER:
                if at < timestamp:
                    low = middle + 1
                else:
                    high = middle
            elif at <= timestamp:
                low = middle
            else:
                high = middle - 1
        unit = self._unit(low)
        return unit.base_offset if unit.store_timestamp >= timestamp else -1

    # --- flush, delete ---

    def flush(self) -> int:
        """Make all units durable; return the bytes synced. Raises: StorageError."""
        end, done = self._end, 0
        for file in self.file_list:
            first = self._number(file)
            low, high = max(self._flushed, first), min(end, first + self._per_file)
            if low < high:
                try:
                    done += sync(file, (low - first) * BATCH_UNIT_BYTES, (high - first) * BATCH_UNIT_BYTES)
                except StoreClosed:
                    if file in self._files:
                        raise  # else retention or the deletion of the topic removed the file
        self._flushed = max(self._flushed, end)
        return done

    def delete_expired(self, min_physical: int) -> int:
        """Remove files whose records are all deleted; correct the lower bound; return the number of files.

        The file of the last unit, which determines the end of the queue, stays: a put may have created the next file
        without a unit yet.
        """
        removed = 0
        while (
            len(self._files) > 1
            and self._end > self._number(self._files[1])
            and self._unit(self._first + self._per_file - 1).physical_offset < min_physical
        ):
            with self._lock:
                oldest, self._files = self._files[0], self._files[1:]
            oldest.destroy()
            self.os_api.fsync_dir(self.path)  # each synced: a power cut in between must not leave a gap
            removed += 1
        self.correct_min(min_physical)
        return removed

    def unmap_idle(self) -> None:
        """Unmap files without holds; the next use maps them again."""
        for file in self.file_list:
            file.unmap_idle()

    def close(self) -> None:
        """Unmap the files; the queue is empty from then on."""
        files, self._files = self._files, []
        self._end = 0
        self._min_offset = -1
        for file in files:
            file.drop()

    def destroy(self) -> None:
        """Remove all files and the queue's directory. After a failure, call again."""
        self.deleted = True
        if self._doomed is None:
            self._doomed = list(self._files)
        self.close()
        self.max_physical = -1
        while self._doomed:
            self._doomed[-1].destroy()
            self.os_api.fsync_dir(self.path)  # each synced: a power cut in between must not leave a gap
            self._doomed.pop()
        if self.os_api.is_dir(self.path) and not self.os_api.listdir(self.path):
            self.os_api.rmdir(self.path)
            self.os_api.fsync_dir(os.path.dirname(self.path))

    def __repr__(self) -> str:
        return f"<BatchConsumeQueue {self.topic}/{self.queue_id} {self.min_offset}..{self.max_offset}>"
