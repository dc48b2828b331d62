"""The plan of a reset of offsets, and the target of a reset in each queue. No requests.

A row of the plan has the numbers of skipped and of repeated messages, counted over the messages that are still stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from mqfast.client.admin.checks import MILLISECONDS_LEAST, milliseconds
from mqfast.client.values import MessageQueue, ResetPlan
from mqfast.errors import ClientConfigError
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_whole

__all__ = ["NOTHING_COMMITTED", "QueueStats", "Target", "Where", "row", "target_of"]

NOTHING_COMMITTED = -1
Where: TypeAlias = datetime | int | Literal["earliest", "latest", "first", "last"]


class QueueStats(NamedTuple):
    """A queue: the first offset, the offset behind the last message, and when the last message came (ms, 0: never)."""

    min_offset: int
    max_offset: int
    last_update: int


class Target(NamedTuple):
    """The target of a reset: exactly a single field is set, or none for the end of each queue."""

    time_ms: int | None = None
    offset: int | None = None
    first: bool = False

    @property
    def broker_time(self) -> int:
        """Return the target as a field of request 222: 0 is the first message, -1 the end."""
        return 0 if self.first else -1 if self.time_ms is None else self.time_ms


def target_of(to: Where, *, of_one_queue: bool) -> Target:
    """Return the target of ``to``; a number is an offset where a queue is named, else a time in ms. Raises:
    ConfigError.
    """
    if isinstance(to, str):
        if end_word(to) not in ("earliest", "latest"):
            raise ClientConfigError(f"to: expected 'earliest', 'latest', a datetime or a number, found {to!r}")
        return Target(first=end_word(to) == "earliest")
    if isinstance(to, datetime):
        return Target(time_ms=milliseconds("to", to))
    if not is_whole(to):
        raise ClientConfigError(
            f"to: expected 'earliest', 'latest', a datetime or a number, found {type(to).__name__} {to!r}"
        )
    if of_one_queue:
        if not 0 <= to < MILLISECONDS_LEAST:
            raise ClientConfigError(f"to: expected an offset of the queue, found {to}; give a time as a datetime")
        return Target(offset=to)
    if to < MILLISECONDS_LEAST:
        raise ClientConfigError(
            f"to: expected ms since the epoch ({MILLISECONDS_LEAST} and above), found {to}; an offset needs queue=, "
            "the first message is 'earliest'"
        )
    return Target(time_ms=milliseconds("to", to))


def row(queue: MessageQueue, now: int, to: int, stats: QueueStats) -> ResetPlan:
    """Return the row of a queue. Args: now: the committed offset, or NOTHING_COMMITTED."""
    at = min(max(now, stats.min_offset), stats.max_offset)
    return ResetPlan(queue, now, to, skipped=max(0, to - at), replayed=max(0, at - max(to, stats.min_offset)))
