"""Faults of a run: a plan that the seed draws before the run, and the runner that carries the plan out.

A plan is a list, so that a shrinker can leave faults out. Each seed uses some kinds only (swarm testing).
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from mqfast.sim.process import Machine, Process
from mqfast.sim.servers import BrokerServer, NameServerServer, Server, brokers_of, etcd_of
from mqfast.sim.world import World

__all__ = ["DEFAULT_KINDS", "KINDS", "Fault", "FaultRunner", "draw_plan"]

KINDS: Final = {
    "kill": "a broker's process ends between two system calls, and starts again",
    "power": "a broker's machine loses its power, with unsynced pages lost or torn; needs SYNC_FLUSH",
    "stop": "a broker stops in order, and starts again",
    "cut": "two machines cannot reach each other",
    "cut one way": "one machine does not reach another, which reaches the first",
    "isolate": "a machine is cut off from all others",
    "slow": "a link is slow",
    "reset": "all connections between two machines are reset",
    "disk full": "a broker's disk has no space",
    "sync fails": "a sync of a broker's disk fails; the broker is killed and starts again",
    "clock": "the wall clock of a machine jumps",
    "etcd leader": "another member of etcd leads: leases begin anew",
    "etcd away": "no broker reaches etcd",
    "etcd lost": "etcd loses all its data",
    "etcd backup": "etcd is restored to a state of some seconds before",
    "names": "a name server is killed, and starts again",
}
"""All kinds of faults."""
DEFAULT_KINDS: Final = tuple(kind for kind in KINDS if kind not in ("power", "etcd lost", "etcd backup"))
_OF_LINKS: Final = frozenset(("cut", "cut one way", "slow", "reset"))
_JUMPS_S: Final = (-3600.0, -5.0, -0.5, 0.5, 5.0, 3600.0)


class Fault(NamedTuple):
    """One fault: when, what, on which machine and towards which other, for how long; ``detail``: a drawn number."""

    at_s: float
    kind: str
    target: int
    other: int
    lasts_s: float
    detail: int

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind}, machine {self.target}/{self.other}, {self.lasts_s:.1f} s"


def draw_plan(seed: int, kinds: Iterable[str] = DEFAULT_KINDS, *, seconds: float = 40.0) -> list[Fault]:
    """Return the faults of a seed. Args: kinds: of ``KINDS``; seconds: of the plan."""
    rng = random.Random(f"faults {seed}")
    names = list(kinds)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"faults: expected kinds of {', '.join(KINDS)}, found {unknown[0]!r}")
    used = [name for name in names if rng.random() < 0.5] or names
    mean_s = rng.choice((1.0, 2.0, 4.0, 8.0))  # between two faults
    plan: list[Fault] = []
    if not used or rng.random() < 0.05:
        return plan
    at_s = rng.expovariate(1 / mean_s)
    while at_s < seconds:
        lasts_s = rng.choice((0.2, 1.0, 4.0, 12.0)) * (0.5 + rng.random())
        plan.append(Fault(at_s, rng.choice(used), rng.randrange(64), rng.randrange(64), lasts_s, rng.getrandbits(31)))
        at_s += rng.expovariate(1 / mean_s)
    return plan


class FaultRunner:
    """Carries out a plan on a cluster, from the start of the first brokers on."""

    def __init__(self, world: World, plan: list[Fault]) -> None:
        self._world: Final = world
        self.plan: Final = plan
        self._task: asyncio.Task[None] | None = None
        self._power_cuts: set[Process] = set()
        self._running: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Begin the plan, unless it has begun."""
        if self._task is None and self.plan:
            self._task = self._world.loop.create_task(self._main())

    def is_power_cut(self, process: Process) -> bool:
        """Return whether the planned crash of a process is a power cut."""
        return process in self._power_cuts

    async def _main(self) -> None:
        loop = self._world.loop
        begin_s = loop.now_s
        for fault in self.plan:
            await asyncio.sleep(max(0.0, begin_s + fault.at_s - loop.now_s))
            task = loop.create_task(self._run(fault))
            self._running[task] = None
            task.add_done_callback(lambda done: self._running.pop(done, None))

    async def heal(self) -> None:
        """End the plan and all its effects."""
        world = self._world
        tasks = [*self._running, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None
        world.network.heal()
        world.history.note(world.scenario, "heal", "")
        for machine in self._machines():
            machine.ahead_s = 0.0
        for server in list(world.servers.values()):
            process = server.process
            if process is not None and process.system is not None:
                process.system.heal()
            if process is not None and process.crash_at is not None and server.disk is not None:
                server.kill(power=self.is_power_cut(process))
            elif self._has_failed(server) or not server.is_wanted:
                server.kill()
            if server.process is None:
                await self._start(server)

    @staticmethod
    def _has_failed(server: Server) -> bool:
        store = server.store if isinstance(server, BrokerServer) else None
        return store is not None and bool(store.log.error_number)

    async def _start(self, server: Server) -> None:
        server.is_wanted = True
        if server.process is None:
            server.start()
        await server.started()

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def _brokers(self) -> list[BrokerServer]:
        return brokers_of(self._world)

    def _machines(self) -> list[Machine]:
        return [machine for machine in self._world.network.machines.values() if machine.name != "scenario"]

    async def _run(self, fault: Fault) -> None:
        world, network = self._world, self._world.network
        world.history.note(world.scenario, "fault", str(fault))
        broker = self._brokers()[fault.target % len(self._brokers())]
        machines = self._machines()
        first = machines[fault.target % len(machines)]
        second = machines[fault.other % len(machines)]
        if first is second:
            second = machines[(fault.other + 1) % len(machines)]
        brokers = self._brokers()
        if fault.detail % 2 and len(brokers) > 1 and fault.kind in _OF_LINKS:
            first = broker.machine
            second = brokers[(fault.target + 1 + fault.other % (len(brokers) - 1)) % len(brokers)].machine
        kind = fault.kind
        if kind in ("kill", "power"):
            await self._crash(broker, fault, power=kind == "power")
        elif kind == "stop":
            await broker.stop()
            await asyncio.sleep(fault.lasts_s)
            await self._start(broker)
        elif kind in ("cut", "cut one way"):
            network.cut_link(first, second, both=kind == "cut")
            await asyncio.sleep(fault.lasts_s)
            network.cut.pop((first, second), None)
            if kind == "cut":
                network.cut.pop((second, first), None)
            network.release()
        elif kind == "isolate":
            await self._isolate(broker.machine, fault.lasts_s)
        elif kind == "etcd away" and (etcd := etcd_of(world)) is not None:
            await self._isolate(etcd.machine, fault.lasts_s)
        elif kind == "slow":
            network.slow_s[first, second] = 0.05 + (fault.detail % 100) / 50
            await asyncio.sleep(fault.lasts_s)
            network.slow_s.pop((first, second), None)
        elif kind == "reset":
            network.reset_all(first, second)
        elif kind in ("disk full", "sync fails"):
            await self._disk(broker, fault)
        elif kind == "clock":
            first.ahead_s += _JUMPS_S[fault.detail % len(_JUMPS_S)]
            world.history.has_clock_jumped = True
        elif kind == "etcd leader" and (etcd := etcd_of(world)) is not None:
            etcd.model.change_leader()
        elif kind == "etcd lost" and (etcd := etcd_of(self._world)) is not None:
            etcd.model.lose_data()
        elif kind == "etcd backup" and (etcd := etcd_of(self._world)) is not None:
            backup = etcd.model.copy()
            await asyncio.sleep(fault.lasts_s)
            etcd.model.restore(backup)
        elif kind == "names":
            names = [server for server in world.servers.values() if isinstance(server, NameServerServer)]
            name_server = names[fault.target % len(names)]
            name_server.kill()
            await asyncio.sleep(fault.lasts_s)
            await self._start(name_server)

    async def _crash(self, broker: BrokerServer, fault: Fault, *, power: bool) -> None:
        process = broker.process
        if process is None or broker.disk is None or process.crash_at is not None:
            return
        if power:
            self._power_cuts.add(process)
        if fault.detail % 4 == 0:
            broker.kill(power=power)
        else:
            broker.disk.plan_crash(process, 1 + fault.detail % 200, power=power)
            for _ in range(20):
                if not process.is_alive:
                    break
                await asyncio.sleep(0.1)
            if process.is_alive:
                broker.kill(power=power)
        await asyncio.sleep(fault.lasts_s)
        await self._start(broker)

    async def _isolate(self, machine: Machine, seconds: float) -> None:
        network = self._world.network
        others = [other for other in network.machines.values() if other is not machine]
        for other in others:
            network.cut_link(machine, other)
        await asyncio.sleep(seconds)
        for other in others:
            network.cut.pop((machine, other), None)
            network.cut.pop((other, machine), None)
        network.release()

    async def _disk(self, broker: BrokerServer, fault: Fault) -> None:
        process = broker.process
        if process is None or process.system is None:
            return
        system = process.system
        if fault.kind == "disk full":
            system.fill(1 + fault.detail % 3)
            await asyncio.sleep(fault.lasts_s)
            if process.is_alive:
                system.heal()
            return
        system.fault(("msync", "fdatasync", "fsync")[fault.detail % 3], 1, errno.EIO)
        await asyncio.sleep(fault.lasts_s)
        if process.is_alive and process.crash_at is None and broker.process is process:
            broker.kill()
            await self._start(broker)
