"""The registrations of brokers: topics, addresses, clusters, and the expiry time of each broker.

No I/O and no clock except ``now_ms``; a channel is only an identity here. Source: RouteInfoManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from msgspec import UNSET, Raw

from mqfast.errors import CallRefused
from mqfast.remoting.bodies import (
    READ,
    WRITE,
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfigBody,
    TopicRouteData,
    TopicTableBody,
    encode_body,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.util.fastjson import bare_keys
from mqfast.util.log_limit import LogLimit

__all__ = ["MASTER_ID", "RegisteredBroker", "BrokerGroup", "MinBrokerChanged", "Registered", "RouteTables"]

log = logging.getLogger("mqfast.namesrv")

MASTER_ID: Final = 0
EXPIRY_MS: Final = 120_000
_UNIT, _UNIT_SUB = 1, 2
_SYNC_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


class RegisteredBroker(NamedTuple):
    """A broker in a registration or unregistration."""

    cluster: str
    name: str
    broker_id: int
    address: str


class BrokerGroup:
    """The brokers of a name: a master and its slaves."""

    __slots__ = ("addresses", "cluster", "enable_acting_master", "name", "zone_name")

    def __init__(self, cluster: str, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.addresses: dict[int, str] = {}
        self.enable_acting_master = False
        self.zone_name: str | None = None


class _Alive:
    __slots__ = ("channel", "data_version", "ha_address", "timeout_ms", "updated_ms")

    def __init__(
        self, updated_ms: int, timeout_ms: int, data_version: DataVersion, channel: Hashable, ha_address: str
    ) -> None:
        self.updated_ms = updated_ms
        self.timeout_ms = timeout_ms
        self.data_version = data_version
        self.channel = channel
        self.ha_address = ha_address


class Registered(NamedTuple):
    """The response to a registration: the addresses of the master, for a slave with a master."""

    ha_address: str | None = None
    master_address: str | None = None


class MinBrokerChanged(NamedTuple):
    """A change of the smallest broker id of a group; ``channels`` must be notified."""

    name: str
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None
    ha_address: str | None
    channels: tuple[Hashable, ...]


class RouteTables:
    """The tables of a name server.

    Args:
        now_ms: the time in ms, for the expiry of brokers.
        delete_topics: a registration also removes the topics that it does not contain (RocketMQ:
        deleteTopicWithBrokerRegistration).
        acting_master: a group without a master shows its smallest id as master (RocketMQ: supportActingMaster).
    Attributes: the two switches may be changed at any time. ``brokers_max``, ``topics_max``: limits of brokers, and of
        topics of all broker names together; registrations beyond are refused.
    Thread: no concurrent calls.
    """

    def __init__(self, now_ms: Callable[[], int], *, delete_topics: bool = False, acting_master: bool = False) -> None:
        self._now_ms = now_ms
        self.delete_topics = delete_topics
        self.acting_master = acting_master
        self.brokers_max = 2000
        self.topics_max = 500_000
        self._count = 0  # of pairs of topic and broker name
        self._limit = LogLimit(log, burst=20)
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, BrokerGroup] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._alive: dict[tuple[str, str], _Alive] = {}
        self._filters: dict[tuple[str, str], list[str]] = {}
        self._mappings: dict[str, dict[str, Raw]] = {}
        self.changes: list[MinBrokerChanged] = []

    # -- registration of brokers ---------------------------------------------------------------------------------------

    def register(
        self,
        broker: RegisteredBroker,
        table: TopicTableBody,
        *,
        ha_address: str,
        channel: Hashable,
        timeout_ms: int | None = None,
        acting_master: bool | None = None,
        zone_name: str | None = None,
        filter_servers: list[str] | None = None,
    ) -> Registered | None:
        """Register a broker. Returns: None for a refused registration; the first registration must have all topics.

        Args: acting_master: None for a broker without this setting (before 5.0).
        """
        key = (broker.cluster, broker.address)
        group = self._groups.get(broker.name)
        if len(table.topic_config_table) == 1 and (group is None or broker.broker_id not in group.addresses):
            self._limit.warning("one", "broker %s: refused, its first registration has one topic only", broker)
            return None
        self._check_room(key, broker, table)
        self._clusters.setdefault(broker.cluster, {})[broker.name] = None
        first = group is None
        if group is None:
            group = self._groups[broker.name] = BrokerGroup(broker.cluster, broker.name)
            self._warn_of_shared_address(broker)
        group.enable_acting_master = bool(acting_master)
        group.zone_name = zone_name
        addresses = group.addresses
        min_changed = bool(addresses) and broker.broker_id < min(addresses)
        for other in [i for i, address in addresses.items() if address == broker.address and i != broker.broker_id]:
            del addresses[other]  # the broker has changed its role
        version = table.data_version or DataVersion()
        before = addresses.get(broker.broker_id)
        if before is not None and before != broker.address:
            alive = self._alive.get((broker.cluster, before))
            if alive is not None and alive.data_version.state_version > version.state_version:
                self._limit.warning("older", "broker %s: ignored, %s has its id and a newer state", broker, before)
                self._alive.pop(key, None)
                return Registered()
        addresses[broker.broker_id] = broker.address
        first = first or not before
        is_master = broker.broker_id == MASTER_ID
        is_prime = acting_master is not None and not is_master and broker.broker_id == min(addresses)
        if is_master or is_prime:
            self._store_topics(key, group, table, version, first, read_only=is_prime and group.enable_acting_master)
        if key not in self._alive:
            self._limit.info("in", "broker %s: registered, HA %s", broker, ha_address)
        self._alive[key] = _Alive(self._now_ms(), timeout_ms or EXPIRY_MS, version, channel, ha_address)
        if filter_servers is not None:
            if filter_servers:
                self._filters[key] = filter_servers
            else:
                self._filters.pop(key, None)
        result = Registered()
        if not is_master and (master := addresses.get(MASTER_ID)) is not None:
            alive = self._alive.get((broker.cluster, master))
            if alive is not None:
                result = Registered(alive.ha_address, master)
        if min_changed:
            alive = self._alive.get((broker.cluster, addresses[min(addresses)]))
            self._min_changed(group, None, alive.ha_address if alive else None)
        return result

    def _check_room(self, key: tuple[str, str], broker: RegisteredBroker, table: TopicTableBody) -> None:
        """Refuse a registration beyond the limits; a previous registration of the broker stays. Raises: CallRefused."""
        if key not in self._alive and max(len(self._alive), len(self._groups)) >= self.brokers_max:
            raise self._full(f"brokers (brokersMax={self.brokers_max})", broker)
        names = table.topic_config_table
        if self._count + len(names) > self.topics_max:
            new = sum(broker.name not in self._topics.get(name, ()) for name in names)
            if self._count + new > self.topics_max:
                raise self._full(f"topics on brokers (topicsMax={self.topics_max})", broker)

    def _full(self, what: str, subject: object) -> CallRefused:
        self._limit.warning("full", "broker %s: refused, there is no room for more %s", subject, what)
        return CallRefused(ResponseCode.SYSTEM_ERROR, f"the name server has no room for more {what}")

    def _warn_of_shared_address(self, broker: RegisteredBroker) -> None:
        for other in self._groups.values():
            if other.name != broker.name and broker.address in other.addresses.values():
                self._limit.warning(
                    "shared",
                    "brokers %s and %s announce one address, %s: clients reach only one of them (see brokerIP1)",
                    other.name, broker.name, broker.address,
                )  # fmt: skip

    def _store_topics(
        self,
        key: tuple[str, str],
        group: BrokerGroup,
        table: TopicTableBody,
        version: DataVersion,
        first: bool,
        *,
        read_only: bool,
    ) -> None:
        topics = table.topic_config_table
        if self.delete_topics and not table.topic_queue_mapping_info_map:
            for topic in [name for name, queues in self._topics.items() if group.name in queues]:
                if topic not in topics:
                    self._remove_queues(topic, group.name)
        changed = first or self.is_changed(*key, version)
        for name, config in topics.items():
            topic = config.topic_name or name
            if changed or group.name not in self._topics.get(topic, {}):
                self._set_queues(topic, _queues(group.name, config, read_only))
        if changed:
            for topic, mapping in table.topic_queue_mapping_info_map.items():
                # A copy, which does not keep the whole registration alive.
                self._mappings.setdefault(topic, {})[group.name] = Raw(bytes(mapping))

    def unregister(self, brokers: Iterable[RegisteredBroker]) -> None:
        """Unregister brokers, all of them in one pass over the topics."""
        removed: set[str] = set()
        reduced: set[str] = set()
        for broker in brokers:
            key = (broker.cluster, broker.address)
            if self._alive.pop(key, None) is not None:
                self._limit.info("out", "broker %s: unregistered", broker)
            self._filters.pop(key, None)
            group = self._groups.get(broker.name)
            if group is None:
                continue
            min_changed = bool(group.addresses) and broker.broker_id == min(group.addresses)
            for broker_id in [i for i, address in group.addresses.items() if address == broker.address]:
                del group.addresses[broker_id]
            if group.addresses:
                reduced.add(broker.name)
                if min_changed:
                    self._min_changed(group, broker.address, None)
                continue
            del self._groups[broker.name]
            removed.add(broker.name)
            names = self._clusters.get(broker.cluster, {})
            names.pop(broker.name, None)
            if not names:
                self._clusters.pop(broker.cluster, None)
        self._clean_topics(removed, reduced - removed)

    def _clean_topics(self, removed: set[str], reduced: set[str]) -> None:
        without_master = [
            name
            for name in reduced
            if (group := self._groups[name]).enable_acting_master and MASTER_ID not in group.addresses
        ]
        if not removed and not without_master:
            return
        for topic, queues in list(self._topics.items()):
            for name in removed:
                if name in queues:
                    self._remove_queues(topic, name)
            for name in without_master:
                if name in queues:
                    queues[name].perm &= ~WRITE

    def _set_queues(self, topic: str, queues: QueueData) -> None:
        on_brokers = self._topics.setdefault(topic, {})
        self._count += queues.broker_name not in on_brokers
        on_brokers[queues.broker_name] = queues

    def _remove_queues(self, topic: str, name: str) -> None:
        queues = self._topics[topic]
        self._count -= queues.pop(name, None) is not None
        if not queues:
            del self._topics[topic]

    def channel_closed(self, channel: Hashable) -> None:
        """Remove the brokers whose last registration came by a closed connection."""
        self._drop([key for key, alive in self._alive.items() if alive.channel is channel])

    def expire(self) -> list[Hashable]:
        """Remove brokers that were silent for too long. Returns: their channels, to be closed."""
        now = self._now_ms()
        late = [key for key, alive in self._alive.items() if alive.updated_ms + alive.timeout_ms < now]
        channels = [self._alive[key].channel for key in late]
        for key in late:
            self._limit.warning("expired", "broker %s of cluster %s: expired, silent for too long", key[1], key[0])
        self._drop(late)
        return channels

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        if not keys:
            return
        gone = []
        for cluster, address in keys:
            brokers = [
                RegisteredBroker(cluster, group.name, broker_id, address)
                for group in self._groups.values()
                if group.cluster == cluster
                for broker_id, other in group.addresses.items()
                if other == address
            ]
            if not brokers:
                self._alive.pop((cluster, address), None)
            gone += brokers
        self.unregister(gone)

    def touch(self, cluster: str, address: str) -> None:
        """Extend the expiry time of a broker (904, and 322 without a change)."""
        alive = self._alive.get((cluster, address))
        if alive is not None:
            alive.updated_ms = self._now_ms()

    def is_changed(self, cluster: str, address: str, version: DataVersion) -> bool:
        """Return True if the stored topics of this broker have another version."""
        return self.data_version(cluster, address) != version

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the stored topics of a broker."""
        alive = self._alive.get((cluster, address))
        return None if alive is None else alive.data_version

    def _min_changed(self, group: BrokerGroup, offline: str | None, ha_address: str | None) -> None:
        smallest = min(group.addresses)
        channels = [
            self._alive[key].channel
            for broker_id, address in group.addresses.items()
            if (offline is not None or len(group.addresses) == 1 or broker_id != smallest)
            and (key := (group.cluster, address)) in self._alive
        ]
        self.changes.append(
            MinBrokerChanged(group.name, smallest, group.addresses[smallest], offline, ha_address, tuple(channels))
        )

    # -- topics --------------------------------------------------------------------------------------------------------

    def add_topic(self, topic: str, queues: list[QueueData]) -> bool:
        """Add queues to a topic (217). Returns: False for an unknown broker; the queues after it are ignored."""
        taken: dict[str, QueueData] = {}
        known = True
        for queue_data in queues:
            if queue_data.broker_name not in self._groups:
                self._limit.warning("unknown", "topic %s: broker %s is not known", topic, queue_data.broker_name)
                known = False
                break
            taken[queue_data.broker_name] = queue_data
        if topic in self._topics or (known and taken):
            if self._count + len(taken) > self.topics_max:
                raise self._full(f"topics on brokers (topicsMax={self.topics_max})", topic)
            for queue_data in taken.values():
                self._set_queues(topic, queue_data)
        return known

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Delete a topic, everywhere or in one cluster (216)."""
        for name in list(self._topics.get(topic, ())):
            if cluster is None or name in self._clusters.get(cluster, ()):
                self._remove_queues(topic, name)

    def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Set or remove the write permission of a broker (205, 327). Returns: the number of topics on that broker."""
        count = 0
        for queues in self._topics.values():
            queue_data = queues.get(broker_name)
            if queue_data is not None:
                queue_data.perm = READ | WRITE if allowed else queue_data.perm & ~WRITE
                count += 1
        return count

    def topics(self) -> list[str]:
        """Return all topics (206)."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics with queues on a broker of this cluster (224)."""
        names = self._clusters.get(cluster, {})
        return [topic for topic, queues in self._topics.items() if not names.keys().isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, and the address of a broker for further requests (304)."""
        names: dict[str, None] = {}
        for cluster, brokers in self._clusters.items():
            names[cluster] = None
            names.update(brokers)
        address = next((g.addresses[min(g.addresses)] for g in self._groups.values() if g.addresses), None)
        return list(names), address

    def unit_topics(self) -> list[str]:
        """Return the topics of a unit (311)."""
        return [topic for topic in self._topics if self._flag(topic) & _UNIT]

    def unit_sub_topics(self, *, without_unit: bool = False) -> list[str]:
        """Return the topics with subscriptions of a unit (312), or those that are not topics of a unit (313)."""
        return [
            topic
            for topic in self._topics
            if self._flag(topic) & _UNIT_SUB and not (without_unit and self._flag(topic) & _UNIT)
        ]

    def _flag(self, topic: str) -> int:
        return next(iter(self._topics[topic].values())).topic_sys_flag

    # -- requests of clients -------------------------------------------------------------------------------------------

    def route(
        self, topic: str, *, bare: bool = False, order: str | None = None, zone: str | None = None
    ) -> TopicRouteData | None:
        """Return the route of a topic; None for an unknown topic.

        Args:
            bare: the ids of brokers as keys without quotes.
            order: the entry of the topic in ORDER_TOPICS.
            zone: only brokers of this zone, and groups without a master.
        """
        known = self._topics.get(topic)
        if known is None:
            return None
        queues = list(known.values())
        groups = [self._groups[name] for name in known if name in self._groups]
        if not groups:
            return None
        addresses = {group.name: self._shown_addresses(topic, group, known[group.name]) for group in groups}
        if zone is not None:
            kept = [g for g in groups if (g.zone_name or "").lower() == zone.lower() or MASTER_ID not in g.addresses]
            removed = {group.name for group in groups} - {group.name for group in kept}
            groups = kept
            queues = [queue_data for queue_data in queues if queue_data.broker_name not in removed]
        filters = {
            address: self._filters[group.cluster, address]
            for group in groups
            for address in addresses[group.name].values()
            if (group.cluster, address) in self._filters
        }
        mapping = self._mappings.get(topic)
        return TopicRouteData(
            broker_datas=[broker_data(group, addresses[group.name], bare) for group in groups],
            filter_server_table=filters,
            order_topic_conf=UNSET if order is None else order,
            queue_datas=queues,
            topic_queue_mapping_by_broker=mapping or UNSET,
        )

    def _shown_addresses(self, topic: str, group: BrokerGroup, queues: QueueData) -> dict[int, str]:
        addresses = group.addresses
        if (
            self.acting_master
            and group.enable_acting_master
            and addresses
            and MASTER_ID not in addresses
            and not queues.perm & WRITE
            and not topic.startswith(_SYNC_MEMBER_PREFIX)
        ):
            smallest = min(addresses)
            return {MASTER_ID if i == smallest else i: address for i, address in addresses.items()}
        return addresses

    def clusters(self) -> dict[str, list[str]]:
        """Return the names of the brokers by cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def groups(self) -> dict[str, BrokerGroup]:
        """Return the brokers by name."""
        return self._groups

    def member_group(self, cluster: str, name: str) -> dict[int, str]:
        """Return id -> address of the brokers of a name (901), with acting masters as in routes."""
        group = self._groups.get(name)
        return {} if group is None or group.cluster != cluster else group.addresses


def broker_data(group: BrokerGroup, addresses: dict[int, str], bare: bool) -> BrokerData:
    """Return the brokers of a name for a response."""
    shown = bare_keys(addresses) if bare else encode_body({str(i): addresses[i] for i in sorted(addresses)})
    return BrokerData(
        broker_addrs=Raw(shown),
        broker_name=group.name,
        cluster=group.cluster,
        enable_acting_master=group.enable_acting_master,
        zone_name=UNSET if group.zone_name is None else group.zone_name,
    )


def _queues(name: str, config: TopicConfigBody, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        perm=config.perm & ~WRITE if read_only else config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
