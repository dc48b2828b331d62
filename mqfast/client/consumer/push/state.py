"""What a push consumer has: its handlers, and the state of each queue that is assigned to it.

Room: client. It must never do I/O. Source: PullRequest, ProcessQueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery, Source
from mqfast.client.hooks import ConsumeContext
from mqfast.client.values import MessageQueue

__all__ = ["Assigned", "Handler", "Job", "TopicSubscription"]


class Handler(NamedTuple):
    """A user's function. ``batch``: most messages of one call; with 1 it gets a message, else a list."""

    function: Callable[..., Any]
    batch: int = 1

    @property
    def name(self) -> str:
        """For logs."""
        return str(getattr(self.function, "__qualname__", None) or repr(self.function))

    def argument(self, messages: list[Delivery]) -> Any:
        """What the function is called with."""
        return messages[0] if self.batch == 1 else messages


class TopicSubscription(NamedTuple):
    """A topic of the group, as the user and as the wire name it; handler None: a loop takes its messages."""

    subscription: Subscription
    handler: Handler | None
    plain_topic: str


class Assigned:
    """One queue of this consumer.

    Attributes:
        pq: its messages; another object after the broker moved the offset.
        is_placed: it is known where the group is in the queue; was_lost: its topic was deleted meanwhile.
        locked_until_s: until when an orderly consumer may read it, by the consumer's clock.
        is_retry: it belongs to the retry topic, where messages of all topics are.
        broker_id: which broker of the name is asked.
        wake: ends a wait of its pulls.
        is_full: its pulls wait until messages are settled.
        held: somebody runs it (orderly: one at a time).
        state: why nothing comes from it, in a word.
        pulled, filtered: counts; last_pull_s, last_consumed_s: by the consumer's clock.
    Thread: that of the loop, but for ``held``, ``last_consumed_s`` and reading ``is_full``.
    """

    def __init__(self, queue: MessageQueue, wanted: TopicSubscription, source: Source, is_retry: bool) -> None:
        self.queue = queue
        self.pq = ProcessQueue(queue, 0)
        self.has_position = False
        self.was_lost = False
        self.locked_until_s = 0.0
        self.wanted = wanted
        self.source = source
        self.is_retry = is_retry
        self.broker_id = 0
        self.wake = asyncio.Event()
        self.is_full = False
        self.held = False
        self.state = "starting"
        self.pulled = 0
        self.filtered = 0
        self.max_offset = -1
        self.last_pull_s = 0.0
        self.last_pull_ms = 0
        self.last_consumed_s = 0.0
        self.last_lock_ms = 0
        self.task: asyncio.Task[None] | None = None


class Job(NamedTuple):
    """Messages that a handler or a loop has now."""

    assigned: Assigned
    pq: ProcessQueue
    messages: list[Delivery]
    handler: Handler | None
    begun_s: float
    context: ConsumeContext | None = None
