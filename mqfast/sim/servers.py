"""The servers of a simulated cluster: name servers, brokers and etcd, each on a machine with a disk.

A server is the product's own code in a process. A crash ends the process between two system calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.broker.server import Broker
from mqfast.errors import MqfastError
from mqfast.ha.promotion import PromotionPlan, carry_out, plan_promotion
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.sim.etcd import PORT, EtcdModel, EtcdProtocol, SimEtcd
from mqfast.sim.process import Machine, Process
from mqfast.sim.threads import in_process
from mqfast.sim.world import ProcessEnded, World

if TYPE_CHECKING:
    from mqfast.sim.disk import Disk
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.message_store import MessageStore

__all__ = ["BrokerServer", "EtcdServer", "NameServerServer", "Server", "brokers_of", "etcd_of", "name_servers"]

NAMES_PORT: Final = 9876
BROKER_PORT: Final = 10911
_RESTART_S: Final = 1.0
_SMALL: Final = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 200,
    "maxIndexNum": 800,
}


class Server:
    """A machine with a server.

    Attributes: ``machine``; ``disk``: None without files; ``is_wanted``: whether the server is to run.
    """

    def __init__(self, world: World, machine: Machine, disk: Disk | None) -> None:
        self.world: Final = world
        self.machine: Final = machine
        self.disk: Final = disk
        self.is_wanted = False
        self.last_error: Exception | None = None
        self._stop: Callable[[], Awaitable[object]] | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Return the name of the machine."""
        return self.machine.name

    @property
    def process(self) -> Process | None:
        """Return the running process."""
        return self.machine.process

    async def _serve(self, process: Process) -> None:
        """Start the server in a process, and set ``_stop``."""
        raise NotImplementedError

    def start(self) -> None:
        """Start a process; ``started`` waits until the server serves."""
        assert self.machine.process is None
        self.is_wanted = self.machine.has_power = True
        self._stop = self._starting = None
        process = self.machine.process = Process(self.machine)
        self.world.history.note(process, "start", str(self.machine.lives))
        if self.disk is not None:
            self.disk.begin(process)
        self._starting = self.world.loop.create_task(self._begin(process), context=process.context)

    async def started(self) -> None:
        """Wait until the server serves, or the process has ended."""
        process = self.machine.process
        if process is not None and self._starting is not None:
            with contextlib.suppress(ProcessEnded):
                await self.world.finished(process, self._starting)

    async def _begin(self, process: Process) -> None:
        try:
            await self._serve(process)
        except Exception as error:
            self.world.history.note(process, "failed", f"start: {type(error).__name__}: {error}")
            if process.is_alive:
                self._start_failed(process, error)

    def _start_failed(self, process: Process, error: Exception) -> None:
        """Start the server again after a failed start."""
        self.last_error = error
        self.world.loop.call_soon(self._end_failed, process, context=self.world.scenario.context)

    def _end_failed(self, process: Process) -> None:
        if process.is_alive:
            self.kill()
            self.world.loop.call_later(_RESTART_S, self._start_again)

    def _start_again(self) -> None:
        if self.is_wanted and self.process is None:
            self.start()

    def kill(self, *, power: bool = False) -> None:
        """End the process at once; with ``power`` the machine loses power."""
        process = self.machine.process
        if process is None:
            return
        self.world.history.kills_s.append(self.world.loop.now_s)
        self.world.end_process(process, power=power)
        if self.disk is not None:
            self.disk.crash(process, power=power)
        process.system = None

    async def stop(self) -> None:
        """Stop the server in order."""
        process, stop = self.machine.process, self._stop
        self.is_wanted = False
        if process is None:
            return
        if stop is None:
            self.kill()
            return
        task = self.world.loop.create_task(_awaited(stop), context=process.context)
        try:
            await self.world.finished(process, task)
        except ProcessEnded:
            pass
        except MqfastError as error:  # of a full disk, which ends the process with an error
            self.world.history.note(process, "failed", f"stop: {type(error).__name__}")
        if process.is_alive:
            self._end(process)

    def _end(self, process: Process) -> None:
        """End a process that has closed everything."""
        self.world.end_process(process, power=False)
        if self.disk is not None:
            self.disk.crash(process, power=False)
        process.system = None


async def _awaited(function: Callable[[], Awaitable[object]]) -> None:
    await function()


class NameServerServer(Server):
    """A name server."""

    async def _serve(self, process: Process) -> None:
        assert self.disk is not None
        config = NamesrvConfig()
        path = self.disk.path
        values = {
            "kvConfigPath": f"{path}/kvConfig.json", "configStorePath": f"{path}/namesrv.properties",
            "listenPort": str(NAMES_PORT), "bindAddress": self.machine.address,
        }  # fmt: skip
        config.update(values, "simulation")
        server = NameServer(config)
        await server.start()
        self._stop = server.stop


