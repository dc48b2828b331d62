"""Offsets of a stream: their JSON, and how much of a backlog one micro-batch takes.

A stream has one of two kinds: by queue, ``{"topic/queue": next queue offset}``, or by log, ``{"phy": next byte}``.
Spark compares offsets as text, so the keys of everything that leaves this module are sorted: two orders of the same
offsets would look like new data for ever. Pure functions: no file, no clock, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from mqfast.errors import UsageError

__all__ = [
    "LOG_KEY",
    "Offsets",
    "Place",
    "Spark",
    "advance",
    "backlog",
    "decode",
    "encode",
    "encode_log",
    "limit_bytes",
    "limit_rows",
    "log_position",
    "with_new_queues",
]

LOG_KEY: Final = "phy"
_MOST: Final = 2**63 - 1
_SIZES_AT_ONCE: Final = 1024

Place: TypeAlias = tuple[str, int]
"""Topic and queue id."""
Offsets: TypeAlias = dict[Place, int]
Spark: TypeAlias = dict[str, int]
"""What Spark keeps: one flat object."""


def encode(offsets: Mapping[Place, int]) -> Spark:
    """``{("orders", 3): 17}`` as ``{"orders/3": 17}``, keys sorted."""
    return dict(sorted((f"{topic}/{queue_id}", offset) for (topic, queue_id), offset in offsets.items()))


def decode(spark: Mapping[str, Any]) -> Offsets:
    """The reverse of encode. Raises: UsageError for anything that encode did not make."""
    found: Offsets = {}
    for name, offset in spark.items():
        topic, slash, queue_id = name.rpartition("/")
        if not (slash and topic and queue_id.isascii() and queue_id.isdigit()):
            raise UsageError(f"offset of a stream: expected topic/queue, found {name!r}")
        found[topic, int(queue_id)] = _number(name, offset, 0)
    return dict(sorted(found.items()))


def encode_log(position: int) -> Spark:
    """The offset of a stream in log order."""
    return {LOG_KEY: position}


def log_position(spark: Mapping[str, Any]) -> int:
    """The physical offset of a stream in log order.

    Raises: UsageError, where a checkpoint was written with another ``order`` as well.
    """
    if set(spark) != {LOG_KEY}:
        raise UsageError(
            f"offset of a stream in log order: expected {LOG_KEY!r} alone, found {sorted(spark)!r:.80}; "
            "a checkpoint keeps the order it began with: set the option order to it"
        )
    return _number(LOG_KEY, spark[LOG_KEY], 0)


def _number(what: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise UsageError(f"offset of {what}: expected a whole number from {least}, found {value!r:.60}")
    return value


def with_new_queues(start: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]) -> Offsets:
    """``start``, and queues that were born since, from their first message on."""
    born = {place: low for place, (low, _) in bounds.items() if place not in start}
    return dict(sorted({**start, **born}.items()))


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
