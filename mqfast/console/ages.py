"""The age of the first unread message of a group, from the ends of queues that earlier rounds have seen.

A broker-wide answer has no store time of the first unread message. The end of the queue at the time of each round says
when a message came: at the first round whose end is behind the message. Must never report an age as exact where the
message came before the first round.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from mqfast.console.broker_wide import QueuePlace
from mqfast.console.state import GroupState, Number

__all__ = ["UnreadAges"]

_MARKS_MAX: Final = 16  # of a queue; the marks become sparser with the age
_QUEUES_MAX: Final = 20_000


class _Mark(NamedTuple):
    """The end of a queue in a round. Attributes: is_exact: the messages before the end came since the mark before."""

    at_s: float
    end: int
    is_exact: bool


_Marks: TypeAlias = dict[tuple[str, str, int], list[_Mark]]


class UnreadAges:
    """The ends of each queue with unread messages, by group. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._marks: dict[str, _Marks] = {}
        self._count = 0

    def of(self, group: GroupState, now_s: float, *, is_new: bool) -> tuple[Number, bool]:
        """Return the age of the first unread message in seconds, and whether the age may be larger.

        Args: is_new: the round before did not know the group, so that its messages may have come at any time.
        """
        marks_of = self._marks.setdefault(group.name, {})
        oldest, is_least, kept = 0.0, False, set()
        for place in group.places:
            if place.behind:
                key = (place.topic, place.broker, place.queue_id)
                kept.add(key)
                age, is_least_age = self._age(marks_of, key, place, now_s, is_exact=not is_new)
                if age >= oldest:
                    oldest, is_least = age, is_least_age
        for key in [key for key in marks_of if key not in kept]:
            del marks_of[key]
            self._count -= 1
        if not marks_of:
            del self._marks[group.name]
        return oldest, is_least

    def _age(
        self, marks_of: _Marks, key: tuple[str, str, int], place: QueuePlace, now_s: float, *, is_exact: bool
    ) -> tuple[float, bool]:
        marks = marks_of.get(key)
        if marks is None:
            if self._count >= _QUEUES_MAX:
                return 0.0, True
            marks = marks_of[key] = []
            self._count += 1
        if not marks or marks[-1].end != place.max_offset:
            marks.append(_Mark(now_s, place.max_offset, bool(marks) or is_exact))
        # The first mark behind the place of the group has seen the first unread message.
        while len(marks) > 1 and marks[0].end <= place.committed:
            marks.pop(0)
        if len(marks) > _MARKS_MAX:
            marks[1:-1] = [mark._replace(is_exact=False) for mark in marks[2:-1:2]]
        return max(0.0, now_s - marks[0].at_s), not marks[0].is_exact

    def keep_only(self, groups: Collection[str]) -> None:
        """Forget the marks of other groups."""
        for name in [name for name in self._marks if name not in groups]:
            self._count -= len(self._marks.pop(name))
