"""BulkReader: bulk reads of a store: columns along the log or along a queue, and units by the thousand.

The part of StoreReader for reading whole stores (``column_scan.py`` drives the columns). Nothing is left out unless
requested, and at most a batch is read ahead. File formats: ``FORMAT.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mqfast.errors import CorruptFile, OffsetError
from mqfast.store.reader.bounds import on_files_that_are_there
from mqfast.store.reader.column_scan import COLUMNS, LogColumns, QueueColumns
from mqfast.store.reader.files import UNIT_BYTES, Unit, UnitQueue
from mqfast.store.reader.gather import Gather
from mqfast.store.reader.starts import RecordStarts

__all__ = ["BulkReader"]

_UNIT_BYTES_AT_ONCE: Final = 1 << 20


class BulkReader(RecordStarts):
    """Columns and units of the opened store."""

    def scan_columns(
        self,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_bytes: int = 1 << 20,
        queued_only: bool = False,
    ) -> LogColumns:
        """Return all records of the log as scan does, in columns: batches of about ``batch_bytes``, each of which Arrow
        libraries take over without copying (``pyarrow.record_batch(batch)``).

        Args: columns: names of ``column_scan.COLUMNS``, None for all but ``raw_properties``; queued_only: leave out
            half and rolled back messages of transactions.
        Raises: OffsetError below the log and within a record; during the iteration CorruptFile for an invalid record or
        a
            wrong checksum, DataLoss for a missing file, StorageError.
        """
        with self._lock:
            self._check_open()
        begin, end = self.readable_range()
        start = begin if from_offset is None else from_offset
        if start < begin:
            raise OffsetError(f"physical offset: expected at least {begin}, found {start}")
        if from_offset is not None:
            self.check_boundary(from_offset)
        gather = Gather(
            _column_names(columns), batch_bytes=batch_bytes, batch_rows=1 << 16, check_crc=True, queued_only=queued_only
        )
        stop = end if to_offset is None else min(to_offset, end)
        return LogColumns(self, gather, start, stop, skip_damage=False, skip_lost=False)

    def queue_columns(
        self,
        topic: str,
        queue_id: int,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_bytes: int = 1 << 20,
    ) -> QueueColumns:
        """Return the messages of a queue in columns, as scan_columns does; a row for each batch of a batch queue.

        Raises: OffsetError for an unknown queue or an offset outside the queue; otherwise as scan_columns.
        """
        gather = Gather(_column_names(columns), batch_bytes=batch_bytes, batch_rows=1 << 16, check_crc=True)
        start = self.min_offset(topic, queue_id) if from_offset is None else from_offset
        end = self.max_offset(topic, queue_id) if to_offset is None else to_offset
        return self.queue_run(
            topic, queue_id, start, end, gather, check_crc=True, mark=False, skip_damage=False, skip_lost=False
        )

    def queue_run(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        gather: Gather,
        *,
        check_crc: bool,
        mark: bool,
        skip_damage: bool,
        skip_lost: bool,
    ) -> QueueColumns:
        """Return queue_columns with the caller's Gather; see QueueColumns for the other arguments.

        Raises: OffsetError.
        """
        with self._lock:
            first, last = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
            queue = self._queue(topic, queue_id)
            if queue is None or not first <= start <= end <= last:
                raise OffsetError(
                    f"queue {topic}/{queue_id}: expected offsets from {first} to {last}, found {start}, {end}"
                )
            return QueueColumns(
                self, gather, queue, start, end,
                check_crc=check_crc, mark=mark, skip_damage=skip_damage, skip_lost=skip_lost,
            )  # fmt: skip

    def has_plain_units(self, topic: str, queue_id: int) -> bool:
        """Return True if this queue has units of 20 bytes that hold the tags code themselves."""
        with self._lock:
            queue = self._queue(topic, queue_id)
            return queue is not None and not queue.is_batch and queue.ext is None

    @on_files_that_are_there
    def unit_at(self, topic: str, queue_id: int, offset: int) -> Unit:
        """Return the unit of a queue that holds a queue offset.

        Raises: OffsetError outside of the queue's bounds, CorruptFile, StorageError.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            begin, end = self._span(queue) if queue is not None else (0, 0)
            first, last = self._bounds(queue, begin, end) if queue is not None else (0, 0)
            if queue is None or not first <= offset < last:
                raise OffsetError(
                    f"queue {topic}/{queue_id}: expected an offset from {first} to {last - 1}, found {offset}"
                )
            return queue.unit(self._position(queue, offset, begin, end))

    @on_files_that_are_there
    def unit_if_there(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Return the unit that holds a queue offset as long as the files of the queue have the unit, also if its record
        was removed; otherwise None.

        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            if queue is None or offset < 0:
                return None
            begin, end = queue.stream.begin, self._end(queue)
            if queue.is_batch:
                first, last = self._bounds(queue, begin, end)
                if not first <= offset < last:
                    return None
            position = self._position(queue, offset, begin, end)
            return queue.unit(position) if begin <= position < end else None

    def units(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[list[Unit]]:
        """Yield the units of queue offsets from ``start`` up to, not including, ``end``, in lists.

        Raises: OffsetError outside of the queue's bounds, CorruptFile, StorageError.
        """
        queue, position, stop = self._unit_positions(topic, queue_id, start, end)
        while position < stop:
            with self._lock:
                units = queue.units(position, stop)
            if not units:
                raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
            position += len(units) * queue.unit_bytes
            yield units

    def unit_bytes(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[bytes]:
        """Yield the units as stored in the file, for a very large number of units: 20 bytes each, ``>qiq`` (physical
        offset,
        size, tags code). Only with ``has_plain_units``.

        Raises: as units.
        """
        queue, position, stop = self._unit_positions(topic, queue_id, start, end)
        while position < stop:
            with self._lock:
                i = queue.stream.find(position)
                if i < 0:
                    raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
                file = queue.stream.open(i)
                n = min(_UNIT_BYTES_AT_ONCE, stop - position, file.end - position)
                data = file.read(position - file.start, n - n % UNIT_BYTES)
            if not data:
                raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
            position += len(data)
            yield data

    def _unit_positions(self, topic: str, queue_id: int, start: int, end: int) -> tuple[UnitQueue, int, int]:
        with self._lock:
            if start < end:
                self.unit_at(topic, queue_id, start)
                self.unit_at(topic, queue_id, end - 1)
            queue = self._queue(topic, queue_id)
            if queue is None:
                raise OffsetError(f"queue {topic}/{queue_id}: there is none")
            if start >= end:
                return queue, 0, 0
            low, high = self._span(queue)
            stop = self._position(queue, end - 1, low, high) + queue.unit_bytes
            return queue, self._position(queue, start, low, high), stop


def _column_names(columns: Sequence[str] | None) -> list[tuple[str, str, bool]]:
    chosen = [name for name in COLUMNS if name not in ("raw_properties", "crc_ok")] if columns is None else columns
    return [(name, name, False) for name in chosen]
