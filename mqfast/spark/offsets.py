"""Offsets of a stream: their JSON, and the part of a backlog that a micro-batch reads.

An offset is by queue (next queue offset of each queue) or by log (next byte of the log). The offset also holds records
with checksums that identify the store (see ``identity.py``). Version 2 is an object with the key ``version``. Version
1, of mqfast 0.x, has the numbers alone (``{"topic/queue": 17}``, ``{"phy": 17}``) and is still read. Spark compares
offsets as text, so all keys are sorted: another order of the same offsets would look like new data. Pure functions: no
file, no clock, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mqfast.errors import UsageError
from mqfast.util.validate import is_whole

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
    """The losses of a stream with ``failOnDataLoss=false`` since its start: how often, and how much as far as known
    (messages along queues, bytes along the log).
    """

    times: int = 0
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Lost) -> Lost:
        return Lost(self.times + other.times, self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """An offset of a stream.

    Exactly one of ``queues`` (next offset of each) and ``position`` (next byte of the log) is not None. ``first`` or
    ``first_position``: where the batch that ends here begins, if not at the start of the batch. ``read``: every message
    below this physical offset was read, -1 unknown. ``marks`` and ``anchors``: records that identify the store.
    ``topics``: the topics that a pattern has matched, along the log. ``gone``: the last offsets of missing queues with
    a reported loss; a returned queue may be the same.
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
    """Return the JSON object of an offset, in the newest version, with sorted keys."""
    json_object: Spark = {}
    if offset.first:
        json_object["from"] = dict(sorted((_name(place), n) for place, n in offset.first.items()))
    elif offset.first_position is not None:
        json_object["from"] = offset.first_position
    if offset.gone:
        json_object["gone"] = _with_anchors(offset.gone, offset.anchors)
    if offset.lost != Lost():
        json_object["lost"] = {"bytes": offset.lost.bytes, "messages": offset.lost.messages, "times": offset.lost.times}
    if offset.marks:
        json_object["marks"] = [list(mark) for mark in offset.marks]
    if offset.position is not None:
        json_object[LOG_KEY] = offset.position
    if offset.queues is not None:
        json_object["queues"] = _with_anchors(offset.queues, offset.anchors)
    if offset.read >= 0:
        json_object["read"] = offset.read
    if offset.topics:
        json_object["topics"] = sorted(offset.topics)
    json_object["version"] = VERSION
    return json_object


def _with_anchors(queues: Mapping[Place, int], anchors: Mapping[Place, Anchor]) -> dict[str, list[int]]:
    return dict(sorted((_name(place), [n, *anchors.get(place, ())]) for place, n in queues.items()))


def live_part(spark: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the live offset of a stream that began in an archive, None until the archive is read; the offset itself
    for any other stream.
    """
    archive = spark.get(ARCHIVE_KEY)
    if not isinstance(archive, dict):
        return spark
    live = spark.get("live")
    return live if isinstance(live, dict) and archive.get("files") == archive.get("of") else None


def decode(spark: Mapping[str, Any], *, along_log: bool) -> StreamOffset:
    """Return the offset of a JSON object, version 1 or 2.

    Raises: UsageError for an object that encode did not make, and for an offset of the other kind.
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


def _parted(entries: Mapping[str, Any], anchors: dict[Place, Anchor]) -> Offsets:
    """Return the offsets of queues; their anchors go into ``anchors``."""
    queues: Offsets = {}
    for name, (offset, *anchor) in entries.items():
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


def _number(what: str, value: object, minimum: int) -> int:
    if not is_whole(value, minimum, _MOST):
        raise UsageError(f"offset of {what}: expected a whole number from {minimum}, found {value!r:.60}")
    return value


def advance(start: Mapping[Place, int], ends: Mapping[Place, int]) -> Offsets:
    """Return ``ends``, but never below ``start``: a queue that went back or disappeared keeps its offset."""
    return {place: max(offset, ends.get(place, offset)) for place, offset in sorted(start.items())}


def backlog(start: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    """Return the number of rows between two offsets."""
    return sum(max(0, offset - start.get(place, 0)) for place, offset in end.items())


def limit_rows(start: Mapping[Place, int], end: Mapping[Place, int], max_rows: int) -> Offsets:
    """Return the end of a batch of at most ``max_rows`` rows; each queue gets its share of the limit.

    With fewer rows than queues the queues are served round-robin. The next queue follows from ``start`` alone, so a
    restart continues in the same order. ``start`` has every queue of ``end``, at or below its end (see advance).
    """
    rows = {place: end[place] - start[place] for place in end if end[place] > start[place]}
    total = sum(rows.values())
    if total <= max_rows:
        return dict(sorted(end.items()))
    turn = _in_turn(start, sorted(rows))
    given = dict.fromkeys(turn[:max_rows], 1)
    spare, rest = max_rows - len(given), total - len(rows)
    if spare > 0:
        for place in turn:
            given[place] += spare * (rows[place] - 1) // rest
        remaining = max_rows - sum(given.values())
        for place in [place for place in turn if given[place] < rows[place]][:remaining]:
            given[place] += 1
    return {place: start[place] + given.get(place, 0) for place in sorted(end)}


def limit_bytes(
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    max_bytes: int,
    sizes_of: Callable[[Place, int, int], Sequence[int]],
) -> Offsets:
    """Return the end of a batch of at most ``max_bytes`` bytes, and of at least one row of any size.

    Each queue first gets a share by its rows; the rest is distributed as in limit_rows.

    Args: sizes_of: bytes of each record [first, last) of a queue; called only for as many records as the limit takes.
    """
    rows = {place: end[place] - start[place] for place in sorted(end) if end[place] > start[place]}
    total = sum(rows.values())
    ends = {place: start[place] for place in sorted(end)}
    spare = max_bytes
    for place in rows:
        ends[place], taken = _fit(place, start[place], end[place], max_bytes * rows[place] // total, sizes_of)
        spare -= taken
    order = _in_turn(start, list(rows))
    for place in order:
        ends[place], taken = _fit(place, ends[place], end[place], spare, sizes_of)
        spare -= taken
    if spare == max_bytes and order:
        ends[order[0]] += 1
    return ends


def _fit(
    place: Place, first: int, end: int, max_bytes: int, sizes_of: Callable[[Place, int, int], Sequence[int]]
) -> tuple[int, int]:
    """Return the largest offset up to ``end`` for which [first, offset) has at most ``max_bytes``, and the bytes."""
    taken = 0
    while first < end and taken < max_bytes:
        for size in sizes_of(place, first, min(end, first + _SIZES_AT_ONCE)):
            if taken + size > max_bytes:
                return first, taken
            taken += size
            first += 1
    return first, taken


def _in_turn(start: Mapping[Place, int], waiting: list[Place]) -> list[Place]:
    first = sum(start.values()) % len(waiting) if waiting else 0
    return waiting[first:] + waiting[:first]
