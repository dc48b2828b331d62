"""The name servers and brokers of a cluster for planners and tasks: connections, cached metadata, and retries.

Imports neither Spark nor Arrow. There is one ``RemoteCluster`` for each process and set of options: a worker that reads
several partitions keeps its connections. Requests to unavailable servers are repeated for ``brokerTimeout``. An
unavailable broker is an error, never a broker without messages.
"""

from __future__ import annotations

import dataclasses
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.client.admin.bodies import TopicsBody, TopicStatsBody, by_queue
from mqfast.client.cluster import Cached, ClusterMetadata, addresses_of, is_unavailable, retry
from mqfast.client.consumer.pull_request import RawAnswer, raw_pull
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.net.connection_pool import BlockingConnectionPool
from mqfast.client.net.request_steps import Blocking, Request, RequestSteps, Sleep, checked
from mqfast.client.route.namespace import header_fields, namespace_of_address, unwrap, wrap
from mqfast.client.route.route_table import MASTER_ID, TopicRoute
from mqfast.client.settings import instance_settings
from mqfast.client.values import Credentials, MessageQueue
from mqfast.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    NoRoute,
    Refused,
)
from mqfast.remoting.bodies import READ, QueueData, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import sign
from mqfast.spark.selection import is_left_out

if TYPE_CHECKING:
    from mqfast.spark.options import Options

__all__ = ["BrokerAway", "RemoteCluster", "NotReadable", "brokers_of", "tls_context", "wanted_topics"]

T = TypeVar("T")
REQUEST_S: Final = 5.0
# maximum age of metadata of the name servers
ROUTE_S: Final = 5.0
_LONG_AGO: Final = float("-inf")
_NOTHING: Final[tuple[float, list[str], Mapping[str, int]]] = (_LONG_AGO, [], {})
_PAUSES_S: Final = (0.05, 1.0)
"""First and longest pause between two attempts."""

_log = logging.getLogger("mqfast.spark")


class BrokerAway(ConnectError):
    """A broker with requested messages is not available now."""


class NotReadable(BrokerAway):
    """No consumer may read a queue now: the topic has no permission to read, or fewer queues for reading."""


