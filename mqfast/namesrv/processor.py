"""The requests of brokers, clients and admins to the name server, each with RocketMQ's codes and texts.

Handlers do not block: all data is in memory, except for the small file of admins' values. Source:
DefaultRequestProcessor, ClientRequestProcessor, ZoneRouteRPCHook.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

from mqfast.errors import CallRefused, FieldError
from mqfast.namesrv.kv_config import ORDER_TOPICS, KvConfig
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.tables import RegisteredBroker, RouteTables, broker_data
from mqfast.remoting.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBody,
    TopicTableBody,
    build_tables,
    decode_request,
    encode_body,
    header_of,
)
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Handler, Processors
from mqfast.remoting.registrations import RegistrationLimits, Steps, at_once, registration_steps
from mqfast.remoting.settings_change import SettingsChange
from mqfast.util.fastjson import bare_keys

__all__ = ["NamesrvProcessor"]

log = logging.getLogger("mqfast.namesrv")

_SHORT_BYTES: Final = 256 * 1024  # larger registrations are parsed in steps
_NAME_MAX: Final = 255
_Now = Callable[[Channel, RemotingCommand], RemotingCommand]
STANDARD_JSON_SINCE: Final = 401  # V4_9_4
_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class _RegisterHeader(Struct, rename="camel"):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


class _BrokerHeader(Struct, rename="camel"):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int = 0

    def broker(self) -> RegisteredBroker:
        return RegisteredBroker(self.cluster_name, self.broker_name, self.broker_id, self.broker_addr)


class _TopicHeader(Struct, rename="camel"):
    topic: str
    cluster_name: str | None = None


class _RouteBody(Struct, rename="camel"):
    queue_datas: list[QueueData] | None = None


class _TopicList(Struct, rename="camel"):
    broker_addr: str | UnsetType
    topic_list: list[str]


class _Table(Struct):
    table: dict[str, str]


class _ClusterInfo(Struct, rename="camel"):
    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class _MemberGroup(Struct, rename="camel"):
    broker_addrs: Raw
    broker_name: str
    cluster: str


class _MemberGroupBody(Struct, rename="camel"):
    broker_member_group: _MemberGroup


class NamesrvProcessor:
    """Serves the request codes of the name server.

    Args: now_ms: the time in ms; the time of construction counts as the start for ``needWaitForService``.
    Thread: that of the event loop.
    """

    def __init__(self, tables: RouteTables, values: KvConfig, config: NamesrvConfig, now_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._values = values
        self._config = config
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._registering: dict[Channel, asyncio.Task[RemotingCommand]] = {}
        self._change = SettingsChange(
            config,
            RequestCode.UPDATE_NAMESRV_CONFIG,
            black=("configBlackList", "configStorePath", "kvConfigPath"),
            file=lambda: config["configStorePath"],
            log=log,
        )
        self.apply_config()

    def apply_config(self) -> None:
        """Apply the settings to the tables."""
        self._tables.delete_topics = self._config["deleteTopicWithBrokerRegistration"]
        self._tables.acting_master = self._config["supportActingMaster"]
        self._tables.topics_max, self._tables.brokers_max = self._config["topicsMax"], self._config["brokersMax"]
        self._limits = RegistrationLimits(self._config["registrationTopicsMax"], self._config["registrationBytesMax"])

    def register(self, processors: Processors) -> None:
        """Register the handlers of all codes; routes have a concurrency limit of their own."""
        clients, others = ConcurrencyLimit("client", queue_max=50_000), ConcurrencyLimit("default", queue_max=10_000)
        processors.register([RequestCode.GET_ROUTEINFO_BY_TOPIC], self.route, clients)
        for code, handler in {
            RequestCode.PUT_KV_CONFIG: self.put_value,
            RequestCode.GET_KV_CONFIG: self.get_value,
            RequestCode.DELETE_KV_CONFIG: self.delete_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.values,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self._in_order(self.unregister_broker),
            RequestCode.QUERY_DATA_VERSION: self._in_order(self.data_version),
            RequestCode.BROKER_HEARTBEAT: self._in_order(self.heartbeat),
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._in_order(self.register_topic),
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }.items():
            processors.register([code], handler, others)

    # -- clients -------------------------------------------------------------------------------------------------------

    def route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 105: the route of a topic."""
        config, fields = self._config, request.ext_fields
        waited_ms = self._now_ms() - self._started_ms
        if config["needWaitForService"] and waited_ms < config["waitSecondsForService"] * 1000:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="name server not ready")
        topic = _field(request, "topic")
        standard = request.version >= STANDARD_JSON_SINCE or _is_true(fields.get("acceptStandardJsonOnly"))
        zone = fields.get("__ZONE_NAME") if _is_true(fields.get("__ZONE_MODE")) else None
        order = self._values.get(ORDER_TOPICS, topic) if config["orderMessageEnable"] else None
        route = self._tables.route(topic, bare=not standard, order=order, zone=zone or None)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{_FAQ}"
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        return request.response(body=encode_body(route))

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register_broker(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve 103: register a broker with address and topics."""
        header = header_of(request, _RegisterHeader)
        body: bytes = request.body
        for name in (header.cluster_name, header.broker_name, header.broker_addr, header.ha_server_addr):
            if len(name) > _NAME_MAX:
                raise FieldError("a name or address", f"at most {_NAME_MAX} characters", repr(name[:40]))
        if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        steps = registration_steps(body, compressed=header.compressed, version=request.version, limits=self._limits)
        before = self._registering.get(channel)
        if before is None and len(body) <= _SHORT_BYTES and not header.compressed:
            return self._registered(channel, request, header, at_once(steps))
        work = _after(before, self._register_in_steps(channel, request, header, steps))
        self._registering[channel] = task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._ended(channel, task))
        return task

    async def _register_in_steps(
        self, channel: Channel, request: RemotingCommand, header: _RegisterHeader, steps: Steps
    ) -> RemotingCommand:
        """Parse a large registration in steps; other requests are served between the steps."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                if channel.is_closed:  # no later event would remove this broker
                    return request.response(ResponseCode.SYSTEM_ERROR, remark="the connection has ended")
                return self._registered(channel, request, header, end.value)
            await asyncio.sleep(0)

    def _ended(self, channel: Channel, task: asyncio.Task[RemotingCommand]) -> None:
        if self._registering.get(channel) is task:
            del self._registering[channel]

    def _in_order(self, handler: _Now) -> Handler:
        """Return a handler that waits for the pending registration of its connection."""

        async def later(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return handler(channel, request)

        def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
            before = self._registering.get(channel)
            return handler(channel, request) if before is None else _after(before, later(channel, request))

        return serve

    def _registered(
        self, channel: Channel, request: RemotingCommand, header: _RegisterHeader, given: RegisterBody
    ) -> RemotingCommand:
        result = self._tables.register(
            RegisteredBroker(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr),
            given.topic_config_serialize_wrapper or TopicTableBody(),
            ha_address=header.ha_server_addr,
            channel=channel,
            timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            zone_name=request.ext_fields.get("__ZONE_NAME"),
            filter_servers=given.filter_server_list,
        )
        self._notify_changes()
        if result is None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="register broker failed")
        ordered = self._values.all_of(ORDER_TOPICS) if self._config["returnOrderTopicConfigToBroker"] else None
        return request.response(
            0,
            {"haServerAddr": result.ha_address, "masterAddr": result.master_address},
            encode_body(_Table(ordered)) if ordered is not None else b"",
        )

    def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 104: unregister a broker."""
        self._tables.unregister([header_of(request, _BrokerHeader).broker()])
        self._notify_changes()
        return request.response()

    def data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 322: compare the version of a broker's topics."""
        header = header_of(request, _BrokerHeader)
        key = (header.cluster_name, header.broker_addr)
        changed = self._tables.is_changed(*key, decode_request(request.body, DataVersion, "body"))
        if not changed:
            self._tables.touch(*key)
        known = self._tables.data_version(*key)
        return request.response(0, {"changed": changed}, b"" if known is None else encode_body(known))

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 904: a heartbeat of a broker."""
        header = header_of(request, _BrokerHeader)
        self._tables.touch(header.cluster_name, header.broker_addr)
        return request.response()

    def member_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 901: the brokers of a name."""
        cluster, name = _field(request, "clusterName"), _field(request, "brokerName")
        addresses = self._tables.member_group(cluster, name)
        return request.response(
            body=encode_body(_MemberGroupBody(_MemberGroup(Raw(bare_keys(addresses)), name, cluster)))
        )

    def channel_closed(self, channel: Channel) -> None:
        """Remove the brokers of a closed connection."""
        self._tables.channel_closed(channel)
        self._notify_changes()

    def scan(self) -> None:
        """Remove expired brokers and close their connections."""
        for channel in self._tables.expire():
            if isinstance(channel, Channel):
                channel.close()
        self._notify_changes()

    def _notify_changes(self) -> None:
        changes, self._tables.changes = self._tables.changes, []
        if not self._config["notifyMinBrokerIdChanged"]:
            return
        for change in changes:
            for channel in change.channels:
                if isinstance(channel, Channel):
                    channel.oneway(
                        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
                        {
                            "minBrokerId": change.min_broker_id,
                            "brokerName": change.name,
                            "minBrokerAddr": change.min_broker_address,
                            "offlineBrokerAddr": change.offline_address,
                            "haBrokerAddr": change.ha_address,
                        },
                    )

    # -- admins: topics ------------------------------------------------------------------------------------------------

    def cluster_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 106: all clusters and brokers."""
        groups = self._tables.groups()
        shown = {name: broker_data(group, group.addresses, bare=True) for name, group in groups.items()}
        return request.response(body=encode_body(_ClusterInfo(shown, self._tables.clusters())))

    def wipe_write_permission(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 205: remove the write permission of a broker's topics."""
        count = self._tables.set_write_permission(_field(request, "brokerName"), False)
        return request.response(0, {"wipeTopicCount": count})

    def add_write_permission(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 327: restore the write permission of a broker's topics."""
        count = self._tables.set_write_permission(_field(request, "brokerName"), True)
        return request.response(0, {"addTopicCount": count})

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 206: all topics."""
        return self._listed(request, self._tables.topics(), switch="enableAllTopicList")

    def topics_of_cluster(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 224: the topics of a cluster."""
        return self._listed(request, self._tables.topics_of_cluster(_field(request, "cluster")))

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 304: the names of clusters and brokers."""
        names, address = self._tables.system_topics()
        return request.response(body=encode_body(_TopicList(UNSET if address is None else address, names)))

    def unit_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 311, 312, 313: topics of units."""
        if request.code == RequestCode.GET_UNIT_TOPIC_LIST:
            return self._listed(request, self._tables.unit_topics())
        without = request.code == RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
        return self._listed(request, self._tables.unit_sub_topics(without_unit=without))

    def _listed(self, request: RemotingCommand, names: list[str], switch: str = "enableTopicList") -> RemotingCommand:
        if not self._config[switch]:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="disable")
        return request.response(body=encode_body(_TopicList(UNSET, names)))

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 216: delete a topic."""
        header = header_of(request, _TopicHeader)
        self._tables.delete_topic(header.topic, header.cluster_name or None)
        return request.response()

    def register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 217: add a topic to brokers that do not register the topic themselves."""
        given = decode_request(request.body, _RouteBody, "body").queue_datas
        if given:
            self._tables.add_topic(_field(request, "topic"), given)
        return request.response()

    # -- admins: values and settings -----------------------------------------------------------------------------------

    def put_value(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 100: set a value."""
        fields = request.ext_fields
        namespace, key = fields.get("namespace"), fields.get("key")
        if namespace is None or key is None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="namespace or key is null")
        self._values.put(namespace, key, fields.get("value", ""))
        return request.response()

    def get_value(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 101: return a value."""
        namespace, key = _field(request, "namespace"), _field(request, "key")
        value = self._values.get(namespace, key)
        if value is None:
            raise CallRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return request.response(0, {"value": value})

    def delete_value(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 102: delete a value."""
        self._values.delete(_field(request, "namespace"), _field(request, "key"))
        return request.response()

    def values(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 219: all values of a namespace."""
        namespace = _field(request, "namespace")
        values = self._values.all_of(namespace)
        if values is None:
            raise CallRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.response(body=encode_body(_Table(values)))

    async def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 318: change settings and store them in ``configStorePath``."""
        changed = await self._change.apply(channel, request)
        self.apply_config()
        return request.response(remark=changed.remark)

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 319: return all settings."""
        return request.response(body=self._config.text().encode("utf-8"))


async def _after(before: asyncio.Task[RemotingCommand] | None, work: Awaitable[RemotingCommand]) -> RemotingCommand:
    """Run ``work`` after the pending registration of the same connection."""
    if before is not None:
        await asyncio.wait([before])
    return await work


def _field(request: RemotingCommand, name: str) -> str:
    value = request.ext_fields.get(name)
    if value is None:
        raise FieldError(name, "a value", "none")
    return str(value)


def _is_true(text: object) -> bool:
    return isinstance(text, str) and text.lower() == "true"


build_tables(__name__)
