"""Messages of all queues of a topic, ordered by store time, page by page.

No offset is committed. Each queue ends at its end offset of the first page: later messages are not read. Source:
DefaultMQAdminExtImpl, PrintMessageSubCommand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from mqfast.client.admin.admin_base import AdminBase, BrokerInfo
from mqfast.client.admin.topics import stats_at
from mqfast.client.consumer.pull_request import pull
from mqfast.client.consumer.queue_bounds import offset_at
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery, Source
from mqfast.client.net.request_steps import RequestSteps
from mqfast.client.values import MessageQueue, PullStatus

__all__ = ["TOOLS_GROUP", "BrowseRange", "pages_of"]

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""RocketMQ's own group for pulls of tools; each broker has it."""
_BATCH: Final = 32
_log = logging.getLogger("mqfast.client.admin")


class BrowseRange:
    """A range of store times, from ``begin_ms`` to ``end_ms``, both included; None: no limit on that side."""

    def __init__(self, begin_ms: int | None, end_ms: int | None) -> None:
        self.begin_ms = begin_ms
        self.end_ms = end_ms

    def holds(self, message: Delivery) -> bool:
        """Return whether the message was stored in this range."""
        at = message.store_timestamp
        return (self.begin_ms is None or at >= self.begin_ms) and (self.end_ms is None or at <= self.end_ms)


class _Queue:
    """The state of one queue: the next offset, the end offset, and pulled messages that were not returned yet."""

    def __init__(self, queue: MessageQueue, address: str, at: int, end: int) -> None:
        self.queue = queue
        self.address = address
        self.at = at
        self.end = end
        self.waiting: list[Delivery] = []  # in reverse order: the first message is last

    @property
    def is_empty(self) -> bool:
        return not self.waiting and self.at < self.end


def pages_of(
    admin: AdminBase,
    topic: str,
    brokers: RequestSteps[list[BrokerInfo]],
    span: BrowseRange,
    tags: str,
    max_count: int | None,
) -> Iterator[RequestSteps[Sequence[Delivery]]]:
    """Return the pages of a browse. Args: max_count: reaching this many messages is logged. Raises: UsageError."""
    return _pages(admin, Subscription(topic, tags), brokers, span, max_count)


def _pages(
    admin: AdminBase,
    wanted: Subscription,
    brokers: RequestSteps[list[BrokerInfo]],
    span: BrowseRange,
    max_count: int | None,
) -> Iterator[RequestSteps[Sequence[Delivery]]]:
    topic = wanted.topic
    queues: list[_Queue] = []
    yield _found_queues(admin, topic, brokers, span, queues)
    remaining = max_count
    while (remaining is None or remaining > 0) and any(queue.waiting or queue.is_empty for queue in queues):
        given: list[int] = []
        yield _next_page(admin, queues, wanted, span, remaining, given)
        remaining = None if remaining is None else remaining - sum(given)
    if remaining == 0 and any(queue.waiting or queue.is_empty for queue in queues):
        _log.warning("topic %s: %s messages were read, as max_count says; there may be more", topic, max_count)


def _found_queues(
    admin: AdminBase, topic: str, brokers: RequestSteps[list[BrokerInfo]], span: BrowseRange, queues: list[_Queue]
) -> RequestSteps[Sequence[Delivery]]:
    """Return an empty first page, and set the queues with their begin and end offsets."""
    for broker in (yield from brokers):
        for queue, stats in (yield from stats_at(admin, broker.any, topic)).items():
            at, end = stats.min_offset, stats.max_offset
            if at < end and span.begin_ms:  # an older broker may return the next or the last of equal times
                at = max(at, (yield from _offset_at(admin, queue, span.begin_ms - 1)))
            if at < end and span.end_ms is not None:
                end = min(end, (yield from _offset_at(admin, queue, span.end_ms + 1)) + 1)
            if at < end:
                queues.append(_Queue(queue, broker.any, at, end))
    return []


def _offset_at(admin: AdminBase, queue: MessageQueue, time_ms: int) -> RequestSteps[int]:
    return (yield from offset_at(admin._instance, queue, time_ms, timeout_s=admin._timeout_s))


def _next_page(
    admin: AdminBase,
    queues: list[_Queue],
    wanted: Subscription,
    span: BrowseRange,
    max_count: int | None,
    given: list[int],
) -> RequestSteps[Sequence[Delivery]]:
    """Return messages until a queue has none left in memory: the next message there may be older than the rest."""
    for queue in queues:
        while queue.is_empty:
            yield from _fill(admin, queue, wanted, span)
    page: list[Delivery] = []
    while (max_count is None or len(page) < max_count) and not any(queue.is_empty for queue in queues):
        ready = [queue for queue in queues if queue.waiting]
        if not ready:
            break
        first = min(ready, key=lambda queue: (queue.waiting[-1].store_timestamp, queue.queue))
        page.append(first.waiting.pop())
    given.append(len(page))
    return page


def _fill(admin: AdminBase, queue: _Queue, wanted: Subscription, span: BrowseRange) -> RequestSteps[None]:
    """Pull once."""
    source = Source(queue.queue.broker_name, queue.queue)
    answer = yield from pull(
        queue.address, TOOLS_GROUP, queue.queue, queue.at, wanted, source,
        max_count=_BATCH, post_subscription=True, timeout_s=admin._timeout_s,
    )  # fmt: skip
    before, queue.at = queue.at, answer.next_offset
    queue.waiting = [m for m in answer.messages if before <= m.queue_offset < queue.end and span.holds(m)][::-1]
    if answer.status is PullStatus.NO_NEW_MSG or answer.next_offset <= before:
        queue.at = queue.end
