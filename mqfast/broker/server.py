"""The broker: opens the store, builds and registers the parts, listens, and ends all of that in order.

Requests are served by the parts (``parts.py``). Source: BrokerController, BrokerStartup.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.acl.access import AccessControl
from mqfast.broker.config.broker_address import announced, check_reached
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import retry_topic
from mqfast.broker.parts import Clocks, Ground, Kept, Parts, build_parts
from mqfast.broker.replication.ha_service import HaService
from mqfast.broker.replication.metadata_sync import name_new_topics
from mqfast.errors import ConfigError, FrameError, UsageError
from mqfast.grpc import FIRST_BYTE, IS_BUILT, NOT_BUILT
from mqfast.ha.failover.lease_guard import LeaseGuard
from mqfast.remoting.channel import Channel, OtherProtocol
from mqfast.remoting.latency import Latencies
from mqfast.remoting.processors import Processors
from mqfast.remoting.server import RemotingServer, reactors_of
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import ServerCertificates, TlsMode, client_context
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.meta.tables import ConfigTables

if TYPE_CHECKING:
    from mqfast.broker.fast.fast_requests import FastRequests
    from mqfast.grpc.connection import Call
    from mqfast.remoting.reactor.reactor import Reactors

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

    Args: config: the settings; now_ms: the wall clock; os_api: the OS calls of the store, with their clock; client_ms:
    ms that only grow, which expire silent clients; port: the only port to listen at, instead of ``listenPort``;
    make_channel: as that of ``RemotingServer``; make_call: as that of ``GrpcServer``; right: the lease under fail-over;
    make_store: as ``open_store``; store_settings: more settings of the store, by any name.
    Attributes: ``parts``: all parts, once started; ``context``: what the parts share, once started.
    Raises: ConfigError for unusable settings; as ``open_store``.
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
        make_call: Callable[..., Call] | None = None,
        right: LeaseGuard | None = None,
        make_store: Callable[..., MessageStore] = open_store,
        **store_settings: Any,
    ) -> None:
        config.check()
        self.config: Final = config
        self.announced: Final = announced(config["brokerIP1"], config["bindAddress"], config.name_servers, os.environ)
        self._os_api: Final = os_api
        # A change of the wall clock expires no client; a virtual clock is the only one there is.
        steady_ms = _steady_clock_ms if now_ms is _wall_clock_ms else now_ms
        self._clocks: Final = Clocks(now_ms, steady_ms, client_ms or steady_ms)
        self._port = port
        self._make_channel = make_channel
        self._make_call = make_call
        self._right: Final = right
        self._make_store: Final = make_store
        self._store_settings = store_settings
        self._servers: list[RemotingServer] = []
        self._reactors: Reactors | None = None
        self._fast: FastRequests | None = None
        self._parts: Parts | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._started = False
        self._listeners = 0
        self._persisting: asyncio.Future[None] | None = None
        self._reached: asyncio.Future[bool] | None = None
        is_counted = config["enableRemotingMetrics"] and config.serves_metrics
        self._latencies: Final = Latencies() if is_counted else None

    @property
    def parts(self) -> Parts:
        """Return all parts, once the broker was started."""
        assert self._parts is not None, "the broker was not started"
        return self._parts

    @property
    def context(self) -> BrokerContext:
        """Return what the parts share, once the broker was started."""
        return self.parts.context

    @property
    def access(self) -> AccessControl:
        """Return access control, once the broker was started."""
        return self.parts.ground.access

    @property
    def processors(self) -> Processors:
        """Return the table of requests, once the broker was started."""
        return self.parts.ground.processors

    # --- start ---

    async def start(self) -> None:
        """Open the store, listen, register. Raises: OSError if the address is not available; as ``open_store``."""
        store, tables = self._open_store()
        opened = contextlib.AsyncExitStack()
        opened.callback(store.close)
        try:
            await self._start(store, tables, opened)
            self._started = True
        except BaseException:
            await self._give_up()
            await opened.aclose()
            raise

    async def _give_up(self) -> None:
        """Stop everything that a failed start has started."""
        self._stop_timers()
        self._stop_fast()
        if self._reached is not None:
            self._reached.cancel()
        if (parts := self._parts) is not None:
            await parts.context.registration.stop()
            for part in reversed(parts.in_start_order):
                with contextlib.suppress(Exception):
                    await part.stop()
        for server in self._servers:
            await server.stop(0)
        self._stop_reactors()
        if parts is not None:
            parts.context.durable.close()
            await parts.context.changes.close()

    def _open_store(self) -> tuple[MessageStore, ConfigTables]:
        path = self.config.store_path
        config = self.config.store_config(**self._store_settings)
        tables = ConfigTables.load(path, config, os_api=self._os_api)
        return self._make_store(path, config=config, tables=tables, os_api=self._os_api), tables

    async def _start(self, store: MessageStore, tables: ConfigTables, opened: contextlib.AsyncExitStack) -> None:
        """Start the broker with an open store.

        Args: opened: gets what is to be closed after a failure.
        """
        config = self.config
        access = AccessControl(config, tables.offsets.get)
        processors = access.processors()
        processors.is_starting = True
        client = access.client(context=self._client_tls())
        opened.push_async_callback(client.close)
        ha = HaService(config, store, client, self._right)
        opened.push_async_callback(ha.close)
        await ha.check_for_newer_master()
        if not IS_BUILT:
            _log.warning("gRPC is not served: %s", NOT_BUILT)
        certificates = ServerCertificates(config.tls("server"), _log)
        if config.is_guarded and (tls := self._tls_in_words(certificates)) in ("off", "permissive"):
            _log.warning(
                "access control is on and TLS is %s: a signature hides no message, covers neither the code nor the "
                "time of a request, and can be sent again; tls.server.mode=enforcing encrypts all connections",
                tls,
            )
        self._reactors = self._start_reactors()
        main = self._server(processors, certificates)
        await main.start(config["bindAddress"], config["listenPort"] if self._port is None else self._port)
        self._servers.append(main)
        port = main.address[1]
        await ha.listen(port)
        ground = Ground(
            config,
            self._clocks,
            access,
            processors,
            certificates,
            client,
            ha,
            host=self.announced.host,
            ip=self.announced.ip,
            port=self.announced.port or port,
            latencies=self._latencies,
        )
        parts = self._build_parts(ground, store, tables)
        processors.is_starting = False
        if config["grpcServerPort"] and self._port is None:
            await self._listen_for_grpc(processors, certificates)
        if config["listenPort"] and self._port is None:
            fast = self._server(processors, certificates)
            await self._start_fast(fast, port - _FAST_PORT_BELOW)
            self._servers.append(fast)
        context = parts.context
        if parts.replicas.was_promoted:
            name_new_topics(context, store.engine.raw.master_flushed_offset)
            await context.changes.settled()
        self._start_parts()
        context.registration.start()
        self._reached = asyncio.ensure_future(check_reached(context.client, context.address))
        await context.registration.wait_registered(_REGISTRATION_S)

    def _build_parts(
        self, ground: Ground, store: MessageStore, tables: ConfigTables, kept: Kept | None = None
    ) -> Parts:
        self._listeners = len(self.config.listeners)
        parts = self._parts = build_parts(
            ground, store, tables, kept, client_closed=self._client_closed, make_call=self._make_call
        )
        parts.register()
        return parts

    async def _listen_for_grpc(self, processors: Processors, certificates: ServerCertificates) -> None:
        """Listen at grpcServerPort, which serves what listenPort serves. Raises: ConfigError without gRPC."""
        if not IS_BUILT:
            raise ConfigError(f"grpcServerPort: {NOT_BUILT}")
        server = self._server(processors, certificates)
        await server.start(self.config["bindAddress"], self.config["grpcServerPort"])
        self._servers.append(server)

    async def _start_fast(self, fast: RemotingServer, port: int) -> None:
        """Listen at the VIP port. Raises: OSError with the meaning of the port."""
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
        parts = self.parts
        if self._reactors is not None:
            from mqfast.broker.fast.fast_requests import FastRequests

            self._fast = FastRequests(self._reactors, parts.context, parts.send, parts.pull)
            self._fast.start()
        of_masters = (parts.delays, parts.transactions)  # on a slave the master delivers and checks
        for part in parts.in_start_order:
            if not (self.config.is_slave and part in of_masters):
                part.start()
        self._by_the_clock(1.0, self.context.stats.tick)
        if self._fast is not None:
            self._by_the_clock(1.0, self._fast.scan)
        self._by_the_clock(_SCAN_S, self._scan)
        self._by_the_clock(self.context.store.config.flush_consumer_offset_interval_ms / 1000, self._persist)

    def _server(self, processors: Processors, certificates: ServerCertificates) -> RemotingServer:
        return RemotingServer(
            processors,
            self._remoting_settings(),
            context=certificates.context,
            on_closed=self._channel_closed,
            make_channel=self._make_channel,
            logger=logging.getLogger("mqfast.broker"),
            latencies=self._latencies,
            reactors=self._reactors,
            others={FIRST_BYTE: self._connect_grpc} if IS_BUILT else None,
        )

    def _connect_grpc(self, channel: Channel) -> OtherProtocol:
        grpc = None if self._parts is None else self._parts.grpc
        if grpc is None:
            raise FrameError("expected gRPC after the start of the broker, found a connection before")
        return grpc.server.connect(channel)

    def _remoting_settings(self) -> RemotingSettings:
        config = self.config
        return RemotingSettings(
            connections_max=config["connectionsMax"],
            requests_max=config["requestsPerConnectionMax"],
            request_bytes_max=config["requestBytesPerConnectionMax"],
            frame_bytes_max=config["frameMaxLength"],
            idle_timeout_s=config["serverChannelMaxIdleTimeSeconds"],
            proxy_protocol=config["proxyProtocolEnable"],
            # With access control the event loop checks every request: reactors would only pass bytes on.
            selector_threads=0 if config.is_guarded else config["serverSelectorThreads"],
            tls_mode=self._tls_mode,
        )

    def _start_reactors(self) -> Reactors | None:
        settings = self._remoting_settings()
        reactors = reactors_of(settings)
        if reactors is None and self.config["serverSelectorThreads"] > 0:
            _log.info(
                "serverSelectorThreads=%d has no effect: reactors need Linux, no access control and no enforced TLS",
                self.config["serverSelectorThreads"],
            )
        return reactors

    @property
    def _tls_mode(self) -> TlsMode:
        return TlsMode.of(self.config.tls("server").get("tls.server.mode", self.config["tls.server.mode"]))

    @property
    def tls(self) -> str:
        """Return the TLS mode of the broker's port: off, permissive or enforcing."""
        return self._tls_in_words(self.parts.ground.certificates)

    def _tls_in_words(self, certificates: ServerCertificates) -> str:
        return self._tls_mode.in_words(has_certificate=certificates.context is not None)

    def _client_tls(self) -> ssl.SSLContext | None:
        config = self.config
        return client_context(config.tls("client")) if config["tls.enable"] or config["useTLS"] else None

    def reactor_counts(self) -> dict[str, int] | None:
        """Return the counters of the reactors by name; None without reactors."""
        return None if self._fast is None else self._fast.counts()

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port) of the main listener."""
        return self._servers[0].address

    # --- while it runs ---

    def _channel_closed(self, channel: Channel) -> None:
        if self._parts is None:  # during the start no part knows the connection
            return
        if self._parts.grpc is not None:
            self._parts.grpc.connection_ended(channel)
        self._client_closed(channel)

    def _client_closed(self, channel: Channel) -> None:
        assert self._parts is not None
        self._parts.clients.channel_closed(channel)
        self._parts.send.channel_closed(channel)
        self._parts.pull.channel_closed(channel)
        self._parts.pop.channel_closed(channel)

    def _by_the_clock(self, interval_s: float, work: Callable[[], object]) -> None:
        place = len(self._timers)

        def run_again() -> None:
            self._timers[place] = self.context.loop.call_later(interval_s, run_again)
            work()

        self._timers.append(self.context.loop.call_later(interval_s, run_again))

    def _scan(self) -> None:
        parts, certificates = self.parts, self.parts.ground.certificates
        parts.clients.scan()
        parts.pull.scan()
        parts.replicas.ha.reload_certificates()
        if certificates.reload_if_changed():
            for server in self._servers:
                server.context = certificates.context

    def _persist(self) -> None:
        """Persist changed tables in one thread of the loop's pool, since a sync may take long."""
        if self._persisting is None or self._persisting.done():
            self.parts.pop.service.store_orders()
            self._persisting = self.context.loop.run_in_executor(None, self._persist_tables)
            self._persisting.add_done_callback(_say_failure)

    def _persist_tables(self) -> None:
        context = self.context
        context.filters.write()
        context.tables.persist(before_offsets=context.store.flush)

    # --- another store ---

    @property
    def is_renewable(self) -> bool:
        """Return True if ``renew`` is possible: not with access control, whose users are files of the store."""
        return type(self.processors) is Processors

    async def renew(self, store: MessageStore, tables: ConfigTables) -> None:
        """Continue with another, empty store; ports, connections and members of groups stay, all else restarts.

        The caller closes the old store. Raises: UsageError unless the broker is renewable.
        """
        if not self.is_renewable:
            raise UsageError("renew: expected a broker without access control, whose users are files of its store")
        before, ground = self.parts, self.parts.ground
        before.context.stopping.set()
        self._stop_timers()
        self._stop_fast()
        await self._stop_parts()
        if before.grpc is not None:
            before.grpc.close()
        before.context.durable.close()
        await before.context.changes.close()
        del self.config.listeners[self._listeners :]
        ha = HaService(self.config, store, ground.client, self._right)
        await ha.listen(ground.port)
        self._build_parts(ground._replace(ha=ha), store, tables, before.kept())
        if before.grpc is not None:  # also those that came meanwhile; clients connect again
            before.grpc.server.close()
        for group in self.context.consumers.groups():
            if self.context.groups.get(group.name) is not None:
                self.context.topics.ensure(retry_topic(group.name), 1)
        self._start_parts()
        self.context.registration.register_soon()

    # --- end ---

    async def stop(self) -> None:
        """Answer waiting requests, flush, persist, unregister, close; within two seconds unless the disk is slow."""
        if not self._started:
            return
        self._started = False
        context = self.context
        if self._fast is not None:
            await self._fast.drain(_STOP_S)
        self._begin_stop()
        await context.registration.stop()
        await self._stop_parts()
        for server in self._servers:
            await server.stop(_STOP_S)
        self._stop_reactors()
        await self._close()

    async def abandon(self) -> None:
        """End as a killed process: cut the connections, without responses and without unregistering.

        The store is closed as usual; with an OS API that drops writes the files are those of a killed process.
        """
        if not self._started:
            return
        self._begin_stop()
        self.context.registration.abandon()
        for server in self._servers:
            server.abort()
        self._stop_reactors()
        await self.processors.stop(0)
        await self._stop_parts()
        await self._close()

    def _stop_fast(self) -> None:
        """Leave all requests to Python from now on."""
        if self._fast is not None:
            self._fast.stop()

    def _stop_reactors(self) -> None:
        if self._reactors is not None:
            self._reactors.stop()

    def _begin_stop(self) -> None:
        self._started = False
        self.context.stopping.set()
        self.processors.is_leaving = True
        self._stop_timers()
        self._stop_fast()
        if self._reached is not None:
            self._reached.cancel()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def _stop_parts(self) -> None:
        """Stop all parts; a failing part does not leave the store open."""
        for part in reversed(self.parts.in_start_order):
            try:
                await part.stop()
            except Exception:
                _log.exception("%s did not stop, the broker stops all the same", type(part).__name__)

    async def _close(self) -> None:
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
