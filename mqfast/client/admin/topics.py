"""Topics and clusters: lists, settings, routes and changes.

By default no change makes stored messages unreadable: fewer queues than hold messages are refused. Source:
DefaultMQAdminExtImpl, UpdateTopicSubCommand, DeleteTopicSubCommand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqfast.client.admin.admin_base import AdminBase, BrokerInfo
from mqfast.client.admin.bodies import GroupListBody, TopicStatsBody, by_queue
from mqfast.client.admin.call import call
from mqfast.client.admin.checks import checked_flag, checked_number, checked_perm, checked_topic, known_name
from mqfast.client.admin.plan import QueueStats
from mqfast.client.net.request_steps import RequestSteps, Sleep, read_answer
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientConfigError, ClientError, NoRoute
from mqfast.message import SYSTEM_TOPICS
from mqfast.remoting.bodies import TopicListBody, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["TopicCalls", "groups_of", "is_system_topic"]

_KINDS: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE", "UNSPECIFIED")
_QUEUES_MAX: Final = 1024
_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_TYPE: Final = "message.type"
_PAUSE_S: Final = 0.1


class TopicCalls(AdminBase):
    """The calls about topics and clusters."""

    @call
    def clusters(self) -> RequestSteps[Mapping[str, Mapping[str, Mapping[int, str]]]]:
        """Return all clusters: cluster -> broker name -> broker id -> address. Id 0 is the master."""
        clusters = yield from self._clusters()
        return {name: {broker.name: dict(broker.addresses) for broker in clusters.of(name)} for name in clusters.names}

    @call
    def topics(self, *, cluster: str | None = None, system: bool = False) -> RequestSteps[Sequence[str]]:
        """Return all topics, including those of retries (``%RETRY%``) and dead letters (``%DLQ%``).

        Args: cluster: only those of one cluster; system: RocketMQ's own topics as well.
        """
        clusters = yield from self._clusters()
        if cluster is None:
            names = yield from self._all_topics()
        else:
            known_name("cluster", cluster, clusters.names)
            code = RequestCode.GET_TOPICS_BY_CLUSTER
            body = yield from self._query_name_server(code, TopicListBody, {"cluster": cluster}, about="list of topics")
            names = sorted(set(body.topic_list))
        if system:
            return names
        own = {*clusters.names, *clusters.brokers, *(f"{name}_REPLY_TOPIC" for name in clusters.names)}
        return [name for name in names if name not in own and not is_system_topic(name)]

    @call
    def topic_config(self, topic: str) -> RequestSteps[Mapping[str, Mapping[str, Any]]]:
        """Return the settings of a topic on each broker, by RocketMQ's names (``perm``, ``readQueueNums``, ...).

        Raises: NoRoute when no broker has the topic.
        """
        checked_topic(topic)
        topics: dict[str, Mapping[str, Any]] = {}
        for broker in (yield from self._brokers_of(topic)):
            topics[broker.name] = (yield from _config_at(self, broker.any, topic)) or {}
        known = yield from _route_configs(self, topic)
        return {name: settings or known.get(name, {}) for name, settings in topics.items()}

    @call
    def topic_stats(self, topic: str) -> RequestSteps[Mapping[MessageQueue, QueueStats]]:
        """Return, for each queue of a topic: min offset, max offset (behind the last message), last update (ms, 0:
        never).
        """
        checked_topic(topic)
        stats: dict[MessageQueue, QueueStats] = {}
        for broker in (yield from self._brokers_of(topic)):
            stats |= yield from stats_at(self, broker.any, topic)
        return {queue: stats[queue] for queue in sorted(stats)}

    @call
    def topic_groups(self, topic: str) -> RequestSteps[Sequence[str]]:
        """Return the consumer groups that subscribe to a topic or have offsets in the topic."""
        checked_topic(topic)
        return (yield from groups_of(self, topic))

    @call
    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: str = "rw",
        kind: str = "NORMAL",
        cluster: str | None = None,
        order: bool = False,
        write_queues: int | None = None,
        allow_shrink: bool = False,
        broker: str | None = None,
    ) -> RequestSteps[None]:
        """Create a topic on every master of a cluster, or change an existing topic.

        The call returns once the name servers list the topic.

        Args:
            queues: 1 to 1024 on each broker.
            perm: ``"rw"``, ``"r"`` or ``"w"``.
            kind: type of the messages (attribute ``message.type``); unknown to brokers of 4.x.
            cluster: optional where there is a single cluster.
            order: producers see the order of queues that the name servers keep (``ORDER_TOPIC_CONFIG``).
            write_queues: fewer than ``queues`` while a topic shrinks: the others get no new messages.
            allow_shrink: set fewer queues although the removed ones hold messages, which no consumer can read then.
            broker: only at this master, by name or ``host:port``.
        Raises: ConfigError before anything is changed; ClientError when the name servers do not list the topic in time.
        """
        checked_topic(topic)
        checked_number("queues", queues, 1, _QUEUES_MAX)
        writes = queues if write_queues is None else checked_number("write_queues", write_queues, 0, queues)
        bits = checked_perm(perm)
        known_name("kind", kind, _KINDS)
        checked_flag("order", order), checked_flag("allow_shrink", allow_shrink)
        clusters = yield from self._clusters()
        if topic in clusters.brokers or topic in clusters.names or is_system_topic(topic):
            raise ClientConfigError(f"topic: expected a name that is free, found one of RocketMQ's own: {topic}")
        brokers = clusters.of_the_one(cluster) if broker is None else [clusters.master_of(broker)]
        known = yield from _route_configs(self, topic)
        changes = []
        for info in brokers:
            old = (yield from _config_at(self, info.master, topic)) or known.get(info.name)
            if old is not None and not allow_shrink:
                yield from _check_shrink(self, info, topic, queues, old)
            changes.append((info.master, _attributes(kind, old)))
        for address, attributes in changes:
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": writes,
                "perm": bits, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": order,
                "attributes": attributes,
            }  # fmt: skip
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            yield from self._call(address, code, fields, about=f"topic {topic}")
        if order:
            value = ";".join(f"{info.name}:{writes}" for info in brokers)
            pair = {"namespace": _ORDER_NAMESPACE, "key": topic, "value": value}
            yield from self._each_name_server(RequestCode.PUT_KV_CONFIG, pair, about=f"topic {topic}")
        yield from _wait_for_route(self, topic, {info.name for info in brokers}, queues)

    @call
    def delete_topic(self, topic: str, *, cluster: str | None = None) -> RequestSteps[None]:
        """Delete a topic with its messages: on masters and slaves, then on the name servers.

        Args: cluster: only there; left out: wherever the topic is.
        Raises: NoRoute when no broker has the topic; ConfigError for RocketMQ's own topics.
        """
        checked_topic(topic)
        clusters = yield from self._clusters()
        if topic in clusters.brokers or topic in clusters.names or is_system_topic(topic):
            raise ClientConfigError(f"topic: expected one of the users, found one of RocketMQ's own: {topic}")
        yield from delete_topic(self, topic, cluster)


def groups_of(admin: AdminBase, topic: str) -> RequestSteps[list[str]]:
    """Return the consumer groups that subscribe to a topic or have offsets in the topic."""
    names: set[str] = set()
    for broker in (yield from admin._brokers_of(topic)):
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        body = yield from admin._query(broker.any, code, GroupListBody, {"topic": topic}, about=f"topic {topic}")
        names.update(body.group_list)
    return sorted(names)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic belongs to every broker. Source: TopicValidator.isSystemTopic."""
    return any(
        topic.startswith(system_topic[:-1]) if system_topic.endswith("*") else topic == system_topic
        for system_topic in SYSTEM_TOPICS
    )


