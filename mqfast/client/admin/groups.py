"""Consumer groups: settings, connections and running info of members; and producers.

A change keeps the settings that the call does not name. By default no offsets and no dead letters are deleted. Source:
DefaultMQAdminExtImpl, UpdateSubGroupSubCommand, DeleteSubscriptionGroupCommand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from mqfast.client.admin.admin_base import AdminBase, BrokerInfo
from mqfast.client.admin.bodies import (
    ConnectionsBody,
    DirectResultBody,
    GroupsBody,
    ProducersBody,
    RunningInfoBody,
    by_queue,
    subscriptions_of,
)
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_flag, checked_group, checked_number, checked_text, known_name
from mqfast.client.admin.topics import delete_topic
from mqfast.client.delivery import Delivery
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.errors import BrokerError, ClientConfigError, ClientError, ClientUsageError
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["GroupCalls", "is_system_group", "known_group", "members_at"]

_RETRIES_MAX: Final = 1 << 20
_CLIENT_S: Final = 15.0  # a broker itself waits 10 s for a client
_SYSTEM: Final = frozenset(
    {
        "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
    }
)  # fmt: skip
_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_RESULTS: Final = (
    "CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL",
)  # fmt: skip


class GroupCalls(AdminBase):
    """The calls about consumer groups and producers."""

    @call
    def groups(self, *, cluster: str | None = None, system: bool = False) -> RequestSteps[Sequence[str]]:
        """Return all consumer groups that brokers know. Args: system: RocketMQ's own groups as well."""
        names = yield from _group_names(self, (yield from self._clusters()).of(cluster))
        return sorted(name for name in names if system or not is_system_group(name))

    @call
    def group_config(self, group: str) -> RequestSteps[Mapping[str, Mapping[str, Any]]]:
        """Return the settings of a group on each broker, by RocketMQ's names (``retryMaxTimes``, ...).

        Raises: ConfigError with the nearest name when no broker knows the group.
        """
        checked_group(group)
        groups: dict[str, Mapping[str, Any]] = {}
        for broker in (yield from self._clusters()).of(None):
            settings = yield from _config_at(self, broker.any, group)
            if settings is not None:
                groups[broker.name] = settings
        if not groups:
            yield from known_group(self, group)
        return groups

    @call
    def create_group(
        self,
        group: str,
        *,
        orderly: bool = False,
        retry_max: int = 16,
        cluster: str | None = None,
        settings: Mapping[str, Any] | None = None,
        broker: str | None = None,
    ) -> RequestSteps[None]:
        """Create a consumer group on every master of a cluster, or change an existing group.

        Args:
            orderly: messages are consumed in order (``consumeMessageOrderly``; unknown to brokers of 4.x).
            retry_max: redeliveries of a message before it becomes a dead letter; -1: no limit.
            cluster: optional where there is a single cluster.
            settings: further settings, by RocketMQ's names; other settings stay.
            broker: only at this master, by name or ``host:port``.
        """
        checked_group(group)
        checked_number("retry_max", retry_max, -1, _RETRIES_MAX)
        if settings is not None and not isinstance(settings, Mapping):
            raise ClientConfigError(f"settings: expected a mapping of names to values, found {settings!r}")
        given = dict(settings or {})
        unknown = sorted(given.keys() - _FRESH.keys() - {"attributes", "groupRetryPolicy", "subscriptionDataSet"})
        for name in unknown:
            known_name("settings", name, [*_FRESH, "attributes", "groupRetryPolicy", "subscriptionDataSet"])
        changed = {
            **given,
            "consumeMessageOrderly": checked_flag("orderly", orderly),
            "retryMaxTimes": retry_max,
            "groupName": group,
        }
        clusters = yield from self._clusters()
        brokers = clusters.of_the_one(cluster) if broker is None else [clusters.master_of(broker)]
        bodies = []
        for info in brokers:
            old = yield from _config_at(self, info.master, group)
            whole = {**_FRESH, **(old or {})}
            whole.pop("attributes", None)  # attributes to change are written in another form than their current values
            bodies.append((info.master, msgspec.json.encode({**whole, **changed})))
        for address, body in bodies:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            yield from self._call(address, code, None, body, about=f"group {group}")

    @call
    def delete_group(
        self, group: str, *, cluster: str | None = None, offsets: bool = False, topics: bool = False
    ) -> RequestSteps[None]:
        """Delete a group from every master that knows it. A consumer that connects may create the group again.

        Args:
            cluster: only there.
            offsets: delete the committed offsets as well; otherwise a new group of this name continues from them.
            topics: delete the retry topic and the dead letters as well, with their messages.
        Raises: ConfigError when no broker knows the group; ClientError when a broker has created the group again at
            once, as 5.5.0 does without ``offsets``.
        """
        checked_group(group)
        checked_flag("offsets", offsets), checked_flag("topics", topics)
        if is_system_group(group):
            raise ClientConfigError(f"group: expected one of the users, found one of RocketMQ's own: {group}")
        brokers = (yield from self._clusters()).of(cluster)
        yield from known_group(self, group, brokers)
        fields = {"groupName": group, "cleanOffset": offsets, "removeOffset": offsets}
        for broker in brokers:
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            yield from self._call(broker.master, code, fields, about=f"deletion of group {group}")
        for broker in brokers:
            if (yield from _config_at(self, broker.master, group)) is not None:
                raise ClientError(
                    f"group {group}: deleted from broker {broker.name}, which has made it again "
                    "(autoCreateSubscriptionGroup): a member is connected, or the broker is of a release that does so "
                    "unless offsets=True"
                )
        if topics:
            known = yield from self._all_topics()
            for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
                if topic in known:
                    yield from delete_topic(self, topic, cluster)

    @call
    def connections(self, group: str) -> RequestSteps[Sequence[Mapping[str, Any]]]:
        """Return the connected members of a consumer group; empty when there are none.

        Each has ``client_id``, ``address``, ``language``, ``version`` (a number), ``brokers`` (to which the member is
        connected), and the settings of its group: ``consume_type``, ``model``, ``from_where``, ``subscriptions`` (topic
        -> expression).
        Raises: ConfigError with the nearest name when no broker knows the group.
        """
        checked_group(group)
        rows: dict[str, dict[str, Any]] = {}
        brokers = (yield from self._clusters()).of(None)
        for broker in brokers:
            members = yield from members_at(self, broker.any, group)
            for connection in members.connection_set:
                row = rows.setdefault(connection.client_id, {
                    "client_id": connection.client_id, "address": connection.client_addr,
                    "language": str(connection.language),
                    "version": connection.version, "brokers": [], "consume_type": members.consume_type,
                    "model": members.message_model, "from_where": members.consume_from_where,
                    "subscriptions": subscriptions_of(members.subscription_table),
                })  # fmt: skip
                row["brokers"].append(broker.name)
        if not rows:
            yield from known_group(self, group, brokers)
        return [rows[client_id] for client_id in sorted(rows)]

    @call
    def producers(self, group: str | None = None) -> RequestSteps[Sequence[Mapping[str, Any]]]:
        """Return the connected producers, each with ``group``, ``client_id``, ``address``, ``language``, ``version``
        and ``brokers``.

        Args: group: only of this group; brokers of 4.x list one group only.
        """
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for broker in (yield from self._clusters()).of(None):
            for row in (yield from _producers_at(self, broker, group)):
                known = rows.setdefault((row["group"], row["client_id"]), {**row, "brokers": []})
                known["brokers"].append(broker.name)
        return [rows[key] for key in sorted(rows)]

    @call
    def running_info(self, group: str, client_id: str, *, stack: bool = False) -> RequestSteps[Mapping[str, Any]]:
        """Return the running info of a member: ``properties``, ``subscriptions``, ``queues``, ``status``, ``stack``.

        Args: client_id: as ``connections`` returns it; stack: include the stacks of all threads.
        Raises: ConfigError when no such member is connected; BrokerError when the member does not answer.
        """
        address = yield from _address_of_member(self, group, client_id)
        fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": checked_flag("stack", stack)}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        answer = yield from self._call(address, code, fields, about=f"member {client_id}", timeout_s=self._client_s)

        def read(data: bytes) -> dict[str, Any]:
            info = decode_body(data, RunningInfoBody, "body")
            return {
                "properties": info.properties,
                "subscriptions": subscriptions_of(info.subscription_set),
                "queues": by_queue("body.mqTable", info.mq_table),
                "pop_queues": by_queue("body.mqPopTable", info.mq_pop_table),
                "status": info.status_table,
                "user": info.user_consumer_info,
                "stack": info.jstack,
            }

        return read_answer(answer, address, read)

    @call
    def consume_directly(self, message: Delivery, group: str, client_id: str) -> RequestSteps[Mapping[str, Any]]:
        """Make a member consume a stored message now, independent of the group's offsets. Nothing is committed.

        Returns: ``result`` (``CR_SUCCESS``, ``CR_LATER``, ...), ``remark``, ``spent_ms``, ``order``, ``auto_commit``.
        """
        if not isinstance(message, Delivery):
            raise ClientUsageError(f"message: expected a Delivery, found {type(message).__name__}")
        yield from _address_of_member(self, group, client_id)
        broker = (yield from self._clusters()).brokers.get(message.queue.broker_name)
        if broker is None:
            raise ClientConfigError(f"message: expected one of a broker of this cluster, found {message!r}")
        fields = {
            "consumerGroup": group, "clientId": client_id, "msgId": message.offset_msg_id, "topic": message.topic,
            "brokerName": broker.name,
        }  # fmt: skip
        code, about = RequestCode.CONSUME_MESSAGE_DIRECTLY, f"member {client_id}"
        answer = yield from self._call(broker.any, code, fields, about=about, timeout_s=self._client_s)

        def read(data: bytes) -> dict[str, Any]:
            body = decode_body(data, DirectResultBody, "body")
            result = body.consume_result
            if isinstance(result, int) and 0 <= result < len(_RESULTS):
                result = _RESULTS[result]
            return {
                "result": str(result),
                "remark": body.remark,
                "spent_ms": body.spent_time_mills,
                "order": body.order,
                "auto_commit": body.auto_commit,
            }

        return read_answer(answer, broker.any, read)

    @property
    def _client_s(self) -> float:
        return max(self._timeout_s, _CLIENT_S)


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to RocketMQ itself."""
    return group in _SYSTEM or group.startswith(_SYSTEM_PREFIX)


def _group_names(admin: AdminBase, brokers: Collection[BrokerInfo]) -> RequestSteps[set[str]]:
    names: set[str] = set()
    for broker in brokers:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = yield from admin._query(broker.any, code, GroupsBody, about="list of groups")
        names.update(body.subscription_group_table)
    return names


def known_group(admin: AdminBase, group: str, brokers: Collection[BrokerInfo] | None = None) -> RequestSteps[None]:
    """Check that a broker knows the group. Raises: ConfigError with the nearest name."""
    if brokers is None:
        brokers = (yield from admin._clusters()).of(None)
    names = yield from _group_names(admin, brokers)
    known_name("group", group, {name for name in names if name == group or not is_system_group(name)})


def _config_at(admin: AdminBase, address: str, group: str) -> RequestSteps[dict[str, Any] | None]:
    """Return a group's settings on one broker; None: the broker has no such group.

    The request is for all groups: the request for one group (352) creates an unknown group.
    """
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    body = yield from admin._query(address, code, GroupsBody, about=f"group {group}")
    return body.subscription_group_table.get(group)


def members_at(admin: AdminBase, address: str, group: str) -> RequestSteps[ConnectionsBody]:
    """Return the members of a consumer group that are connected to one broker; an empty body where there are none."""
    also = (ResponseCode.CONSUMER_NOT_ONLINE,)
    fields = {"consumerGroup": group}
    answer = yield from admin._call(
        address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields, also=also, about=f"group {group}"
    )
    if answer.code != ResponseCode.SUCCESS:
        return ConnectionsBody()
    return read_answer(answer, address, lambda data: decode_body(data, ConnectionsBody, "body"))


def _address_of_member(admin: AdminBase, group: str, client_id: str) -> RequestSteps[str]:
    """Return the address of the broker of a member. Raises: ConfigError with the nearest client id."""
    checked_group(group)
    checked_text("client_id", client_id)
    known: set[str] = set()
    for broker in (yield from admin._clusters()).of(None):
        members = yield from members_at(admin, broker.any, group)
        ids = {connection.client_id for connection in members.connection_set}
        if client_id in ids:
            return broker.any
        known |= ids
    if not known:
        raise ClientConfigError(
            f"client_id: expected a member of group {group}, but none is connected; found {client_id!r}"
        )
    known_name("client_id", client_id, known)
    raise AssertionError("a known member has an address")


def _producers_at(admin: AdminBase, broker: BrokerInfo, group: str | None) -> RequestSteps[list[dict[str, Any]]]:
    if group is not None:
        checked_group(group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        fields, also = {"producerGroup": group}, (ResponseCode.SYSTEM_ERROR,)  # 1: there are none
        answer = yield from admin._call(broker.any, code, fields, also=also, about=f"producers {group}")
        if answer.code != ResponseCode.SUCCESS:
            return []
        connections = read_answer(answer, broker.any, lambda data: decode_body(data, ConnectionsBody, "body"))
        return [_producer(group, row.client_id, row.client_addr, row) for row in connections.connection_set]
    try:
        body = yield from admin._query(broker.any, RequestCode.GET_ALL_PRODUCER_INFO, ProducersBody, about="producers")
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ClientConfigError(
                f"group: expected one, because broker {broker.name} cannot tell of all: {error}"
            ) from None
        raise
    return [_producer(name, row.client_id, row.remote_ip, row) for name, rows in body.data.items() for row in rows]


def _producer(group: str, client_id: str, address: str, connection: Any) -> dict[str, Any]:
    address = address.removeprefix("/")
    return {
        "group": group, "client_id": client_id, "address": address, "language": str(connection.language),
        "version": connection.version,
    }  # fmt: skip


# Defaults of a new group, by RocketMQ's names. Source: SubscriptionGroupConfig.
_FRESH: Final[Mapping[str, Any]] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupName": "",
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
