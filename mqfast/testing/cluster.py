"""The servers of a test: name servers and brokers on free ports of the loopback interface, in one event loop.

Runs in the loop only, by ``event_loop_thread.py``. Only directories of the cluster are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.broker.admin.bodies import OffsetsBody, QueueBody, by_queue
from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.subscription_group_manager import SubscriptionGroupManager
from mqfast.broker.metadata.topic_manager import READ, WRITE, TopicManager
from mqfast.broker.parts import Parts
from mqfast.broker.server import Broker
from mqfast.errors import ConfigError, MqfastError, UsageError
from mqfast.grpc import IS_BUILT
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.heartbeat import PASSIVELY
from mqfast.store.message_store import MessageStore, open_store
from mqfast.store.meta.tables import ConfigTables
from mqfast.testing.disk_faults import Disk, cut_power
from mqfast.testing.duplicates import QueueOffset, Reader
from mqfast.testing.fault_injection import FaultInjection
from mqfast.testing.fault_os_api import FaultDoor
from mqfast.testing.ports import HeldPorts
from mqfast.testing.scratch_directories import remove_tree
from mqfast.testing.virtual_clock import Time

if TYPE_CHECKING:
    from mqfast.grpc.connection import Call

__all__ = ["AT_ONCE", "RUNNING", "RunningCluster", "RunningServer", "check_settings"]

_log = logging.getLogger("mqfast.testing")
RUNNING: Final = "running"
SMALL: Final = {
    "mappedFileSizeCommitLog": str(8 << 20),  # a message of 4 MiB fits
    "mappedFileSizeConsumeQueue": str(3000 * 20),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "flushDiskType": "SYNC_FLUSH",  # acknowledged messages survive a power cut
}
_REGISTRATION_S: Final = 60.0
_FAULTY_S: Final = 1.0
AT_ONCE: Final = " ".join(["0s"] * 18)


_P = TypeVar("_P")


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _make_call(gate: FaultInjection, name: str) -> Callable[..., Call] | None:
    """Return the factory of a broker's gRPC calls; None in a build without gRPC."""
    if not IS_BUILT:
        return None
    from mqfast.testing.grpc_faults import maker

    return maker(gate, name)


def check_settings(settings: Mapping[str, object]) -> None:
    """Check settings of a broker. Raises: ConfigError."""
    config = BrokerConfig()
    config.update({name: str(value) for name, value in settings.items()}, "config")
    if config.unknown:
        raise ConfigError(next(line for line in config.warnings if config.unknown[0] in line))
    # For an invalid value a broker uses the default, as Java's does, and a test would not notice. Settings of RocketMQ
    # without effect here are accepted: real start files contain them.
    if warnings := config.store_config().warnings:
        raise ConfigError(warnings[0])


