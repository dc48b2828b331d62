"""Messages of all queues of a topic, in the order of their store time, page by page.

Room: client. It must never commit an offset, nor follow what comes after the call: each queue ends where it ended then.
Source: DefaultMQAdminExtImpl, PrintMessageSubCommand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from mqfast.client.admin.admin_base import Asking, BrokerInfo
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
    """Which messages: stored from ``begin_ms`` to ``end_ms``, both included; None: no limit on that side."""

    def __init__(self, begin_ms: int | None, end_ms: int | None) -> None:
        self.begin_ms = begin_ms
        self.end_ms = end_ms

    def holds(self, message: Delivery) -> bool:
        """Was the message stored in this time?"""
        at = message.store_timestamp
        return (self.begin_ms is None or at >= self.begin_ms) and (self.end_ms is None or at <= self.end_ms)


class _Queue:
    """One queue on its way: the next offset, where it ends, and what was pulled and not yet given out."""

    def __init__(self, queue: MessageQueue, address: str, at: int, end: int) -> None:
        self.queue = queue
        self.address = address
        self.at = at
        self.end = end
        self.waiting: list[Delivery] = []  # the first one last

    @property
    def is_empty(self) -> bool:
        return not self.waiting and self.at < self.end


def pages_of(
    asking: Asking, topic: str, brokers: RequestSteps[list[BrokerInfo]], span: BrowseRange, tags: str, most: int | None
) -> Iterator[RequestSteps[Sequence[Delivery]]]:
    """The pages of a browse. Args: most: messages at most; reaching it is logged as a warning. Raises: UsageError."""
    return _pages(asking, Subscription(topic, tags), brokers, span, most)


def _pages(
    asking: Asking, wanted: Subscription, brokers: RequestSteps[list[BrokerInfo]], span: BrowseRange, most: int | None
) -> Iterator[RequestSteps[Sequence[Delivery]]]:
    topic = wanted.topic
    queues: list[_Queue] = []
    yield _found_queues(asking, topic, brokers, span, queues)
    left = most
    while (left is None or left > 0) and any(one.waiting or one.is_empty for one in queues):
        given: list[int] = []
        yield _next_page(asking, queues, wanted, span, left, given)
        left = None if left is None else left - sum(given)
    if left == 0 and any(one.waiting or one.is_empty for one in queues):
        _log.warning("topic %s: %s messages were read, as max_count says; there may be more", topic, most)


def _found_queues(
    asking: Asking, topic: str, brokers: RequestSteps[list[BrokerInfo]], span: BrowseRange, queues: list[_Queue]
) -> RequestSteps[Sequence[Delivery]]:
    """The first page has no message: it finds the queues and where the span begins and ends in each."""
    for broker in (yield from brokers):
        for queue, stats in (yield from stats_at(asking, broker.any, topic)).items():
            at, end = stats.min_offset, stats.max_offset
            if at < end and span.begin_ms:  # an older broker may answer with the next or the last of equal times
                at = max(at, (yield from _offset_at(asking, queue, span.begin_ms - 1)))
            if at < end and span.end_ms is not None:
                end = min(end, (yield from _offset_at(asking, queue, span.end_ms + 1)) + 1)
            if at < end:
                queues.append(_Queue(queue, broker.any, at, end))
    return []


def _offset_at(asking: Asking, queue: MessageQueue, time_ms: int) -> RequestSteps[int]:
    return (yield from offset_at(asking._instance, queue, time_ms, timeout_s=asking._timeout_s))


def _next_page(
    asking: Asking, queues: list[_Queue], wanted: Subscription, span: BrowseRange, most: int | None, given: list[int]
) -> RequestSteps[Sequence[Delivery]]:
    """Messages up to where a queue has none left in memory: the next ones of that queue may be older than the rest."""
    for one in queues:
        while one.is_empty:
            yield from _fill(asking, one, wanted, span)
    page: list[Delivery] = []
    while (most is None or len(page) < most) and not any(one.is_empty for one in queues):
        ready = [one for one in queues if one.waiting]
        if not ready:
            break
        first = min(ready, key=lambda one: (one.waiting[-1].store_timestamp, one.queue))
        page.append(first.waiting.pop())
    given.append(len(page))
    return page


def _fill(asking: Asking, one: _Queue, wanted: Subscription, span: BrowseRange) -> RequestSteps[None]:
    """Pull once."""
    source = Source(one.queue.broker_name, one.queue)
    answer = yield from pull(
        one.address, TOOLS_GROUP, one.queue, one.at, wanted, source,
        max_count=_BATCH, post_subscription=True, timeout_s=asking._timeout_s,
    )  # fmt: skip
    before, one.at = one.at, answer.next_offset
    one.waiting = [m for m in answer.messages if before <= m.queue_offset < one.end and span.holds(m)][::-1]
    if answer.status is PullStatus.NO_NEW_MSG or answer.next_offset <= before:
        one.at = one.end
