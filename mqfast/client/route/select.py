"""The queue of a message: round robin, by a key's hash, or by the application's selector.

Source: TopicPublishInfo, SelectMessageQueueByHash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from mqfast.client.values import MessageQueue
from mqfast.errors import ClientUsageError
from mqfast.message import Message
from mqfast.properties import jhash

__all__ = ["RoundRobin", "Selector", "by_hash", "chosen"]

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses a queue for a message."""


class RoundRobin:
    """Round robin over the queues, from a random queue on; another broker than the last broker, where possible.

    Thread: any.
    """

    def __init__(self, start: int | None = None) -> None:
        self.number: Callable[[], int] = count(random.randrange(1 << 16) if start is None else start).__next__
        """The next number of the row."""

    def pick(self, queues: Sequence[MessageQueue], last_broker: str | None = None) -> MessageQueue:
        """Return the next queue. Args: queues: at least one; last_broker: the broker of the attempt before."""
        if last_broker is not None:
            queue = self.first(queues, lambda candidate: candidate.broker_name != last_broker)
            if queue is not None:
                return queue
        return queues[self.number() % len(queues)]

    def first(self, queues: Sequence[MessageQueue], wanted: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """Return the next queue that is wanted, None where there is none."""
        for _ in queues:
            queue = queues[self.number() % len(queues)]
            if wanted(queue):
                return queue
        return None


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of a key: Java's hash of the key, modulo the number of queues, without the sign."""
    return queues[abs(jhash(key)) % len(queues)]


def chosen(queues: Sequence[MessageQueue], message: Message, selector: Selector) -> MessageQueue:
    """Return the queue that the application's selector chooses. Raises: UsageError for another value."""
    queue = selector(queues, message)
    if isinstance(queue, MessageQueue):
        return queue
    raise ClientUsageError(f"selector: expected one of the {len(queues)} queues as its value, found {queue!r}")