class RunningServer:
    """One broker of the cluster.

    Attributes: ``state``: running, stopped or killed; ``broker``: the running broker, or the last.
    """

    def __init__(self, name: str, path: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.path = path
        self.settings = dict(settings)
        self.generation = 0
        self.port: int | None = None
        self.state = "new"
        self.broker: Broker
        self.os_api: FaultDoor
        self._spare: asyncio.Future[tuple[str, FaultDoor, MessageStore, ConfigTables]] | None = None
        self.retired: set[asyncio.Future[None]] = set()

    @property
    def context(self) -> BrokerContext:
        """Return the shared parts of the broker."""
        return self.broker.context

    @property
    def parts(self) -> Parts:
        """Return the parts of the broker."""
        return self.broker.parts

    @property
    def is_running(self) -> bool:
        """Return whether the broker serves."""
        return self.state == RUNNING

    @property
    def store_path(self) -> str:
        """Return the directory of the broker's store."""
        return f"{self.path}.{self.generation}" if self.generation else self.path

    def config(self, path: str) -> BrokerConfig:
        """Return the settings as a broker reads settings, with a store there. Raises: ConfigError."""
        config = BrokerConfig()
        config.update({**self.settings, "storePathRootDir": path}, "mqfast.testing.Broker")
        return config


class RunningCluster:
    """Name servers and brokers that share clock, gate and disk.

    Args: root: the directory for what is not the brokers'; stores: a directory for each broker; config: settings of
        the brokers by RocketMQ's names; topics: name -> queues, those that each broker has from the start.
    Attributes: ``members``: name -> broker; ``gate``, ``disk``: what faults do; ``time``: the cluster's.
    Raises: ConfigError for settings that cannot be used.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        root: str,
        stores: Mapping[str, str],
        config: Mapping[str, str],
        *,
        topics: Mapping[str, int],
        groups: Iterable[str],
        time_: Time,
        name_servers: int,
    ) -> None:
        self.root = root
        self.time = time_
        self.topics = dict(topics)
        self.groups = list(groups)
        self.gate = FaultInjection(time_.now_ms)
        self.disk = Disk()
        self.name_servers: dict[str, NameServer | None] = {f"namesrv-{i + 1}": None for i in range(name_servers)}
        self._ports: dict[str, int] = {}
        self._held = HeldPorts()
        own = {"brokerIP1": "127.0.0.1", "listenPort": "0", **SMALL}
        # One certificate for all servers; brokers speak TLS with name servers then.
        self._tls = {name: value for name, value in config.items() if name.startswith("tls.server.")}
        if self._tls.get("tls.server.certPath"):
            own["tls.enable"] = "true"
        self.members = {
            name: RunningServer(name, path, {**own, "brokerName": name, **config}) for name, path in stores.items()
        }
        time_.on_change = self._clock_moved
        self.gate.reader = self._reader

    # --- start and end ---

    async def start(self) -> None:
        """Start. Raises: OSError without a free port; as ``open_store``."""
        try:
            for name in self.name_servers:
                await self._start_name_server(name)
            await asyncio.gather(*map(self.start_member, self.members.values()))
        except BaseException:
            await self.close()
            raise

    @property
    def namesrv_addr(self) -> str:
        """Return the name servers, between semicolons."""
        return ";".join(f"127.0.0.1:{self._ports[name]}" for name in self.name_servers)

    async def _start_name_server(self, name: str) -> None:
        config = NamesrvConfig()
        config.update(
            {
                "listenPort": str(self._ports.get(name, 0)),
                "kvConfigPath": f"{self.root}/{name}/kvConfig.json",
                "configStorePath": f"{self.root}/{name}/namesrv.properties",
                "deleteTopicWithBrokerRegistration": "true",
                **self._tls,
            },
            "mqfast.testing",
        )
        self._held.release([self._ports.get(name, 0)])
        server = NameServer(config, make_channel=self.gate.maker(name, of_brokers=True))
        await server.start()
        self.name_servers[name] = server
        self._ports[name] = server.address[1]

    async def start_member(self, member: RunningServer) -> None:
        """Start a broker on its store and, after an earlier start, on its port."""
        config = member.config(member.store_path)
        config.update({"namesrvAddr": self.namesrv_addr}, "mqfast.testing")
        member.os_api = self._door()
        member.broker = Broker(
            config,
            now_ms=self.time.now_ms,
            client_ms=_steady_ms,
            os_api=member.os_api,
            port=member.port if member.port is not None else 0,
            make_channel=self.gate.maker(member.name),
            make_call=_make_call(self.gate, member.name),
        )
        self.disk.apply(member.os_api, None)
        self._held.release([member.port or 0])
        self.gate.starting += 1
        try:
            await member.broker.start()
        finally:
            self.gate.starting -= 1
        member.port = member.broker.address[1]
        member.state = RUNNING
        self.disk.apply(member.os_api, member.context.store)
        await self._registered(member)
        await self.create_topics(member, self.topics, self.groups)

    def _door(self) -> FaultDoor:
        os_api = FaultDoor()
        os_api.set_clock(*self.time.setting)
        return os_api

    async def create_all(self, topics: Mapping[str, int], groups: Iterable[str]) -> None:
        """Create topics and groups on all running brokers; the name servers know the topics on return."""
        await asyncio.gather(*(self.create_topics(member, topics, groups) for member in self.running()))

    async def create_topics(self, member: RunningServer, topics: Mapping[str, int], groups: Iterable[str]) -> None:
        """Create missing topics and groups on a broker."""
        context = member.context
        missing = {name: queues for name, queues in topics.items() if name not in context.topics.table}
        for name, queues in missing.items():
            context.topics.table.put(name, context.topics.raw(name, queues, READ | WRITE))
        unknown = [group for group in groups if group not in context.groups.table]
        for group in unknown:
            context.groups.table.ensure(group)
        if unknown:
            context.groups.table.persist()
        if missing:
            context.topics.permission_changed()
        await context.changes.settled()
        await self._registered(member)

    async def _registered(self, member: RunningServer) -> None:
        """Wait for the registrations of a broker, also on a slow machine; only briefly where faults may delay these."""
        await member.context.registration.wait_registered(_FAULTY_S if self.gate.faults else _REGISTRATION_S)

    async def close(self) -> None:
        """Close everything and remove the files."""
        for member in self.members.values():
            await self.stop_member(member)
            await self._drop_spare(member)
            vars(member).pop("broker", None)  # holds descriptors of its store
        for name in self.name_servers:
            await self.stop_name_server(name)
        self._held.release()
        self.time.on_change = lambda _ahead_ms, _stands_ms: None

    def state(self) -> dict[str, Any]:
        """Return ports and stores, for ``restore_state``."""
        return {
            "ports": dict(self._ports),
            "members": {member.name: (member.port, member.generation) for member in self.members.values()},
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Use these ports and stores at the start."""
        self._ports.update(state.get("ports", {}))
        for name, (port, generation) in state.get("members", {}).items():
            self.members[name].port, self.members[name].generation = port, generation

    def flushed(self) -> dict[str, int]:
        """Return the directory of each open store, and the physical offset up to which syncs came."""
        return {member.store_path: member.context.engine.log.flushed for member in self.running()}

    def close_at_exit(self, *, keeps_stores: bool) -> None:
        """Close all stores from the thread of the interpreter's exit, whatever the loop does."""
        for member in self.members.values():
            opened = [(member.os_api, member.context.store)] if member.is_running else []
            if member._spare is not None and member._spare.done():
                opened.append(member._spare.result()[1:3])
            for os_api, store in opened:
                if not keeps_stores:
                    os_api.die()
                with contextlib.suppress(MqfastError):
                    store.close()

    # --- one server ---

    def named(self, name: str) -> list[str]:
        """Return the servers of this name; all brokers for an empty name. Raises: UsageError."""
        if not name:
            return list(self.members)
        if name not in self.members and name not in self.name_servers:
            raise UsageError(f"broker: expected {' or '.join([*self.members, *self.name_servers])}, found {name!r}")
        return [name]

    async def stop(self, name: str) -> None:
        """Stop servers in order."""
        for server in self.named(name):
            await (self.stop_member(self.members[server]) if server in self.members else self.stop_name_server(server))

    async def stop_member(self, member: RunningServer) -> None:
        """Stop a broker as SIGTERM does."""
        if member.is_running:
            member.state = "stopped"
            try:
                await member.broker.stop()
            except MqfastError as error:
                _log.warning("%s did not end in order: %s", member.name, error)
            self._held.hold([member.port or 0])

    async def stop_name_server(self, name: str) -> None:
        """Stop a name server."""
        server, self.name_servers[name] = self.name_servers[name], None
        if server is not None:
            await server.stop()
            self._held.hold([self._ports[name]])

    async def kill(self, name: str, *, power_loss: bool) -> None:
        """Kill servers as SIGKILL does; power_loss: unsynced data is lost as well."""
        ends = [server for server in self.named(name) if name or self.members[server].is_running]
        if power_loss and not ends:
            raise UsageError("kill: expected a running broker for power_loss, found none")
        for server in ends:
            if server in self.members:
                await self._kill_member(self.members[server], power_loss=power_loss)
            else:
                await self.stop_name_server(server)

    async def _kill_member(self, member: RunningServer, *, power_loss: bool) -> None:
        if not member.is_running:
            if power_loss and member.state == "killed":
                raise UsageError(f"kill: expected a running broker for power_loss, found {member.name} killed")
            return
        member.state = "killed"
        flushed = member.context.engine.log.flushed
        member.os_api.die()
        try:
            await member.broker.abandon()
        except MqfastError as error:
            _log.debug("%s was killed: %s", member.name, error)  # a store with an earlier failure reports the failure
        self._held.hold([member.port or 0])
        if power_loss:
            await asyncio.get_running_loop().run_in_executor(None, cut_power, member.store_path, flushed)

    async def restart(self, name: str) -> None:
        """Restart servers; running servers are stopped first."""
        for server in self.named(name):
            if server in self.members:
                await self.stop_member(self.members[server])
                await self.start_member(self.members[server])
            else:
                await self.stop_name_server(server)
                await self._start_name_server(server)
                for member in self.running():  # else a broker would register within half a minute
                    member.context.registration.register_soon()
                    await self._registered(member)

    # --- all anew ---

    async def reset(self) -> None:
        """Empty messages, offsets, groups, faults, clock; ports, connections and the first topics stay."""
        self.gate.clear()
        self.disk.heal()
        self.time.reset()
        ending = {
            member.name for member in self.members.values() if not (member.is_running and member.broker.is_renewable)
        }
        with self.gate.restart(ending):
            for name, server in self.name_servers.items():
                if server is None:
                    await self._start_name_server(name)
            await asyncio.gather(*map(self._reset_member, self.members.values()))

    async def _reset_member(self, member: RunningServer) -> None:
        if not member.is_running or not member.broker.is_renewable:
            await self.stop_member(member)
            await self._drop_spare(member)
            old = member.store_path
            member.generation += 1
            await self.start_member(member)
            self._later(member, lambda: remove_tree(old))
            return
        old_path, old_door, old_store = member.store_path, member.os_api, member.context.store
        self.prepare(member)
        assert member._spare is not None
        path, os_api, store, tables = await member._spare
        member._spare = None
        member.generation += 1
        assert path == member.store_path
        old_door.die()
        member.os_api = os_api
        member.broker.config.update({"storePathRootDir": path}, "mqfast.testing")
        await member.broker.renew(store, tables)
        self._later(member, lambda: _throw_away(old_store, old_path))
        self.disk.apply(os_api, store)
        os_api.set_clock(*self.time.setting)
        await self.create_topics(member, self.topics, self.groups)
        self.restart_offsets(member)

    def prepare_all(self) -> None:
        """Prepare all brokers, as ``prepare``."""
        for member in self.running():
            self.prepare(member)

    def prepare(self, member: RunningServer) -> None:
        """Open the store of the next ``reset`` ahead of time, in a thread."""
        if member._spare is None:
            path = f"{member.path}.{member.generation + 1}"
            config = member.config(path)
            os_api = FaultDoor()  # the clock is reset by then

            def open_one() -> tuple[str, FaultDoor, MessageStore, ConfigTables]:
                of_store = config.store_config()
                tables = ConfigTables.load(path, of_store, os_api=os_api)
                store = open_store(path, config=of_store, tables=tables, os_api=os_api)
                self._fill(config, tables, len(of_store.delay_levels_ms))
                return path, os_api, store, tables

            member._spare = asyncio.get_running_loop().run_in_executor(None, open_one)

    def _fill(self, config: BrokerConfig, tables: ConfigTables, levels: int) -> None:
        """Fill a broker's tables as at a start, with a test's first topics and groups."""
        for name, queues in self.topics.items():
            tables.topics.put(name, TopicManager.raw(name, queues, READ | WRITE))
        for group in self.groups:
            tables.groups.ensure(group)
        TopicManager(tables.topics, config, levels).ensure_system_topics()
        tables.topics.persist()
        SubscriptionGroupManager(tables.groups, config).ensure_system_groups()
        tables.groups.persist()

    async def _drop_spare(self, member: RunningServer) -> None:
        spare, member._spare = member._spare, None
        if spare is not None:
            path, os_api, store, _tables = await spare
            os_api.die()
            self._later(member, lambda: _throw_away(store, path))
        if member.retired:
            await asyncio.wait(member.retired)

    def _later(self, member: RunningServer, work: Callable[[], None]) -> None:
        """Run a function in a thread; ``close`` waits for the thread."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        member.retired.add(future)
        future.add_done_callback(member.retired.discard)

    # --- faults ---

    def drop_connections(self) -> int:
        """Close the connections of all clients."""
        clients = [channel for channel in self.gate.channels if not channel.is_broker]
        for channel in clients:
            channel.abort()
        return len(clients)

    def trigger_rebalance(self) -> None:
        """Notify all consumers that their groups changed (40)."""
        for member in self.running():
            for group in member.context.consumers.groups():
                for channel in group.members:
                    channel.oneway(  # type: ignore[attr-defined]
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}
                    )

    def restart_offsets(self, member: RunningServer) -> None:
        """Notify connected push consumers that their queues begin at 0 again (220)."""
        for group in member.context.consumers.groups():
            for topic in group.subscriptions:
                config = member.context.topics.get(topic)
                if config is None or not group.members or group.consume_type != PASSIVELY:
                    continue
                queues = [QueueBody(member.name, queue_id, topic) for queue_id in range(config.read_queue_nums)]
                body = encode_body(OffsetsBody(by_queue((queue, 0) for queue in queues)))
                fields = {"topic": topic, "group": group.name, "timestamp": "-1", "isForce": "true"}
                for channel in group.members:
                    channel.oneway(  # type: ignore[attr-defined]
                        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body
                    )

    def _reader(self, place: QueueOffset, channel: Channel) -> Reader:
        member = self.members.get(place.broker)
        group = member.context.consumers.group(place.group) if member is not None and member.is_running else None
        return Reader.of(group, channel)

    def disk_changed(self) -> None:
        """Apply the present faults of the disk to all brokers."""
        for member in self.running():
            self.disk.apply(member.os_api, member.context.store)

    def _clock_moved(self, ahead_ms: int, stands_ms: int) -> None:
        for member in self.running():
            member.os_api.set_clock(ahead_ms, stands_ms)

    def running(self) -> list[RunningServer]:
        """Return the brokers that serve."""
        return [member for member in self.members.values() if member.is_running]


def _throw_away(store: MessageStore, path: str) -> None:
    """Close a store behind a dead OsApi, and remove its directory."""
    try:
        store.close()
    finally:
        remove_tree(path)
