"""Allocation of the queues of a topic to the members of a group: RocketMQ's six strategies, with the results of Java.

All members of a group must use the same strategy and the same sorted lists; then every queue has one reader. A strategy
is a pure function, without requests and without state between calls.
Source: AllocateMessageQueueStrategy and its classes in org.apache.rocketmq.client.consumer.rebalance.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from mqfast.client.settings import check_function
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientConfigError
from mqfast.util.near_names import did_you_mean

__all__ = [
    "Allocation",
    "AverageAllocation",
    "CircleAllocation",
    "ConfigAllocation",
    "ConsistentHashAllocation",
    "MachineRoomAllocation",
    "NearbyAllocation",
    "allocation_of",
    "java_order",
    "sorted_members",
    "sorted_queues",
]


class Allocation(Protocol):
    """A strategy: returns the part of ``queues`` that ``me`` reads, one of the ``members`` of ``group``.

    Attributes: ``name``: the name that brokers and tools show.
    """

    @property
    def name(self) -> str: ...

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]: ...


def java_order(text: str) -> bytes:
    """Return a sort key for the order of Java: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return queues in the order that all members use: topic, broker name, queue id."""
    return sorted(set(queues), key=lambda queue: (java_order(queue[0]), java_order(queue[1]), queue[2]))


def sorted_members(members: Iterable[str]) -> list[str]:
    """Return client ids in the order that all members use."""
    return sorted(members, key=java_order)


def _is_member(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> bool:
    """Return whether ``me`` is a member. Raises: ValueError for an empty argument."""
    for what, given in (("me", me), ("queues", queues), ("members", members)):
        if not given:
            raise ValueError(f"{what}: expected at least one, found none")
    return me in members


class AverageAllocation:
    """``AVG``, the default: consecutive queues, the same number for each member, and one more for the first members."""

    name: Final = "AVG"

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if not _is_member(me, queues, members):
            return []
        index = members.index(me)
        each, rest = divmod(len(queues), len(members))
        start = index * each + min(index, rest)
        return list(queues[start : start + each + (index < rest)])


class CircleAllocation:
    """``AVG_BY_CIRCLE``: queues are allocated to the members in turn."""

    name: Final = "AVG_BY_CIRCLE"

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return list(queues[members.index(me) :: len(members)]) if _is_member(me, queues, members) else []


class ConfigAllocation:
    """``CONFIG``: the configured queues, independent of other members.

    Args: queues: of one topic or several. A queue that is configured for two members is read twice; a queue that is
        configured for no member is not read.
    """

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues: Final = tuple(MessageQueue(*queue) for queue in queues)

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return self._queues


class MachineRoomAllocation:
    """``MACHINE_ROOM``: only queues of brokers with names ``room@name`` in these rooms, shared evenly.

    Args: rooms: names of rooms. Queues of other brokers are not read.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms: Final = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if not _is_member(me, queues, members):
            return []
        ours = [queue for queue in queues if self._is_ours(queue.broker_name)]
        index = members.index(me)
        each, rest = divmod(len(ours), len(members))
        allocated = ours[index * each : (index + 1) * each]
        if index < rest:
            allocated.append(ours[index + each * len(members)])
        return allocated

    def _is_ours(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        while parts and not parts[-1]:  # Java's split drops empty texts at the end
            parts.pop()
        return len(parts) == 2 and parts[0] in self._rooms


class NearbyAllocation:
    """``MACHINE_ROOM_NEARBY-<inner>``: members read the queues of their own room; all members share rooms without a
    member.

    Args:
        inner: how the queues of a room are shared.
        room_of_queue, room_of_member: return the room of a queue and of a client id; without a room the call fails.
    """

    def __init__(
        self,
        inner: Allocation | str,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_member: Callable[[str], str],
    ) -> None:
        self._inner: Final = allocation_of(inner)
        self._room_of_queue: Final = room_of_queue
        self._room_of_member: Final = room_of_member

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Raises: ValueError where a queue or a member has no room."""
        if not _is_member(me, queues, members):
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room("queue", queue, self._room_of_queue(queue)), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(_room("member", member, self._room_of_member(member)), []).append(member)
        own = self._room_of_member(me)
        allocated: list[MessageQueue] = []
        if own in queues_of:
            allocated += self._inner(group, me, queues_of[own], members_of[own])
        for room in sorted(queues_of, key=java_order):
            if room not in members_of:
                allocated += self._inner(group, me, queues_of[room], members)
        return allocated


def _room(what: str, of: object, room: str | None) -> str:
    if not room:
        raise ValueError(f"room of {what} {of}: expected a name, found {room!r}")
    return room


class ConsistentHashAllocation:
    """``CONSISTENT_HASH``: a member that joins or leaves moves few queues; the shares are uneven.

    Args:
        virtual_nodes: points of each member on the ring.
        hash_of: the hash of a text, from 0 on; by default the first four bytes of its MD5.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10, hash_of: Callable[[str], int] | None = None) -> None:
        if virtual_nodes < 0:
            raise ClientConfigError(f"virtual_nodes: expected at least 0, found {virtual_nodes}")
        self._virtual_nodes: Final = virtual_nodes
        self._hash_of: Final = hash_of or _md5_start

    def __call__(
        self, group: str, me: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if not _is_member(me, queues, members):
            return []
        ring: dict[int, str] = {}
        for member in members:
            taken = sum(owner == member for owner in ring.values())
            for number in range(taken, taken + self._virtual_nodes):
                ring[self._hash_of(f"{member}-{number}")] = member
        points = sorted(ring)
        if not points:
            return []
        allocated = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(points, self._hash_of(text))
            if ring[points[at % len(points)]] == me:
                allocated.append(queue)
        return allocated


def _md5_start(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


_BY_NAME: Final[dict[str, Callable[[], Allocation]]] = {
    "AVG": AverageAllocation,
    "AVG_BY_CIRCLE": CircleAllocation,
    "CONSISTENT_HASH": ConsistentHashAllocation,
}
_WITH_ARGUMENTS: Final = {
    "CONFIG": "ConfigAllocation(queues)",
    "MACHINE_ROOM": "MachineRoomAllocation(rooms)",
    "MACHINE_ROOM_NEARBY": "NearbyAllocation(inner, room_of_queue, room_of_member)",
}


def allocation_of(given: Allocation | str) -> Allocation:
    """Return the strategy of a name, or the given strategy.

    Raises: ConfigError for an unknown name, a name whose strategy needs arguments, or a strategy without a name.
    """
    if isinstance(given, str):
        if given in _BY_NAME:
            return _BY_NAME[given]()
        if given in _WITH_ARGUMENTS:
            raise ClientConfigError(
                f"allocation: {given} needs arguments; expected mqfast.client.consumer.allocation."
                f"{_WITH_ARGUMENTS[given]}, found only its name"
            )
        raise ClientConfigError(
            f"allocation: expected one of {', '.join([*_BY_NAME, *_WITH_ARGUMENTS])} or a strategy, found {given!r}"
            + did_you_mean(given.upper(), [*_BY_NAME, *_WITH_ARGUMENTS])
        )
    checked: object = given
    if not callable(checked) or not isinstance(getattr(checked, "name", None), str):
        raise ClientConfigError(
            f"allocation: expected a name or a callable with a text as attribute name, found {type(given).__name__}"
        )
    check_function("allocation", given)
    return given
