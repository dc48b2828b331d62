"""Registration at the name servers: all topics at start and every 30 s, a changed topic at once, and the end.

Each name server is served by separate tasks with a time-out, so that an unreachable one delays no other work. Source:
BrokerController.registerBrokerAll, BrokerOuterAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.metadata.topic_manager import READ, WRITE
from mqfast.errors import RemotingError
from mqfast.remoting.bodies import QueueData, encode_body
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.store.meta.metadata import TopicConfigTable
from mqfast.util.log_limit import LogLimit

__all__ = ["Registration"]

_log = logging.getLogger("mqfast.broker")
_SHORTEST_MS, _LONGEST_MS = 10_000, 60_000
_RETURN_S: Final = 0.5
_AT_ONCE: Final = 8  # limit of concurrent tasks per name server; further changes are combined
_CALLS_AT_ONCE: Final = 100


class _NameServer:
    """The pending and running registrations of a name server."""

    __slots__ = ("is_unavailable", "is_told_all", "running", "told", "topics", "wants_all")

    def __init__(self) -> None:
        self.wants_all = self.is_told_all = False
        self.topics: dict[str, None] = {}
        self.told: asyncio.Future[None] | None = None  # completed after the registration of the pending changes
        self.running: set[asyncio.Future[None]] = set()
        self.is_unavailable = False  # no response waits for this name server

    def waits(self) -> list[asyncio.Future[None]]:
        """Return the running and pending registrations of this name server."""
        return [*self.running, *([] if self.told is None else [self.told])]

    @property
    def may_begin(self) -> bool:
        return self.told is not None and len(self.running) < _AT_ONCE and not (self.wants_all and self.is_told_all)


class Registration:
    """Keeps a broker registered with all name servers.

    Args: address: ``host:port`` for clients; ha_address: the same for slaves.
    Attributes: ``registered``: name server -> whether the last registration succeeded; ``registration_version``: number
        of registrations; ``state_version``: the epoch of this master, since a name server keeps the master with the
        newer epoch; ``is_silent``: no registration, since another broker is the master.
    Thread: that of the event loop.
    """

    def __init__(
        self, config: BrokerConfig, topics: TopicConfigTable, client: RemotingClient, *, address: str, ha_address: str
    ) -> None:
        self.registered: dict[str, bool] = {}
        self.on_registered: Callable[[dict[str, Any]], object] = lambda _fields: None
        self._config = config
        self._topics = topics
        self._client = client
        self._address: Final = address
        self._ha_address: Final = ha_address
        self._limit = LogLimit(_log, 60.0)
        self._servers: dict[str, _NameServer] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of their start
        self._returning: dict[asyncio.Task[None], None] = {}
        self.registration_version = 0
        self.state_version = 0
        self.is_silent = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self) -> None:
        """Register now, and then periodically."""
        self._client.on_closed.append(self._disconnected)
        self._by_the_clock()

    def _by_the_clock(self) -> None:
        self.register_soon()
        interval_ms = min(max(self._config["registerNameServerPeriod"], _SHORTEST_MS), _LONGEST_MS)
        self._timer = asyncio.get_running_loop().call_later(interval_ms / 1000, self._by_the_clock)

    def topics_changed(self, topics: Collection[str]) -> None:
        """Register changed topics soon: only ``topics`` with enableSingleTopicRegister, else all topics."""
        self.register_soon(topics if self._config["enableSingleTopicRegister"] and topics else None)

    def register_soon(self, topics: Iterable[str] | None = None) -> None:
        """Register all topics, or only ``topics``, with every name server; returns at once."""
        if self._ended or self.is_silent:
            return
        self.registration_version += 1
        named = self._config.name_servers
        for removed in sorted(
            (self.registered.keys() | self._servers.keys()) - set(named)
        ):  # no longer in the settings
            self.registered.pop(removed, None)
            self._servers.pop(removed, None)
        changed = None if topics is None else dict.fromkeys(topics)
        for address in named:
            self._want(address, changed)

    def _want(self, address: str, topics: dict[str, None] | None) -> asyncio.Future[None]:
        """Register all topics, or ``topics``, with a name server. Returns: a future for the end, also of a failure."""
        server = self._servers.get(address)
        if server is None:
            server = self._servers[address] = _NameServer()
        if topics is None or not self.registered.get(address):
            server.wants_all = True
        else:
            server.topics.update(topics)
        if server.told is None:
            server.told = asyncio.get_running_loop().create_future()
        told = server.told
        if server.may_begin:
            _begin(self._tasks, self._register_pending(address, server))
        return told

    async def _register_pending(self, address: str, server: _NameServer) -> None:
        """Run the pending registrations of a name server. A full registration waits for the previous one."""
        while server.may_begin and self._servers.get(address) is server:
            told, server.told = server.told, None
            assert told is not None
            wants_all, server.wants_all = server.wants_all, False
            topics, server.topics = server.topics, {}
            server.running.add(told)
            server.is_told_all = server.is_told_all or wants_all
            try:
                if wants_all or not await self._register_topics(address, topics):
                    await self._register_all(address)
            finally:
                server.running.discard(told)
                server.is_told_all = server.is_told_all and not wants_all
                server.is_unavailable = not self.registered.get(address)
                told.set_result(None)

    def under_way(self) -> list[asyncio.Future[None]]:
        """Return the running and pending registrations of available name servers."""
        available = [server for server in self._servers.values() if not server.is_unavailable]
        return [told for server in available for told in server.waits()]

    def is_late(self, told: Collection[asyncio.Future[None]]) -> None:
        """Mark name servers as unavailable: no response waits for these until a registration succeeds again."""
        for server in self._servers.values():
            if told and not server.running.isdisjoint(told):
                server.is_unavailable = True

    def _disconnected(self, address: str) -> None:
        """Register with a name server again after a disconnect.

        The name server may have restarted with empty tables, yet a single topic (217) still succeeds.
        """
        if self.registered.get(address):
            self.registered[address] = False
            _begin(self._returning, self._return_to(address))

    async def _return_to(self, address: str) -> None:
        """Register with a name server again, earlier than by the period."""
        after_s = _RETURN_S
        while after_s < _SHORTEST_MS / 1000:
            await asyncio.sleep(after_s)
            if self.is_silent or self.registered.get(address, True):
                return
            await asyncio.wait([self._want(address, None)])
            after_s *= 2

    async def _register_topics(self, address: str, topics: Iterable[str]) -> bool:
        """Register some topics by 217.

        A registration (103) of some topics would delete all others at a name server with
        deleteTopicWithBrokerRegistration.

        Returns: False if the name server does not know the broker or 217; a full registration must follow.
        """
        if not self.registered.get(address):
            return False
        table = list(self._table(topics).items())
        for first in range(0, len(table), _CALLS_AT_ONCE):
            some = table[first : first + _CALLS_AT_ONCE]
            if not all(await asyncio.gather(*(self._register_topic(address, name, raw) for name, raw in some))):
                return False
        return True

    async def _register_topic(self, address: str, name: str, raw: dict[str, Any]) -> bool:
        queue_data = QueueData(
            self._config["brokerName"],
            raw.get("perm", READ | WRITE),
            raw.get("readQueueNums", 0),
            raw.get("topicSysFlag", 0),
            raw.get("writeQueueNums", 0),
        )
        body, code = encode_body({"queueDatas": [queue_data]}), RequestCode.REGISTER_TOPIC_IN_NAMESRV
        timeout_ms = self._config["registerBrokerTimeoutMills"]
        try:
            answer = await self._client.call(address, code, {"topic": name}, body, timeout_ms=timeout_ms)
        except (RemotingError, ValueError):
            return False
        return answer.code == 0

    async def wait_registered(self, timeout_s: float = 30.0) -> None:
        """Wait for the end of all pending registrations, at most ``timeout_s``."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while waits := {told for server in self._servers.values() for told in server.waits()}:
            remaining_s = deadline - asyncio.get_running_loop().time()
            if remaining_s <= 0:
                self.is_late(waits)
                return
            await asyncio.wait(waits, timeout=remaining_s)

    def _table(self, topics: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return topics in the format of a registration."""
        permission = self._config["brokerPermission"]
        table = {}
        for name in topics:
            topic = self._topics.get(name)
            if topic is None:
                continue
            raw = topic.raw
            if not permission & READ or not permission & WRITE:
                raw = {**raw, "perm": topic.perm & (permission | ~(READ | WRITE))}
            table[name] = raw
        return table

    def _request(self) -> tuple[dict[str, Any], bytes]:
        version = self._topics.data_version
        version = {**version, "stateVersion": max(self.state_version, version.get("stateVersion", 0))}
        body = encode_body(
            {
                "filterServerList": [],
                "topicConfigSerializeWrapper": {
                    "dataVersion": version,
                    "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": version.get("timestamp", 0)},
                    "topicConfigTable": self._table(self._topics),
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )
        fields = {
            **self._who(),
            "haServerAddr": self._ha_address,
            "compressed": "false",
            "enableActingMaster": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        return fields, body

    def _who(self) -> dict[str, Any]:
        return {
            "brokerName": self._config["brokerName"],
            "brokerAddr": self._address,
            "clusterName": self._config["brokerClusterName"],
            "brokerId": str(self._config["brokerId"]),
        }

    async def _register_all(self, address: str) -> None:
        """Register all topics by 103."""
        fields, body = self._request()
        timeout_ms = self._config["registerBrokerTimeoutMills"]
        try:
            answer = await self._client.call(address, RequestCode.REGISTER_BROKER, fields, body, timeout_ms=timeout_ms)
        except (RemotingError, ValueError) as error:
            self.registered[address] = False
            self._limit.warning(address, "name server %s: not registered: %s", address, error)
            return
        was = self.registered.get(address, False)
        self.registered[address] = answer.code == 0
        if answer.code != 0:
            self._limit.warning(address, "name server %s refused the broker: %s", address, answer.remark)
            return
        if not was:
            _log.info("registered with name server %s", address)
        self.on_registered(answer.ext_fields)

    def follow(self, topics: TopicConfigTable) -> None:
        """Use another table of topics from now on."""
        self._topics = topics

    def abandon(self) -> None:
        """Stop all registrations."""
        self._ended = True
        with contextlib.suppress(ValueError):
            self._client.on_closed.remove(self._disconnected)
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks, *self._returning):
            task.cancel()

    async def stop(self) -> None:
        """Unregister at all name servers; waits at most half a second."""
        self.abandon()
        # An old name server would remove the other broker that has this id now.
        leaving = [
            self._client.call(address, RequestCode.UNREGISTER_BROKER, self._who(), timeout_ms=500)
            for address, is_there in self.registered.items()
            if is_there and not self.is_silent
        ]
        await asyncio.gather(*leaving, return_exceptions=True)
        self.registered.clear()


def _begin(tasks: dict[asyncio.Task[None], None], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    tasks[task] = None
    task.add_done_callback(lambda done: tasks.pop(done, None))
