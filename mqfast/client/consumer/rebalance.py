"""What changes hands in one rebalance of a topic: from its queues, the group's members and what is owned now.

Pure: it asks nobody. It must never change anything where the view is incomplete: without members or queues a consumer
keeps what it has. Source: RebalanceImpl.rebalanceByTopic, updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqfast.client.consumer.allocation import Allocation, sorted_members, sorted_queues
from mqfast.client.values import MessageQueue

__all__ = ["NOTHING", "RebalanceResult", "rebalance", "rebalance_broadcast"]


class RebalanceResult(NamedTuple):
    """What one member does: ``give_up`` first, then ``take``; both sorted.

    ``unknown``: queues that the strategy named and that the topic does not have; they are not taken.
    """

    take: tuple[MessageQueue, ...] = ()
    give_up: tuple[MessageQueue, ...] = ()
    unknown: tuple[MessageQueue, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.take or self.give_up)


NOTHING = RebalanceResult()


def rebalance(
    group: str,
    me: str,
    topic: str,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
    strategy: Allocation,
    owned: Iterable[MessageQueue],
) -> RebalanceResult:
    """One rebalance of a topic in clustering mode.

    Args:
        queues: all readable queues of the topic, of a route just looked up; none: nothing changes.
        members: the client ids of the group, as a broker told them; none: nothing changes. Without ``me`` among them
            all queues are given up, since others read them.
        owned: queues that this member has now, of any topic.
    Raises: whatever the strategy raises; the caller then keeps what is owned.
    """
    all_queues, ids = sorted_queues(queues), sorted_members(members)
    if not all_queues or not ids:
        return NOTHING
    named = [queue for queue in strategy(group, me, all_queues, ids) if queue.topic == topic]
    return _change(topic, named, all_queues, owned)


def rebalance_broadcast(topic: str, queues: Iterable[MessageQueue], owned: Iterable[MessageQueue]) -> RebalanceResult:
    """One rebalance in broadcasting mode: every member has all queues; no queues: nothing changes."""
    all_queues = sorted_queues(queues)
    return _change(topic, all_queues, all_queues, owned) if all_queues else NOTHING


def _change(
    topic: str, named: list[MessageQueue], all_queues: list[MessageQueue], owned: Iterable[MessageQueue]
) -> RebalanceResult:
    there = set(all_queues)
    wanted = there.intersection(named)
    have = {queue for queue in owned if queue.topic == topic}
    return RebalanceResult(
        tuple(sorted_queues(wanted - have)),
        tuple(sorted_queues(have - wanted)),
        tuple(sorted_queues(set(named) - there)),
    )
