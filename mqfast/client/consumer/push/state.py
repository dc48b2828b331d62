"""The state that the parts of a push consumer share: subscriptions, assigned queues, members of the group.

No I/O, and no reference to a part. Source: RebalanceImpl, PullRequest, ProcessQueue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqfast.client.consumer.process_queue import ProcessQueue
from mqfast.client.consumer.push.settings import PushSettings
from mqfast.client.consumer.subscription import Subscription, new_version
from mqfast.client.delivery import Delivery, Source
from mqfast.client.hooks import ConsumeContext
from mqfast.client.route.namespace import plain_queue, retry_topic, unwrap
from mqfast.client.values import MessageQueue

__all__ = ["Assigned", "ConsumerState", "Handler", "Job", "TopicSubscription"]


class Handler(NamedTuple):
    """A function of the user. ``batch``: the maximum number of messages per call; 1: the argument is a message,
    above 1 a list.
    """

    function: Callable[..., Any]
    batch: int = 1

    @property
    def name(self) -> str:
        """Return the name for logs."""
        return str(getattr(self.function, "__qualname__", None) or repr(self.function))

    def argument(self, messages: list[Delivery]) -> Any:
        """Return the argument of a call for these messages."""
        return messages[0] if self.batch == 1 else messages


class TopicSubscription(NamedTuple):
    """The subscription of a topic; ``plain_topic``: the topic without namespace; ``handler`` None: a loop consumes."""

    subscription: Subscription
    handler: Handler | None
    plain_topic: str


class Assigned:
    """A queue that is assigned to this consumer.

    Attributes:
        pq: the cached messages; replaced when the offset of the queue is set anew.
        has_position: the offset of the group in the queue is known.
        was_lost: the topic was deleted meanwhile.
        locked_until_s: end of the lock of an orderly consumer, by the consumer's clock.
        wanted: the subscription of the topic.
        is_retry: the queue belongs to the retry topic, which holds messages of all topics.
        broker_id: the id of the broker that is pulled from.
        wake: ends a wait of the pull loop.
        is_full: the pull loop waits until messages are acknowledged.
        held: a worker consumes the queue (orderly: a single worker at a time).
        state: the state of the pull loop, for diagnostics.
        pulled, filtered: counts of messages; last_pull_s, last_consumed_s: by the consumer's clock.
    Thread: that of the loop, except ``held``, ``last_consumed_s`` and reading ``is_full``.
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
    """The messages of a call of a handler, or of a step of a loop."""

    assigned: Assigned
    pq: ProcessQueue
    messages: list[Delivery]
    handler: Handler | None
    begun_s: float
    context: ConsumeContext | None = None


class ConsumerState:
    """Subscriptions and assigned queues of a push consumer.

    Args: wanted: topic on the wire -> subscription.
    Attributes:
        is_clustering: the members of the group share the messages.
        needs_locks: the queues are consumed in order by a single member, under locks of the brokers.
        retry_topic: of the group, on the wire.
        wanted: as the argument, with the retry topic.
        assigned: the queues of this member.
        leaving: revoked queues -> the task that commits the offset and releases the lock.
        members: client ids of the group at the last rebalance, by topic.
        missing: topics without a route; not_shared: topics whose rebalance failed -> the reason.
        refused: plain topics whose last subscription was refused at run time -> the reason.
        resumed: set while the consumer is not paused.
    Thread: that of the loop, except methods that state another thread.
    """

    def __init__(self, settings: PushSettings, namespace: str, wanted: Mapping[str, TopicSubscription]) -> None:
        self.settings: Final = settings
        self.group: Final = settings.group
        self.namespace: Final = namespace
        self.is_clustering: Final = not settings.is_broadcasting
        self.needs_locks: Final = settings.orderly and self.is_clustering
        self.retry_topic: Final = retry_topic(None, self.group)
        self.wanted: dict[str, TopicSubscription] = dict(wanted)
        if self.is_clustering:
            subscription = Subscription(self.retry_topic, version=new_version())
            self.wanted[self.retry_topic] = TopicSubscription(subscription, None, self.retry_topic)
        self.assigned: dict[MessageQueue, Assigned] = {}
        self.leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self.members: dict[str, list[str]] = {}
        self.missing: set[str] = set()
        self.not_shared: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.is_closing = False
        self.resumed: Final = asyncio.Event()
        self.resumed.set()
        self.begun_ms: Final = int(time.time() * 1000)
        self.begun_s: Final = time.monotonic()

    def plain(self, topic: str) -> str:
        """Return the topic without namespace."""
        return unwrap(self.namespace, topic)

    def is_full(self, assigned: Assigned) -> bool:
        """Return whether the cached messages of a queue reach a limit. Thread: any."""
        pq, settings = assigned.pq, self.settings
        if pq.count >= settings.max_cached_messages or pq.bytes >= settings.max_cached_bytes:
            return True
        return not settings.orderly and pq.count > 0 and pq.span > settings.max_span

    def handler_of(self, message: Delivery) -> Handler | None:
        """Return the handler of the message's topic, or the only handler. Thread: any."""
        plain = message.topic
        subscriptions = [wanted for wanted in list(self.wanted.values()) if wanted.handler is not None]
        for wanted in subscriptions:
            if wanted.plain_topic == plain:
                return wanted.handler
        return subscriptions[0].handler if len(subscriptions) == 1 else None

    def handler_of_retried(self, message: Delivery) -> Handler | None:
        """Return the handler of a message of the retry topic; None: a loop consumes. Thread: any."""
        handler = self.handler_of(message)
        if handler is None and any(wanted.handler is not None for wanted in list(self.wanted.values())):
            return _NO_HANDLER
        return handler

    def copy_assignment(self, *, retry: bool = False) -> dict[MessageQueue, int]:
        """Return queue -> committable offset. Args: retry: with the retry topic. Thread: any."""
        return {
            plain_queue(self.namespace, queue): assigned.pq.committable
            for queue, assigned in list(self.assigned.items())
            if assigned.has_position and (retry or not assigned.is_retry)
        }


def _no_handler(messages: Any) -> bool:
    """Refuse a retried message whose topic has no subscription: another member or a later version may have one."""
    return False


_NO_HANDLER: Final = Handler(_no_handler)
