"""The result of one rebalance of a topic: from the queues, the members of the group and the owned queues.

Pure functions without requests. Without members or queues the assignment does not change.
Source: RebalanceImpl.rebalanceByTopic, updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqfast.client.consumer.allocation import Allocation, sorted_members, sorted_queues
from mqfast.client.values import MessageQueue

__all__ = ["NOTHING", "RebalanceResult", "rebalance", "rebalance_broadcast"]


class RebalanceResult(NamedTuple):
    """The queues to revoke (``give_up``) first, and then to assign (``take``); both sorted.

    ``unknown``: queues of the strategy that the topic does not have; not assigned.
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
    """Rebalance a topic in clustering mode.

    Args:
        queues: all readable queues of the topic, from a fresh route; none: nothing changes.
        members: the client ids of the group, from a broker; none: nothing changes. Without ``me`` all queues are
            revoked, since other members read the queues.
        owned: queues that are assigned to this member, of any topic.
    Raises: the errors of the strategy; the caller keeps the owned queues then.
    """
    all_queues, ids = sorted_queues(queues), sorted_members(members)
    if not all_queues or not ids:
        return NOTHING
    named = [queue for queue in strategy(group, me, all_queues, ids) if queue.topic == topic]
    return _change(topic, named, all_queues, owned)


def rebalance_broadcast(topic: str, queues: Iterable[MessageQueue], owned: Iterable[MessageQueue]) -> RebalanceResult:
    """Rebalance in broadcasting mode: every member has all queues; no queues: nothing changes."""
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
