"""Consumer lag: messages and time, by group and topic, and by queue.

A group counts if it has committed an offset, online or not. A queue of such a topic without an offset counts from the
first message.

The calculation yields to the event loop every few hundred queues. Source: ConsumerLagCalculator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["GroupLag", "GroupQueueLag", "lag_of_all"]

_QUEUES_AT_ONCE: Final = 256


class GroupQueueLag(NamedTuple):
    """The lag of a group in a queue."""

    group: str
    topic: str
    queue_id: int
    messages: int
    late_ms: int


class GroupLag(NamedTuple):
    """The lag of a group in a topic: messages not consumed, messages in flight, and the ages of the first message of
    both kinds.
    """

    group: str
    topic: str
    messages: int
    late_ms: int
    in_flight: int
    queueing_ms: int


async def lag_of_all(
    context: BrokerContext, popped: Mapping[tuple[str, str, int], int] = MappingProxyType({})
) -> tuple[list[GroupLag], list[GroupQueueLag]]:
    """Return the lag of all groups in all of their topics, and the queues with lag.

    Args: popped: messages without ack by topic, group and queue id: the offset of a POP group is after these.
    """
    groups: list[GroupLag] = []
    queues: list[GroupQueueLag] = []
    visited = 0
    groups_of: dict[str, list[str]] = {}
    for topic, group in context.offsets.pairs():
        groups_of.setdefault(topic, []).append(group)
    for topic, readers in groups_of.items():
        config = context.topics.get(topic)
        if config is None:
            continue
        bounds: list[tuple[int, int]] = []
        for queue_id in range(config.write_queue_nums):
            bounds.append((context.store.min_offset(topic, queue_id), context.store.max_offset(topic, queue_id)))
            visited += 1
            if visited % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        for group in readers:
            of_queues = []
            in_flight = queueing_ms = 0
            for queue_id, (low, high) in enumerate(bounds):
                visited += 1
                if visited % _QUEUES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                in_flight += popped.get((topic, group, queue_id), 0)
                at = max(low, context.offsets.get(group, topic, queue_id))
                if at >= high:
                    continue
                of_queues.append(
                    GroupQueueLag(group, topic, queue_id, high - at, _age_ms(context, topic, queue_id, at))
                )
                pulled = min(high, max(at, _pulled(context, group, topic, queue_id)))
                in_flight += pulled - at
                if pulled < high:
                    queueing_ms = max(queueing_ms, _age_ms(context, topic, queue_id, pulled))
            queues += of_queues
            messages = sum(queue_lag.messages for queue_lag in of_queues)
            late_ms = max((queue_lag.late_ms for queue_lag in of_queues), default=0)
            groups.append(GroupLag(group, topic, messages, late_ms, in_flight, queueing_ms))
    return groups, queues


def _age_ms(context: BrokerContext, topic: str, queue_id: int, offset: int) -> int:
    stored_ms = context.engine.message_store_time(topic, queue_id, offset)
    return max(0, context.now_ms() - stored_ms) if stored_ms > 0 else 0


def _pulled(context: BrokerContext, group: str, topic: str, queue_id: int) -> int:
    """Return the end of the latest pull; -1: unknown."""
    offset_after = context.pull_offsets.get(group, topic, queue_id)
    return -1 if offset_after is None else offset_after
