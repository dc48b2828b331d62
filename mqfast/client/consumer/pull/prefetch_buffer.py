"""What a pull consumer has pulled and not handed out, and how far the application is: one place for both faces.

Each queue has two offsets: behind the last message that was *handed out*, and behind the last one that was
*acknowledged*, which is what auto commit and the end of a consumer may store. A poll acknowledges what earlier polls
handed out; a loop acknowledges a message when it asks for the next one. This module must never do I/O, acknowledge
what was not handed out, or pass over messages that were deleted. Source: AssignedMessageQueue, ProcessQueue.
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
    """Nothing more is pulled while a queue has as many messages or bytes ahead, or all queues together ``total``."""

    messages: int = 1000
    bytes: int = 100 << 20
    total: int = 10_000


class CachedQueue:
    """One queue that this consumer reads.

    Attributes:
        queue: as it goes over the wire; plain: as users see it.
        handed_out, acknowledged: None until it is known where the group is.
        next_pull: the offset of the next pull.
        is_new: the group has no place in the queue that could be lost: it begins at the first message there is.
        moved: why nothing more is handed out, until a seek.
        is_paused: nothing is pulled for the moment; waits: a pull waits for room.
        error: why the last pull failed; None: it did not.
        was_lost: its topic was deleted meanwhile.
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
        """Everything before this offset is done, nothing is cached."""
        self.handed_out = self.acknowledged = self.next_pull = offset
        self.is_new = is_new
        self.moved = None
        self.ahead.clear()
        self.bytes = 0

    def pop(self) -> Delivery:
        """Hand out one message; behind the last one lies what nobody wants."""
        message = self.ahead.popleft()
        self.bytes -= message.store_size
        self.handed_out = self.ahead[0].queue_offset if self.ahead else self.next_pull
        return message


