"""Record boundaries behind damage, for recovery, verify, repair and salvage.

The content of a body is never taken for a record. A boundary is the start of a log file, the physical offset of a
queue unit, or the end of a valid record that begins at a boundary. The bytes are searched only if none of these is
left. A record found by the search must be whole and hold its own physical offset. The records from it on must lead
without a gap to a known boundary or to the end of the written bytes. Such a record is marked as found by scan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import StoreNotFound
from mqfast.store.base.paths import list_offset_files, list_queues, queue_dir
from mqfast.store.reader.scan import LogTally, LogWalk, PreadFile, RecordPositions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqfast.store.base.os_api import OsApi
    from mqfast.store.base.paths import OffsetFile, StorePaths

__all__ = ["REASONS", "Behind", "Damaged", "Stretch", "closes_file", "gather_places", "look_behind", "resume"]

_UNIT_BYTES: Final = 20
_BATCH_UNIT_BYTES: Final = 46
_CHUNK_UNITS: Final = 1 << 16

REASONS: Final = {
    "blank": "a blank, and whole records behind it",
    "zero": "zeros",
    "length": "other parts",
    "place": "the record of another place",
    "crc": "other bytes",
}


class Stretch(NamedTuple):
    """A run of adjacent whole records: physical offsets, number of records, True if a scan found the first record."""

    start: int
    end: int
    records: int
    by_scan: bool


class Damaged(NamedTuple):
    """A range of bytes without a whole record."""

    start: int
    end: int
    reason: str


@dataclass
class Behind:
    """The records and the damage of the log behind a physical offset."""

    stretches: list[Stretch] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    doubtful: bool = False
    """True if bytes look like a record and no boundary proves the record."""

    @property
    def records(self) -> int:
        """Return the number of whole records."""
        return sum(stretch.records for stretch in self.stretches)

    @property
    def by_scan(self) -> int:
        """Return the number of records that a scan found."""
        return sum(stretch.records for stretch in self.stretches if stretch.by_scan)


def gather_places(os_api: OsApi, paths: StorePaths, low: int) -> RecordPositions:
    """Collect the records at ``low`` or behind that the units of all queues point at. Raises: StorageError."""
    places = RecordPositions()
    for base, size in ((paths.consume_queue, _UNIT_BYTES), (paths.batch_consume_queue, _BATCH_UNIT_BYTES)):
        for topic, ids in list_queues(os_api, base).items():
            for queue_id in ids:
                for start, path in reversed(list_offset_files(os_api, queue_dir(base, topic, queue_id))[0]):
                    try:
                        file = PreadFile(os_api, path, start)
                    except StoreNotFound:
                        continue  # removed by retention meanwhile
                    first = _add_units(places, file, size, low)
                    file.close()
                    if first is not None and first < low:
                        break
    return places


def _add_units(places: RecordPositions, file: PreadFile, size: int, low: int) -> int | None:
    """Add the units of a queue file. Returns: the physical offset of the first unit; None for a file without units."""
    valid = file.valid_units(0, size)
    for position in range(0, valid, size * _CHUNK_UNITS):
        places.add(file.read(position, min(size * _CHUNK_UNITS, valid - position)), size, low)
    return int.from_bytes(file.read(0, 8), "big") if valid else None


def resume(file: PreadFile, at: int, stop: str, places: RecordPositions) -> tuple[int, bool, bool]:
    """Find the next record behind ``at``, where a record should begin and a walk stopped.

    Returns: (physical offset in this file from which further damage is possible, or -1 if no record is known to follow;
    True if a scan found the record; True if unproven bytes look like a record). Raises: CorruptFile, StorageError.
    """
    known = places.next(at + 1)
    size = places.size_at(at)
    if not size and stop == "crc":
        size = file.record_bytes(at)  # the record's length is valid, only its content is damaged
    if size and (known < 0 or at + size <= known) and at + size <= file.end:
        return at + size, False, False
    inside = 0 <= known < file.end
    start, doubtful = _scan(file, at + 1, known if inside else -1)
    if start >= 0:
        return start, True, doubtful
    return (known if inside else -1), False, doubtful


def closes_file(file: PreadFile, walk: LogWalk, places: Callable[[], RecordPositions]) -> bool:
    """Return True if the blank where a walk stopped closes its file.

    A blank that a store wrote reaches the end of the file. A blank of another size may be a record with a damaged magic
    code: whole records follow then.
    """
    return walk.size == file.end - walk.at or resume(file, walk.at, "blank", places())[0] < 0


def _scan(file: PreadFile, at: int, known: int) -> tuple[int, bool]:
    """Find the first record from ``at`` on from which whole records lead to ``known``, or else to the end of the
    written part of this file.

    Returns: (physical offset or -1; True if any bytes resembled a record).
    """
    doubtful = False
    while True:
        start = file.find_record(at)
        if start < 0 or (known >= 0 and start >= known):
            return -1, doubtful
        walk = LogWalk(file, start)
        stop = walk.skip(known)
        if stop == "limit":
            proven = walk.at == known
        else:
            proven = known < 0 and _is_end(file, walk, stop)
        if proven:
            return start, doubtful
        doubtful = True
        at = max(walk.at, start + 1)


def _is_end(file: PreadFile, walk: LogWalk, stop: str) -> bool:
    """Return True if nothing is written behind in this file.

    Nothing may follow a blank, since a body may hold a blank.
    """
    position = walk.at - file.start
    if stop == "blank":
        return walk.size == file.end - walk.at and file.first_set_byte(position + 8) < 0
    return stop == "end" or (stop == "zero" and file.first_set_byte(position) < 0)


def look_behind(
    os_api: OsApi,
    files: Sequence[OffsetFile],
    at: int,
    places: Callable[[], RecordPositions],
    *,
    check_crc: bool = True,
) -> Behind:
    """Walk from a boundary ``at`` to the end of the last file, across damage. ``places`` is called at the first damage.

    Raises: CorruptFile if a file shrinks meanwhile, StorageError.
    """
    behind = Behind()
    tally = LogTally()
    for start, path in files:
        file = PreadFile(os_api, path, start)
        if file.end > at:
            _one_file(file, max(at, start), places, tally, behind, check_crc)
        file.close()
    return behind


def _one_file(
    file: PreadFile, at: int, places: Callable[[], RecordPositions], tally: LogTally, behind: Behind, check_crc: bool
) -> None:
    by_scan = False
    while at < file.end:
        walk = LogWalk(file, at, check_crc)
        before = tally.records
        stop = walk.tally(tally)
        if walk.at > at:
            behind.stretches.append(Stretch(at, walk.at, tally.records - before, by_scan))
        at = walk.at
        if (
            stop == "end"
            or (stop == "blank" and closes_file(file, walk, places))
            or (stop == "zero" and file.first_set_byte(at - file.start) < 0)
        ):
            return
        reason = REASONS.get(stop, f"size {walk.size}, magic {walk.magic:#x}")
        following, scanned, doubtful = resume(file, at, stop, places())
        behind.doubtful |= doubtful
        behind.damaged.append(Damaged(at, following if following >= 0 else file.end, reason))
        if following < 0:
            return
        # Records behind a scan are known no better than the scanned record, until a unit points at a record.
        by_scan = scanned or (by_scan and places().size_at(following) == 0)
        at = following
