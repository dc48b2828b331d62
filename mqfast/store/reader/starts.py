"""RecordStarts: record boundaries, for dividing a log, for reads behind damage, and for offsets from a caller.

A producer chooses the bytes of a body and can predict their physical offset: a body may hold bytes that look like a
record of another topic. So the bytes at an offset prove nothing. A record begins where a log file begins, where a queue
unit points, and behind a record that begins. File formats: ``FORMAT.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from mqfast.errors import CorruptFile, OffsetError
from mqfast.store.reader.bounds import ReaderBounds, on_files_that_are_there
from mqfast.store.reader.files import UNIT_BYTES, Unit, UnitQueue
from mqfast.store.reader.scan import LogWalk, PreadFile
from mqfast.store.record.record import StoredMessage

__all__ = ["RecordStarts"]

# A unit this close before an offset is close enough to walk from: a block at a time, or a record if it is larger.
_NEAR_BYTES: Final = 4 << 20
_WALK_BLOCK: Final = 16 << 10
# Number of queues that are searched for a unit before an offset, the longest first; then the walk from the best unit is
# cheaper.
_ASKED_QUEUES: Final = 256


class RecordStarts(ReaderBounds):
    """The record boundaries of the opened store."""

    def record_boundary(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first record, blank or file at or behind a physical offset; ``limit`` if none begins
        before.
        Behind damage this is the first record that a queue knows. For dividing the log among several readers.

        Raises: CorruptFile, StorageError.
        """
        return self.record_boundaries((physical_offset,), limit)[0]

    @on_files_that_are_there
    def record_boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """Return record_boundary for several ascending physical offsets: no part of the log is walked twice.

        Raises: CorruptFile, StorageError.
        """
        boundaries: list[int] = []
        for wanted in physical_offsets:
            boundaries.append(self._boundary(wanted, limit, boundaries[-1] if boundaries else -1))
        return boundaries

    def _boundary(self, wanted: int, limit: int, known: int) -> int:
        """See record_boundary; ``known``: the start of a record, perhaps before ``wanted``."""
        file = self._log_file(wanted)
        following = self._file_behind(wanted, limit)
        if file is None or following == wanted:
            return following
        start = known if file.start <= known <= wanted else file.start
        if wanted - start > _NEAR_BYTES:
            start = self._unit_before(wanted, start)
        walk = LogWalk(file, start, False, block_bytes=_WALK_BLOCK)
        stop = walk.hop(wanted)
        if stop == "limit":
            return min(walk.at, following)
        return following if stop in ("blank", "end") else self._unit_behind(wanted, following)

    @on_files_that_are_there
    def next_known_record(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first record at or behind a physical offset that a queue or the start of a file
        proves; ``limit`` if none begins before. For reads behind damage, which no walk can cross.

        Raises: CorruptFile, StorageError.
        """
        return self._unit_behind(physical_offset, self._file_behind(physical_offset, limit))

    def _file_behind(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first file at or behind a physical offset; ``limit`` if none begins before."""
        i = bisect_left(self._log.starts, physical_offset)
        return min(self._log.starts[i], limit) if i < len(self._log.starts) else limit

    def _unit_before(self, wanted: int, start: int) -> int:
        """Return the start of a record of the file, at or before ``wanted``: the closest that some queues know, or
        ``start``.
        """
        if self._longest is None:
            self._longest = sorted(self._queues.values(), key=lambda queue: -queue.end())
        for queue in self._longest[:_ASKED_QUEUES]:
            begin, end = self._span(queue)
            place = self._first_at(queue, begin, end, wanted + 1) - queue.unit_bytes
            if place >= begin:
                unit = queue.unit(place)
                if unit.physical_offset > start and self._vouches(queue, unit):
                    start = unit.physical_offset
                    if wanted - start <= _NEAR_BYTES:
                        break
        return start

    def _unit_behind(self, wanted: int, limit: int) -> int:
        """Return the start of the first record at or behind ``wanted`` that any queue knows; ``limit``: none before
        that.
        """
        for queue in self._queues.values():
            begin, end = self._span(queue)
            place = self._first_at(queue, begin, end, wanted)
            while place < end:
                unit = queue.unit(place)
                if unit.physical_offset >= limit:
                    break
                if self._vouches(queue, unit):
                    limit = unit.physical_offset
                    break
                place += queue.unit_bytes
        return limit

    def _first_at(self, queue: UnitQueue, begin: int, end: int, physical_offset: int) -> int:
        """Return the position of the first unit that points at or behind a physical offset; ``end`` for none."""
        low, high = 0, (end - begin) // queue.unit_bytes
        while low < high:
            middle = (low + high) // 2
            if queue.unit(begin + middle * queue.unit_bytes).physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return begin + low * queue.unit_bytes

    def _vouches(self, queue: UnitQueue, unit: Unit) -> bool:
        """Return True if a record of this queue, of the unit's size, exists. Its body may be damaged."""
        file = self._log_file(unit.physical_offset) if not unit.is_filler else None
        if file is None:
            return False
        message = file.record(unit.physical_offset, unit.size, unit.queue_offset, False)
        return not isinstance(message, str) and self._misplaced(queue, unit, message) is None

    # --- offsets from a caller
    # --------------------------------------------------------------------------------------------

    @on_files_that_are_there
    def check_boundary(self, physical_offset: int) -> None:
        """Raise OffsetError for a physical offset within a record, whatever its bytes. An offset outside all log files
        is not
        checked here.

        Raises: OffsetError, CorruptFile, StorageError.
        """
        file = self._log_file(physical_offset) if physical_offset >= 0 else None
        if file is not None:
            message = file.record(physical_offset, check_body=False)
            if isinstance(message, str) or not self._is_claimed(message):
                self._check_walked(file, physical_offset)

    def _is_claimed(self, message: StoredMessage) -> bool:
        """Return True if the unit that a record claims points at the record. Bytes inside a body cannot have such a
        unit.
        """
        queue = self._queue(message.topic, message.queue_id)
        place = message.record_queue_offset * UNIT_BYTES
        if queue is None or queue.is_batch or not queue.stream.begin <= place < queue.end():
            return False
        try:
            unit = queue.unit(place)
        except CorruptFile:
            return False
        return (unit.physical_offset, unit.size) == (message.physical_offset, message.size)

    def _check_walked(self, file: PreadFile, physical_offset: int) -> None:
        boundary = self._boundary(physical_offset, physical_offset + 1, -1)
        if boundary != physical_offset:
            raise OffsetError(
                f"physical offset {physical_offset}: expected the beginning of a record, found a place within one, or "
                f"behind damage ({file.path}, byte {physical_offset - file.start}); begin where a message was found"
            )
