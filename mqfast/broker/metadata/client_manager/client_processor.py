"""The requests of clients for heartbeats, members of groups and locks of queues (34, 35, 38, 41, 42), and the requests
of admins for connections (203, 204).

Does not use the store: ``is_group_allowed`` decides whether a group may exist. Source: ClientManageProcessor,
ConsumerManageProcessor, AdminBrokerProcessor, ClientHousekeepingService.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from mqfast.broker.acl.required_permissions import ANY, of_topic
from mqfast.broker.acl.rights import Rights
from mqfast.broker.metadata.client_manager.client_limits import ClientLimits
from mqfast.broker.metadata.client_manager.consumer_manager import ClientChannelInfo, ConsumerManager, Notice
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.client_manager.queue_locks import LockedQueue, QueueLocks
from mqfast.errors import FieldError
from mqfast.remoting.bodies import build_tables, decode_request, encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import LanguageCode, RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.heartbeat import ConsumerData, Heartbeat, SubscriptionData, decode_heartbeat
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["ClientProcessor"]

# The second version of heartbeats: a fingerprint in place of subscriptions.
_SUPPORTS_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"
_SUBSCRIPTIONS_CHANGED: Final = "IS_SUB_CHANGE"
_SQL92: Final = "SQL92"
_LIMITS: Final = ClientLimits()


class _Queue(Struct, rename="camel", frozen=True):
    broker_name: str
    queue_id: int
    topic: str


class _LockBody(Struct, rename="camel"):
    client_id: str
    consumer_group: str
    mq_set: list[_Queue]


class _Locked(Struct):
    queues: list[_Queue]

    def body(self) -> bytes:
        return encode_body({"lockOKMQSet": self.queues})


class _Connection(Struct, rename="camel"):
    client_addr: str
    client_id: str
    language: str
    version: int


class _Producers(Struct, rename="camel"):
    connection_set: list[_Connection]


class _Consumers(Struct, rename="camel"):
    connection_set: list[_Connection]
    consume_from_where: str | int | None
    consume_type: str
    message_model: str
    subscription_table: dict[str, SubscriptionData]


Compiled = Callable[
    [Channel, Sequence[SubscriptionData], Callable[[], RemotingCommand]], RemotingCommand | Awaitable[RemotingCommand]
]


def _at_once(
    channel: Channel, subscriptions: Sequence[SubscriptionData], serve: Callable[[], RemotingCommand]
) -> RemotingCommand:
    return serve()


class ClientProcessor:
    """Serves the requests about connected clients.

    Args: is_group_allowed: whether a group of a heartbeat may exist; may create what the group needs. is_told: whether
        the members of a group are notified of a change (notifyConsumerIdsChangedEnable). has_queue: whether the broker
        has this queue and knows the group; other queues are not locked. compiled: serves a heartbeat after its SQL92
        expressions are compiled. limits: of the data of clients. gives_locks: False for a slave: two brokers would lock
        a queue for two members. rights: of callers.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        consumers: ConsumerManager,
        producers: ProducerManager,
        locks: QueueLocks,
        *,
        is_group_allowed: Callable[[ConsumerData], bool] = lambda _: True,
        is_told: Callable[[str], bool] = lambda _: True,
        has_queue: Callable[[str, LockedQueue], bool] = lambda _group, _queue: True,
        compiled: Compiled = _at_once,
        limits: ClientLimits = _LIMITS,
        gives_locks: bool = True,
        rights: Rights | None = None,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._is_group_allowed = is_group_allowed
        self._notifies_members = is_told
        self._has_queue = has_queue
        self._compiled = compiled
        self._limits: Final = limits
        self._gives_locks: Final = gives_locks
        self._rights: Final = rights or Rights()
        self._fingerprints: dict[str, int] = {}

    def register(self, processors: Processors) -> None:
        """Register the handlers."""
        # A heartbeat that waits does not delay others.
        heartbeats = ConcurrencyLimit("heartbeat", concurrency=50_000, queue_max=50_000)
        clients, others = ConcurrencyLimit("client"), ConcurrencyLimit("admin")
        processors.register([RequestCode.HEART_BEAT], self.heartbeat, heartbeats)
        processors.register([RequestCode.UNREGISTER_CLIENT], self.unregister, clients)
        processors.register([RequestCode.GET_CONSUMER_LIST_BY_GROUP], self.consumer_ids, clients)
        for code, handler in {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
        }.items():
            processors.register([code], handler, others)

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve 34: a heartbeat of a client with its groups. Raises: FieldError, CallRefused."""
        given = decode_heartbeat(request.body)
        self._limits.check_names(given)
        subscriptions = [
            subscription
            for group in given.consumer_data_set or ()
            for subscription in group.subscription_data_set or ()
        ]
        if any(subscription.expression_type == _SQL92 for subscription in subscriptions):
            return self._compiled(channel, subscriptions, partial(self._heartbeat, channel, request, given))
        return self._heartbeat(channel, request, given)

    def _heartbeat(self, channel: Channel, request: RemotingCommand, given: Heartbeat) -> RemotingCommand:
        if channel.is_closed:  # closed during the compilation of expressions: no later event would remove the client
            return request.response(ResponseCode.SYSTEM_ERROR, remark="the connection has ended")
        client = {"language": request.language, "version": request.version}
        fingerprint = given.heartbeat_fingerprint
        changed = False
        allowed = [consumer for consumer in given.consumer_data_set or () if self._is_group_allowed(consumer)]
        for consumer in allowed:
            # Source: ClientManageProcessor.heartBeatV2: a client of 5.x omits its subscriptions while the broker has
            # the same fingerprint.
            changed = changed or self._fingerprints.get(consumer.group_name, fingerprint) != fingerprint
            self._fingerprints[consumer.group_name] = fingerprint
            left_out = fingerprint != 0 and given.without_sub
            # After a restart of the broker, or the end of the group's last connection, the broker has no subscriptions:
            # the client must send them again. RocketMQ refuses the pulls of such a group until a subscription changes.
            known = self._consumers.group(consumer.group_name)
            changed = changed or (left_out and (known is None or not known.subscriptions))
            self._notify(
                [self._consumers.register(channel, given.client_id, consumer, without_subscriptions=left_out, **client)]
            )
        caller = self._rights.caller(channel, request)
        for producer in given.producer_data_set or ():
            self._producers.register(channel, given.client_id, producer.group_name, caller, **client)
        is_changed = changed if fingerprint else True
        return request.response(0, {_SUPPORTS_V2: "true", _SUBSCRIPTIONS_CHANGED: str(is_changed).lower()})

    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 35: a client leaves a group."""
        fields = request.ext_fields
        if group := fields.get("producerGroup"):
            self._producers.unregister(channel, group)
        if group := fields.get("consumerGroup"):
            self._notify([self._consumers.unregister(channel, group)])
        return request.response()

    def consumer_ids(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 38: the ids of the members of a group."""
        name = _field(request, "consumerGroup")
        group = self._consumers.group(name)
        if group is None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return request.response(body=encode_body({"consumerIdList": group.client_ids()}))

    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 41: lock queues for an orderly consumer."""
        if not self._gives_locks:  # for a client with a route from before a fail-over
            return request.response(ResponseCode.SYSTEM_ERROR, remark="queues are locked at the master, not at a slave")
        given = decode_request(request.body, _LockBody, "body")
        group = given.consumer_group
        existing = [queue for queue in map(_queue, given.mq_set) if self._has_queue(group, queue)]
        granted = self._locks.lock(group, given.client_id, existing)
        return request.response(body=_Locked([_Queue(q.broker_name, q.queue_id, q.topic) for q in granted]).body())

    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 42: unlock queues."""
        given = decode_request(request.body, _LockBody, "body")
        self._locks.unlock(given.consumer_group, given.client_id, map(_queue, given.mq_set))
        return request.response()

    def consumer_connections(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 203: the members of a consumer group."""
        name = _field(request, "consumerGroup")
        group = self._consumers.group(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return request.response(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
        caller = self._rights.caller(channel, request)
        visible = {
            topic: subscription
            for topic, subscription in group.subscriptions.items()
            if self._rights.may(caller, of_topic(topic, *ANY))
        }
        return request.response(
            body=encode_body(
                _Consumers(
                    _connections(group.members.values()),
                    group.consume_from_where,
                    group.consume_type,
                    group.message_model,
                    visible,
                )
            )
        )

    def producer_connections(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 204: the members of a producer group."""
        name = _field(request, "producerGroup")
        members = self._producers.members(name)
        if not members:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        return request.response(body=encode_body(_Producers(_connections(members))))

    def channel_closed(self, channel: Channel) -> None:
        """Remove the client of a closed connection."""
        self._producers.channel_closed(channel)
        self._notify(self._consumers.channel_closed(channel))

    def scan(self) -> None:
        """Remove expired members, close their connections, notify the other members; remove expired locks."""
        late, notices = self._consumers.expire()
        for channel in {*late, *self._producers.expire()}:
            if isinstance(channel, Channel):
                channel.close()
        self._notify(notices)
        self._locks.expire()

    def _notify(self, notices: Iterable[Notice | None]) -> None:
        for notice in notices:
            if notice is None or not self._notifies_members(notice.group):
                continue
            for channel in notice.channels:
                if isinstance(channel, Channel):
                    channel.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": notice.group})


def _queue(queue: _Queue) -> LockedQueue:
    return LockedQueue(queue.topic, queue.broker_name, queue.queue_id)


def _connections(members: Iterable[ClientChannelInfo]) -> list[_Connection]:
    connections = []
    for member in members:
        host, port = member.channel.peer if isinstance(member.channel, Channel) else ("", 0)
        connections.append(
            _Connection(f"{host}:{port}", member.client_id, LanguageCode(member.language).name, member.version)
        )
    return connections


def _field(request: RemotingCommand, name: str) -> str:
    value = request.ext_fields.get(name)
    if not value:
        raise FieldError(name, "a value", "none")
    return str(value)


build_tables(__name__)
