"""The pulled messages of one queue that are not acknowledged: ProcessQueue. No I/O, no clock, no handlers.

The committable offset is that of the oldest message that is not acknowledged: all messages below were consumed, sent
back or filtered. Source: ProcessQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import Guard
from mqfast.client.values import MessageQueue

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """The cached messages of one queue.

    A message is *waiting*, *taken* (by a handler or a loop), or acknowledged and removed. A dropped queue has no valid
    message: another member may own the queue already.

    Args: next_offset: the first offset to pull.
    Attributes:
        next_offset: the offset of the next pull.
        dropped: the queue is revoked or has a new position; no message is consumed or committed any more.
        count, bytes: messages that are not acknowledged, and the bytes of their records.
    Thread: any.
    """

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self.count = 0
        self.bytes = 0
        self._lock = Guard()
        self._order: deque[int] = deque()  # offsets; acknowledged ones are removed at the front
        self._open: dict[int, Delivery] = {}
        self._waiting: deque[Delivery] = deque()

    def put(self, messages: Iterable[Delivery], next_offset: int) -> int:
        """Add the messages of a pull, without those below ``next_offset`` of the previous pull.

        Args: next_offset: the offset of the next pull. Returns: the number of new messages.
        """
        new = 0
        with self._lock:
            first_new = self.next_offset
            for message in messages:
                offset = message.queue_offset
                if offset < first_new or offset in self._open:
                    continue
                self._order.append(offset)
                self._open[offset] = message
                self._waiting.append(message)
                self.bytes += message.store_size
                new += 1
            self.count += new
            self.next_offset = next_offset
        return new

    def take_messages(self, max_count: int) -> list[Delivery]:
        """Take up to ``max_count`` waiting messages, oldest first; none of a dropped queue."""
        if self.dropped:
            return []
        waiting = self._waiting
        if max_count == 1:
            try:
                return [waiting.popleft()]  # atomic by itself
            except IndexError:
                return []
        with self._lock:
            return [waiting.popleft() for _ in range(min(max_count, len(waiting)))]

    def requeue(self, messages: Sequence[Delivery]) -> None:
        """Put taken messages back at the head of the queue; a dropped queue takes none."""
        with self._lock:
            if self.dropped:  # a message that is never taken would be offered to the workers without end
                return
            self._waiting.extendleft(message for message in reversed(messages) if message.queue_offset in self._open)

    def withdraw(self, message: Delivery) -> bool:
        """Take one waiting message. Returns: False if the message is taken or acknowledged already."""
        with self._lock:
            try:
                self._waiting.remove(message)
            except ValueError:
                return False
            return True

    def ack(self, messages: Iterable[Delivery]) -> int:
        """Acknowledge messages. Returns: how many were still open; a message that timed out is not."""
        removed = 0
        with self._lock:
            for message in messages:
                if self._open.pop(message.queue_offset, None) is not None:
                    self.bytes -= message.store_size
                    removed += 1
            self.count -= removed
            order = self._order
            while order and order[0] not in self._open:
                order.popleft()
        return removed

    def is_open(self, message: Delivery) -> bool:
        """Return whether the message is cached and not acknowledged."""
        return self._open.get(message.queue_offset) is message

    @property
    def committable(self) -> int:
        """Return the offset below which all messages are acknowledged."""
        with self._lock:
            return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """Return the distance between the oldest and the newest message that are not acknowledged."""
        with self._lock:
            return self._order[-1] - self._order[0] if self._order else 0

    @property
    def waiting(self) -> int:
        """Return the number of waiting messages."""
        return len(self._waiting)

    def oldest(self) -> Delivery | None:
        """Return the oldest message that is not acknowledged."""
        with self._lock:
            return self._open[self._order[0]] if self._order else None

    def open_messages(self) -> list[Delivery]:
        """Return all messages that are not acknowledged, oldest first."""
        with self._lock:
            return [self._open[offset] for offset in self._order if offset in self._open]

    def drop(self) -> list[Delivery]:
        """Drop the queue. Returns: the messages that were not acknowledged."""
        with self._lock:
            self.dropped = True
            unacknowledged = [self._open[offset] for offset in self._order if offset in self._open]
            self._waiting.clear()
        return unacknowledged

    def __repr__(self) -> str:
        return f"<ProcessQueue {self.queue} next={self.next_offset} open={self.count} dropped={self.dropped}>"