class EtcdServer(Server):
    """One cluster of etcd, as a single machine. Its data outlives the process."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine, None)
        self.model: Final = EtcdModel(lambda: world.loop.now_s)

    async def _serve(self, process: Process) -> None:
        server = await self.world.loop.create_server(lambda: EtcdProtocol(self.model), "", PORT)

        async def stop() -> None:
            server.close()

        self._stop = stop


class BrokerServer(Server):
    """A broker: alone, or beside others of the name under fail-over.

    Attributes: ``number``: the broker id under fail-over, 0 without; ``failover``: the running FailoverBroker.
    """

    def __init__(
        self, world: World, machine: Machine, disk: Disk, *, broker_name: str, number: int, settings: dict[str, Any]
    ) -> None:
        super().__init__(world, machine, disk)
        self.broker_name: Final = broker_name
        self.number: Final = number
        self.settings: Final = settings
        self.failover: FailoverBroker | None = None
        self._alone: Broker | None = None

    def _config(self) -> BrokerConfig:
        assert self.disk is not None
        config = BrokerConfig()
        values = {
            **_SMALL, "brokerName": self.broker_name, "brokerIP1": self.machine.address,
            "bindAddress": self.machine.address, "listenPort": BROKER_PORT, "haListenPort": BROKER_PORT + 1,
            "namesrvAddr": ";".join(name_servers(self.world)), "storePathRootDir": f"{self.disk.path}/store",
            "defaultTopicQueueNums": 4, **self.settings,
        }  # fmt: skip
        config.update({name: str(value) for name, value in values.items()}, "simulation")
        return config

    async def _serve(self, process: Process) -> None:
        assert self.disk is not None
        assert process.system is not None
        os_api, make_store = process.system.os_api, self.disk.open_store

        def make_broker(*arguments: Any, **named: Any) -> Broker:
            return Broker(*arguments, os_api=os_api, make_store=make_store, **named)

        self._stop = self.failover = self._alone = None
        if self.number:
            make_etcd = partial(_etcd, self.world)
            failover = self.failover = FailoverBroker(self._config(), make_broker=make_broker, make_etcd=make_etcd)
            await failover.start()
            self._stop = failover.stop
        else:
            self._alone = make_broker(self._config())
            await self._alone.start()
            self._stop = self._alone.stop

    @property
    def broker(self) -> Broker | None:
        """Return the running broker."""
        if self.machine.process is None:
            return None
        if self.failover is not None:
            return getattr(self.failover, "broker", None)
        return self._alone

    @property
    def store(self) -> MessageStore | None:
        """Return the open store."""
        stores = [] if self.disk is None or self.machine.process is None else self.disk.stores
        return stores[-1] if stores else None

    @property
    def takes_messages(self) -> bool:
        """Return whether this broker accepts messages by the knowledge of the broker."""
        if self.machine.process is None or self._stop is None:
            return False
        if self.failover is None:
            return self._alone is not None and not self._alone.context.config.is_slave
        return self.failover.right.is_valid()

    def promote(self) -> PromotionPlan:
        """Promote the store of a stopped slave as ``mqfast broker --promote`` does, unless the plan refuses.

        Returns: the plan. The next start is that of a master.
        """
        assert self.process is None, f"{self.name}: expected a stopped slave, found one that runs"
        assert self.disk is not None
        process = self.machine.process = Process(self.machine)
        os_api = self.disk.begin(process).os_api
        try:
            return in_process(process, self._promote, os_api)  # type: ignore[no-any-return]
        finally:
            self._end(process)

    def _promote(self, os_api: OsApi) -> PromotionPlan:
        config = self._config()
        store_config = config.store_config()
        plan = plan_promotion(config.store_path, store_config, os_api=os_api)
        if not plan.refusals:
            carry_out(plan, store_config, os_api=os_api)
            self.become_master()
        return plan

    def become_master(self) -> None:
        """Let the next start be that of a master."""
        self.settings.update(brokerRole="ASYNC_MASTER", brokerId=0)

    def become_slave(self) -> None:
        """Let the next start be that of a slave."""
        self.settings.update(brokerRole="SLAVE", brokerId=1)


def _etcd(world: World, *arguments: Any) -> SimEtcd:
    etcd = SimEtcd(*arguments)
    etcd.loop = world.loop
    return etcd


def name_servers(world: World) -> list[str]:
    """Return the addresses of all name servers."""
    servers = [server for server in world.servers.values() if isinstance(server, NameServerServer)]
    return [f"{server.machine.address}:{NAMES_PORT}" for server in servers]


def etcd_of(world: World) -> EtcdServer | None:
    """Return etcd, which a cluster with fail-over has."""
    return next((server for server in world.servers.values() if isinstance(server, EtcdServer)), None)


def brokers_of(world: World, broker_name: str | None = None) -> list[BrokerServer]:
    """Return the brokers of a name, or all."""
    brokers = [server for server in world.servers.values() if isinstance(server, BrokerServer)]
    return [broker for broker in brokers if broker_name in (None, broker.broker_name)]
