"""The prefetch buffer of a pull consumer: pulled messages, and the offsets of handed out and acknowledged messages.

Each queue has two offsets: after the last message that was *handed out*, and after the last message that was
*acknowledged*. Auto commit and the end of a consumer commit the acknowledged offset. A poll acknowledges the messages
of earlier polls; a loop acknowledges a message by the request for the next one. No I/O. Deleted messages are never
skipped without an error or a warning. Source: AssignedMessageQueue, ProcessQueue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from mqfast.client.consumer.pull_request import PullAnswer
from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import Guard
from mqfast.client.values import MessageQueue, PullStatus
from mqfast.errors import ClientClosed, ClientUsageError, OffsetMoved

__all__ = ["CacheLimits", "CachedQueue", "PrefetchBuffer"]


class CacheLimits(NamedTuple):
    """The limits at which pulls stop: ``messages`` and ``bytes`` of a queue, ``total`` messages of all queues."""

    messages: int = 1000
    bytes: int = 100 << 20
    total: int = 10_000


class CachedQueue:
    """A queue that this consumer reads.

    Attributes:
        queue: on the wire; plain: without namespace.
        handed_out, acknowledged: None until the position is known.
        next_pull: the offset of the next pull.
        is_new: the group has no offset in the queue that could be lost: the start is the first message.
        moved: the error that keeps messages from being handed out, until a seek.
        is_paused: the queue is not pulled; waits: a pull waits for room.
        error: of the last pull; None: the pull succeeded.
        was_lost: the topic was deleted meanwhile.
    """

    __slots__ = (
        "acknowledged", "ahead", "bytes", "error", "handed_out", "is_dropped", "is_new", "is_paused", "moved",
        "next_pull", "plain", "queue", "waits", "was_lost",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, plain: MessageQueue) -> None:
        self.queue: Final = queue
        self.plain: Final = plain
        self.handed_out: int | None = None
        self.acknowledged: int | None = None
        self.next_pull = 0
        self.is_new = False
        self.is_dropped = False
        self.was_lost = False
        self.is_paused = False
        self.waits = False
        self.moved: OffsetMoved | None = None
        self.error: Exception | None = None
        self.ahead: deque[Delivery] = deque()
        self.bytes = 0

    def begin(self, offset: int, *, is_new: bool) -> None:
        """Set the position: all messages before are acknowledged, no message is cached."""
        self.handed_out = self.acknowledged = self.next_pull = offset
        self.is_new = is_new
        self.moved = None
        self.ahead.clear()
        self.bytes = 0

    def pop(self) -> Delivery:
        """Hand out a message; after the last cached message only filtered messages follow."""
        message = self.ahead.popleft()
        self.bytes -= message.store_size
        self.handed_out = self.ahead[0].queue_offset if self.ahead else self.next_pull
        return message


class PrefetchBuffer:
    """All queues of a consumer.

    Args:
        group: for errors.
        offset_reset: handling of a next offset that is outside of the queue: ``"error"``, ``"earliest"`` or
            ``"latest"``.
        limits: at which pulls stop.
        changed: called with a queue that has room for a pull again, or (True) a new position.
    Attributes: arrival: is notified when a message can be handed out; asynchronous: called then as well, in the loop.
    Thread: any.
    """

    def __init__(
        self, group: str, offset_reset: str, limits: CacheLimits, changed: Callable[[MessageQueue, bool], None]
    ) -> None:
        self.arrival: Final = threading.Condition(Guard(nests=True))  # type: ignore[arg-type]
        self.asynchronous: Callable[[], None] | None = None
        self._closed = ""
        self._group: Final = group
        self._offset_reset: Final = offset_reset
        self._limits: Final = limits
        self._changed: Final = changed
        self._queues: dict[MessageQueue, CachedQueue] = {}
        self._turn = 0
        self._in_hand: Delivery | None = None
        self._in_hand_end = 0

    # --- queues ---

    def add(self, queue: MessageQueue, plain: MessageQueue) -> CachedQueue:
        """Add a queue of this consumer."""
        with self.arrival:
            cached = self._queues[queue] = CachedQueue(queue, plain)
            return cached

    def remove(self, queue: MessageQueue) -> CachedQueue | None:
        """Remove a queue and discard its cached messages, which the next owner pulls again."""
        with self.arrival:
            cached = self._queues.pop(queue, None)
            if cached is not None:
                cached.is_dropped = True
                cached.ahead.clear()
                cached.bytes = 0
                if self._in_hand is not None and self._in_hand.source.queue == cached.plain:
                    self._in_hand = None
            return cached

    def get(self, queue: MessageQueue) -> CachedQueue | None:
        """Return a queue of this consumer; None: the queue is not assigned."""
        return self._queues.get(queue)

    def all(self) -> list[CachedQueue]:
        """Return all queues of this consumer."""
        with self.arrival:
            return list(self._queues.values())

    @property
    def count(self) -> int:
        """Return the number of cached messages."""
        with self.arrival:
            return sum(len(cached.ahead) for cached in self._queues.values())

    # --- answers of pulls ---

    def put(self, cached: CachedQueue, answer: PullAnswer) -> str:
        """Add the answer of a pull at ``cached.next_pull``. Returns: a warning for the log, or an empty text."""
        with self.arrival:
            if cached.is_dropped or answer.asked_offset != cached.next_pull:
                return ""  # of a revoked queue, or of an old position
            cached.error = None
            if answer.is_reset:
                cached.begin(answer.next_offset, is_new=False)
                return f"the offset of {cached.plain} was reset to {answer.next_offset}"
            if answer.is_moved:
                return self._offset_moved(cached, answer)
            if answer.status is PullStatus.FOUND:
                cached.is_new = False
                cached.ahead.extend(answer.messages)
                cached.bytes += sum(message.store_size for message in answer.messages)
            cached.next_pull = max(cached.next_pull, answer.next_offset)
            if len(cached.ahead) == len(answer.messages):  # the cache was empty: skip filtered messages at once
                self._skip_to(cached, answer.messages[0].queue_offset if answer.messages else cached.next_pull)
            if cached.ahead:
                self._wake()
            return ""

    @staticmethod
    def _skip_to(cached: CachedQueue, to: int) -> None:
        # Filtered messages need no acknowledgement if all messages before are acknowledged.
        if cached.acknowledged == cached.handed_out:
            cached.acknowledged = to
        cached.handed_out = to

    def _offset_moved(self, cached: CachedQueue, answer: PullAnswer) -> str:
        offset, first = cached.next_pull, answer.min_offset
        if answer.next_offset > offset:
            first = max(first, answer.next_offset)
        if cached.is_new:
            cached.begin(first if offset < first else answer.max_offset, is_new=True)
            return ""
        moved = OffsetMoved(
            self._group, cached.plain.topic, cached.plain.queue_id, offset, first, answer.max_offset, cached.plain
        )
        if self._offset_reset == "error":
            cached.moved = moved
            self._wake()
            return str(moved)
        target = first if self._offset_reset == "earliest" else answer.max_offset
        cached.next_pull = target
        if not cached.ahead:
            self._skip_to(cached, target)
        return f"{moved} (offset_reset={self._offset_reset!r}: it goes on at {target})"

    def fail(self, cached: CachedQueue, error: Exception) -> bool:
        """Note the error of a pull. Returns: whether the error differs from the previous error."""
        before, cached.error = cached.error, error
        return str(before) != str(error)

    def reset_position(self, cached: CachedQueue) -> None:
        """Discard the position of a queue whose topic was deleted."""
        with self.arrival:
            cached.begin(0, is_new=True)
            cached.handed_out = cached.acknowledged = None
            cached.was_lost = True
            if self._in_hand is not None and self._in_hand.source.queue == cached.plain:
                self._in_hand = None

    def _wake(self) -> None:
        self.arrival.notify_all()
        if self.asynchronous is not None:
            self.asynchronous()

    def close(self, why: str) -> None:
        """Hand out no further message; waiting callers get ClientClosed with this text."""
        with self.arrival:
            self._closed = why
            self._wake()

    def is_full(self, cached: CachedQueue) -> bool:
        """Return whether the queue, or all queues together, reach a limit."""
        limits = self._limits
        return len(cached.ahead) >= limits.messages or cached.bytes >= limits.bytes or self.count >= limits.total

    # --- messages for the application ---

    def acknowledge(self) -> None:
        """Acknowledge all messages that were handed out."""
        with self.arrival:
            self._in_hand = None
            for cached in self._queues.values():
                cached.acknowledged = cached.handed_out

    def poll(self, max_count: int) -> list[Delivery]:
        """Hand out up to ``max_count`` messages, of the queues in turn. Raises: OffsetMoved, ClientClosed."""
        messages: list[Delivery] = []
        with self.arrival:
            self._in_hand = None
            for cached in self._queues_in_turn():
                while cached.ahead and len(messages) < max_count:
                    messages.append(cached.pop())
            self._make_room()
            return messages

    def _make_room(self) -> None:
        for cached in self._queues.values():
            if cached.waits and not self.is_full(cached):
                cached.waits = False
                self._changed(cached.queue, False)

    def next(self, before: Delivery | None) -> Delivery | None:
        """Acknowledge the current message of a loop, and hand out the next message; None: no message is cached.

        Raises: OffsetMoved, ClientClosed.
        """
        with self.arrival:
            if before is not None and before is self._in_hand:
                cached = next((cached for cached in self._queues.values() if cached.plain == before.source.queue), None)
                if cached is not None:
                    cached.acknowledged = max(self._in_hand_end, cached.acknowledged or 0)
                    if not cached.ahead and cached.acknowledged < (cached.handed_out or 0):
                        cached.acknowledged = cached.handed_out
                self._in_hand = None
            for cached in self._queues_in_turn():
                if cached.ahead:
                    message = cached.pop()
                    self._in_hand, self._in_hand_end = message, cached.handed_out or 0
                    self._make_room()
                    return message
            return None

    def rewind(self) -> None:
        """Continue after the acknowledged messages, for a new loop."""
        with self.arrival:
            self._in_hand = None
            for cached in self._queues.values():
                if cached.acknowledged is not None and cached.acknowledged != cached.handed_out:
                    self._begin(cached, cached.acknowledged, cached.is_new)

    def seek(self, queue: MessageQueue, offset: int, *, is_new: bool) -> None:
        """Set the position of a queue. Args: is_new: messages before the first stored message do not count as lost.

        Raises: UsageError for a queue that is not assigned.
        """
        with self.arrival:
            cached = self._queues.get(queue)
            if cached is None:
                raise ClientUsageError(f"seek: {queue} is not assigned to this consumer")
            if self._in_hand is not None and self._in_hand.source.queue == cached.plain:
                self._in_hand = None
            self._begin(cached, offset, is_new)

    def reread(self, topic: str) -> None:
        """Discard messages of a topic that an old expression has filtered, and pull again from the same positions."""
        with self.arrival:
            for cached in self._queues.values():
                if cached.queue.topic == topic and cached.handed_out is not None:
                    acknowledged, moved = cached.acknowledged, cached.moved
                    self._begin(cached, cached.handed_out, cached.is_new)
                    cached.acknowledged, cached.moved = acknowledged, moved

    def _begin(self, cached: CachedQueue, offset: int, is_new: bool) -> None:
        cached.begin(offset, is_new=is_new)
        cached.waits = False
        self._changed(cached.queue, True)

    def _queues_in_turn(self) -> list[CachedQueue]:
        if self._closed:
            raise ClientClosed(self._closed)
        queues = list(self._queues.values())
        for cached in queues:
            if cached.moved is not None and not cached.ahead:
                raise cached.moved.again()
        if not queues:
            return queues
        self._turn = (self._turn + 1) % len(queues)
        return queues[self._turn :] + queues[: self._turn]

    # --- offsets ---

    def positions(self, *, handed_out: bool) -> dict[MessageQueue, int]:
        """Return queue on the wire -> offset after the handed out, or acknowledged, messages; without unknown
        positions.
        """
        with self.arrival:
            offsets = {
                cached: cached.handed_out if handed_out else cached.acknowledged for cached in self._queues.values()
            }
            return {cached.queue: offset for cached, offset in offsets.items() if offset is not None}

    def check(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Check offsets for a commit.

        Raises: UsageError: beyond the messages that were handed out, or a queue that is not assigned.
        """
        with self.arrival:
            for queue, offset in offsets.items():
                cached = self._queues.get(queue)
                if cached is None:
                    raise ClientUsageError(f"commit: {queue} is not assigned to this consumer (any more)")
                if offset < 0 or (cached.handed_out is not None and offset > cached.handed_out):
                    allowed = "0 or more" if cached.handed_out is None else f"0 to {cached.handed_out}"
                    hint = "" if offset < 0 else ", where nothing was handed out yet: seek goes there"
                    raise ClientUsageError(
                        f"commit of {cached.plain}: expected an offset of {allowed}, found {offset}{hint}"
                    )
