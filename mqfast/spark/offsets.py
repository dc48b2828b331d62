"""Offsets of a stream: their JSON, and how much of a backlog one micro-batch takes.

A stream has one of two kinds: by queue (next queue offset of each queue) or by log (next byte of the log). Beside the
numbers an offset keeps what tells a store from another one (see ``identity.py``): records that were there and a
checksum of each. Version 2 is an object with the key ``version``; version 1, which mqfast 0.x wrote, has the numbers
alone (``{"topic/queue": 17}``, ``{"phy": 17}``) and is still read. Spark compares offsets as text, so the keys of
everything that leaves this module are sorted: two orders of the same offsets would look like new data for ever.
Pure functions: no file, no clock, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mqfast.errors import UsageError

__all__ = [
    "ARCHIVE_KEY",
    "LOG_KEY",
    "VERSION",
    "Anchor",
    "Lost",
    "Mark",
    "Offsets",
    "STORES_KEY",
    "Place",
    "Spark",
    "StreamOffset",
    "advance",
    "backlog",
    "decode",
    "encode",
    "limit_bytes",
    "limit_rows",
    "live_part",
]

VERSION: Final = 2
LOG_KEY: Final = "phy"
STORES_KEY: Final = "stores"
"""Of a stream over several stores: the offset of each."""
ARCHIVE_KEY: Final = "archive"
"""Of a stream that begins in an archive: how much of it is done, beside the offset of the live part."""
_MOST: Final = 2**63 - 1
_SIZES_AT_ONCE: Final = 1024

Place: TypeAlias = tuple[str, int]
"""Topic and queue id."""
Offsets: TypeAlias = dict[Place, int]
Spark: TypeAlias = dict[str, Any]
"""What Spark keeps: one JSON object."""
Mark: TypeAlias = tuple[int, int]
"""A record of the log that was there: its physical offset, and the checksum of its head."""
Anchor: TypeAlias = tuple[int, int, int]
"""A message of a queue that was there: its queue offset, its physical offset, and the checksum of its record's head."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What a stream with ``failOnDataLoss=false`` has gone on without since it began: how often, and how much of it is
    known in number (messages along queues, bytes along the log)."""

    times: int = 0
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Lost) -> Lost:
        return Lost(self.times + other.times, self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset of a stream.

    Exactly one of ``queues`` (next offset of each) and ``position`` (next byte of the log) is not None. ``first`` or
    ``first_position``: where the batch that ends here begins, other than its start says. ``read``: every message below
    this physical offset was read, -1 unknown. ``marks`` and ``anchors``: what was in the store. ``topics``: those that
    a pattern has found, along the log. ``gone``: queues that are missing and whose loss was told, with their
    last offsets: one that comes back may be the same.
    """

    queues: Mapping[Place, int] | None = None
    position: int | None = None
    first: Mapping[Place, int] = field(default_factory=dict)
    first_position: int | None = None
    read: int = -1
    marks: tuple[Mark, ...] = ()
    anchors: Mapping[Place, Anchor] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    lost: Lost = Lost()
    gone: Mapping[Place, int] = field(default_factory=dict)
    version: int = VERSION


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def encode(offset: StreamOffset) -> Spark:
    """The JSON object of an offset, always of the newest version, keys sorted."""
    found: Spark = {}
    if offset.first:
        found["from"] = dict(sorted((_name(place), n) for place, n in offset.first.items()))
    elif offset.first_position is not None:
        found["from"] = offset.first_position
    if offset.gone:
        found["gone"] = _with_anchors(offset.gone, offset.anchors)
    if offset.lost != Lost():
        found["lost"] = {"bytes": offset.lost.bytes, "messages": offset.lost.messages, "times": offset.lost.times}
    if offset.marks:
        found["marks"] = [list(mark) for mark in offset.marks]
    if offset.position is not None:
        found[LOG_KEY] = offset.position
    if offset.queues is not None:
        found["queues"] = _with_anchors(offset.queues, offset.anchors)
    if offset.read >= 0:
        found["read"] = offset.read
    if offset.topics:
        found["topics"] = sorted(offset.topics)
    found["version"] = VERSION
    return found


def _with_anchors(queues: Mapping[Place, int], anchors: Mapping[Place, Anchor]) -> dict[str, list[int]]:
    return dict(sorted((_name(place), [n, *anchors.get(place, ())]) for place, n in queues.items()))


