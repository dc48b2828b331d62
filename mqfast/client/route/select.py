"""Which queue a message goes to: one after the other, by a key's hash, or as the application says.

Room: client. It must never ask anybody. Source: TopicPublishInfo, SelectMessageQueueByHash.
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
"""Chooses one of the queues for a message."""


class RoundRobin:
    """One queue after the other, from a random one on; another broker than the last one, where there is one.

    Thread: any.
    """

    def __init__(self, start: int | None = None) -> None:
        self.number: Callable[[], int] = count(random.randrange(1 << 16) if start is None else start).__next__
        """The next number of the row."""

    def pick(self, queues: Sequence[MessageQueue], last_broker: str | None = None) -> MessageQueue:
        """The next queue. Args: queues: at least one; last_broker: the broker of the attempt before."""
        if last_broker is not None:
            queue = self.first(queues, lambda candidate: candidate.broker_name != last_broker)
            if queue is not None:
                return queue
        return queues[self.number() % len(queues)]

    def first(self, queues: Sequence[MessageQueue], wanted: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """The next queue that is wanted, None where none is."""
        for _ in queues:
            queue = queues[self.number() % len(queues)]
            if wanted(queue):
                return queue
        return None


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key: Java's hash of the key, modulo the number of queues, without its sign."""
    return queues[abs(jhash(key)) % len(queues)]


def chosen(queues: Sequence[MessageQueue], message: Message, selector: Selector) -> MessageQueue:
    """What the application's selector chooses. Raises: UsageError where that is no queue."""
    queue = selector(queues, message)
    if isinstance(queue, MessageQueue):
        return queue
    raise ClientUsageError(f"selector: expected one of the {len(queues)} queues as its value, found {queue!r}")
