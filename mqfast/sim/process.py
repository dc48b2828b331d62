"""Machines and processes of a simulation, and the clocks of a machine.

A process is a life of a machine: from a start to a stop or a crash. Every callback, thread and connection belongs to
a process. Nothing of a dead process runs, and nothing of a dead process reaches another machine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqfast.sim.simulated_os import Sim

__all__ = ["PROCESS", "START_S", "Machine", "Process", "current"]

PROCESS: Final[ContextVar[Process | None]] = ContextVar("mqfast_sim_process", default=None)
"""The process whose code runs now; None outside of a simulation."""
START_S: Final = 1_800_000_000.0
"""The wall clock of every machine at the begin of a simulation, in seconds since the epoch."""


def current() -> Process:
    """Return the process whose code runs now."""
    process = PROCESS.get()
    assert process is not None, "a call outside of a simulated process"
    return process


class Machine:
    """A host with an address and clocks; the disk outlives the processes.

    Attributes: ``rate``: of the clocks, 1.0 for exact clocks; ``ahead_s``: of the wall clock; ``process``: the running
    process, None without; ``has_power``: whether the kernel answers connections, also without a process.
    """

    def __init__(self, name: str, address: str, number: int) -> None:
        self.name: Final = name
        self.address: Final = address
        self.number: Final = number
        self.rate = 1.0
        self.ahead_s = 0.0
        self.process: Process | None = None
        self.has_power = True
        self.lives = 0
        self._next_port = 30_000

    def free_port(self) -> int:
        """Return a port that no process of this machine has used."""
        self._next_port += 1
        return self._next_port

    def monotonic_s(self, now_s: float) -> float:
        """Return the monotonic clock at a virtual time."""
        return 1000.0 * self.number + now_s * self.rate

    def wall_s(self, now_s: float) -> float:
        """Return the wall clock at a virtual time."""
        return START_S + now_s * self.rate + self.ahead_s

    def __repr__(self) -> str:
        return f"<machine {self.name}>"


class Process:
    """A life of a machine.

    Attributes: ``context``: of all code of the process; ``ready``: callbacks to run; ``system``: the simulated OS of
    the disk; ``after_turn``: called behind each callback; ``crash_at``: the number of a system call in front of which
    the process ends, None without.
    """

    def __init__(self, machine: Machine) -> None:
        machine.lives += 1
        self.machine: Final = machine
        self.name: Final = machine.name
        self.is_alive = True
        self.ready: Final[deque[asyncio.Handle]] = deque()
        self.tasks: Final[dict[asyncio.Task[Any], None]] = {}
        self.threads: Final[dict[Any, None]] = {}
        self.ends: Final[dict[Any, None]] = {}
        self.listeners: Final[dict[int, Any]] = {}
        self.system: Sim | None = None
        self.after_turn: Callable[[], None] | None = None
        self.crash_at: int | None = None
        self.context: Final[Context] = copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def is_seen(self) -> bool:
        """Return whether other machines still see what this process does: a crash hides all behind the system call."""
        if not self.is_alive:
            return False
        return self.crash_at is None or self.system is None or self.system.calls < self.crash_at

    def __repr__(self) -> str:
        return f"<process {self.name} {self.machine.lives}>"
