"""Routes of topics: the queues to send to and to receive from, and the addresses of brokers.

No requests: callers pass the responses in. Source: MQClientInstance, TopicRouteData, TopicPublishInfo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct

from mqfast.client.net.guard import Guard
from mqfast.client.values import MessageQueue
from mqfast.errors import FieldError
from mqfast.remoting.bodies import READ, WRITE, QueueData, build_tables, decode_body

__all__ = ["MASTER_ID", "BrokerPlace", "RouteTable", "TopicRoute", "decode_route"]

MASTER_ID: Final = 0
_QUEUES_MAX: Final = 1_000_000
"""The limit of the queues of a route: a list of more queues would fill the memory."""
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
    """One topic's route. ``is_default``: the route of the topic that brokers copy when they create a new one."""

    topic: str
    brokers: Mapping[str, BrokerPlace]
    queue_datas: Sequence[QueueData]
    order: str | None = None
    is_default: bool = False

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues that a producer may choose from: those with a master and write permission."""
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
        """Return the queues that a consumer may read."""
        queues: list[MessageQueue] = []
        for data in self.queue_datas:
            if data.perm & READ:
                queues += (MessageQueue(self.topic, data.broker_name, n) for n in range(data.read_queue_nums))
        return tuple(sorted(set(queues)))

    def as_default(self, topic: str, queues: int) -> TopicRoute:
        """Return this route of the copied topic as the route of a new topic with at most so many queues."""
        datas = []
        for data in self.queue_datas:
            count = min(queues, data.read_queue_nums)
            datas.append(QueueData(data.broker_name, data.perm, count, data.topic_sys_flag, count))
        return TopicRoute(topic, self.brokers, tuple(datas), None, True)


def _counts(order: str) -> list[tuple[str, int]]:
    """Return broker name and number of queues, of ``a:8;b:8``; other parts are left out."""
    parts = (part.strip().rpartition(":") for part in order.split(";"))
    return [(name, int(count)) for name, _, count in parts if name and _COUNT.fullmatch(count)]


def decode_route(topic: str, body: bytes) -> TopicRoute:
    """Decode the body of an answer to code 105. Raises: FieldError."""
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
    """The routes of one client.

    Attributes:
        on_change: called with (topic, route) after a route changed, by the thread of the response.
        version: another object after each change.
    Thread: any; a route is replaced as a whole. Two changes at once would lose a route, so a lock is held for a change.
    """

    def __init__(self) -> None:
        self._changing = Guard()
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._addresses: dict[str, BrokerPlace] = {}
        self.on_change: list[Callable[[str, TopicRoute], None]] = []
        self.version = object()

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics with a route."""
        return tuple(self._routes)

    @property
    def brokers(self) -> Mapping[str, BrokerPlace]:
        """Return all brokers of the routes."""
        return MappingProxyType(self._addresses)

    def get(self, topic: str) -> TopicRoute | None:
        """Return a topic's route, None where there is none."""
        return self._routes.get(topic)

    def update(self, topic: str, route: TopicRoute) -> bool:
        """Replace a topic's route. Returns: whether the route changed."""
        queues = route.publish_queues()
        with self._changing:
            if self._routes.get(topic) == route:
                return False
            self._publish = {**self._publish, topic: queues}
            self._install({**self._routes, topic: route})
        for notify in tuple(self.on_change):
            notify(topic, route)
        return True

    def forget(self, topic: str) -> None:
        """Remove a topic: deleted, or without a user."""
        with self._changing:
            self._publish = {name: queues for name, queues in self._publish.items() if name != topic}
            self._install({name: route for name, route in self._routes.items() if name != topic})

    def _install(self, routes: dict[str, TopicRoute]) -> None:
        places: dict[str, BrokerPlace] = {}
        for route in routes.values():
            places.update(route.brokers)
        self._addresses = places
        self.version = object()
        # Last: ``update`` compares with these routes. A change that Ctrl-C has interrupted is made by the next answer.
        self._routes = routes

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a producer may choose from; empty without a route."""
        return self._publish.get(topic, ())

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a consumer may read; empty without a route."""
        route = self._routes.get(topic)
        return () if route is None else route.subscribe_queues()

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of one broker, None where no route names the broker."""
        place = self._addresses.get(broker_name)
        return None if place is None else place.addresses.get(broker_id)

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID) -> tuple[int, str] | None:
        """Return (id, address) to read from: the requested broker, else the master, else any broker of that name."""
        place = self._addresses.get(broker_name)
        if place is None or not place.addresses:
            return None
        for candidate in (broker_id, MASTER_ID, *sorted(place.addresses)):
            if candidate in place.addresses:
                return candidate, place.addresses[candidate]
        return None


build_tables(__name__)
