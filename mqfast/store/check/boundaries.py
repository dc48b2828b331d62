"""Where records begin behind damage: for recovery, verify, repair and salvage.

It must never take the content of a body for a record. A boundary is the start of a log file, what a queue unit says,
or the end of a record that begins at a boundary and whose parts are in order. Only where none of these is left are the
bytes searched, and what is found so counts if the record is whole, names its own place, and the records from it on
lead without a gap to a known boundary or to the end of what was written; it is marked as found by scan.
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
    """Whole records, one behind the other: physical offsets, how many, and whether a scan found the first of them."""

    start: int
    end: int
    records: int
    by_scan: bool


class Damaged(NamedTuple):
    """Bytes that hold no whole record."""

    start: int
    end: int
    reason: str


@dataclass
class Behind:
    """What the log holds from a place on."""

    stretches: list[Stretch] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    doubtful: bool = False
    """Is there something that looks like a record, and nothing that proves it?"""

    @property
    def records(self) -> int:
        """Whole records."""
        return sum(stretch.records for stretch in self.stretches)

    @property
    def by_scan(self) -> int:
        """Those that a scan found."""
        return sum(stretch.records for stretch in self.stretches if stretch.by_scan)


def gather_places(os_api: OsApi, paths: StorePaths, low: int) -> RecordPositions:
    """What the units of all queues say, of records at ``low`` or behind. Raises: StorageError."""
    places = RecordPositions()
    for base, size in ((paths.consume_queue, _UNIT_BYTES), (paths.batch_consume_queue, _BATCH_UNIT_BYTES)):
        for topic, ids in list_queues(os_api, base).items():
            for queue_id in ids:
                for start, path in reversed(list_offset_files(os_api, queue_dir(base, topic, queue_id))[0]):
                    try:
                        file = PreadFile(os_api, path, start)
                    except StoreNotFound:
                        continue  # retention took it meanwhile
                    first = _add_units(places, file, size, low)
                    file.close()
                    if first is not None and first < low:
                        break
    return places


def _add_units(places: RecordPositions, file: PreadFile, size: int, low: int) -> int | None:
    """Returns the physical offset of the first unit; None when there is none."""
    valid = file.valid_units(0, size)
    for position in range(0, valid, size * _CHUNK_UNITS):
        places.add(file.read(position, min(size * _CHUNK_UNITS, valid - position)), size, low)
    return int.from_bytes(file.read(0, 8), "big") if valid else None


def resume(file: PreadFile, at: int, stop: str, places: RecordPositions) -> tuple[int, bool, bool]:
    """Where to look for the next record behind a place ``at`` where a record should begin and a walk stopped.

    Returns: (physical offset in this file, at which there may be further damage, -1: nothing is known to follow; was it
    found by scan; does anything that is not proven look like a record). Raises: CorruptFile, StorageError.
    """
    known = places.next(at + 1)
    size = places.size_at(at)
    if not size and stop == "crc":
        size = file.record_bytes(at)  # only its content is damaged
    if size and (known < 0 or at + size <= known) and at + size <= file.end:
        return at + size, False, False
    inside = 0 <= known < file.end
    found, doubtful = _scan(file, at + 1, known if inside else -1)
    if found >= 0:
        return found, True, doubtful
    return (known if inside else -1), False, doubtful


def closes_file(file: PreadFile, walk: LogWalk, places: Callable[[], RecordPositions]) -> bool:
    """Is the blank where a walk stopped one that closes its file? A blank that a store wrote reaches the end of the
    file. One of another size may be a record whose magic code was damaged: then whole records stand behind.
    """
    return walk.size == file.end - walk.at or resume(file, walk.at, "blank", places())[0] < 0


def _scan(file: PreadFile, at: int, known: int) -> tuple[int, bool]:
    """The first record from ``at`` on from which whole records lead to ``known``, or else to the end of what was
    written in this file; -1: there is none. Second: did anything look like one?
    """
    doubtful = False
    while True:
        found = file.find_record(at)
        if found < 0 or (known >= 0 and found >= known):
            return -1, doubtful
        walk = LogWalk(file, found)
        stop = walk.skip(known)
        if stop == "limit":
            proven = walk.at == known
        else:
            proven = known < 0 and _is_end(file, walk, stop)
        if proven:
            return found, doubtful
        doubtful = True
        at = max(walk.at, found + 1)


def _is_end(file: PreadFile, walk: LogWalk, stop: str) -> bool:
    """Is nothing written behind in this file? A body may hold a blank as well: nothing may stand behind one."""
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
    """Walk from a boundary ``at`` to the end of the last file, over damage as well. ``places`` is called where there is
    damage. Raises: CorruptFile when a file shrinks meanwhile, StorageError.
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
        # What follows a scan is known no better than it, until a unit says so.
        by_scan = scanned or (by_scan and places().size_at(following) == 0)
        at = following
