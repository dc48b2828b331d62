"""The client instance, shared by all clients of one cluster in one process: connections, heartbeats, periodic work.

Source: MQClientInstance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import ssl
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from mqfast.client.cluster import ClusterMetadata, retry
from mqfast.client.net.asyncio_driver import AsyncioDriver, Sign
from mqfast.client.net.fork import leave_sockets
from mqfast.client.net.guard import Guard
from mqfast.client.net.request_steps import Request, RequestSteps, Sleep, broker_error
from mqfast.client.net.requests import BrokerRequests, Handler
from mqfast.client.route.address_map import AddressMap, hint, reached_at
from mqfast.client.route.namespace import header_fields
from mqfast.client.route.route_table import MASTER_ID, TopicRoute
from mqfast.client.values import Credentials
from mqfast.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ClientUsageError,
    ConnectError,
    MqfastError,
    NoRoute,
)
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.client import RemotingClient, split_address
from mqfast.remoting.codes import LanguageCode, RequestCode, ResponseCode
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.signature import sign

__all__ = ["ROUTE_S", "ClientInstance", "InstanceSettings", "InstanceClient"]

ROUTE_S: Final = 30.0
ROUTE_FAILED_S: Final = 1.0
HEARTBEAT_S: Final = 30.0
ADDRESS_SERVER_S: Final = 120.0
_WAIT_S: Final = (0.1, 2.0)
"""First and longest pause between the attempts of a start."""
_AGAIN_S: Final = 0.5
"""Pause after a name server has ended in the middle of a start."""
_log = logging.getLogger("mqfast.client")


class InstanceSettings(NamedTuple):
    """The settings of an instance: clients with equal settings share one.

    Attributes: name_servers: as ``parse_addresses`` returns them; tls: False, True (the system's certificates) or a
        context; instance_name: None for one of process id and random digits; namespace_v2: of version 2, a header
        field.
    """

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    tls: bool | ssl.SSLContext = False
    namespace: str | None = None
    instance_name: str | None = None
    unit_name: str | None = None
    namespace_v2: str | None = None
    address_map: AddressMap = ()

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context. Certificates and host names are checked unless the user's context says otherwise."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


class InstanceClient(Protocol):
    """A producer or consumer, as the instance uses it."""

    def heartbeat(self) -> Mapping[str, Any]:
        """Return the client's part of the heartbeat: RocketMQ's ProducerData or ConsumerData as JSON types."""

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes are refreshed."""


class ClientInstance:
    """One client id of this process in one event loop; see ``net/request_steps.py`` for the steps of requests.

    Attributes:
        client_id: the id of this client at brokers; cluster, routes, name_servers, driver, loop.
        requests: handlers of the requests of brokers.
        remoting: the connections of the loop.
    Thread: that of the event loop, but for ``route``, ``sign``, ``routes``, ``heartbeat_soon``, ``route_failed``: any.
    """

    def __init__(self, settings: InstanceSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self.cluster = ClusterMetadata(settings.name_servers, _log)
        self.name_servers = self.cluster.name_servers
        self.client_id = _client_id(settings)
        self.routes = self.cluster.routes
        self.requests = BrokerRequests()
        self._producers: dict[str, list[InstanceClient]] = {}
        self._consumers: dict[str, InstanceClient] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of their start
        self._users = 0
        self._heartbeat_lock = asyncio.Lock()
        self._heartbeat_asked = False
        self._heard: set[str] = set()
        self._was_heard: set[str] = set()  # including brokers whose later heartbeats failed
        self._heartbeat_targets: frozenset[str] = frozenset()
        self._unheard_s: dict[str, float] = {}  # time of a failed heartbeat
        self._failed_s: dict[str, float] = {}  # topic -> time of the last route request after a failure
        self._context = settings.context()
        self.remoting = RemotingClient(
            self.requests.processors,
            RemotingSettings(language=LanguageCode.PYTHON),
            context=self._context,
            logger=_log,
            reached_at=self.reached_at,
        )
        self.driver = AsyncioDriver(self.remoting, self.sign_with, self.explain)
        self.routes.on_change.append(lambda topic, route: self.heartbeat_soon())

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of every connection, None without TLS."""
        return self._context

    @property
    def is_here(self) -> bool:
        """Return whether the caller runs in the instance's event loop."""
        return asyncio._get_running_loop() is self.loop

    def check_here(self) -> None:
        """Check that the caller runs in the instance's event loop. Raises: UsageError."""
        if asyncio._get_running_loop() is not self.loop:
            raise ClientUsageError(
                "this client was started in another event loop: make one in each loop, or a sync one"
            )

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    def shared(
        cls, settings: InstanceSettings, loop: asyncio.AbstractEventLoop, *, consumer_group: str | None = None
    ) -> ClientInstance:
        """Return the instance of these settings in this loop; another one for a second consumer of the same group."""
        with _registry_lock:
            known = _registry.setdefault(loop, {}).setdefault(settings, [])
            for instance in _alive(known):
                if consumer_group is None or consumer_group not in instance._consumers:
                    return instance
            instance = cls(settings, loop)
            known[:] = [*filter(_is_alive, known), weakref.ref(instance)]
            return instance

    async def acquire(self, *, may_wait: bool = False) -> None:
        """Register a user of the instance: the first user starts the periodic work.

        Args: may_wait: ``wait_for_name_server`` follows, so that there is no request to the address server here.
        Raises: ConnectError when the address server names no name server; then nothing is started.
        """
        self._users += 1
        if self._users == 1:
            if self.name_servers.url is not None:
                self.every(ADDRESS_SERVER_S, self._fetch_addresses, "address server")
            self.every(ROUTE_S, self.refresh_routes, "routes")
            self.every(HEARTBEAT_S, self.heartbeat, "heartbeat")
        if self.name_servers.url is not None and not self.name_servers.addresses and not may_wait:
            try:
                await self._fetch_addresses()
            except BaseException:
                await self.release()
                raise

    async def wait_for_name_server(self, timeout_s: float | None, is_closed: Callable[[], bool]) -> None:
        """Wait until a name server answers, for a start with retries.

        Args: timeout_s: limit in seconds; 0: no request; None: without end. is_closed: whether the client has been
            closed.
        Raises: ConnectError at the end of the time; ClientClosed.
        """
        if timeout_s == 0:
            return
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        closed = "the client was closed before a name server answered"

        def attempt() -> RequestSteps[None]:
            yield from self.cluster.ensure_addresses()
            code, about = RequestCode.GET_BROKER_CLUSTER_INFO, "start of a client"
            yield from self.cluster.first_answer(code, timeout_s=3.0, about=about)

        def recover(error: Exception, pause_s: float) -> RequestSteps[None]:
            if not isinstance(error, ClientError):
                raise error
            if is_closed():
                raise ClientClosed(closed) from None
            if time.monotonic() >= deadline_s:
                raise error
            _log.warning("%s: %s; it is tried again", self.client_id, error)
            yield Sleep(max(0.0, min(pause_s, deadline_s - time.monotonic())))

        try:
            await self.driver.run(retry(attempt, recover, _WAIT_S))
        except asyncio.CancelledError:  # of this task, or of a connection attempt that close() has ended
            task = asyncio.current_task()
            if is_closed() and task is not None and not task.cancelling():
                raise ClientClosed(closed) from None
            raise

    async def begin_with_name_server(
        self, timeout_s: float | None, is_closed: Callable[[], bool], begin: Callable[[], Awaitable[object]]
    ) -> int:
        """Wait until a name server answers, then run ``begin``. Returns: the time of that answer, ms.

        A name server that ends before ``begin`` has ended is waited for again, and ``begin`` runs again.

        Args: as ``wait_for_name_server``.
        Raises: as ``wait_for_name_server``, and the errors of ``begin``; its ConnectError at the end of the time.
        """
        left_s = timeout_s
        while True:
            begin_s = time.monotonic()
            await self.wait_for_name_server(left_s, is_closed)
            since_ms = int(time.time() * 1000)
            try:
                await begin()
                return since_ms
            except ConnectError:
                if left_s is not None:
                    left_s = max(0.0, left_s - (time.monotonic() - begin_s) - _AGAIN_S)
                if left_s == 0 or is_closed():
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def release(self) -> None:
        """Remove a user of the instance: the last user stops the periodic work and closes the connections."""
        self._users -= 1
        if self._users > 0:
            return
        with _registry_lock:
            known = _registry.get(self.loop, {}).get(self.settings, [])
            known[:] = [reference for reference in known if reference() is not self]
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self.remoting.close()

    def every(
        self, seconds: float, work: Callable[[], Awaitable[object]], name: str, *, first_s: float | None = None
    ) -> asyncio.Task[None]:
        """Run work periodically until the instance ends or the task is cancelled; a failure is logged."""

        async def repeat() -> None:
            await asyncio.sleep(seconds if first_s is None else first_s)
            while True:
                try:
                    await work()
                except MqfastError as error:
                    _log.warning("%s: %s: %s", self.client_id, name, error)
                except Exception:
                    _log.exception("%s: %s failed", self.client_id, name)
                await asyncio.sleep(seconds)

        return self.spawn(repeat(), f"mqfast {name}")

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        """Start a task that ends with the instance at the latest."""
        task: asyncio.Task[None] = self.loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # -- fields of every request --------------------------------------------------------------------------------------

    @property
    def sign_with(self) -> Sign | None:
        """Return ``sign``, or None where requests need neither signature nor namespace."""
        return self.sign if self.settings.credentials is not None or self.settings.namespace_v2 else None

    def sign(self, code: int, fields: dict[str, Any], body: Any) -> dict[str, Any]:
        """Return the fields of a request with the namespace of version 2, and with a signature over all fields where
        there are credentials. Source: NamespaceRpcHook, AclClientRPCHook.
        """
        if self.settings.namespace_v2:
            fields = {**fields, **header_fields(self.settings.namespace_v2)}
        who = self.settings.credentials
        if who is None:
            return fields
        return sign(fields, body, who.access_key, who.secret_key, who.security_token or "")

    # -- addresses -----------------------------------------------------------------------------------------------------

    def reached_at(self, address: str) -> tuple[str, int]:
        """Return (host, port) to connect to for an address of a route. Raises: ValueError. Thread: any."""
        return reached_at(self.settings.address_map, address)

    def explain(self, address: str) -> str:
        """Return the likely reason why a broker was never reached. Thread: any."""
        if address in self._was_heard:
            return ""
        names = [name for name, place in list(self.routes.brokers.items()) if address in place.addresses.values()]
        return hint(address, self.name_servers.addresses, names[0]) if names else ""

    # -- routes --------------------------------------------------------------------------------------------------------

    def route(self, topic: str, *, timeout_s: float = 3.0, refresh: bool = False) -> RequestSteps[TopicRoute]:
        """Return a topic's route; see ``ClusterMetadata.route``."""
        return self.cluster.route(topic, timeout_s=timeout_s, refresh=refresh)

    def publish_route(
        self, topic: str, *, copied_topic: str, queues: int, timeout_s: float = 3.0, refresh: bool = False
    ) -> RequestSteps[TopicRoute]:
        """Return the route of a topic to send to; see ``ClusterMetadata.publish_route``."""
        return self.cluster.publish_route(
            topic, copied_topic=copied_topic, queues=queues, timeout_s=timeout_s, refresh=refresh
        )

    async def refresh_routes(self) -> None:
        """Fetch the routes of all topics in use."""
        wanted = {topic for owner in self._owners() for topic in owner.topics()} | set(self.routes.topics)
        for topic in sorted(wanted):
            try:
                await self.driver.run(self.route(topic, refresh=True))
            except NoRoute:
                continue  # a copied route stays: the topic may be made by the next send
            except BrokerError as error:  # of this topic alone
                _log.warning("%s: %s", self.client_id, error)
            except ClientError as error:
                _log.warning("%s: %s", self.client_id, error)
                return

    def route_failed(self, topic: str) -> None:
        """Report that a broker of the topic's route did not serve: another one may be the master by now.

        The route is fetched soon, once a second at most. Thread: any.
        """
        now_s = time.monotonic()
        if now_s - self._failed_s.get(topic, float("-inf")) >= ROUTE_FAILED_S:
            self._failed_s[topic] = now_s
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._begin_route, topic)

    def _begin_route(self, topic: str) -> None:
        if self._users > 0:
            self.spawn(self._refresh_route(topic), f"mqfast route {topic}")

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self.driver.run(self.route(topic, refresh=True))
        except MqfastError as error:
            _log.info("%s: %s", self.client_id, error)

    async def _fetch_addresses(self) -> None:
        await self.driver.run(self.cluster.fetch_addresses())

    # -- clients -------------------------------------------------------------------------------------------------------

    def _owners(self) -> list[InstanceClient]:
        producers = [producer for of_group in self._producers.values() for producer in of_group]
        return [*producers, *self._consumers.values()]

    def add_producer(self, group: str, owner: InstanceClient) -> None:
        """Register a producer of this group; brokers see several producers of a group as one."""
        self._producers.setdefault(group, []).append(owner)
        self.heartbeat_soon()

    def add_consumer(self, group: str, owner: InstanceClient) -> None:
        """Register a consumer of this group. Raises: ClientError for a second one."""
        if self._consumers.get(group, owner) is not owner:
            raise ClientError(f"group {group}: {self.client_id} has a consumer of it already")
        self._consumers[group] = owner

    async def remove_producer(self, group: str, owner: InstanceClient) -> None:
        """Remove a producer; unregister the group at the brokers after its last one."""
        of_group = self._producers.get(group, [])
        if owner not in of_group:
            return
        of_group.remove(owner)
        if not of_group:
            del self._producers[group]
            await self._unregister({"producerGroup": group})

    async def remove_consumer(self, group: str, owner: InstanceClient) -> None:
        """Remove a consumer and unregister the group at the brokers, which notify the other members."""
        if self._consumers.get(group) is owner:
            del self._consumers[group]
            await self._unregister({"consumerGroup": group})

    async def _unregister(self, fields: dict[str, str]) -> None:
        fields = {"clientID": self.client_id, **fields}
        heard, self._heard = self._heard, (self._heard if self._owners() else set())
        for outcome in await asyncio.gather(
            *(
                self.driver.request(Request(address, RequestCode.UNREGISTER_CLIENT, fields, timeout_s=1.0))
                for address in sorted(heard)
            ),
            return_exceptions=True,
        ):
            if isinstance(outcome, BaseException):
                _log.info("%s: a broker does not hear that the client ends: %s", self.client_id, outcome)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Send a heartbeat as soon as the loop is free. Thread: any."""
        if not self._heartbeat_asked:
            self._heartbeat_asked = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._begin_heartbeat)

    def _begin_heartbeat(self) -> None:
        self._heartbeat_asked = False
        if self._users > 0:
            self.spawn(self.heartbeat(), "mqfast heartbeat now")

    async def heartbeat(self) -> None:
        """Send the groups of this client to all brokers of known routes; to masters alone without a consumer."""
        body = {
            "clientID": self.client_id,
            "producerDataSet": [dict(producers[-1].heartbeat()) for producers in self._producers.values()],
            "consumerDataSet": [dict(consumer.heartbeat()) for consumer in self._consumers.values()],
        }
        if not body["producerDataSet"] and not body["consumerDataSet"]:
            return
        ids_wanted = None if self._consumers else MASTER_ID
        targets = sorted(
            {
                address
                for place in self.routes.brokers.values()
                for broker_id, address in place.addresses.items()
                if ids_wanted is None or broker_id == ids_wanted
            }
            | self._heartbeat_targets
        )
        data = encode_body(body)
        async with self._heartbeat_lock:
            outcomes = await asyncio.gather(
                *(self.driver.request(Request(address, RequestCode.HEART_BEAT, None, data)) for address in targets),
                return_exceptions=True,
            )
        for address, outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, MqfastError):
                self._heard.discard(address)
                self._unheard_s[address] = time.monotonic()
                _log.info("%s: heartbeat: %s", self.client_id, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None and outcome.code != ResponseCode.SUCCESS:
                _log.warning("%s: heartbeat: %s", self.client_id, broker_error(outcome, address))
            else:
                self._heard.add(address)
                self._was_heard.add(address)
                self._unheard_s.pop(address, None)

    def is_registered_at(self, address: str) -> bool:
        """Return whether this broker has accepted a heartbeat of this client."""
        return address in self._heard

    def has_tried_heartbeat(self, address: str) -> bool:
        """Return whether this broker has accepted a heartbeat, or whether a failed one is not yet due again."""
        return address in self._heard or time.monotonic() - self._unheard_s.get(address, -HEARTBEAT_S) < HEARTBEAT_S

    def add_heartbeat_targets(self, addresses: Iterable[str]) -> None:
        """Send heartbeats to these brokers as well, although no known route names them."""
        if (wanted := frozenset(addresses)) != self._heartbeat_targets:
            self._heartbeat_targets = wanted
            self.heartbeat_soon()

    def serve(self, code: int, group: str | None, handler: Handler) -> None:
        """Serve requests of brokers; see ``BrokerRequests.serve``."""
        self.requests.serve(code, group, handler)


_registry_lock = Guard()
# Instances refer to their loop: a strong reference here would keep a loop whose clients were never closed.
_References = list["weakref.ref[ClientInstance]"]
_registry: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[InstanceSettings, _References]] = (
    weakref.WeakKeyDictionary()
)


def _is_alive(reference: weakref.ref[ClientInstance]) -> bool:
    return reference() is not None


def _alive(known: _References) -> list[ClientInstance]:
    return [instance for reference in known if (instance := reference()) is not None]


def forget() -> list[Any]:
    """Close the sockets of inherited instances in a child process. Returns: objects to keep."""
    global _registry_lock
    _registry_lock = Guard()
    inherited: list[Any] = []
    for loop, by_settings in list(_registry.items()):
        inherited.append(loop)
        for instance in (known for many in by_settings.values() for known in _alive(many)):
            inherited.append(instance)
            leave_sockets(instance.remoting.filenos())
    _registry.clear()
    return inherited


def forget_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Forget the instances of a closed loop, whose clients were not closed."""
    with _registry_lock:
        _registry.pop(loop, None)


def _client_id(settings: InstanceSettings) -> str:
    name = settings.instance_name or f"{os.getpid()}#{secrets.token_hex(6)}"
    parts = [_own_address(settings.name_servers), name]
    if settings.unit_name:
        parts.append(settings.unit_name)
    return "@".join(parts)


def _own_address(name_servers: tuple[str, ...]) -> str:
    """Return the address of this machine towards the first name server. Nothing is sent."""
    host, port = ("192.0.2.1", 9)
    if name_servers and not name_servers[0].startswith(("http://", "https://")):
        host, port = split_address(name_servers[0])
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    return "127.0.0.1"
