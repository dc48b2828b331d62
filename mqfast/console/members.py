"""The members of a group: connections, queues, and the messages that a member holds for long.

A member is asked by way of the broker, for a limited time: a member that does not answer is unknown and delays a page
by two seconds at most, and then for a while not at all. Must never ask more than ``_MEMBERS_MAX`` members for a page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mqfast.console.broker_wide import BrokerWideClient
from mqfast.console.state import GroupState, Unknown
from mqfast.errors import MqfastError

__all__ = ["HeldQueue", "MemberState", "Members"]

_MEMBERS_MAX: Final = 32
_MEMBER_S: Final = 2.0
_SILENT_S: Final = 15.0  # in which a member that did not answer is not asked again
_WATCHED_MAX: Final = 5000


@dataclass
class HeldQueue:
    """A queue of a member. Attributes: held: messages in the member; held_s: how long the first of them is there."""

    topic: str
    broker: str
    queue_id: int
    held: int
    first_offset: int
    held_s: float
    is_stuck: bool


@dataclass
class MemberState:
    """A member of a group. Attributes: queues: unknown where the member did not answer."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: list[str]
    subscriptions: Mapping[str, str] | Unknown = field(default_factory=dict)
    queues: list[HeldQueue] | Unknown = field(default_factory=list)

    @property
    def stuck(self) -> Sequence[HeldQueue]:
        """Return the queues whose first message does not come to an end."""
        return [] if isinstance(self.queues, Unknown) else [queue for queue in self.queues if queue.is_stuck]


class Members:
    """Asks members. Args: stuck_after_s: from here on a held message counts as stuck. Thread: of the event loop."""

    def __init__(self, admin: BrokerWideClient, stuck_after_s: float = 30.0) -> None:
        self._admin = admin
        self.stuck_after_s = stuck_after_s
        # (group, client, topic, broker, queue) -> (first held offset, since when)
        self._seen: dict[tuple[str, str, str, str, int], tuple[int, float]] = {}
        self._silent: dict[tuple[str, str], float] = {}  # (group, client) -> until when

    async def of(self, group: GroupState) -> list[MemberState] | Unknown:
        """Return the members of a group, each with its queues."""
        if isinstance(group.members, Unknown):
            return group.members
        members: dict[str, MemberState] = {}
        for broker, body in group.members.items():
            for connection in body.connection_set:
                member = members.get(connection.client_id)
                if member is None:
                    address, language = connection.client_addr.removeprefix("/"), str(connection.language)
                    member = MemberState(connection.client_id, address, language, connection.version, [])
                    members[connection.client_id] = member
                member.brokers.append(broker)
        rows = [members[name] for name in sorted(members)]
        await asyncio.gather(*(self._ask(group.name, member) for member in rows[:_MEMBERS_MAX]))
        for member in rows[_MEMBERS_MAX:]:
            member.queues = member.subscriptions = Unknown(f"only {_MEMBERS_MAX} members are asked")
        return rows

    async def _ask(self, group: str, member: MemberState) -> None:
        key, now = (group, member.client_id), time.monotonic()
        if self._silent.get(key, now) > now:
            member.queues = member.subscriptions = Unknown(f"the member did not answer in {_MEMBER_S:g} s")
            return
        try:
            async with asyncio.timeout(_MEMBER_S):
                info = await self._admin.running_info(group, member.client_id)
        except TimeoutError:
            self._silent = {other: until for other, until in self._silent.items() if until > now}
            self._silent[key] = time.monotonic() + _SILENT_S
            member.queues = member.subscriptions = Unknown(f"the member did not answer in {_MEMBER_S:g} s")
            return
        except MqfastError as error:
            member.queues = member.subscriptions = Unknown(str(error))
            return
        member.subscriptions = info["subscriptions"]
        queues = []
        for queue, held in {**info["queues"], **info["pop_queues"]}.items():
            place = (group, member.client_id, queue.topic, queue.broker_name, queue.queue_id)
            queues.append(self._held(place, held))
        member.queues = queues

    def _held(self, key: tuple[str, str, str, str, int], info: Mapping[str, Any]) -> HeldQueue:
        count, first = _whole(info, "cachedMsgCount"), _whole(info, "cachedMsgMinOffset")
        now = time.time()
        _, _, topic, broker, queue_id = key
        if not count:
            self._seen.pop(key, None)
            return HeldQueue(topic, broker, queue_id, 0, 0, 0.0, False)
        seen_first, since = self._seen.get(key, (-1, now))
        if seen_first != first:
            since = now
        if len(self._seen) >= _WATCHED_MAX and key not in self._seen:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = (first, since)
        held_s = now - since
        consumed_ms = _whole(info, "lastConsumeTimestamp")
        if consumed_ms and seen_first in (-1, first):
            held_s = max(held_s, now - consumed_ms / 1000)
        return HeldQueue(topic, broker, queue_id, count, first, max(0.0, held_s), held_s >= self.stuck_after_s)


def _whole(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if isinstance(value, int) and value > 0 else 0
