"""World: the machines of a run, the network and the processes; what servers, clients and faults share."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, Final

from mqfast.sim.disk import Disk
from mqfast.sim.history import History
from mqfast.sim.loop import SimLoop
from mqfast.sim.network import Network
from mqfast.sim.process import Machine, Process
from mqfast.sim.threads import Threads

__all__ = ["ProcessEnded", "World"]

_CLOCK_RATES: Final = (1.0, 1.0, 1.0, 0.9999, 1.0001)


class ProcessEnded(Exception):
    """The process that a scenario waited for was killed."""


class World:
    """The machines of a run.

    Attributes: ``seed``; ``rng``: for choices of the scenario; ``history``; ``loop``; ``network``; ``servers``: by
    name, in the order of their start; ``scenario``: the process of the scenario; ``main``: the task of the scenario.
    Thread: that of the simulation.
    """

    def __init__(self, seed: int, base: Path, history: History) -> None:
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
        self.servers: Final[dict[str, Any]] = {}
        self.product_rng: Final = random.Random(source.getrandbits(64))
        self.main: asyncio.Task[None] | None = None
        self._disk_rng: Final = random.Random(source.getrandbits(64))
        self._machine_rng: Final = random.Random(source.getrandbits(64))
        self._base: Final = base
        self._waiting: Final[dict[asyncio.Future[Any], Process]] = {}
        self.scenario: Final = Process(self.machine("scenario"))

    def machine(self, name: str) -> Machine:
        """Add a machine. Its clocks may be a little fast or slow."""
        number = len(self.network.machines) + 1
        machine = Machine(name, f"10.0.{number >> 8}.{number & 255}", number)
        if number > 1:
            machine.rate = self._machine_rng.choice(_CLOCK_RATES)
        self.network.machines[machine.address] = machine
        return machine

    def disk(self, name: str) -> Disk:
        """Return an empty disk for a machine."""
        return Disk(self._base / name, self.loop, self._disk_rng)

    def stop(self) -> None:
        """End the scenario: an invariant is broken."""
        if self.main is not None:
            self.main.cancel()

    def end_process(self, process: Process, *, power: bool) -> None:
        """End a process at once, with all threads and connections."""
        machine = process.machine
        self.history.note(process, "crash", "power" if power else "kill")
        self.history.ends += 1
        process.is_alive = False
        machine.process, machine.has_power = None, not power
        self.network.process_ended(process, has_kernel=not power)
        for thread in list(process.threads):
            thread.finish()
        self.loop.bury(process)
        for future, owner in list(self._waiting.items()):
            if owner is process and not future.done():
                future.set_exception(ProcessEnded(f"{process.name} was killed"))

    async def finished(self, process: Process, task: asyncio.Task[Any]) -> Any:
        """Wait for a task of a process. Returns: the result. Raises: as the task; ProcessEnded."""
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
