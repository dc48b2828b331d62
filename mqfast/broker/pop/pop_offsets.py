"""The offset at which the next POP of a group reads a queue.

A POP moves the offset in memory when it takes messages; the group's offset in ``consumerOffset.json`` follows in queue
order once the check-points are stored. So a crash repeats messages, and loses none. Source: PopMessageProcessor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqfast.broker.metadata.topic_manager import RETRY_PREFIX

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pull.get_limits import Limits

__all__ = ["PopOffsets", "Taken"]

_Queue = tuple[str, str, int]


class Taken:
    """Messages that a POP has taken from a queue. Attributes: ``next_offset``: after these; ``is_stored``."""

    __slots__ = ("is_stored", "next_offset", "queue")

    def __init__(self, queue: _Queue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.is_stored = False


class PopOffsets:
    """The next offsets by topic, group and queue. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, limits: Limits) -> None:
        self._context: Final = context
        self._limits: Final = limits
        self._taken: dict[_Queue, deque[Taken]] = {}

    def next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset of the next POP; of a new group the first message of the queue."""
        taken = self._taken.get((topic, group, queue_id))
        if taken:
            return taken[-1].next_offset
        offset = self._context.offsets.get(group, topic, queue_id)
        return offset if offset >= 0 else self._context.store.min_offset(topic, queue_id)

    def begin(self, topic: str, group: str, queue_id: int, from_max: Callable[[], bool]) -> int:
        """Return the offset of the next POP; the first offset of a queue is committed.

        Args: from_max: called for a queue without an offset: True: the group begins at the end of the queue.
        """
        queue = topic, group, queue_id
        taken = self._taken.get(queue)
        if taken:
            return taken[-1].next_offset
        offset = self._context.offsets.get(group, topic, queue_id)
        if offset < 0:
            offset = self._first(topic, queue_id, from_max())
            self._context.offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first(self, topic: str, queue_id: int, from_max: bool) -> int:
        context = self._context
        low = context.store.min_offset(topic, queue_id)
        if not from_max or topic.startswith(RETRY_PREFIX):
            return low
        if context.config["initPopOffsetByCheckMsgInMem"] and low <= 0:
            high = context.store.max_offset(topic, queue_id)
            if not high or not context.engine.is_on_disk(topic, queue_id, 0, self._limits.get()):
                return 0
        return max(0, context.store.max_offset(topic, queue_id) - 1)

    def advance(self, topic: str, group: str, queue_id: int, next_offset: int) -> Taken:
        """Move the next offset; ``store`` commits the offset."""
        queue = topic, group, queue_id
        taken = Taken(queue, next_offset)
        self._taken.setdefault(queue, deque()).append(taken)
        return taken

    def store(self, taken: Taken) -> None:
        """Commit the offset, in queue order: the check-point of the messages is stored."""
        taken.is_stored = True
        waiting = self._taken.get(taken.queue)
        if waiting is None or taken not in waiting:
            return  # reset meanwhile
        last = None
        while waiting and waiting[0].is_stored:
            last = waiting.popleft()
        if last is not None:
            self.commit(*taken.queue, last.next_offset)
        if not waiting:
            del self._taken[taken.queue]

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Commit an offset, except for a deleted topic or group, and while a reset is pending."""
        context = self._context
        is_known = group in context.groups.table and context.store.max_offset(topic, queue_id) >= offset
        if is_known and context.reset_offsets.get(group, topic, queue_id) is None:
            context.offsets.commit(group, topic, queue_id, offset)

    def reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Apply a reset by an admin; return the new offset, None without a reset."""
        offset = self._context.reset_offsets.pop(group, topic, queue_id)
        if offset is None or not self._context.config["useServerSideResetOffset"]:
            return None
        self._taken.pop((topic, group, queue_id), None)
        self._context.offsets.commit(group, topic, queue_id, offset)
        return offset

    def correct(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set the offset to one that exists: messages were deleted, or the queue was created again."""
        self._taken.pop((topic, group, queue_id), None)
        self.commit(topic, group, queue_id, offset)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for queue in [queue for queue in self._taken if queue[0] == topic]:
            del self._taken[queue]