class RemoteCluster:
    """A cluster. Thread: any. Fork: a child begins without sockets.

    Raises: ConfigError; ConnectError, CallTimeout, ConnectionLost without a response, BrokerError for refusals.
    """

    def __init__(self, options: Options) -> None:
        assert options.namesrv is not None
        who = None
        if options.access_key is not None and options.secret_key is not None:
            who = Credentials(options.access_key, options.secret_key, options.security_token)
        settings = instance_settings(
            options.namesrv, credentials=who, namespace=options.namespace, namespace_v2=options.namespace_v2
        )
        self.namespace: Final = settings.namespace or namespace_of_address(settings.name_servers[0])
        self._metadata: Final = ClusterMetadata(settings.name_servers, _log)
        self._timeout_s: Final = options.broker_timeout / 1000
        self._waits: Final = options.broker_away == "wait"
        self._group: Final = self.wire(options.pull_group)
        key, tenant = settings.credentials, header_fields(settings.namespace_v2)

        def signed(code: int, fields: dict[str, Any], body: Any) -> dict[str, Any]:
            fields = {**fields, **tenant}
            return (
                fields if key is None else sign(fields, body, key.access_key, key.secret_key, key.security_token or "")
            )

        self.connection_pool: Final = BlockingConnectionPool(
            tls_context(options), signed if tenant or key is not None else None
        )
        self._brokers: Cached[Mapping[str, Mapping[int, str]]] = Cached({})
        self._routes: dict[str, Cached[TopicRoute | None]] = {}
        self._topics: Cached[list[str]] = Cached([])
        # Topics, and the number of queues for consumers of each name on the wire.
        self._of_broker: dict[str, tuple[float, list[str], Mapping[str, int]]] = {}

    @classmethod
    def shared(cls, options: Options) -> RemoteCluster:
        """Return the cluster of this process for these options."""
        key = repr(dataclasses.replace(options, brokers=None).place)
        cluster = _shared.get(key)
        if cluster is None:
            cluster = _shared[key] = cls(options)
        return cluster

    def wire(self, name: str) -> str:
        """Return the name of a topic or group on the wire."""
        return wrap(self.namespace, name)

    def plain(self, name: str) -> str:
        """Return the name of a topic or group for users."""
        return unwrap(self.namespace, name)

    # --- asking ---

    def run(self, steps: RequestSteps[T]) -> T:
        """Run steps of a client on this thread."""
        return self.connection_pool.run(steps)

    def request(
        self, address: str, code: RequestCode, fields: Mapping[str, Any], about: str, *also: int
    ) -> RemotingCommand:
        """Send a request to a broker. Raises: NoRoute for an unknown topic, BrokerError or a subclass."""

        def steps() -> RequestSteps[RemotingCommand]:
            answer = yield Request(address, code, {name: str(value) for name, value in fields.items()}, b"", REQUEST_S)
            return checked(answer, address, about, *also)

        return self.run(steps())

    def with_retry(self, what: str, once: Callable[[], T], stopped: threading.Event | None = None) -> T:
        """Call ``once`` until the servers answer, for ``brokerTimeout``, or without end with ``brokerAway=wait``.

        Raises: BrokerAway at the end of that time, and when ``stopped`` is set meanwhile.
        """
        deadline_s = time.monotonic() + self._timeout_s
        is_logged = False

        def attempt() -> RequestSteps[T]:
            result: T = yield Blocking(once)
            return result

        def recover(error: Exception, pause_s: float) -> RequestSteps[None]:
            nonlocal is_logged
            if not is_unavailable(error):
                raise error
            if not self._waits and time.monotonic() + pause_s > deadline_s:
                raise BrokerAway(
                    f"{what}: no answer in {self._timeout_s:g} s (option brokerTimeout): {error}"
                ) from error
            if not is_logged:
                _log.warning("%s: %s; it is asked again", what, error)
                is_logged = True
            self.forget()
            if stopped is None:
                yield Sleep(pause_s)
            elif (yield Blocking(partial(stopped.wait, pause_s))):
                raise BrokerAway(f"{what}: nobody waits for it any more") from None

        return self.run(retry(attempt, recover, _PAUSES_S))

    def forget(self) -> None:
        """Expire all metadata of the name servers: the next use fetches it again."""
        self._brokers.expire()
        self._topics.expire()
        for route in list(self._routes.values()):
            route.expire()
        self._of_broker = {}

    # --- name servers ---

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Return all brokers that are registered now: name -> broker id -> address; 0 is the master."""

        def fetch() -> RequestSteps[Mapping[str, Mapping[int, str]]]:
            return addresses_of((yield from self._metadata.cluster_info(about=_BROKERS)))

        return self.run(self._metadata.cached(self._brokers, ROUTE_S, fetch))

    def brokers_of_all(self) -> Mapping[str, Mapping[int, str]]:
        """Return the same from all name servers that answer: after a start a name server may not know every broker."""
        return self.run(self._metadata.brokers_of_all(about=_BROKERS))

    def address(self, broker: str, broker_id: int = MASTER_ID) -> tuple[int, str]:
        """Return (id, address) of the broker to read from: the requested broker, else the master, else a slave.

        Raises: BrokerAway.
        """
        addresses = self.brokers().get(broker) or self.brokers_of_all().get(broker)
        if not addresses:
            known = ", ".join(sorted(self.brokers())) or "none"
            raise BrokerAway(f"broker {broker}: the name servers know {known}")
        for candidate in (broker_id, MASTER_ID, *sorted(addresses)):
            if candidate in addresses:
                return candidate, addresses[candidate]
        raise AssertionError("a broker has an address")

    def topics(self) -> list[str]:
        """Return all topics of the namespace, without the namespace."""

        def fetch() -> RequestSteps[list[str]]:
            return self._mine((yield from self._metadata.topic_list()))

        return self.run(self._metadata.cached(self._topics, ROUTE_S, fetch))

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, named without its namespace; None: no broker has the topic."""

        def fetch() -> RequestSteps[TopicRoute | None]:
            try:
                return (yield from self._metadata.fetch_route(topic, wire=self.wire(topic)))
            except NoRoute:
                return None

        entry = self._routes.setdefault(topic, Cached(None))
        return self.run(self._metadata.cached(entry, ROUTE_S, fetch))

    def queues_of_all(self, topic: str) -> list[QueueData]:
        """Return the queue counts of a topic by broker, of all name servers that answer; see ``brokers_of_all``."""
        routes = self.run(self._metadata.routes_of_all(topic, self.wire(topic)))
        return [data for route in routes for data in route.queue_datas]

    def readable_queues(self, broker: str, topic: str) -> int | None:
        """Return the number of a topic's queues that consumers may read on a broker; None: unknown.

        The source is the route, else the broker's list of topics: a name server drops the topics of a broker that
        restarts.
        """
        taken, _, of_broker = self._of_broker.get(broker, _NOTHING)
        known = of_broker.get(self.wire(topic)) if time.monotonic() - taken <= ROUTE_S else None
        try:
            route = self.route(topic)
        except ConnectError:
            if known is None:
                raise
            return known
        counts = _readable(route.queue_datas if route is not None else (), broker)
        return known if counts is None else counts

    def _known_queues(self, broker: str, topic: str) -> int | None:
        """Return the same from all name servers, where a single one may be wrong; None: no such topic. Raises:
        BrokerAway.
        """
        count = self.readable_queues(broker, topic)
        if count is None:
            self._check_known(broker)
            count = _readable(self.queues_of_all(topic), broker)
        return count

    def _check_known(self, broker: str) -> None:
        """Check that name servers know a broker now: after its start a name server knows neither brokers nor their
        topics.

        Raises: BrokerAway.
        """
        self._brokers.expire()
        if not self.brokers().get(broker) and broker not in self.brokers_of_all():
            raise BrokerAway(f"broker {broker}: the name servers do not name it now")

    def topics_of(self, broker: str) -> list[str]:
        """Return all topics of a broker, for users; of the cluster where the broker refuses its list."""
        taken, topics, _ = self._of_broker.get(broker, _NOTHING)
        if time.monotonic() - taken > ROUTE_S:
            _, address = self.address(broker)
            try:
                answer = self.request(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, f"topics of broker {broker}")
            except BrokerError as error:
                # ACL 2.0 and 1.0 allow the list of topics to administrators only.
                if error.code != ResponseCode.NO_PERMISSION and "AclException" not in error.remark:
                    raise
                if not self._topics.is_fresh(ROUTE_S):
                    self._check_known(broker)
                return self.topics()
            configs = decode_body(bytes(answer.body), TopicsBody, "topics").topic_config_table
            topics = self._mine(configs)
            counts = {name: _count_of(config) for name, config in configs.items()}
            self._of_broker[broker] = (time.monotonic(), topics, counts)
        return topics

    def _mine(self, names: Iterable[str]) -> list[str]:
        """Return the names of the namespace, for users."""
        return sorted({self.plain(name) for name in names if self.wire(self.plain(name)) == name})

    # --- brokers ---

    def bounds(self, broker: str, topic: str, *, by_pulls: bool = True) -> dict[int, tuple[int, int]] | None:
        """Return queue id -> (first offset, end offset) of a topic on a broker, with unreadable queues; None: no such
        topic.

        The request goes to the broker: name servers drop the topics of a broker that restarts.

        Args: by_pulls: use pulls if the account may not read the counts; pulls return readable queues only.
        Raises: Refused, which names the topic.
        """
        try:
            table = self.stats(broker, topic)
        except NoRoute:
            return None
        except Refused as error:
            if not by_pulls:
                raise Refused(
                    f"topic {topic} of broker {broker}: counts need the right Get on the topic: {error}; excludeTopics "
                    "leaves a topic out", code=error.code, remark=error.remark, broker=error.broker,
                ) from error  # fmt: skip
            count = self._known_queues(broker, topic)
            return None if count is None else self._bounds_by_pulls(broker, topic, count)
        bounds = {queue_id: (low, high) for queue_id, (low, high, _) in table.items()}
        # RocketMQ 4 returns the queues for writing only; queues for reading only may have messages too.
        for queue_id in range(self.readable_queues(broker, topic) or 0):
            if queue_id not in bounds:
                bounds[queue_id] = self._bounds_by_offsets(broker, topic, queue_id)
        return dict(sorted(bounds.items()))

    def stats(self, broker: str, topic: str) -> dict[int, tuple[int, int, int]]:
        """Return queue id -> (first offset, end offset, time of the last message, ms) of a topic on a broker.

        Raises: NoRoute for an unknown topic.
        """
        _, address = self.address(broker)
        fields = {"topic": self.wire(topic), "bname": broker}
        about = f"offsets of topic {topic} on broker {broker}"
        answer = self.request(address, RequestCode.GET_TOPIC_STATS_INFO, fields, about)
        table = by_queue("body.offsetTable", decode_body(bytes(answer.body), TopicStatsBody, "body").offset_table)
        return {
            queue.queue_id: (
                max(0, queue_stats.min_offset),
                max(0, queue_stats.max_offset),
                queue_stats.last_update_timestamp,
            )
            for queue, queue_stats in table.items()
        }

    def _bounds_by_offsets(self, broker: str, topic: str, queue_id: int) -> tuple[int, int]:
        _, address = self.address(broker)
        fields = {"topic": self.wire(topic), "queueId": queue_id, "bname": broker}
        about = f"offsets of queue {topic}/{queue_id}"
        codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        low, high = (max(0, self._number(address, code, fields, about)) for code in codes)
        return low, max(low, high)

    def _bounds_by_pulls(self, broker: str, topic: str, count: int) -> dict[int, tuple[int, int]]:
        """Return the same for an account that may only read the topic: each response to a pull has the bounds of its
        queue.
        """
        _, address = self.address(broker)
        bounds = {}
        for queue_id in range(count):
            queue = MessageQueue(self.wire(topic), broker, queue_id)
            wanted = Subscription(queue.topic, "*")
            asked = raw_pull(address, self._group, queue, 0, wanted, max_count=1, post_subscription=True)
            try:
                answer = self.pull(broker, topic, queue_id, asked)
            except NotReadable:  # the queue changed since the request to the name server
                continue
            bounds[queue_id] = max(0, answer.min_offset), max(0, answer.max_offset)
        return bounds

    def pull(self, broker: str, topic: str, queue_id: int, steps: RequestSteps[RawAnswer]) -> RawAnswer:
        """Pull once. Raises: NotReadable for a queue that consumers may not read; Refused, which names the topic."""
        try:
            return self.run(steps)
        except BrokerError as error:
            if is_unavailable(error):
                raise
            self._routes.pop(topic, None)
            self._of_broker.pop(broker, None)
            count = self.readable_queues(broker, topic)
            if count is not None and queue_id >= count:
                raise NotReadable(
                    f"queue {topic}/{queue_id} of broker {broker} is not read now, the topic has {count} queues for "
                    f"consumers: {error}"
                ) from error
            if isinstance(error, Refused):
                raise Refused(
                    f"topic {topic} of broker {broker}: no permission to read: {error}; the account needs Sub on the "
                    f"topic and on the group {self.plain(self._group)}, or excludeTopics leaves the topic out",
                    code=error.code, remark=error.remark, broker=error.broker,
                ) from error  # fmt: skip
            raise

    def earliest_time(self, broker: str, topic: str, queue_id: int) -> int:
        """Return the store time of the first message of a queue, ms; -1 for none."""
        _, address = self.address(broker)
        fields = {"topic": self.wire(topic), "queueId": queue_id, "bname": broker}
        about = f"first time of {topic}/{queue_id}"
        return self._number(address, RequestCode.GET_EARLIEST_MSG_STORETIME, fields, about, "timestamp")

    def _number(
        self, address: str, code: RequestCode, fields: Mapping[str, Any], about: str, name: str = "offset"
    ) -> int:
        answer = self.request(address, code, fields, about)
        text = str(answer.ext_fields.get(name, ""))
        try:
            return int(text)
        except ValueError:
            raise BrokerError(
                f"{about}: {address}: field {name}: expected a whole number, found {text!r}",
                code=answer.code, remark=answer.remark or "", broker=address,
            ) from None  # fmt: skip

    def offset_at(self, broker: str, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset of the first message that was stored at a time or later; the end offset where there is
        none.
        """
        _, address = self.address(broker)
        fields = {
            "topic": self.wire(topic), "queueId": queue_id, "timestamp": time_ms, "boundaryType": "LOWER",
            "bname": broker,
        }  # fmt: skip
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return max(0, self._number(address, code, fields, f"offset by time in {topic}/{queue_id}"))

    def group_offset(self, broker: str, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a group in a queue; None: no offset."""
        _, address = self.address(broker)
        fields = {
            "consumerGroup": self.wire(group), "topic": self.wire(topic), "queueId": queue_id,
            "setZeroIfNotFound": "false", "bname": broker,
        }  # fmt: skip
        about, code = f"offset of group {group} in {topic}/{queue_id}", RequestCode.QUERY_CONSUMER_OFFSET
        answer = self.request(address, code, fields, about, ResponseCode.QUERY_NOT_FOUND)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = int(str(answer.ext_fields.get("offset", "-1")))
        return offset if offset >= 0 else None

    def commit(self, broker: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset of a group at the master. Raises: BrokerAway without a master: a slave would not keep the
        offset.
        """
        broker_id, address = self.address(broker)
        if broker_id != MASTER_ID:
            raise BrokerAway(f"broker {broker}: the name servers know no master")
        fields = {
            "consumerGroup": self.wire(group), "topic": self.wire(topic), "queueId": queue_id, "commitOffset": offset,
            "bname": broker,
        }  # fmt: skip
        about = f"offset {offset} of group {group} in {topic}/{queue_id}"
        self.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields, about)


_shared: Final[dict[str, RemoteCluster]] = {}
_BROKERS: Final = "brokers of the cluster"


def _readable(datas: Iterable[QueueData], broker: str) -> int | None:
    """Return the number of a broker's queues that consumers may read; None where the broker is not in the list."""
    counts = [data.read_queue_nums if data.perm & READ else 0 for data in datas if data.broker_name == broker]
    return max(counts, default=None)


def _count_of(config: Mapping[str, Any]) -> int:
    return int(config.get("readQueueNums", 0)) if int(config.get("perm", READ)) & READ else 0


def tls_context(options: Options) -> ssl.SSLContext | None:
    """Return the TLS context of the options. Raises: ConfigError for invalid certificate files."""
    if not options.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
        if options.tls_cert is not None:
            context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"options tlsCa, tlsCert and tlsKey: expected files of certificates and keys: {error}"
        ) from None
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def wanted_topics(cluster: RemoteCluster, options: Options, broker: str) -> list[str]:
    """Return the topics of a broker that may have messages to read: the named ones, or all that match."""
    if options.subscribe is not None:
        return list(options.subscribe)
    if options.assign is not None:
        return sorted({topic for topic, _ in options.assign})
    pattern = options.subscribe_pattern
    if pattern is not None or options.view == "groups":  # with system topics that match; a group may read any topic
        options = dataclasses.replace(options, include_system_topics=True)
    fitting = [topic for topic in cluster.topics_of(broker) if pattern is None or pattern.fullmatch(topic)]
    return [topic for topic in fitting if not is_left_out(options, topic)]


def brokers_of(options: Options, *, begins: bool = False) -> list[str]:
    """Return the brokers with data for the options: of those that are registered now, and all that the options name.

    Args: begins: a read begins here: metadata is fetched again, and a cluster without a broker is an error.
    Raises: BrokerAway where no name server answers.
    """
    cluster = RemoteCluster.shared(options)
    if begins:
        cluster.forget()
    return cluster.with_retry("name servers", lambda: _brokers_of(cluster, options, begins))


def _brokers_of(cluster: RemoteCluster, options: Options, begins: bool) -> list[str]:
    if options.brokers is not None:
        return sorted(options.brokers)  # with unavailable brokers, whose data is requested
    if options.subscribe is None and options.assign is None:
        there = {*cluster.brokers(), *(cluster.brokers_of_all() if begins else ())}
        if begins and not there:  # name servers that have just started do not know their brokers yet
            raise BrokerAway("the name servers know no broker")
        return sorted(there)
    names: set[str] = set()
    for topic in options.subscribe or {topic for topic, _ in options.assign or ()}:
        route = cluster.route(topic)
        if route is not None:
            names.update(data.broker_name for data in route.queue_datas)
        if begins:
            names.update(data.broker_name for data in cluster.queues_of_all(topic))
    return sorted(names)
