"""The search of a queue's units by store time, shared by the running store and the reader.

Reads no file: the caller provides the store time of an offset. Where store times fall, the result is on either side of
the fall, as in RocketMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.store.base.results import BoundaryType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_by_time"]


def find_by_time(low: int, end: int, timestamp: int, boundary: BoundaryType, stored_at: Callable[[int], int]) -> int:
    """Return the offset within [low, end] for a time.

    LOWER: the first message stored at or after the time, ``end`` without such a message. UPPER: the last message stored
    at or before the time, ``low`` without such a message.
    Args: stored_at: returns the store time in ms of the message at an offset; -1 for a deleted message.
    Source: ConsumeQueue.binarySearchInQueueByTime.
    """
    first, last = low, end
    while first < last:  # the first message later than (LOWER: or equal to) the time
        middle = (first + last) // 2
        at = stored_at(middle)
        if at < timestamp or (boundary is BoundaryType.UPPER and at == timestamp):
            first = middle + 1
        else:
            last = middle
    return first if boundary is BoundaryType.LOWER else max(low, first - 1)
