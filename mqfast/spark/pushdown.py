"""Filters of a query as bounds of what is read.

Room: the Spark adapter. Only narrows: Spark evaluates every filter again, so that what is not understood here, or only
in part, costs time and never a wrong row. It must never read a store.
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
    """What the filters leave: names (None: all of them), and ranges whose end is not included."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    queue_offsets: tuple[int, int] = (_LEAST, _MOST)
    physical_offsets: tuple[int, int] = (_LEAST, _MOST)
    stored_ms: tuple[int, int] = (_LEAST, _MOST)

    @property
    def by_queue(self) -> bool:
        """Is anything narrowed that a queue's name or its offsets decide?"""
        named = (self.topics, self.queue_ids) != (None, None) or bool(self.topic_prefix)
        return named or self.queue_offsets != (_LEAST, _MOST)

    def apply(self, selection: Selection) -> Selection:
        """The part of a selection that is left."""
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


def _both(one: frozenset[Any] | None, other: Iterable[Any]) -> frozenset[Any]:
    values = frozenset(value for value in other if value is not None)
    return values if one is None else one & values


def _cut(old: tuple[int, int], low: int = _LEAST, high: int = _MOST) -> tuple[int, int]:
    return max(old[0], low), min(old[1], high)


def _bounds(f: Filter, value: int) -> tuple[int, int] | None:
    """The whole numbers that a comparison leaves, end not included."""
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
    """Bounds in microseconds as bounds of whole milliseconds."""
    low, high = bounds_us
    return (low if low == _LEAST else -(-low // 1000)), (high if high == _MOST else -(-high // 1000))


def _ranged(found: Narrowed, f: Filter, name: str, value: Any) -> Narrowed:
    if name == "storeTimestamp" and isinstance(value, datetime):
        delta = value - _EPOCH
        bounds = _bounds(f, (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)
        return found if bounds is None else replace(found, stored_ms=_cut(found.stored_ms, *_milliseconds(bounds)))
    if type(value) is not int:
        return found
    bounds = _bounds(f, value)
    if bounds is not None and name == "queueOffset":
        return replace(found, queue_offsets=_cut(found.queue_offsets, *bounds))
    if bounds is not None and name == "physicalOffset":
        return replace(found, physical_offsets=_cut(found.physical_offsets, *bounds))
    return found


def narrow(filters: Iterable[Filter]) -> Narrowed:
    """What filters that all hold leave of the view ``messages``."""
    found = Narrowed()
    for f in filters:
        path: tuple[str, ...] = getattr(f, "attribute", ())
        value: Any = getattr(f, "value", None)
        if len(path) != 1:
            continue
        name = path[0]
        values = list(value) if isinstance(f, In) else [value] if isinstance(f, EqualTo) else None
        if values is not None and name == "topic":
            found = replace(found, topics=_both(found.topics, values))
        elif values is not None and name == "queueId":
            found = replace(found, queue_ids=_both(found.queue_ids, values))
        elif values is not None and name == "tags":
            found = replace(found, tags=_both(found.tags, values))
        elif isinstance(f, StringStartsWith) and name == "topic" and len(value or "") > len(found.topic_prefix):
            found = replace(found, topic_prefix=value)
        else:
            found = _ranged(found, f, name, value)
    return found
