"""Cluster: one life of a simulated cluster, as a scenario sees it.

Everything but the outside is the product's own code. All machines run in one event loop on virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mqfast.client.net import instance
from mqfast.sim.clients import Consumer, Producer
from mqfast.sim.disk import Disk
from mqfast.sim.faults import FaultRunner
from mqfast.sim.history import Broken, History
from mqfast.sim.invariants import Invariants
from mqfast.sim.loop import SimLoop
from mqfast.sim.network import Network
from mqfast.sim.process import Machine, Process
from mqfast.sim.servers import NAMES_PORT, BrokerServer, EtcdServer, NameServerServer, Server
from mqfast.sim.threads import Threads

if TYPE_CHECKING:
    from mqfast.sim.faults import Fault
    from mqfast.sim.runs import Failure

__all__ = ["Cluster", "ProcessEnded"]

_SAMPLE_S: Final = 0.025
_RESTART_S: Final = 1.0
_CLOCK_RATES: Final = (1.0, 1.0, 1.0, 0.9999, 1.0001)


class ProcessEnded(Exception):
    """The process that a scenario waited for was killed."""


class Cluster:
    """The machines of one run.

    Attributes: ``seed``; ``rng``: for choices of the scenario; ``history``; ``loop``; ``network``; ``servers``: by
    name.
    Thread: that of the simulation.
    """

    replay: ClassVar[Callable[..., Failure | None]]

    def __init__(self, seed: int, base: Path, history: History, plan: list[Fault]) -> None:
        source = random.Random(seed)
        self.seed: Final = seed
        self.history: Final = history
        self.rng: Final = random.Random(source.getrandbits(64))
        self.loop: Final = SimLoop(random.Random(source.getrandbits(64)), history.note)
        history.loop = self.loop
        self.threads: Final = Threads(self.loop)
        self.network: Final = Network(self.loop, random.Random(source.getrandbits(64)), history.note)
        self.network.splits = source.choice((0.0, 0.0, 0.1))
        self.network.delay_s = source.choice(((0.0001, 0.002), (0.0001, 0.02), (0.001, 0.1)))
        self.loop.network, self.loop.threads = self.network, self.threads
        self.loop.on_crash = self._crashed
        self.servers: Final[dict[str, Server]] = {}
        self.clients: Final[list[Producer | Consumer]] = []
        self.product_rng: Final = random.Random(source.getrandbits(64))
        self._disk_rng: Final = random.Random(source.getrandbits(64))
        self._machine_rng: Final = random.Random(source.getrandbits(64))
        self._base: Final = base
        self._waiting: Final[dict[asyncio.Future[Any], Process]] = {}
        self._processes: Final[list[Process]] = []
        self.scenario: Final = Process(self._machine("scenario"))
        self.faults: Final = FaultRunner(self, plan)
        self.invariants: Final = Invariants(self)
        self.groups: Final[list[tuple[str, str, str]]] = []
        self.main: asyncio.Task[None] | None = None

    # -- machines ------------------------------------------------------------------------------------------------------

    def _machine(self, name: str) -> Machine:
        number = len(self.network.machines) + 1
        machine = Machine(name, f"10.0.{number >> 8}.{number & 255}", number)
        if number > 1:
            machine.rate = self._machine_rng.choice(_CLOCK_RATES)
        self.network.machines[machine.address] = machine
        return machine

    def _disk(self, name: str) -> Disk:
        return Disk(self._base / name, self.loop, self._disk_rng)

    @property
    def name_servers(self) -> list[str]:
        """Return the addresses of all name servers."""
        names = [server for server in self.servers.values() if isinstance(server, NameServerServer)]
        return [f"{server.machine.address}:{NAMES_PORT}" for server in names]

    @property
    def etcd(self) -> EtcdServer | None:
        """Return etcd, which a cluster with fail-over has."""
        return next((server for server in self.servers.values() if isinstance(server, EtcdServer)), None)

    def brokers_of(self, broker_name: str | None = None) -> list[BrokerServer]:
        """Return the brokers of a name, or all."""
        brokers = [server for server in self.servers.values() if isinstance(server, BrokerServer)]
        return [broker for broker in brokers if broker_name in (None, broker.broker_name)]

    def end_process(self, process: Process, *, power: bool) -> None:
        """End a process at once, with its threads and connections."""
        machine = process.machine
        self.history.note(process, "crash", "power" if power else "kill")
        process.is_alive = False
        machine.process, machine.has_power = None, not power
        self.network.process_ended(process, has_kernel=not power)
        for thread in list(process.threads):
            thread.end()
        self.loop.bury(process)
        for future, owner in list(self._waiting.items()):
            if owner is process and not future.done():
                future.set_exception(ProcessEnded(f"{process.name} was killed"))

    def _crashed(self, process: Process) -> None:
        """End a process whose planned system call has come."""
        server = self.servers.get(process.name)
        assert server is not None
        server.kill(power=self.faults.is_power_cut(process))

    def start_failed(self, server: Server, process: Process, error: Exception) -> None:
        """Start a server again whose start has failed."""
        if process.is_alive:
            server.kill()
            server.last_error = error
            self.loop.call_later(_RESTART_S, self._start_again, server, context=self.scenario.context)

    def _start_again(self, server: Server) -> None:
        if server.is_wanted and server.process is None:
            server.start()

    async def finished(self, process: Process, task: asyncio.Task[Any]) -> Any:
        """Wait for a task of a process. Returns: the result. Raises: its exception; ProcessEnded."""
        if not process.is_alive:
            raise ProcessEnded(f"{process.name} was killed")
        future: asyncio.Future[Any] = self.loop.create_future()
        self._waiting[future] = process

        def done(ended: asyncio.Task[Any]) -> None:
            if future.done():
                return
            if ended.cancelled():
                future.cancel()
            elif (error := ended.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(ended.result())

        task.add_done_callback(done)
        try:
            return await future
        finally:
            del self._waiting[future]

    # -- what a scenario calls -----------------------------------------------------------------------------------------

    async def brokers(
        self, name: str = "broker-a", *, replicas: int = 1, in_sync: int = 1, name_servers: int = 1, **settings: Any
    ) -> None:
        """Start the brokers of a name, and before the first ones name servers and etcd.

        Args: replicas: brokers of the name; more than one are under fail-over. in_sync: smallest number of brokers that
        have a message before its answer. settings: of each broker, by RocketMQ's names.
        """
        if not self.name_servers:
            for number in range(name_servers):
                machine = self._machine(f"names-{number + 1}")
                server = self.servers[machine.name] = NameServerServer(self, machine, self._disk(machine.name))
                await server.start()
        if replicas > 1 and self.etcd is None:
            machine = self._machine("etcd")
            self.servers["etcd"] = EtcdServer(self, machine)
            await self.servers["etcd"].start()
        if replicas > 1:
            assert self.etcd is not None
            settings = {
                "brokerRole": "SYNC_MASTER", "haEtcdEndpoints": f"{self.etcd.machine.address}:2379",
                "haTruncateDiverged": "true", "haMaxTimeSlaveNotCatchup": 3000, "haSendHeartbeatInterval": 500,
                "minInSyncReplicas": in_sync, "slaveTimeout": 1000, **settings,
            }  # fmt: skip
        started = []
        for number in range(1, replicas + 1):
            machine = self._machine(f"{name}-{number}" if replicas > 1 else name)
            own = {**settings, "brokerId": number} if replicas > 1 else settings
            broker = BrokerServer(
                self, machine, self._disk(machine.name), broker_name=name, number=number if replicas > 1 else 0,
                settings=own,
            )  # fmt: skip
            self.servers[machine.name] = broker
            started.append(broker.start())
        for task in started:
            await task
        self.invariants.start(_SAMPLE_S)
        self.faults.start()

    async def producer(self, group: str, **options: Any) -> Producer:
        """Start an AsyncProducer on a machine of its own. Args: options: of the AsyncProducer."""
        producer = Producer(self, self._client_process(group))
        self.clients.append(producer)
        await producer.start(group, instance_name=producer.process.name, **options)
        return producer

    async def consumer(
        self, group: str, topic: str, handler: Callable[..., Any], *, tags: str = "*", **options: Any
    ) -> Consumer:
        """Start an AsyncPushConsumer on a machine of its own.

        Args: handler: called with each message, as by ``subscribe``; options: of the AsyncPushConsumer.
        """
        consumer = Consumer(self, self._client_process(group))
        self.clients.append(consumer)
        if tags == "*" and options.get("model") != "broadcasting":
            self.groups.append((group, topic, consumer.process.name))
        options.setdefault("from_where", "earliest")
        await consumer.start(group, topic, handler, tags, instance_name=consumer.process.name, **options)
        return consumer

    def _client_process(self, group: str) -> Process:
        count = sum(client.process.name.startswith(f"{group}-") for client in self.clients)
        machine = self._machine(f"{group}-{count + 1}")
        machine.process = process = Process(machine)
        return process

    async def sleep(self, seconds: float) -> None:
        """Wait a virtual time."""
        await asyncio.sleep(seconds)

    @property
    def now_s(self) -> float:
        """Return the virtual time since the begin."""
        return self.loop.now_s

    async def heal(self) -> None:
        """End all faults: links carry, disks have space, and every server runs."""
        await self.faults.heal()

    async def settled(self, within_s: float = 120.0) -> None:
        """Wait until the cluster is well, and check all invariants. Raises: Broken.

        Args: within_s: virtual seconds in which one broker of each name takes messages, all others have its log, and
        every group has every acknowledged message.
        """
        deadline_s = self.loop.now_s + within_s
        while (why := self.invariants.is_unwell()) is not None:
            if self.loop.now_s > deadline_s:
                raise Broken("well in time", f"{within_s:g} s after the faults: {why}")
            await asyncio.sleep(0.25)
        self.invariants.check_all()

    def invariant(self, name: str, check: Callable[[], object]) -> None:
        """Add an invariant of the user. Args: check: raises, or returns a text or False, if it does not hold."""
        self.invariants.add(name, check)

    def stop(self) -> None:
        """End the scenario: an invariant is broken."""
        if self.main is not None:
            self.main.cancel()

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all processes and free the disks."""
        machines = list(self.network.machines.values())
        for process in [machine.process for machine in machines if machine.process is not None]:
            process.is_alive = False
            for thread in list(process.threads):
                thread.end()
            self.loop.bury(process)
        self.scenario.is_alive = False
        self.loop.bury(self.scenario)
        for server in self.servers.values():
            if server.disk is not None:
                server.disk.close()
        self.loop.close()
        self.threads.close()
        instance.forget_loop(self.loop)
