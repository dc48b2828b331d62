"""QueryRoute and QueryAssignment: the queues of a topic at all brokers of the cluster, and where a client reaches them.

The own broker is named by the address that the client has used, which is reachable; another broker by the address that
the broker announces at the name servers. A slave names its master in place of itself: the slave takes no messages and
answers no POP. Source: RouteActivity, LocalMessageService.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from mqfast.broker.acl.required_permissions import ANY, of_group, of_topic
from mqfast.broker.acl.terms import Action
from mqfast.broker.grpc.clients import GrpcClient
from mqfast.broker.grpc.codes import OK, Code, Refused
from mqfast.broker.grpc.outgoing import DELAY, FIFO, NORMAL, PRIORITY, TRANSACTION
from mqfast.broker.grpc.telemetry import checked_group, checked_topic
from mqfast.broker.metadata.topic_manager import AUTO_CREATE_TOPIC, READ, WRITE
from mqfast.errors import FieldError, RemotingError
from mqfast.grpc.connection import Call
from mqfast.grpc.messages import (
    Address,
    Assignment,
    Broker,
    Endpoints,
    MessageQueue,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.store.meta.metadata import TopicConfig

__all__ = ["Routes", "accepted_types", "topic_type"]

_NONE, _READ_ONLY, _WRITE_ONLY, _BOTH = 1, 2, 3, 4
_IPV4, _IPV6, _NAME = 1, 2, 3
_MASTER: Final = 0
_TYPES: Final = {
    "NORMAL": [NORMAL],
    "FIFO": [FIFO],
    "DELAY": [DELAY],
    "TRANSACTION": [TRANSACTION],
    "PRIORITY": [PRIORITY],
    "MIXED": [NORMAL, FIFO, DELAY, TRANSACTION],
}
_NEW_QUEUES: Final = 8
_QUEUES_MAX: Final = 65_536
_ROUTE_MS: Final = 1000


class _QueueData(Struct, rename="camel"):
    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0


class _BrokerData(Struct, rename="camel"):
    broker_name: str = ""
    broker_addrs: dict[str, str] = {}


class _Route(Struct, rename="camel"):
    queue_datas: list[_QueueData] = field(default_factory=list)
    broker_datas: list[_BrokerData] = field(default_factory=list)


class _Part(NamedTuple):
    """The queues of a topic at one broker."""

    broker: Broker
    reads: int
    writes: int
    types: list[int]


def topic_type(topic: TopicConfig | None) -> str:
    """Return the attribute ``message.type`` of a topic, NORMAL without the attribute."""
    return "NORMAL" if topic is None else topic.attributes.get("message.type", "NORMAL").upper()


def accepted_types(topic: TopicConfig | None, *, is_checked: bool) -> list[int]:
    """Return the types of messages that a topic takes."""
    return _TYPES.get(topic_type(topic), [0]) if is_checked else [NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY]


class Routes:
    """Serves QueryRoute and QueryAssignment. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context

    async def query_route(self, call: Call, client: GrpcClient, request: QueryRouteRequest) -> QueryRouteResponse:
        """Serve QueryRoute. Raises: Refused for an unknown topic."""
        name = checked_topic(request.topic)
        client.admit(of_topic(name, *ANY))
        parts = await self._parts(name, request.endpoints)
        return QueryRouteResponse(OK, [queue for part in parts for queue in _queues(request.topic or Resource(), part)])

    async def query_assignment(
        self, call: Call, client: GrpcClient, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Serve QueryAssignment: any queue of a broker, or each queue for an orderly group."""
        name, group = checked_topic(request.topic), checked_group(request.group)
        client.admit(of_topic(name, Action.SUB), of_group(group, Action.SUB))
        config = self._context.groups.table.get(group) or {}
        is_orderly = bool(config.get("consumeMessageOrderly", False))
        assignments = [
            Assignment(MessageQueue(request.topic, queue_id, _BOTH, part.broker, part.types))
            for part in await self._parts(name, request.endpoints)
            if part.reads > 0
            for queue_id in (range(part.reads) if is_orderly else (-1,))
        ]
        if not assignments:
            raise Refused(Code.FORBIDDEN, f"the topic {name} has no queue to read")
        return QueryAssignmentResponse(OK, assignments)

    # --- the brokers of a topic ---

    async def _parts(self, topic: str, endpoints: Endpoints | None) -> list[_Part]:
        """Return the brokers of a topic, at least one. Raises: Refused for an unknown topic."""
        parts = await self._known_parts(topic, endpoints)
        if parts:
            return parts
        if self._context.config.is_slave and topic in self._context.topics.table:
            raise Refused(Code.HA_NOT_AVAILABLE, f"this broker is a slave, and no master of {topic} is registered")
        raise Refused(Code.TOPIC_NOT_FOUND, f"the topic {topic} does not exist")

    async def _known_parts(self, topic: str, endpoints: Endpoints | None) -> list[_Part]:
        context = self._context
        own_name = context.config["brokerName"]
        is_slave = context.config.is_slave
        others = await self._others(topic, "" if is_slave else own_name)
        is_checked = bool(context.config["enableTopicMessageTypeCheck"])
        config = context.topics.get(topic)
        types = accepted_types(config, is_checked=is_checked and (config is not None or not others))
        if is_slave and config is None and not others and context.config["autoCreateTopicEnable"]:
            others = await self._others(AUTO_CREATE_TOPIC, "")  # a send creates the topic at the master
        parts = [
            _Part(Broker(name, _MASTER, _endpoints(*address)), reads, writes, types)
            for name, address, reads, writes in others
        ]
        if is_slave:
            return parts
        if config is not None:
            perm = config.perm & context.config["brokerPermission"]
            reads = config.read_queue_nums if perm & READ else 0
            writes = config.write_queue_nums if perm & WRITE else 0
        elif not others and self._is_made_by_a_send(topic):
            reads = writes = self._new_queues()
        else:
            return parts
        own = Broker(own_name, _MASTER, self._own_endpoints(endpoints))
        return [_Part(own, reads, writes, types), *parts]

    def _is_made_by_a_send(self, topic: str) -> bool:
        context = self._context
        return bool(context.config["autoCreateTopicEnable"]) and not context.topics.is_full

    def _new_queues(self) -> int:
        template = self._context.topics.get(AUTO_CREATE_TOPIC)
        return 1 if template is None else max(1, min(_NEW_QUEUES, template.write_queue_nums))

    def _own_endpoints(self, used: Endpoints | None) -> Endpoints:
        if used is not None and len(used.addresses) == 1 and used.addresses[0].host:
            return used
        host, _, port = self._context.address.rpartition(":")
        return _endpoints(host.strip("[]"), int(port))

    async def _others(self, topic: str, own: str) -> list[tuple[str, tuple[str, int], int, int]]:
        """Return name, address, readable and writable queues of the masters except ``own``, by a name server."""
        context = self._context
        for server in context.config.name_servers:
            try:
                answer = await context.client.call(
                    server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout_ms=_ROUTE_MS
                )
                if answer.code != 0:
                    return []
                return _of_others(decode_body(bytes(answer.body), _Route, "route"), own)
            except (RemotingError, FieldError, OSError):
                continue
        return []


def _of_others(route: _Route, own: str) -> list[tuple[str, tuple[str, int], int, int]]:
    addresses = {data.broker_name: data.broker_addrs.get(str(_MASTER), "") for data in route.broker_datas}
    others = []
    for data in sorted(route.queue_datas, key=lambda queues: queues.broker_name):
        host, _, port = addresses.get(data.broker_name, "").rpartition(":")
        if data.broker_name == own or not host or not port.isdigit():
            continue
        reads = min(_QUEUES_MAX, data.read_queue_nums) if data.perm & READ else 0
        writes = min(_QUEUES_MAX, data.write_queue_nums) if data.perm & WRITE else 0
        others.append((data.broker_name, (host.strip("[]"), int(port)), reads, writes))
    return others


def _endpoints(host: str, port: int) -> Endpoints:
    try:
        scheme = _IPV4 if ipaddress.ip_address(host).version == 4 else _IPV6
    except ValueError:
        scheme = _NAME
    return Endpoints(scheme, [Address(host, port)])


def _queues(topic: Resource, part: _Part) -> list[MessageQueue]:
    """Return the queues of a broker: for readers, for writers, for both, in this order. Source: RouteActivity."""
    both = min(part.reads, part.writes)
    permissions = [_READ_ONLY] * (part.reads - both) + [_WRITE_ONLY] * (part.writes - both) + [_BOTH] * both
    return [
        MessageQueue(topic, number, permission, part.broker, part.types)
        for number, permission in enumerate(permissions or [_NONE])
    ]


build_tables(__name__)