def stats_at(admin: AdminBase, address: str, topic: str) -> RequestSteps[dict[MessageQueue, QueueStats]]:
    """Return the queues of a topic on one broker."""
    code = RequestCode.GET_TOPIC_STATS_INFO
    answer = yield from admin._call(address, code, {"topic": topic}, about=f"topic {topic}")

    def read(data: bytes) -> dict[MessageQueue, QueueStats]:
        table = by_queue("body.offsetTable", decode_body(data, TopicStatsBody, "body").offset_table)
        return {
            queue: QueueStats(
                max(0, queue_stats.min_offset),
                max(0, queue_stats.max_offset),
                max(0, queue_stats.last_update_timestamp),
            )
            for queue, queue_stats in table.items()
        }

    return read_answer(answer, address, read)


def delete_topic(admin: AdminBase, topic: str, cluster: str | None) -> RequestSteps[None]:
    """Delete a topic from its brokers and the name servers."""
    clusters = yield from admin._clusters()
    of_topic = {broker.cluster for broker in (yield from admin._brokers_of(topic))}
    if cluster is not None:
        known_name("cluster", cluster, clusters.names)
        if cluster not in of_topic:
            raise NoRoute(f"topic {topic}: expected it in cluster {cluster}, found it in {', '.join(sorted(of_topic))}")
    about = f"deletion of topic {topic}"
    for name in [cluster] if cluster else sorted(of_topic):
        for broker in clusters.of(name):
            for _, address in sorted(broker.addresses.items()):
                yield from admin._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, about=about)
    rest = of_topic - {cluster} if cluster else set()
    fields = {"topic": topic, "clusterName": cluster if rest else None}
    yield from admin._each_name_server(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields, about=about)
    if not rest:
        pair = {"namespace": _ORDER_NAMESPACE, "key": topic}
        yield from admin._each_name_server(RequestCode.DELETE_KV_CONFIG, pair, about=about)
    admin._instance.routes.forget(topic)


