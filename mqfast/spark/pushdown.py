"""Filters of a query as bounds of a read.

Filters only narrow the read, and Spark evaluates every filter again: a filter that is not understood here costs time,
never a wrong row. Reads no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from mqfast.spark.plan import OffsetRange, Selection

__all__ = ["Narrowed", "narrow"]

_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Narrowed:
    """The bounds that the filters leave: names (None: all), and ranges with exclusive ends."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    queue_offsets: tuple[int, int] = (_LEAST, _MOST)
    physical_offsets: tuple[int, int] = (_LEAST, _MOST)
    stored_ms: tuple[int, int] = (_LEAST, _MOST)

    @property
    def by_queue(self) -> bool:
        """Return whether the bounds restrict queues or queue offsets."""
        named = (self.topics, self.queue_ids) != (None, None) or bool(self.topic_prefix)
        return named or self.queue_offsets != (_LEAST, _MOST)

    def apply(self, selection: Selection) -> Selection:
        """Return the part of a selection within the bounds."""
        if not self.by_queue:
            return selection
        low, high = self.queue_offsets
        ranges = [
            OffsetRange(r.topic, r.queue_id, max(r.start, low), min(r.end, high))
            for r in selection.ranges
            if (self.topics is None or r.topic in self.topics)
            and r.topic.startswith(self.topic_prefix)
            and (self.queue_ids is None or r.queue_id in self.queue_ids)
        ]
        return Selection(tuple(r for r in ranges if r.start < r.end))


def _both(known: frozenset[Any] | None, other: Iterable[Any]) -> frozenset[Any]:
    values = frozenset(value for value in other if value is not None)
    return values if known is None else known & values


def _cut(old: tuple[int, int], low: int = _LEAST, high: int = _MOST) -> tuple[int, int]:
    return max(old[0], low), min(old[1], high)


def _bounds(f: Filter, value: int) -> tuple[int, int] | None:
    """Return the range of whole numbers that a comparison leaves, end exclusive."""
    if isinstance(f, EqualTo):
        return value, value + 1
    if isinstance(f, GreaterThan):
        return value + 1, _MOST
    if isinstance(f, GreaterThanOrEqual):
        return value, _MOST
    if isinstance(f, LessThan):
        return _LEAST, value
    if isinstance(f, LessThanOrEqual):
        return _LEAST, value + 1
    return None


def _milliseconds(bounds_us: tuple[int, int]) -> tuple[int, int]:
    """Return bounds in microseconds as bounds of whole milliseconds."""
    low, high = bounds_us
    return (low if low == _LEAST else -(-low // 1000)), (high if high == _MOST else -(-high // 1000))


def _ranged(narrowed: Narrowed, f: Filter, name: str, value: Any) -> Narrowed:
    if name == "storeTimestamp" and isinstance(value, datetime):
        delta = value - _EPOCH
        bounds = _bounds(f, (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)
        return (
            narrowed
            if bounds is None
            else replace(narrowed, stored_ms=_cut(narrowed.stored_ms, *_milliseconds(bounds)))
        )
    if type(value) is not int:
        return narrowed
    bounds = _bounds(f, value)
    if bounds is not None and name == "queueOffset":
        return replace(narrowed, queue_offsets=_cut(narrowed.queue_offsets, *bounds))
    if bounds is not None and name == "physicalOffset":
        return replace(narrowed, physical_offsets=_cut(narrowed.physical_offsets, *bounds))
    return narrowed


def narrow(filters: Iterable[Filter]) -> Narrowed:
    """Return the bounds that filters, joined by AND, leave of the view ``messages``."""
    narrowed = Narrowed()
    for f in filters:
        path: tuple[str, ...] = getattr(f, "attribute", ())
        value: Any = getattr(f, "value", None)
        if len(path) != 1:
            continue
        name = path[0]
        values = list(value) if isinstance(f, In) else [value] if isinstance(f, EqualTo) else None
        if values is not None and name == "topic":
            narrowed = replace(narrowed, topics=_both(narrowed.topics, values))
        elif values is not None and name == "queueId":
            narrowed = replace(narrowed, queue_ids=_both(narrowed.queue_ids, values))
        elif values is not None and name == "tags":
            narrowed = replace(narrowed, tags=_both(narrowed.tags, values))
        elif isinstance(f, StringStartsWith) and name == "topic" and len(value or "") > len(narrowed.topic_prefix):
            narrowed = replace(narrowed, topic_prefix=value)
        else:
            narrowed = _ranged(narrowed, f, name, value)
    return narrowed
