"""Where topics are: the queues to send to and to receive from, and the addresses of brokers, as name servers tell.

Room: client. It must never ask anybody: answers are given to it. Source: MQClientInstance, TopicRouteData,
TopicPublishInfo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct

from mqfast.client.values import MessageQueue
from mqfast.errors import FieldError
from mqfast.remoting.bodies import READ, WRITE, QueueData, build_tables, decode_body

__all__ = ["MASTER_ID", "BrokerPlace", "RouteTable", "TopicRoute", "decode_route"]

MASTER_ID: Final = 0
_QUEUES_MAX: Final = 1_000_000
"""A route that names more is none: the list of its queues would fill the memory."""
_ID: Final = re.compile(r"-?[0-9]{1,18}")
_COUNT: Final = re.compile(r"[0-9]{1,5}")


class _Broker(Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[str, str] = {}
    cluster: str = ""


class _Route(Struct, rename="camel"):
    broker_datas: list[_Broker] = []
    queue_datas: list[QueueData] = []
    order_topic_conf: str | None = None


class BrokerPlace(NamedTuple):
    """The brokers of one name: ``addresses`` by broker id, 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]


class TopicRoute(NamedTuple):
    """One topic's route. ``is_default``: it is that of the topic that brokers copy when they make a new one."""

    topic: str
    brokers: Mapping[str, BrokerPlace]
    queue_datas: Sequence[QueueData]
    order: str | None = None
    is_default: bool = False

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that a producer may choose from: those with a master and the right to write."""
        if self.order:
            return self._ordered()
        queues: list[MessageQueue] = []
        for data in sorted(self.queue_datas, key=lambda queue_data: queue_data.broker_name):
            place = self.brokers.get(data.broker_name)
            if data.perm & WRITE and place is not None and MASTER_ID in place.addresses:
                queues += (MessageQueue(self.topic, data.broker_name, n) for n in range(data.write_queue_nums))
        return tuple(queues)

    def _ordered(self) -> tuple[MessageQueue, ...]:
        counts = _counts(self.order or "")
        return tuple(MessageQueue(self.topic, name, number) for name, count in counts for number in range(count))

    def subscribe_queues(self) -> tuple[MessageQueue, ...]:
        """The queues that a consumer may read."""
        queues: list[MessageQueue] = []
        for data in self.queue_datas:
            if data.perm & READ:
                queues += (MessageQueue(self.topic, data.broker_name, n) for n in range(data.read_queue_nums))
        return tuple(sorted(set(queues)))

    def as_default(self, topic: str, queues: int) -> TopicRoute:
        """This route of the copied topic as the route of a new one with at most so many queues."""
        datas = []
        for data in self.queue_datas:
            count = min(queues, data.read_queue_nums)
            datas.append(QueueData(data.broker_name, data.perm, count, data.topic_sys_flag, count))
        return TopicRoute(topic, self.brokers, tuple(datas), None, True)


def _counts(order: str) -> list[tuple[str, int]]:
    """Broker name and number of queues, of ``a:8;b:8``; other parts are left out."""
    parts = (part.strip().rpartition(":") for part in order.split(";"))
    return [(name, int(count)) for name, _, count in parts if name and _COUNT.fullmatch(count)]


def decode_route(topic: str, body: bytes) -> TopicRoute:
    """The body of an answer to code 105. Raises: FieldError."""
    body_route = decode_body(body, _Route, f"route of {topic}")
    queues = sum(max(0, data.read_queue_nums, data.write_queue_nums) for data in body_route.queue_datas)
    queues += sum(count for _, count in _counts(body_route.order_topic_conf or ""))
    if queues > _QUEUES_MAX:
        raise FieldError(f"route of {topic}", f"at most {_QUEUES_MAX} queues", str(queues))
    brokers = {}
    for broker in body_route.broker_datas:
        addresses = {int(key): address for key, address in broker.broker_addrs.items() if _ID.fullmatch(key)}
        brokers[broker.broker_name] = BrokerPlace(broker.broker_name, broker.cluster, MappingProxyType(addresses))
    return TopicRoute(
        topic, MappingProxyType(brokers), tuple(body_route.queue_datas), body_route.order_topic_conf or None
    )


class RouteTable:
    """The routes that one client knows.

    Attributes:
        on_change: called with (topic, route) after a route changed, by the thread that brought the answer.
        version: another object after each change.
    Thread: any; a route is replaced as a whole.
    """

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._addresses: dict[str, BrokerPlace] = {}
        self.on_change: list[Callable[[str, TopicRoute], None]] = []
        self.version = object()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics whose routes are known."""
        return tuple(self._routes)

    @property
    def brokers(self) -> Mapping[str, BrokerPlace]:
        """All brokers that a known route names."""
        return MappingProxyType(self._addresses)

    def get(self, topic: str) -> TopicRoute | None:
        """A topic's route, None where it is not known."""
        return self._routes.get(topic)

    def update(self, topic: str, route: TopicRoute) -> bool:
        """Replace a topic's route. Returns: did it change?"""
        if self._routes.get(topic) == route:
            return False
        self._routes = {**self._routes, topic: route}
        self._publish = {**self._publish, topic: route.publish_queues()}
        self._collect()
        for tell in tuple(self.on_change):
            tell(topic, route)
        return True

    def forget(self, topic: str) -> None:
        """The topic is gone, or nobody is interested in its route any more."""
        self._routes = {name: route for name, route in self._routes.items() if name != topic}
        self._publish.pop(topic, None)
        self._collect()

    def _collect(self) -> None:
        places: dict[str, BrokerPlace] = {}
        for route in self._routes.values():
            places.update(route.brokers)
        self._addresses = places
        self.version = object()

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that a producer may choose from; empty where the route is not known."""
        return self._publish.get(topic, ())

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that a consumer may read; empty where the route is not known."""
        route = self._routes.get(topic)
        return () if route is None else route.subscribe_queues()

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of one broker, None where no known route names it."""
        place = self._addresses.get(broker_name)
        return None if place is None else place.addresses.get(broker_id)

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID) -> tuple[int, str] | None:
        """(id, address) to read from: the broker asked for, else the master, else any of that name."""
        place = self._addresses.get(broker_name)
        if place is None or not place.addresses:
            return None
        for candidate in (broker_id, MASTER_ID, *sorted(place.addresses)):
            if candidate in place.addresses:
                return candidate, place.addresses[candidate]
        return None


build_tables(__name__)