def _config_at(admin: AdminBase, address: str, topic: str) -> RequestSteps[dict[str, Any] | None]:
    """Return a topic's settings on one broker; None: no such topic, or a broker of 4.x, which has no such request."""
    also = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    answer = yield from admin._call(
        address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True}, also=also, about=f"topic {topic}"
    )
    if answer.code != ResponseCode.SUCCESS:
        return None
    settings = read_answer(answer, address, lambda data: decode_body(data, dict[str, Any], "body"))
    return {name: value for name, value in sorted(settings.items()) if value is not None}


def _route_configs(admin: AdminBase, topic: str) -> RequestSteps[dict[str, dict[str, Any]]]:
    """Return a topic's settings from its route, by broker; empty for an unknown topic."""
    try:
        route = yield from admin._instance.route(topic, timeout_s=admin._timeout_s, refresh=True)
    except NoRoute:
        return {}
    return {
        data.broker_name: {
            "perm": data.perm,
            "readQueueNums": data.read_queue_nums,
            "topicName": topic,
            "topicSysFlag": data.topic_sys_flag,
            "writeQueueNums": data.write_queue_nums,
        }
        for data in sorted(route.queue_datas, key=lambda queue_data: queue_data.broker_name)
    }


def _attributes(kind: str, old: Mapping[str, Any] | None) -> str | None:
    attributes = (old or {}).get("attributes") or {}
    before = attributes.get(_TYPE, "NORMAL") if isinstance(attributes, dict) else "NORMAL"
    return None if before == kind else f"+{_TYPE}={kind}"


def _check_shrink(
    admin: AdminBase, broker: BrokerInfo, topic: str, queues: int, old: Mapping[str, Any]
) -> RequestSteps[None]:
    before = old.get("readQueueNums", 0)
    if not isinstance(before, int) or before <= queues:
        return
    stats = yield from stats_at(admin, broker.master, topic)
    held = {
        queue.queue_id: queue_stats
        for queue, queue_stats in stats.items()
        if queue_stats.max_offset > queue_stats.min_offset
    }
    lost = [queue_id for queue_id in sorted(held) if queue_id >= queues]
    if lost:
        count = sum(held[queue_id].max_offset - held[queue_id].min_offset for queue_id in lost)
        raise ClientConfigError(
            f"queues: topic {topic} has {before} queues on broker {broker.name}; expected at least {lost[-1] + 1}, "
            f"found {queues}: {count} messages of queues {lost[0]} to {lost[-1]} would be read by nobody; "
            "allow_shrink=True does it"
        )


def _wait_for_route(admin: AdminBase, topic: str, brokers: set[str], queues: int) -> RequestSteps[None]:
    """Wait until a name server lists the topic on all brokers: a Java broker may register it with its next
    registration.
    """
    pauses = max(1, round(admin._timeout_s / _PAUSE_S))
    missing = brokers
    for _ in range(pauses):
        try:
            route = yield from admin._instance.route(topic, timeout_s=admin._timeout_s, refresh=True)
            missing = brokers - {
                queue_data.broker_name for queue_data in route.queue_datas if queue_data.read_queue_nums == queues
            }
        except NoRoute:
            missing = brokers
        if not missing:
            return
        yield Sleep(_PAUSE_S)
    raise ClientError(
        f"topic {topic}: brokers {', '.join(sorted(missing))} have it, and the name servers do not name it after "
        f"{admin._timeout_s:g} s; a broker tells them at its next registration (each 30 s) at the latest"
    )