def live_part(spark: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The live offset of a stream that began in an archive, None as long as the archive is not done; of any other
    stream the offset itself.
    """
    archive = spark.get(ARCHIVE_KEY)
    if not isinstance(archive, dict):
        return spark
    live = spark.get("live")
    return live if isinstance(live, dict) and archive.get("files") == archive.get("of") else None


def decode(spark: Mapping[str, Any], *, along_log: bool) -> StreamOffset:
    """The reverse of encode; offsets of version 1 as well.

    Raises: UsageError for anything that encode did not make, and for an offset of the other kind.
    """
    by_log = LOG_KEY in spark if "version" in spark else set(spark) == {LOG_KEY}
    if along_log and not by_log:
        raise UsageError(
            f"offset of a stream in log order: expected {LOG_KEY!r}, found {sorted(spark)!r:.80}; "
            "a checkpoint keeps the order it began with: set the option order to it"
        )
    if by_log and not along_log:
        raise UsageError(
            f"offset of a stream along queues: expected topic/queue, found {LOG_KEY!r}; "
            "a checkpoint keeps the order it began with: set the option order to it"
        )
    if "version" not in spark:
        if by_log:
            return StreamOffset(position=_number(LOG_KEY, spark[LOG_KEY], 0), version=1)
        return StreamOffset(queues=_by_queue(spark), version=1)
    version = _number("version", spark["version"], 1)
    if version > VERSION:
        raise UsageError(
            f"offset of a stream: expected version {VERSION} at most, found {version}: a newer mqfast wrote it"
        )
    try:
        return _decode(spark, by_log)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"offset of a stream: damaged ({error!r:.60}): {spark!r:.200}") from None


def _decode(spark: Mapping[str, Any], by_log: bool) -> StreamOffset:
    lost = spark.get("lost", {})
    common: dict[str, Any] = {
        "read": _number("read", spark.get("read", -1), -1),
        "marks": tuple((_number("mark", place, 0), _number("mark", crc, 0)) for place, crc in spark.get("marks", ())),
        "topics": tuple(str(topic) for topic in spark.get("topics", ())),
        "lost": Lost(*(_number(name, lost.get(name, 0), 0) for name in ("times", "messages", "bytes"))),
    }
    start = spark.get("from")
    if by_log:
        return StreamOffset(
            position=_number(LOG_KEY, spark[LOG_KEY], 0),
            first_position=None if start is None else _number("from", start, 0),
            **common,
        )
    anchors: dict[Place, Anchor] = {}
    queues, gone = _parted(spark["queues"], anchors), _parted(spark.get("gone", {}), anchors)
    return StreamOffset(queues=queues, gone=gone, anchors=anchors, first=_by_queue(start or {}), **common)


def _parted(found: Mapping[str, Any], anchors: dict[Place, Anchor]) -> Offsets:
    """The offsets of queues; their anchors go into ``anchors``."""
    queues: Offsets = {}
    for name, (offset, *anchor) in found.items():
        place = _place(name)
        queues[place] = _number(name, offset, 0)
        if anchor:
            at, physical, crc = (_number(name, n, 0) for n in anchor)
            anchors[place] = (at, physical, crc)
    return dict(sorted(queues.items()))


def _place(name: str) -> Place:
    topic, slash, queue_id = name.rpartition("/")
    if not (slash and topic and queue_id.isascii() and queue_id.isdigit()):
        raise UsageError(f"offset of a stream: expected topic/queue, found {name!r}")
    return topic, int(queue_id)


def _by_queue(numbers: Mapping[str, Any]) -> Offsets:
    return dict(sorted((_place(name), _number(name, offset, 0)) for name, offset in numbers.items()))


def _number(what: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise UsageError(f"offset of {what}: expected a whole number from {least}, found {value!r:.60}")
    return value


def advance(start: Mapping[Place, int], found: Mapping[Place, int]) -> Offsets:
    """``found``, but never behind ``start``: a queue that went back or away stays where it was."""
    return {place: max(offset, found.get(place, offset)) for place, offset in sorted(start.items())}


def backlog(start: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    """Rows between two offsets."""
    return sum(max(0, offset - start.get(place, 0)) for place, offset in end.items())


def limit_rows(start: Mapping[Place, int], end: Mapping[Place, int], most: int) -> Offsets:
    """The end of a batch of at most ``most`` rows: every queue gets its share of the limit, and none is starved.

    Where there are more queues with something to read than rows allowed, they take turns; whose turn it is follows
    from ``start`` alone, so that a restart goes on in the same order. ``start`` has every queue of ``end``, at or below
    its end (see advance).
    """
    rows = {place: end[place] - start[place] for place in end if end[place] > start[place]}
    total = sum(rows.values())
    if total <= most:
        return dict(sorted(end.items()))
    turn = _in_turn(start, sorted(rows))
    given = dict.fromkeys(turn[:most], 1)
    spare, rest = most - len(given), total - len(rows)
    if spare > 0:
        for place in turn:
            given[place] += spare * (rows[place] - 1) // rest
        left = most - sum(given.values())
        for place in [place for place in turn if given[place] < rows[place]][:left]:
            given[place] += 1
    return {place: start[place] + given.get(place, 0) for place in sorted(end)}


def limit_bytes(
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    most: int,
    sizes_of: Callable[[Place, int, int], Sequence[int]],
) -> Offsets:
    """The end of a batch of at most ``most`` bytes; at least one row, however large.

    First every queue gets a share by its rows, then what is left goes round as in limit_rows.

    Args: sizes_of: bytes of each record [first, last) of a queue; no more of them are asked for than the limit takes.
    """
    rows = {place: end[place] - start[place] for place in sorted(end) if end[place] > start[place]}
    total = sum(rows.values())
    found = {place: start[place] for place in sorted(end)}
    spare = most
    for place in rows:
        found[place], taken = _fit(place, start[place], end[place], most * rows[place] // total, sizes_of)
        spare -= taken
    order = _in_turn(start, list(rows))
    for place in order:
        found[place], taken = _fit(place, found[place], end[place], spare, sizes_of)
        spare -= taken
    if spare == most and order:
        found[order[0]] += 1
    return found


def _fit(
    place: Place, first: int, end: int, most: int, sizes_of: Callable[[Place, int, int], Sequence[int]]
) -> tuple[int, int]:
    """The largest offset up to ``end`` for which [first, offset) has at most ``most`` bytes, and those bytes."""
    taken = 0
    while first < end and taken < most:
        for size in sizes_of(place, first, min(end, first + _SIZES_AT_ONCE)):
            if taken + size > most:
                return first, taken
            taken += size
            first += 1
    return first, taken


def _in_turn(start: Mapping[Place, int], waiting: list[Place]) -> list[Place]:
    first = sum(start.values()) % len(waiting) if waiting else 0
    return waiting[first:] + waiting[:first]
