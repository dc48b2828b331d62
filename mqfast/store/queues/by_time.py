"""The search of a queue's units by store time: the one rule for a running store and for a reader.

Room: the store. It must never read a file: whoever asks says when the message of an offset was stored. Where store
times fall, the result lies on either side of the fall, as in RocketMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.store.base.results import BoundaryType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_by_time"]


def find_by_time(low: int, end: int, timestamp: int, boundary: BoundaryType, stored_at: Callable[[int], int]) -> int:
    """The offset within [low, end] of a time.

    LOWER: the first message stored at or after it, ``end`` when there is none. UPPER: the last one stored at or before
    it, ``low`` when there is none. Args: stored_at: store time in ms of the message at an offset; -1: it is gone.
    Source: ConsumeQueue.binarySearchInQueueByTime.
    """
    first, last = low, end
    while first < last:  # the first one later than (LOWER: or equal to) the time
        middle = (first + last) // 2
        at = stored_at(middle)
        if at < timestamp or (boundary is BoundaryType.UPPER and at == timestamp):
            first = middle + 1
        else:
            last = middle
    return first if boundary is BoundaryType.LOWER else max(low, first - 1)
