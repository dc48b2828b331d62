"""Cluster: a simulated cluster, as a scenario sees the cluster.

Everything but the outside is the product's code. All machines run in a single event loop on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mqfast.client.net import instance
from mqfast.sim.clients import Consumer, Producer, PullConsumer, SimpleConsumer, TransactionalProducer
from mqfast.sim.faults import FaultRunner
from mqfast.sim.history import Broken, History
from mqfast.sim.invariants import Invariants
from mqfast.sim.process import Process
from mqfast.sim.servers import BrokerServer, EtcdServer, NameServerServer, etcd_of, name_servers
from mqfast.sim.world import ProcessEnded, World

if TYPE_CHECKING:
    from mqfast.sim.faults import Fault

__all__ = ["Cluster", "ProcessEnded"]

_SAMPLE_S: Final = 0.1
_LEADERS_SAMPLE_S: Final = 0.025
_START_S: Final = 60.0


class Cluster(World):
    """One life of a cluster. Thread: that of the simulation."""

    replay: ClassVar[Callable[..., Any]]

    def __init__(self, seed: int, base: Path, history: History, plan: list[Fault]) -> None:
        super().__init__(seed, base, history)
        self.clients: Final[list[Producer | Consumer | PullConsumer | SimpleConsumer]] = []
        self.groups: Final[list[tuple[str, str, str]]] = []
        self.faults: Final = FaultRunner(self, plan)
        self.invariants: Final = Invariants(self, self.groups)
        self.loop.on_crash = self._crashed

    def _crashed(self, process: Process) -> None:
        """End a process whose planned system call has come."""
        self.servers[process.name].kill(power=self.faults.is_power_cut(process))

    # -- what a scenario calls -----------------------------------------------------------------------------------------

    async def brokers(
        self, name: str = "broker-a", *, replicas: int = 1, in_sync: int = 1, names: int = 1, **settings: Any
    ) -> None:
        """Start the brokers of a name, and before the first ones name servers and etcd.

        Args: replicas: brokers of the name; two or more are under fail-over. in_sync: smallest number of brokers that
        have a message before the answer. names: name servers. settings: of each broker, by RocketMQ's names.
        """
        if not name_servers(self):
            for number in range(names):
                machine = self.machine(f"names-{number + 1}")
                server = self.servers[machine.name] = NameServerServer(self, machine, self.disk(machine.name))
                server.start()
                await server.started()
        if replicas > 1 and etcd_of(self) is None:
            machine = self.machine("etcd")
            self.servers["etcd"] = EtcdServer(self, machine)
            self.servers["etcd"].start()
            await self.servers["etcd"].started()
        if replicas > 1:
            etcd = etcd_of(self)
            assert etcd is not None
            settings = {
                "brokerRole": "SYNC_MASTER", "haEtcdEndpoints": f"{etcd.machine.address}:2379",
                "haTruncateDiverged": "true", "haMaxTimeSlaveNotCatchup": 3000, "haSendHeartbeatInterval": 500,
                "minInSyncReplicas": in_sync, "slaveTimeout": 1000,
                "haBrokerIds": ";".join(str(number) for number in range(1, replicas + 1)), **settings,
            }  # fmt: skip
        started = []
        for number in range(1, replicas + 1):
            machine = self.machine(f"{name}-{number}" if replicas > 1 else name)
            own = {**settings, "brokerId": number} if replicas > 1 else settings
            broker = BrokerServer(
                self, machine, self.disk(machine.name), broker_name=name, number=number if replicas > 1 else 0,
                settings=own,
            )  # fmt: skip
            self.servers[machine.name] = broker
            started.append(broker)
            broker.start()
        for broker in started:
            await broker.started()
        self.invariants.start(_LEADERS_SAMPLE_S if replicas > 1 else _SAMPLE_S)
        self.faults.start()

    async def slave(self, name: str = "broker-a", *, machine: str = "", **settings: Any) -> BrokerServer:
        """Start a slave beside the broker of a name, without fail-over. Args: machine: its name."""
        host = self.machine(machine or f"{name}-slave")
        own = {"brokerRole": "SLAVE", "brokerId": 1, **settings}
        slave = BrokerServer(self, host, self.disk(host.name), broker_name=name, number=0, settings=own)
        self.servers[host.name] = slave
        slave.start()
        await slave.started()
        return slave

    async def producer(self, group: str, **options: Any) -> Producer:
        """Start an AsyncProducer on a new machine. Args: options: of the AsyncProducer."""
        producer = Producer(self, self._client_process(group))
        self.clients.append(producer)
        await producer.start(group, **_started(producer, options))
        return producer

    async def transactional_producer(self, group: str, **options: Any) -> TransactionalProducer:
        """Start an AsyncTransactionProducer on a new machine."""
        producer = TransactionalProducer(self, self._client_process(group))
        self.clients.append(producer)
        await producer.start(group, **_started(producer, options))
        return producer

    async def pull_consumer(self, group: str, topic: str, **options: Any) -> PullConsumer:
        """Start an AsyncPullConsumer on a new machine."""
        consumer = PullConsumer(self, self._client_process(group))
        self.clients.append(consumer)
        options.setdefault("from_where", "earliest")
        await consumer.start(group, topic, **_started(consumer, options))
        return consumer

    async def simple_consumer(self, group: str, topic: str, **options: Any) -> SimpleConsumer:
        """Start an AsyncSimpleConsumer, which reads by POP, on a new machine."""
        consumer = SimpleConsumer(self, self._client_process(group))
        self.clients.append(consumer)
        options.setdefault("from_where", "earliest")
        await consumer.start(group, topic, **_started(consumer, options))
        return consumer

    async def consumer(
        self, group: str, topic: str, handler: Callable[..., Any], *, tags: str = "*", **options: Any
    ) -> Consumer:
        """Start an AsyncPushConsumer on a new machine.

        Args: handler: called with each message, as by ``subscribe``; options: of the AsyncPushConsumer.
        """
        consumer = Consumer(self, self._client_process(group))
        self.clients.append(consumer)
        if tags == "*" and options.get("model") != "broadcasting":
            self.groups.append((group, topic, consumer.process.name))
        options.setdefault("from_where", "earliest")
        await consumer.start(group, topic, handler, tags, **_started(consumer, options))
        return consumer

    def _client_process(self, group: str) -> Process:
        count = sum(client.process.name.startswith(f"{group}-") for client in self.clients)
        machine = self.machine(f"{group}-{count + 1}")
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
        """End all faults: links carry, disks have space, clocks are right, and every server runs."""
        await self.faults.heal()

    async def settled(self, within_s: float = 120.0) -> None:
        """Wait until the cluster is well, and check all invariants. Raises: Broken.

        Args: within_s: virtual seconds until a broker of each name takes messages, all others have the same log, and
        every group has every acknowledged message.
        """
        deadline_s = self.loop.now_s + within_s
        while (why := self.invariants.is_unwell()) is not None:
            if self.loop.now_s > deadline_s:
                raise Broken("well in time", f"{within_s:g} s after the faults: {why}")
            await asyncio.sleep(0.25)
        self.invariants.check_all()

    def invariant(self, name: str, check: Callable[[], object]) -> None:
        """Add an invariant of the user. Args: check: raises, or returns a text or False, for a broken invariant."""
        self.invariants.add(name, check)

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all processes and free the disks."""
        machines = list(self.network.machines.values())
        for process in [machine.process for machine in machines if machine.process is not None]:
            process.is_alive = False
            for thread in list(process.threads):
                thread.finish()
            self.loop.bury(process)
        self.scenario.is_alive = False
        self.loop.bury(self.scenario)
        for server in self.servers.values():
            if server.disk is not None:
                server.disk.close()
        self.loop.close()
        self.threads.close()
        instance.forget_loop(self.loop)


def _started(client: Producer | Consumer | PullConsumer | SimpleConsumer, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a client: a start waits while the name servers are away."""
    return {"instance_name": client.process.name, "start_timeout_s": _START_S, **options}
