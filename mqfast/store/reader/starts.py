"""Where records begin: for dividing a log, for going on behind damage, and for whoever names a place of the log.

Room: the store; the part of StoreReader between its bounds and those who read from a place on. A producer chooses the
bytes of a body, and can predict the physical offset that they get: a body may hold what looks like a record of another
topic. So it must never take a place for the beginning of a record by what stands there. A record begins where a log
file begins, where a unit of a queue points, and behind a record that begins. File formats: ``FORMAT.md``.
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

# A unit so near before a place is near enough to walk from: a block at a time, or a record where it is larger.
_NEAR_BYTES: Final = 4 << 20
_WALK_BLOCK: Final = 16 << 10
# So many queues are asked for a unit before a place, the longest first; then the walk from what was found is cheaper.
_ASKED_QUEUES: Final = 256


class RecordStarts(ReaderBounds):
    """The beginnings of records in the store that was opened."""

    def record_boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record, blank or file at or behind a physical offset begins; ``limit`` when none does before
        it. Behind damage it is the first record that a queue knows. For dividing the log among several readers.

        Raises: CorruptFile, StorageError.
        """
        return self.record_boundaries((physical_offset,), limit)[0]

    @on_files_that_are_there
    def record_boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """As record_boundary for each of several physical offsets, which ascend: no part of the log is walked twice.

        Raises: CorruptFile, StorageError.
        """
        found: list[int] = []
        for wanted in physical_offsets:
            found.append(self._boundary(wanted, limit, found[-1] if found else -1))
        return found

    def _boundary(self, wanted: int, limit: int, known: int) -> int:
        """See record_boundary; ``known``: where a record begins, perhaps before ``wanted``."""
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
        """Where the first record at or behind a physical offset begins that a queue or the beginning of a file vouches
        for; ``limit`` when none does before it. For going on behind damage, over which nobody can walk.

        Raises: CorruptFile, StorageError.
        """
        return self._unit_behind(physical_offset, self._file_behind(physical_offset, limit))

    def _file_behind(self, physical_offset: int, limit: int) -> int:
        """Where the first file at or behind a physical offset begins; ``limit`` when none does before it."""
        i = bisect_left(self._log.starts, physical_offset)
        return min(self._log.starts[i], limit) if i < len(self._log.starts) else limit

    def _unit_before(self, wanted: int, start: int) -> int:
        """Where a record of the file begins, at or before ``wanted``: as near as some queues know, or ``start``."""
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
        """Where the first record at or behind ``wanted`` begins that any queue knows; ``limit``: none before that."""
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
        """Position of the first unit that points at or behind a physical offset; ``end`` when there is none."""
        low, high = 0, (end - begin) // queue.unit_bytes
        while low < high:
            middle = (low + high) // 2
            if queue.unit(begin + middle * queue.unit_bytes).physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return begin + low * queue.unit_bytes

    def _vouches(self, queue: UnitQueue, unit: Unit) -> bool:
        """Is there a record of this queue, of the unit's size? Its body may be damaged."""
        file = self._log_file(unit.physical_offset) if not unit.is_filler else None
        if file is None:
            return False
        found = file.record(unit.physical_offset, unit.size, unit.queue_offset, False)
        return not isinstance(found, str) and self._misplaced(queue, unit, found) is None

    # --- places that somebody names ----------------------------------------------------------------------------------

    @on_files_that_are_there
    def check_boundary(self, physical_offset: int) -> None:
        """Refuse a physical offset within a record, whatever its bytes look like. A place that no file of the log holds
        is no business of this.

        Raises: OffsetError, CorruptFile, StorageError.
        """
        file = self._log_file(physical_offset) if physical_offset >= 0 else None
        if file is not None:
            found = file.record(physical_offset, check_body=False)
            if isinstance(found, str) or not self._is_claimed(found):
                self._check_walked(file, physical_offset)

    def _is_claimed(self, message: StoredMessage) -> bool:
        """Does the unit that a record claims point at it? No record of a body can have one that does."""
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
        found = self._boundary(physical_offset, physical_offset + 1, -1)
        if found != physical_offset:
            raise OffsetError(
                f"physical offset {physical_offset}: expected the beginning of a record, found a place within one, or "
                f"behind damage ({file.path}, byte {physical_offset - file.start}); begin where a message was found"
            )