class PrefetchBuffer:
    """All queues of one consumer.

    Args:
        group: for errors.
        offset_reset: what becomes of a queue whose next offset is no place in it any more: ``"error"``, ``"earliest"``
            or ``"latest"``.
        limits: what is cached at most.
        changed: called with a queue that has room for a pull again, or (True) whose next pull is another one.
    Attributes: arrival: is notified when something can be handed out; asynchronous: called then as well, in the loop.
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

    # --- which queues ---

    def add(self, queue: MessageQueue, plain: MessageQueue) -> CachedQueue:
        """This consumer reads the queue from now on."""
        with self.arrival:
            found = self._queues[queue] = CachedQueue(queue, plain)
            return found

    def remove(self, queue: MessageQueue) -> CachedQueue | None:
        """The queue is given up: what is cached of it is for its next owner."""
        with self.arrival:
            found = self._queues.pop(queue, None)
            if found is not None:
                found.is_dropped = True
                found.ahead.clear()
                found.bytes = 0
                if self._in_hand is not None and self._in_hand.source.queue == found.plain:
                    self._in_hand = None
            return found

    def get(self, queue: MessageQueue) -> CachedQueue | None:
        """A queue of this consumer; None where it is somebody else's."""
        return self._queues.get(queue)

    def all(self) -> list[CachedQueue]:
        """All queues of this consumer."""
        with self.arrival:
            return list(self._queues.values())

    @property
    def count(self) -> int:
        """How many messages wait to be handed out."""
        with self.arrival:
            return sum(len(one.ahead) for one in self._queues.values())

    # --- what comes in ---

    def put(self, one: CachedQueue, answer: PullAnswer) -> str:
        """Take the answer of a pull at ``one.next_pull``. Returns: what a log should say of it, or nothing."""
        with self.arrival:
            if one.is_dropped or answer.asked_offset != one.next_pull:
                return ""  # of a queue that was given up, or of a place that was left
            one.error = None
            if answer.is_reset:
                one.begin(answer.next_offset, is_new=False)
                return f"the offset of {one.plain} was reset to {answer.next_offset}"
            if answer.is_moved:
                return self._move(one, answer)
            if answer.status is PullStatus.FOUND:
                one.is_new = False
                one.ahead.extend(answer.messages)
                one.bytes += sum(message.store_size for message in answer.messages)
            one.next_pull = max(one.next_pull, answer.next_offset)
            if len(one.ahead) == len(answer.messages):  # nothing waited before: what nobody wants is passed at once
                self._pass(one, answer.messages[0].queue_offset if answer.messages else one.next_pull)
            if one.ahead:
                self._wake()
            return ""

    @staticmethod
    def _pass(one: CachedQueue, to: int) -> None:
        # Messages without a wanted tag need no acknowledgement where none before them waits for one.
        if one.acknowledged == one.handed_out:
            one.acknowledged = to
        one.handed_out = to

    def _move(self, one: CachedQueue, answer: PullAnswer) -> str:
        at, low = one.next_pull, answer.min_offset
        if answer.next_offset > at:
            low = max(low, answer.next_offset)
        if one.is_new:
            one.begin(low if at < low else answer.max_offset, is_new=True)
            return ""
        moved = OffsetMoved(self._group, one.plain.topic, one.plain.queue_id, at, low, answer.max_offset, one.plain)
        if self._offset_reset == "error":
            one.moved = moved
            self._wake()
            return str(moved)
        to = low if self._offset_reset == "earliest" else answer.max_offset
        one.next_pull = to
        if not one.ahead:
            self._pass(one, to)
        return f"{moved} (offset_reset={self._offset_reset!r}: it goes on at {to})"

    def fail(self, one: CachedQueue, error: Exception) -> bool:
        """A pull failed. Returns: is the failure another one than before?"""
        before, one.error = one.error, error
        return str(before) != str(error)

    def lose(self, one: CachedQueue) -> None:
        """The topic of a queue was deleted: what is known of it is void."""
        with self.arrival:
            one.begin(0, is_new=True)
            one.handed_out = one.acknowledged = None
            one.was_lost = True
            if self._in_hand is not None and self._in_hand.source.queue == one.plain:
                self._in_hand = None

    def _wake(self) -> None:
        self.arrival.notify_all()
        if self.asynchronous is not None:
            self.asynchronous()

    def close(self, why: str) -> None:
        """Nothing more is handed out; who waits is told why."""
        with self.arrival:
            self._closed = why
            self._wake()

    def is_full(self, one: CachedQueue) -> bool:
        """Has the queue, or have all together, as many messages as the limits allow?"""
        limits = self._limits
        return len(one.ahead) >= limits.messages or one.bytes >= limits.bytes or self.count >= limits.total

    # --- what goes out ---

    def acknowledge(self) -> None:
        """The application is done with all that was handed out."""
        with self.arrival:
            self._in_hand = None
            for one in self._queues.values():
                one.acknowledged = one.handed_out

    def take(self, most: int) -> list[Delivery]:
        """Up to so many messages, of the queues in turn. Raises: OffsetMoved, ClientClosed."""
        found: list[Delivery] = []
        with self.arrival:
            self._in_hand = None
            for one in self._in_turn():
                while one.ahead and len(found) < most:
                    found.append(one.pop())
            self._make_room()
            return found

    def _make_room(self) -> None:
        for one in self._queues.values():
            if one.waits and not self.is_full(one):
                one.waits = False
                self._changed(one.queue, False)

    def next(self, before: Delivery | None) -> Delivery | None:
        """Acknowledge the message that a loop has in hand, and hand out the next one; None: there is none yet.

        Raises: OffsetMoved, ClientClosed.
        """
        with self.arrival:
            if before is not None and before is self._in_hand:
                one = next((one for one in self._queues.values() if one.plain == before.source.queue), None)
                if one is not None:
                    one.acknowledged = max(self._in_hand_end, one.acknowledged or 0)
                    if not one.ahead and one.acknowledged < (one.handed_out or 0):
                        one.acknowledged = one.handed_out
                self._in_hand = None
            for one in self._in_turn():
                if one.ahead:
                    message = one.pop()
                    self._in_hand, self._in_hand_end = message, one.handed_out or 0
                    self._make_room()
                    return message
            return None

    def rewind(self) -> None:
        """A new loop begins at what was not acknowledged."""
        with self.arrival:
            self._in_hand = None
            for one in self._queues.values():
                if one.acknowledged is not None and one.acknowledged != one.handed_out:
                    self._begin(one, one.acknowledged, one.is_new)

    def seek(self, queue: MessageQueue, offset: int, *, is_new: bool) -> None:
        """Go on at an offset. Args: is_new: no message before the first one there is counts as lost.

        Raises: UsageError for a queue of somebody else.
        """
        with self.arrival:
            one = self._queues.get(queue)
            if one is None:
                raise ClientUsageError(f"seek: {queue} is not assigned to this consumer")
            if self._in_hand is not None and self._in_hand.source.queue == one.plain:
                self._in_hand = None
            self._begin(one, offset, is_new)

    def reread(self, topic: str) -> None:
        """What is cached of a topic was chosen by an expression that is old: pull it again; the places stay."""
        with self.arrival:
            for one in self._queues.values():
                if one.queue.topic == topic and one.handed_out is not None:
                    acknowledged, moved = one.acknowledged, one.moved
                    self._begin(one, one.handed_out, one.is_new)
                    one.acknowledged, one.moved = acknowledged, moved

    def _begin(self, one: CachedQueue, offset: int, is_new: bool) -> None:
        one.begin(offset, is_new=is_new)
        one.waits = False
        self._changed(one.queue, True)

    def _in_turn(self) -> list[CachedQueue]:
        if self._closed:
            raise ClientClosed(self._closed)
        queues = list(self._queues.values())
        for one in queues:
            if one.moved is not None and not one.ahead:
                raise one.moved.again()
        if not queues:
            return queues
        self._turn = (self._turn + 1) % len(queues)
        return queues[self._turn :] + queues[: self._turn]

    # --- where it is ---

    def positions(self, *, handed_out: bool) -> dict[MessageQueue, int]:
        """By queue on the wire: behind what was handed out, or acknowledged; only queues whose place is known."""
        with self.arrival:
            found = {one: one.handed_out if handed_out else one.acknowledged for one in self._queues.values()}
            return {one.queue: at for one, at in found.items() if at is not None}

    def check(self, offsets: Mapping[MessageQueue, int]) -> None:
        """May these offsets be committed? Raises: UsageError: not behind what was handed out, or not of our queues."""
        with self.arrival:
            for queue, offset in offsets.items():
                one = self._queues.get(queue)
                if one is None:
                    raise ClientUsageError(f"commit: {queue} is not assigned to this consumer (any more)")
                if offset < 0 or (one.handed_out is not None and offset > one.handed_out):
                    most = "0 or more" if one.handed_out is None else f"0 to {one.handed_out}"
                    hint = "" if offset < 0 else ", where nothing was handed out yet: seek goes there"
                    raise ClientUsageError(f"commit of {one.plain}: expected an offset of {most}, found {offset}{hint}")
