"""The messages of one queue that were pulled and are not settled: ProcessQueue.

Room: client. It must never do I/O, read a clock or call a handler. The offset that may be committed is that of the
oldest message that is not settled: what lies below was consumed, given back or filtered. Source: ProcessQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import Guard
from mqfast.client.values import MessageQueue

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """What is cached of one queue.

    A message is *waiting* (nobody has it), *taken* (a handler or a loop has it), or settled and gone. Dropping the
    queue makes all of this void: another member may have the queue already.

    Args: next_offset: the first offset that is to be pulled.
    Attributes:
        next_offset: the offset of the next pull.
        dropped: the queue belongs to somebody else, or is begun anew; nothing of it is consumed or committed any more.
        count, bytes: messages that are not settled, and the bytes of their records.
    Thread: any.
    """

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.dropped = False
        self.count = 0
        self.bytes = 0
        self._lock = Guard()
        self._order: deque[int] = deque()  # offsets; those of settled messages leave when they come to the front
        self._open: dict[int, Delivery] = {}
        self._waiting: deque[Delivery] = deque()

    def put(self, messages: Iterable[Delivery], next_offset: int) -> int:
        """Take the messages of a pull. Those below ``next_offset`` of the last pull are known and left out.

        Args: next_offset: where the next pull begins. Returns: how many were new.
        """
        new = 0
        with self._lock:
            least = self.next_offset
            for message in messages:
                offset = message.queue_offset
                if offset < least or offset in self._open:
                    continue
                self._order.append(offset)
                self._open[offset] = message
                self._waiting.append(message)
                self.bytes += message.store_size
                new += 1
            self.count += new
            self.next_offset = next_offset
        return new

    def take(self, most: int) -> list[Delivery]:
        """Up to ``most`` waiting messages, oldest first; none of a dropped queue."""
        if self.dropped:
            return []
        waiting = self._waiting
        if most == 1:
            try:
                return [waiting.popleft()]  # atomic by itself
            except IndexError:
                return []
        with self._lock:
            return [waiting.popleft() for _ in range(min(most, len(waiting)))]

    def requeue(self, messages: Sequence[Delivery]) -> None:
        """Messages that were taken wait again, in front of the others."""
        with self._lock:
            self._waiting.extendleft(message for message in reversed(messages) if message.queue_offset in self._open)

    def withdraw(self, message: Delivery) -> bool:
        """Take one message that waits. Returns: False when somebody else has it, or nobody any more."""
        with self._lock:
            try:
                self._waiting.remove(message)
            except ValueError:
                return False
            return True

    def ack(self, messages: Iterable[Delivery]) -> int:
        """These messages are done. Returns: how many of them were still open; one that timed out is not."""
        gone = 0
        with self._lock:
            for message in messages:
                if self._open.pop(message.queue_offset, None) is not None:
                    self.bytes -= message.store_size
                    gone += 1
            self.count -= gone
            order = self._order
            while order and order[0] not in self._open:
                order.popleft()
        return gone

    def is_open(self, message: Delivery) -> bool:
        """Is it this message's turn to be settled?"""
        return self._open.get(message.queue_offset) is message

    @property
    def committable(self) -> int:
        """Everything below this offset is settled."""
        with self._lock:
            return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """Distance between the oldest and the newest message that are not settled."""
        with self._lock:
            return self._order[-1] - self._order[0] if self._order else 0

    @property
    def waiting(self) -> int:
        """How many messages nobody has taken."""
        return len(self._waiting)

    def oldest(self) -> Delivery | None:
        """The oldest message that is not settled."""
        with self._lock:
            return self._open[self._order[0]] if self._order else None

    def open_messages(self) -> list[Delivery]:
        """All messages that are not settled, oldest first."""
        with self._lock:
            return [self._open[offset] for offset in self._order if offset in self._open]

    def drop(self) -> list[Delivery]:
        """The queue goes. Returns: what was not settled."""
        with self._lock:
            self.dropped = True
            left = [self._open[offset] for offset in self._order if offset in self._open]
            self._waiting.clear()
        return left

    def __repr__(self) -> str:
        return f"<ProcessQueue {self.queue} next={self.next_offset} open={self.count} dropped={self.dropped}>"
