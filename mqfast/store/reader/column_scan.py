"""Column scans: the records of the log, or of a queue, in columns.

Drives ``gather.pyx``, which works without the GIL: opens the files in order, and handles damage and missing files.
Nothing is left out unless requested, and everything left out is counted. The files are those of a ``StoreReader``;
formats: ``FORMAT.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, DataLoss, StoreNotFound
from mqfast.store.reader.gather import COLUMNS, Gather, RecordColumns
from mqfast.store.reader.scan import LogWalk, PreadFile
from mqfast.store.record.record import StoredMessage

if TYPE_CHECKING:
    from mqfast.store.reader.files import Unit, UnitQueue
    from mqfast.store.reader.starts import RecordStarts

__all__ = ["COLUMNS", "LogColumns", "QueueColumns"]

_BLOCK: Final = 1 << 20
_UNIT_BYTES: Final = 20
_UNITS_AT_ONCE: Final = 32768
_NOWHERE: Final = 1 << 63  # behind every log


class _Columns(ABC):
    """The common part of both scans.

    Attributes: ``damage`` (positions without the expected record, and the reason), ``skipped_bytes`` (of the log, up to
    the next record that a queue knows, or the next file), ``lost`` (missing places, as texts).
    """

    def __init__(self, reader: RecordStarts, gather: Gather, skip_damage: bool, skip_lost: bool) -> None:
        self._reader = reader
        self._gather = gather
        self._skip_damage = skip_damage
        self._skip_lost = skip_lost
        self.damage: list[tuple[int, str]] = []
        self.skipped_bytes = 0
        self.lost: list[str] = []
        self._batches = self._run()

    @abstractmethod
    def _run(self) -> Iterator[RecordColumns]:
        """Yield the batches in order."""

    @property
    def skipped_records(self) -> int:
        """Number of records that were left out as damaged."""
        return len(self.damage) + self._gather.skipped

    def __iter__(self) -> Iterator[RecordColumns]:
        return self

    def __next__(self) -> RecordColumns:
        return next(self._batches)

    def _lose(self, what: str) -> None:
        if not self._skip_lost:
            raise DataLoss(what)
        self.lost.append(what)

    def _log_file(self, physical: int) -> PreadFile | None:
        try:
            return self._reader._log_file(physical) if physical >= 0 else None
        except StoreNotFound:  # removed between two checks
            return None

    def _rest(self) -> Iterator[RecordColumns]:
        if self._gather.rows:
            yield self._gather.finish()


class LogColumns(_Columns):
    """Batches of the records that begin in the log from ``start`` up to, not including, ``end``.

    Raises: CorruptFile for an invalid record (unless damage is skipped), DataLoss for a missing file (unless lost
    records
        are skipped), StorageError.
    """

    def __init__(
        self, reader: RecordStarts, gather: Gather, start: int, end: int, *, skip_damage: bool, skip_lost: bool
    ) -> None:
        self.at = start
        self._end = end
        super().__init__(reader, gather, skip_damage, skip_lost)

    def _run(self) -> Iterator[RecordColumns]:
        while self.at < self._end:
            file = self._log_file(self.at)
            if file is None:
                self._over_a_gap()
            else:
                yield from self._through(file)
        yield from self._rest()

    def _over_a_gap(self) -> None:
        following = min((start for start, _ in self._reader.log_starts() if start > self.at), default=self._end)
        following = min(following, self._end)
        self.damage.append((self.at, "no file"))
        self.skipped_bytes += following - self.at
        root = self._reader.paths.root
        self._lose(
            f"the log of {root} has no file for physical offsets {self.at} to {following}: removed, or cut short"
        )
        self.at = following

    def _through(self, file: PreadFile) -> Iterator[RecordColumns]:
        """Yield the batches of a file, from the current position to the end."""
        file_end = file.end
        walk = LogWalk(file, self.at, block_bytes=_BLOCK)
        while True:
            try:
                stop = self._gather.along(walk, self._end)
            except CorruptFile as error:
                # The file shrank meanwhile: keep the records already read; the rest is lost.
                self.damage.append((walk.at, "the file has shrunk"))
                self.skipped_bytes += file_end - walk.at
                self.at = file_end
                self._lose(str(error))
                return
            self.at = walk.at
            if stop == "full":
                yield self._gather.finish()
            elif stop == "limit":
                return
            elif stop in ("blank", "end"):
                self.at = file_end
                return
            else:
                walk = self._over_damage(file, stop)
                if self.at >= file_end:
                    return

    def _over_damage(self, file: PreadFile, stop: str) -> LogWalk:
        if not self._skip_damage:
            raise CorruptFile(
                "no whole record",
                path=file.path,
                offset=self.at,
                expected="a record at this physical offset",
                found=stop,
            )
        following = self._reader.next_known_record(self.at + 1, min(file.end, self._end))
        self.damage.append((self.at, stop))
        self.skipped_bytes += following - self.at
        self.at = following
        return LogWalk(file, self.at, block_bytes=_BLOCK)


class QueueColumns(_Columns):
    """Batches of the messages of a queue from ``start`` up to, not including, ``end``; as LogColumns otherwise."""

    def __init__(
        self, reader: RecordStarts, gather: Gather, queue: UnitQueue, start: int, end: int, *,
        check_crc: bool, mark: bool, skip_damage: bool, skip_lost: bool,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._at = start
        self._end = end
        self._check_crc = check_crc
        self._mark = mark
        super().__init__(reader, gather, skip_damage, skip_lost)

    @property
    def _name(self) -> str:
        return self._queue.directory

    def _run(self) -> Iterator[RecordColumns]:
        yield from self._by_message() if self._queue.is_batch else self._by_units()
        yield from self._rest()

    def _by_units(self) -> Iterator[RecordColumns]:
        while self._at < self._end:
            first = self._at
            data = self._unit_bytes()
            if not data:
                self._lose(f"queue {self._name} has lost its units from offset {first} to {self._end}")
                return
            number, count = 0, len(data) // _UNIT_BYTES
            while number < count:
                physical = int.from_bytes(data[number * _UNIT_BYTES : number * _UNIT_BYTES + 8], "big", signed=True)
                file = self._log_file(physical)
                if file is None:
                    number = self._over_lost(data, number, first)
                    continue
                number, why = self._gather.units(data, number, first, file, self._queue.topic, self._queue.queue_id)
                if why == "full":
                    yield self._gather.finish()
                elif why == "doubt":
                    self._one(self._unit(first + number))
                    number += 1
            self._at = first + count

    def _unit_bytes(self) -> bytes:
        """Return the next units, of a single file of the queue."""
        stream = self._queue.stream
        position = self._at * _UNIT_BYTES
        try:
            i = stream.find(position)
            if i < 0:
                stream.refresh()
                i = stream.find(position)
            file = stream.open(i) if i >= 0 else None
        except StoreNotFound:
            return b""
        if file is None:
            return b""
        n = min(_UNITS_AT_ONCE * _UNIT_BYTES, self._end * _UNIT_BYTES - position, file.end - position)
        return file.read(position - file.start, n - n % _UNIT_BYTES)

    def _unit(self, offset: int) -> Unit:
        return self._queue.unit(offset * _UNIT_BYTES)

    def _over_lost(self, data: bytes, number: int, first: int) -> int:
        """Skip units whose log file is missing. Returns: number of the first unit that may exist again."""
        begin = min((start for start, _ in self._reader.log_starts()), default=_NOWHERE)
        stop = number + 1
        while stop * _UNIT_BYTES < len(data):
            physical = int.from_bytes(data[stop * _UNIT_BYTES : stop * _UNIT_BYTES + 8], "big", signed=True)
            if physical >= begin:
                break
            stop += 1
        self._lose(
            f"messages {first + number} to {first + stop - 1} of queue {self._name}: their file of the log is gone"
        )
        return stop

    def _one(self, unit: Unit) -> bool:
        """Add a unit by the rules of StoreReader.get. Returns: True if the batch is full."""
        file = self._log_file(unit.physical_offset)
        if file is None:
            self._lose(f"message {unit.queue_offset} of queue {self._name}: its file of the log is gone")
            return False
        crc_ok = True
        message: StoredMessage | str = file.record(unit.physical_offset, unit.size, unit.queue_offset, self._check_crc)
        if message == "crc" and self._mark:
            crc_ok = False
            message = file.record(unit.physical_offset, unit.size, unit.queue_offset, False)
        why = message if isinstance(message, str) else self._reader._misplaced(self._queue, unit, message)
        if isinstance(message, str) or why is not None:
            if not self._skip_damage:
                raise CorruptFile(
                    f"unit {unit.queue_offset} of queue {self._name} does not point at its record",
                    path=file.path, offset=unit.physical_offset, expected=f"a record of {unit.size} bytes", found=why,
                )  # fmt: skip
            self.damage.append((unit.physical_offset, why or "no record"))
            return False
        return self._gather.message(message, self._queue.topic, self._queue.queue_id, unit.queue_offset, crc_ok)

    def _by_message(self) -> Iterator[RecordColumns]:
        """Yield the batches of batch queues, whose units have another format: a row for each batch that begins in the
        range.
        """
        queue, start = self._queue, self._at
        # Not from the current start of the log: messages that were removed since the range was chosen are lost, not
        # left out.
        begin, end = queue.stream.begin, self._reader._end(queue)
        position = self._reader._position(queue, start, begin, end)
        while self._at < self._end:
            units: Sequence[Unit] = queue.units(position, end)
            there = units[0].queue_offset if units else self._end
            if not units or (self._at == start and there > start):
                self._lose(f"queue {self._name} has lost its units from offset {self._at} to {there}")
            self._at = max(self._at, there)
            for unit in units:
                position += queue.unit_bytes
                if unit.queue_offset >= self._end:
                    return
                if unit.queue_offset >= start and self._one(unit):
                    yield self._gather.finish()
                self._at = unit.queue_offset + unit.messages
