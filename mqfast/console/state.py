"""The state of a cluster as the console knows it: brokers, topics, groups, and numbers that may be unknown.

Must never hold a zero for a number that was not measured: such a number is an ``Unknown`` with its cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from mqfast.client.admin.bodies import ConnectionsBody
from mqfast.client.admin.topics import is_system_topic
from mqfast.console.broker_wide import GroupSettings, QueuePlace
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
from mqfast.remoting.bodies import TopicConfigBody

__all__ = [
    "BrokerState",
    "ClusterState",
    "GroupState",
    "Number",
    "TopicState",
    "Unknown",
    "is_topic_of_users",
    "known",
    "largest",
    "total",
]


class Unknown(NamedTuple):
    """A number that is not known. Attributes: cause: why."""

    cause: str


Number: TypeAlias = float | int | Unknown
NOT_YET = Unknown("not measured yet")


def known(number: Number, default: float = 0.0) -> float:
    """Return a number, or the default for an unknown number: for sorting only."""
    return default if isinstance(number, Unknown) else float(number)


@lru_cache(maxsize=1 << 16)
def is_topic_of_users(name: str) -> bool:
    """Return whether a name is none of RocketMQ itself, of retries or of dead letters."""
    return not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not is_system_topic(name)


def total(numbers: Sequence[Number]) -> Number:
    """Return the sum; unknown if a part is unknown."""
    for number in numbers:
        if isinstance(number, Unknown):
            return number
    return sum(number for number in numbers if not isinstance(number, Unknown))


def largest(numbers: Sequence[Number]) -> Number:
    """Return the largest known number; unknown if all are unknown, 0 for none."""
    sure = [number for number in numbers if not isinstance(number, Unknown)]
    if not sure and numbers:
        return numbers[0]
    return max(sure, default=0)


@dataclass(slots=True)
class BrokerState:
    """A broker name: addresses, measurements, and the errors of the last round by subject."""

    name: str
    cluster: str
    addresses: Mapping[int, str]
    runtime: Mapping[str, str] | Unknown = NOT_YET
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Return the address for requests that read: the master, else the slave with the lowest id."""
        return self.addresses[min(self.addresses)]

    def number(self, name: str, part: int = 0) -> Number:
        """Return a measurement; of a list of numbers the part."""
        if isinstance(self.runtime, Unknown):
            return self.runtime
        words = self.runtime.get(name, "").split()
        try:
            return float(words[part])
        except (IndexError, ValueError):
            return Unknown(f"the broker does not report {name}")


@dataclass(slots=True)
class TopicState:
    """A topic: settings by broker, rate, and the groups with progress in the topic."""

    name: str
    settings: dict[str, TopicConfigBody] = field(default_factory=dict)
    rate: Number = NOT_YET
    messages: Number = NOT_YET
    measured_s: float = 0.0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Return the type of messages: NORMAL, FIFO, DELAY, TRANSACTION."""
        for settings in self.settings.values():
            if settings.attributes:
                return settings.attributes.get("message.type", "NORMAL")
        return "NORMAL"

    @property
    def queues(self) -> int:
        """Return the number of queues that can be read, on all brokers."""
        return sum(settings.read_queue_nums for settings in self.settings.values())


@dataclass(slots=True)
class GroupState:
    """A consumer group: its places in queues, lag, age of the first unread message, rate, and members."""

    name: str
    settings: GroupSettings | None = None
    places: list[QueuePlace] = field(default_factory=list)
    lag: Number = NOT_YET
    age_s: Number = NOT_YET
    age_is_least: bool = False
    rate: Number = NOT_YET
    members: Mapping[str, ConnectionsBody] | Unknown = NOT_YET
    members_s: float = 0.0
    brokers: set[str] = field(default_factory=set)

    @property
    def topics(self) -> list[str]:
        """Return the topics with progress, without the retry topic."""
        return sorted({place.topic for place in self.places if not place.topic.startswith(RETRY_PREFIX)})

    def topics_without_offset(self) -> set[str]:
        """Return the topics of current subscriptions in which no offset was committed yet."""
        if isinstance(self.members, Unknown):
            return set()
        subscribed = {topic for body in self.members.values() for topic in body.subscription_table}
        return {topic for topic in subscribed if not topic.startswith(RETRY_PREFIX)} - set(self.topics)

    @property
    def retry_lag(self) -> int:
        """Return the number of messages that wait in the retry topic."""
        return sum(place.behind for place in self.places if place.topic.startswith(RETRY_PREFIX))

    @property
    def member_count(self) -> Number:
        """Return the number of connected members."""
        if isinstance(self.members, Unknown):
            return self.members
        return len({connection.client_id for body in self.members.values() for connection in body.connection_set})


@dataclass(slots=True)
class ClusterState:
    """The result of a round. Attributes: at_s: time of the round, 0: none yet; took_s: duration; error: of the name
    servers; reserved: names of topics that are no topics of users.
    """

    at_s: float = 0.0
    took_s: float = 0.0
    requests: int = 0
    brokers: dict[str, BrokerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    error: str | None = None
    reserved: frozenset[str] = frozenset()

    def reserve_names(self) -> None:
        """Note the names of topics that each broker and each cluster has for itself."""
        clusters = {broker.cluster for broker in self.brokers.values()}
        self.reserved = frozenset({*self.brokers, *clusters, *(f"{cluster}_REPLY_TOPIC" for cluster in clusters)})

    def letters_of(self, group: str) -> TopicState | None:
        """Return the topic with the dead letters of a group; None: there is no such topic."""
        return self.topics.get(DLQ_PREFIX + group)

    def groups_behind(self, limit: int) -> list[GroupState]:
        """Return the groups with the largest lag."""
        late = [group for group in self.groups.values() if known(group.lag) > 0]
        return sorted(late, key=lambda group: -known(group.lag))[:limit]
