"""The broker as a whole: store, tables, managers, parts, ports, registration; the order in which they start and end.

It must never serve a request itself, nor know the command line. Source: BrokerController, BrokerStartup.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mqfast.broker.acl.access import AccessControl
from mqfast.broker.admin.admin import Admin
from mqfast.broker.config.broker_address import announced, check_reached, with_port
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.filter.consumer_filter_manager import expressions
from mqfast.broker.idempotence.idempotent_writes import IdempotentWrites
from mqfast.broker.metadata.client_manager.client_limits import ClientLimits
from mqfast.broker.metadata.client_manager.client_processor import ClientProcessor
from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager
from mqfast.broker.metadata.client_manager.heartbeat import ACTIVELY, ConsumerData, SubscriptionData
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.client_manager.queue_locks import LockedQueue, QueueLocks
from mqfast.broker.metadata.config_persistence import Changes
from mqfast.broker.metadata.registration import Registration
from mqfast.broker.metadata.subscription_group_manager import SubscriptionGroupManager
from mqfast.broker.metadata.topic_manager import READ, WRITE, TopicManager, retry_topic
from mqfast.broker.metrics.broker_stats import BrokerStats
from mqfast.broker.parts import BrokerContext, Part
from mqfast.broker.pull.consumer_offsets import OffsetProcessor
from mqfast.broker.pull.pull_message import PullProcessor
from mqfast.broker.pull.send_message_back import SendBack
from mqfast.broker.replication.metadata_sync import name_new_topics
from mqfast.broker.replication.replica_manager import ReplicaManager
from mqfast.broker.schedule.delay_level import Delays
from mqfast.broker.schedule.recall_message import Recall
from mqfast.broker.schedule.timer import BrokerTimers
from mqfast.broker.send.flush_waiter import FlushWaiter
from mqfast.broker.send.message_writer import MessageWriter
from mqfast.broker.send.reply_message import ReplyMessage
from mqfast.broker.send.send_message import SendProcessor
from mqfast.broker.transaction.transactional_messages import Transactions
from mqfast.errors import MqfastError, UsageError
from mqfast.ha.failover.lease_guard import LeaseGuard
from mqfast.message import parse_host
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.latency import Latencies
from mqfast.remoting.processors import Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import ServerCertificates, TlsMode, client_context
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.meta.tables import ConfigTables

__all__ = ["Broker"]

_log = logging.getLogger("mqfast.broker")
_SCAN_S: Final = 10.0
_FAST_PORT_BELOW: Final = 2
_STOP_S: Final = 0.5
_REGISTRATION_S: Final = 1.0


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Broker:
    """A broker in the running event loop.

    Args: config: its settings; now_ms: the wall clock; door: the store's table of OS calls, with its clock;
    client_ms: ms that only grow, by which silent clients expire; port: where it listens instead of ``listenPort``, and
    there alone; make_channel: as that of ``RemotingServer``; right: under fail-over, to take messages; store_settings:
    more settings of the store, by any of its names.
    Attributes: ``context``: what the parts share, once started.
    Raises: ConfigError where settings cannot be used; what ``open_store`` raises.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int] = _wall_clock_ms,
        os_api: OsApi | None = None,
        client_ms: Callable[[], int] | None = None,
        port: int | None = None,
        make_channel: Callable[..., Channel] = Channel,
        right: LeaseGuard | None = None,
        **store_settings: Any,
    ) -> None:
        config.check()
        self.config: Final = config
        self.announced: Final = announced(config["brokerIP1"], config["bindAddress"], config.name_servers, os.environ)
        self.access: AccessControl
        self.processors: Processors
        self.context: BrokerContext
        self._now_ms = now_ms
        self._door = os_api
        # A wall clock that is set does not expire anybody; a virtual one is the only clock there is.
        self._steady_ms = _steady_clock_ms if now_ms is _wall_clock_ms else now_ms
        self._client_ms = client_ms or self._steady_ms
        self._port = port
        self._make_channel = make_channel
        self._right: Final = right
        self._store_settings = store_settings
        self._servers: list[RemotingServer] = []
        self._parts: list[Part] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._started = False
        self._listeners = 0
        self._replicas: ReplicaManager | None = None
        self._persisting: asyncio.Future[None] | None = None
        self._reached: asyncio.Future[bool] | None = None
        self._clients: ClientProcessor
        is_counted = config["enableRemotingMetrics"] and config.serves_metrics
        self._latencies: Final = Latencies() if is_counted else None
        self._certificates: ServerCertificates
        self._send: SendProcessor
        self._pull: PullProcessor

    # --- start ---

    async def start(self) -> None:
        """Open the store, listen, register. Raises: OSError where the address cannot be had; as ``open_store``."""
        store, tables = self._open_store()
        try:
            await self._start(store, tables)
            self._started = True
        except BaseException:
            await self._give_up(store)
            raise

    async def _give_up(self, store: MessageStore) -> None:
        """Close what a start that failed has opened."""
        self._stop_timers()
        context: BrokerContext | None = getattr(self, "context", None)
        if self._reached is not None:
            self._reached.cancel()
        if context is not None:
            await context.registration.stop()
        for part in reversed(self._parts):
            with contextlib.suppress(Exception):
                await part.stop()
        for server in self._servers:
            await server.stop(0)
        if context is not None:
            context.durable.close()
            await context.client.close()
            await context.changes.close()
        if self._replicas is not None:
            await self._replicas.close()
        store.close()

    def _open_store(self) -> tuple[MessageStore, ConfigTables]:
        path = self.config.store_path
        config = self.config.store_config(**self._store_settings)
        tables = ConfigTables.load(path, config, os_api=self._door)
        return open_store(path, config=config, tables=tables, os_api=self._door), tables

    async def _start(self, store: MessageStore, tables: ConfigTables) -> None:
        config = self.config

        self.access = AccessControl(config)
        self.processors = self.access.processors()
        self.processors.is_starting = True
        replicas = self._replicas = ReplicaManager(config, store, self._right)
        if config.name_servers and not config.is_slave:
            client = self._client()
            try:
                await replicas.look_for_newer_master(client)
            finally:
                await client.close()
        self._certificates = ServerCertificates(config.tls("server"), _log)
        if config.is_guarded and self.tls in ("off", "permissive"):
            _log.warning(
                "access control is on and TLS is %s: a signature hides no message, covers neither the code nor the "
                "time of a request, and can be sent again; tls.server.mode=enforcing encrypts all connections",
                self.tls,
            )
        main = self._server(self.processors)
        await main.start(config["bindAddress"], config["listenPort"] if self._port is None else self._port)
        self._servers.append(main)
        port = main.address[1]
        await replicas.listen(port)
        self._make_context(store, tables, self.announced.port or port, replicas)
        self._make_parts()
        self.processors.is_starting = False
        if config["listenPort"] and self._port is None:
            fast = self._server(self.processors)
            await self._start_fast(fast, port - _FAST_PORT_BELOW)
            self._servers.append(fast)
        if replicas.was_promoted:
            name_new_topics(self.context, store.engine.raw.master_flushed_offset)
            await self.context.changes.settled()
        self._start_parts()
        self.context.registration.start()
        self._reached = asyncio.ensure_future(check_reached(self.context.client, self.context.address))
        await self.context.registration.wait_registered(_REGISTRATION_S)

    async def _start_fast(self, fast: RemotingServer, port: int) -> None:
        """Listen on the VIP port. Raises: OSError that says whose port this is."""
        try:
            await fast.start(self.config["bindAddress"], port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                errno.EADDRINUSE,
                f"port {port} is taken: listenPort - {_FAST_PORT_BELOW} is RocketMQ's VIP port, which its producers "
                "use with vipChannelEnabled; choose another listenPort (0: a free one, without VIP port)",
            ) from None

    def _start_parts(self) -> None:
        of_masters = (Delays, Transactions)  # a slave's master delivers and checks
        for part in self._parts:
            if not (self.config.is_slave and isinstance(part, of_masters)):
                part.start()
        self._by_the_clock(1.0, self.context.stats.tick)
        self._by_the_clock(_SCAN_S, self._scan)
        self._by_the_clock(self.context.store.config.flush_consumer_offset_interval_ms / 1000, self._persist)

    def _server(self, processors: Processors) -> RemotingServer:
        config = self.config
        return RemotingServer(
            processors,
            RemotingSettings(
                connections_max=config["connectionsMax"],
                requests_max=config["requestsPerConnectionMax"],
                request_bytes_max=config["requestBytesPerConnectionMax"],
                frame_bytes_max=config["frameMaxLength"],
                idle_timeout_s=config["serverChannelMaxIdleTimeSeconds"],
                proxy_protocol=config["proxyProtocolEnable"],
                tls_mode=self._tls_mode,
            ),
            context=self._certificates.context,
            on_closed=self._channel_closed,
            make_channel=self._make_channel,
            logger=logging.getLogger("mqfast.broker"),
            latencies=self._latencies,
        )

    @property
    def _tls_mode(self) -> TlsMode:
        return TlsMode.of(self.config.tls("server").get("tls.server.mode", self.config["tls.server.mode"]))

    @property
    def tls(self) -> str:
        """TLS at the broker's port: off, permissive or enforcing."""
        return self._tls_mode.in_words(has_certificate=self._certificates.context is not None)

    def _client(self) -> RemotingClient:
        config = self.config
        encrypted = config["tls.enable"] or config["useTLS"]
        return self.access.client(context=client_context(config.tls("client")) if encrypted else None)

    def _make_context(
        self,
        store: MessageStore,
        tables: ConfigTables,
        port: int,
        replicas: ReplicaManager,
        before: BrokerContext | None = None,
    ) -> None:
        config, now_ms = self.config, self._now_ms
        limits = _client_limits(config)
        expiry_ms = config["channelExpiredTimeout"]
        engine = store.engine
        host = self.announced.host
        address = self.access.address = with_port(host, port)
        if before is None:
            client = self._client()
            ha_address = with_port(config["brokerIP2"] or host, replicas.port or port + 1)
            registration = Registration(config, tables.topics, client, address=address, ha_address=ha_address)
        else:
            client, registration = before.client, before.registration
            registration.follow(tables.topics)
        changes = self.processors.settling = Changes(registration)
        topics = TopicManager(tables.topics, config, len(store.config.delay_levels_ms), changes)
        groups = SubscriptionGroupManager(tables.groups, config, changes)
        if topics.ensure_system_topics() or before is None:
            tables.topics.persist()
        if groups.ensure_system_groups() or before is None:
            tables.groups.persist()
        durable = FlushWaiter(engine, store.config.sync_flush_timeout_ms / 1000)
        store_host = parse_host(with_port(self.announced.ip, port))
        stats = BrokerStats(config["brokerClusterName"], topics.is_system)
        self.context = BrokerContext(
            config=config,
            loop=asyncio.get_running_loop(),
            now_ms=now_ms,
            store=store,
            engine=engine,
            tables=tables,
            changes=changes,
            topics=topics,
            groups=groups,
            offsets=tables.offsets,
            consumers=(
                before.consumers if before else ConsumerManager(self._client_ms, expiry_ms=expiry_ms, limits=limits)
            ),
            producers=before.producers if before else ProducerManager(self._client_ms, limits=limits),
            locks=QueueLocks(self._steady_ms, max_locks=limits.locks),
            writer=MessageWriter(
                engine,
                durable,
                store_host=store_host,
                sync_flush=store.config.sync_flush,
                max_message_bytes=store.config.max_message_bytes,
                disk_use=self._disk_use,
                now_ms=now_ms,
                stats=stats,
                logger=_log,
            ),
            stats=stats,
            durable=durable,
            client=client,
            registration=registration,
            address=address,
            store_host=store_host,
            replicas=replicas,
            rights=self.access.rights,
            latencies=self._latencies,
            started_ms=now_ms(),
        )
        topics.on_change = self._topics_changed

    def _make_parts(self) -> None:
        context = self.context
        self._listeners = len(context.config.listeners)
        context.replicas.bind(context)  # first: parts ask the writer whether an answer waits for slaves
        self._clients = ClientProcessor(
            context.consumers,
            context.producers,
            context.locks,
            is_group_allowed=self._is_group_allowed,
            is_told=self._notifies_members,
            has_queue=self._has_queue,
            compiled=self._compiled,
            limits=_client_limits(context.config),
            gives_locks=not context.config.is_slave,
            rights=context.rights,
        )
        self._clients.register(self.processors)
        once = IdempotentWrites(context)
        self._send = SendProcessor(context, once)
        offsets = OffsetProcessor(context)
        self._pull = PullProcessor(context, offsets)
        self._send.set_arrival_listener(context.long_polling.waiting, context.long_polling.notify_arrival)
        self._parts = [
            self.access,
            self._send,
            once,
            offsets,
            self._pull,
            Delays(context),
            SendBack(context),
            ReplyMessage(context, self._send),
            BrokerTimers(context),
            Recall(context, self._send),
            Admin(context),
            Transactions(context, self._send),
            context.replicas,
        ]
        for part in self._parts:
            part.register(self.processors)

    def _disk_use(self) -> str:
        try:
            use = self.context.engine.disk_use().percent / 100
        except MqfastError:
            use = -1.0
        return f"CL: {use:5.2f} CQ: {use:5.2f} INDEX: {use:5.2f}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """What serves the requests, in the order of their start."""
        return tuple(self._parts)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) where the broker listens."""
        return self._servers[0].address

    # --- while it runs ---

    def _topics_changed(self, topics: list[str]) -> None:
        self._send.topics_changed(topics)
        one_by_one = self.config["enableSingleTopicRegister"] and topics
        self.context.registration.register_soon(topics if one_by_one else None)
        self.context.changes.registering()

    def _is_group_allowed(self, group: ConsumerData) -> bool:
        """A consumer's heartbeat makes its group, and the topic of its retries. Source: ClientManageProcessor."""
        if self.config["rejectPullConsumerEnable"] and group.consume_type == ACTIVELY:
            return False
        found = self.context.groups.get(group.group_name)
        if found is None:
            return False
        queues = int(found.get("retryQueueNums", 1))
        self.context.topics.ensure(retry_topic(group.group_name), queues, READ | WRITE, 2 if group.unit_mode else 0)
        return True

    def _has_queue(self, group: str, queue: LockedQueue) -> bool:
        """Is this a queue of this broker, and the group a known one?"""
        topic = self.context.topics.get(queue.topic)
        most = 0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums)
        is_here = 0 <= queue.queue_id < most and queue.broker_name == self.config["brokerName"]
        return is_here and (group in self.context.groups.table or self.context.consumers.group(group) is not None)

    def _compiled(
        self, channel: Channel, subscriptions: Sequence[SubscriptionData], serve: Callable[[], RemotingCommand]
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        return self.context.filters.compiling.then(channel, expressions(subscriptions), serve)

    def _notifies_members(self, group: str) -> bool:
        """Are the members of a group told of a change?"""
        found = self.context.groups.table.get(group)
        by_group = found is None or found.get("notifyConsumerIdsChangedEnable", True)
        return bool(self.config["notifyConsumerIdsChangedEnable"] and by_group)

    def _channel_closed(self, channel: Channel) -> None:
        if self.processors.is_starting:  # no part knows it
            return
        self._clients.channel_closed(channel)
        self._send.channel_closed(channel)
        self._pull.channel_closed(channel)

    def _by_the_clock(self, interval_s: float, work: Callable[[], object]) -> None:
        place = len(self._timers)

        def turn() -> None:
            self._timers[place] = self.context.loop.call_later(interval_s, turn)
            work()

        self._timers.append(self.context.loop.call_later(interval_s, turn))

    def _scan(self) -> None:
        self._clients.scan()
        self._pull.scan()
        self.context.replicas.reload_certificates()
        if self._certificates.reload_if_changed():
            for server in self._servers:
                server.context = self._certificates.context

    def _persist(self) -> None:
        """Put changed tables on disk, in one thread of the loop's pool: a sync may take long."""
        if self._persisting is None or self._persisting.done():
            self._persisting = self.context.loop.run_in_executor(None, self._persist_tables)
            self._persisting.add_done_callback(_say_failure)

    def _persist_tables(self) -> None:
        context = self.context
        context.filters.write()
        context.tables.persist(before_offsets=context.store.flush)

    # --- all anew ---

    @property
    def is_renewable(self) -> bool:
        """Is ``renew`` possible? Not with access control, whose users are files of the store."""
        return type(self.processors) is Processors

    async def renew(self, store: MessageStore, tables: ConfigTables) -> None:
        """Go on with another, empty store: ports, connections and members of groups stay, all else is as at a start.

        What the old store has is left to the caller, who closes it. Raises: UsageError unless it is renewable.
        """
        if not self.is_renewable:
            raise UsageError("renew: expected a broker without access control, whose users are files of its store")
        before = self.context
        before.stopping = True
        self._stop_timers()
        await self._stop_parts()
        before.durable.close()
        await before.changes.close()
        del self.config.listeners[self._listeners :]
        replicas = self._replicas = ReplicaManager(self.config, store, self._right)
        port = int(before.address.rpartition(":")[2])
        await replicas.listen(port)
        self._make_context(store, tables, port, replicas, before)
        self._make_parts()
        for group in self.context.consumers.groups():
            if self.context.groups.get(group.name) is not None:
                self.context.topics.ensure(retry_topic(group.name), 1)
        self._start_parts()
        self.context.registration.register_soon()

    # --- end ---

    async def stop(self) -> None:
        """Answer what waits, flush, persist, leave the name servers, close; within two seconds but for a slow disk."""
        if not self._started:
            return
        context = self.context
        self._leave()
        await context.registration.stop()
        await self._stop_parts()
        for server in self._servers:
            await server.stop(_STOP_S)
        await self._end()

    async def abandon(self) -> None:
        """End without a word: connections are cut, nobody is told or answered.

        The store is closed as ever; behind a door that drops what is written this is the end of a killed process.
        """
        if not self._started:
            return
        self._leave()
        self.context.registration.abandon()
        for server in self._servers:
            server.abort()
        await self.processors.stop(0)
        await self._stop_parts()
        await self._end()

    def _leave(self) -> None:
        self._started = False
        self.context.stopping = True
        self.processors.is_leaving = True
        self._stop_timers()
        if self._reached is not None:
            self._reached.cancel()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def _stop_parts(self) -> None:
        """Stop all parts: one that fails must not leave the store open."""
        for part in reversed(self._parts):
            try:
                await part.stop()
            except Exception:
                _log.exception("%s did not stop, the broker stops all the same", type(part).__name__)

    async def _end(self) -> None:
        context = self.context
        context.durable.close()
        await context.client.close()
        await context.changes.close()
        await context.loop.run_in_executor(None, self._close_store)

    def _close_store(self) -> None:
        context = self.context
        try:
            context.store.flush()
            context.filters.write()
            context.tables.persist()
        finally:
            context.store.close()


def _say_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("config tables were not persisted, the next turn tries again: %s", error)


def _client_limits(config: BrokerConfig) -> ClientLimits:
    return ClientLimits(
        config["clientGroupsMax"],
        config["groupMembersMax"],
        config["subscriptionBytesMax"],
        config["queueLocksMax"],
    )
