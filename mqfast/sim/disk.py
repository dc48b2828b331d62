"""Disks of a simulation, and the services of the stores on them as steps of the scheduler.

The disk of a machine outlives the processes: a crash leaves what sim_door.c promises. A store has no thread: flushes,
the queues' flush and new files happen at times that the seed draws.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import MqfastError
from mqfast.sim.process import Process
from mqfast.sim.simulated_os import KILLED, MIXED, STRICT, Sim
from mqfast.store.message_store import MessageStore, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from mqfast.sim.loop import SimLoop

__all__ = ["Disk", "StoreSteps"]

_FLUSH_S: Final = 0.01
_LAZY_FLUSH_S: Final = 0.5
_QUEUES_S: Final = 2.0
_POWER_CUTS: Final = (STRICT, MIXED, MIXED, MIXED)


class StoreSteps:
    """The services of an open store.

    Thread: the loop's, and simulated threads.
    """

    def __init__(self, process: Process, loop: SimLoop, rng: random.Random, store: MessageStore) -> None:
        self.store: Final = store
        self._process: Final = process
        self._loop: Final = loop
        self._rng: Final = rng
        self._written = -1
        self._is_flush_due = self._are_queues_due = False
        self._waiting: list[tuple[int, Any]] = []
        self._parts: Final = store._store_parts
        self._is_sync: Final = store.config.sync_flush
        setattr(store.engine.raw, "wait_for", self._wait_for)  # noqa: B010 - the real one waits in C

    def after_turn(self) -> None:
        """Plan the steps that the last callback has made due."""
        if self.store._is_closed:
            return
        log = self.store.log
        if (written := log.written) != self._written:
            self._written = written
            for offset, thread in [row for row in self._waiting if row[0] < written]:
                self._waiting.remove((offset, thread))
                thread.wake()
            self._plan()
        elif not self._is_flush_due and self._parts.flush.waiters.pending:
            self._plan()

    def _plan(self) -> None:
        loop, context = self._loop, self._process.context
        if not self._is_flush_due:
            self._is_flush_due = True
            urgent = self._is_sync or self._parts.flush.waiters.pending
            seconds = (_FLUSH_S if urgent else _LAZY_FLUSH_S) * self._rng.random()
            loop.call_later(seconds, self._flush, context=context)
        if not self._are_queues_due:
            self._are_queues_due = True
            loop.call_later(_QUEUES_S * self._rng.random(), self._flush_queues, context=context)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self.store._is_closed:
            return
        with contextlib.suppress(MqfastError):  # the log is latched, and its waiters know
            self._parts.flush.step_log()

    def _flush_queues(self) -> None:
        self._are_queues_due = False
        if self.store._is_closed:
            return
        with contextlib.suppress(MqfastError):
            self._parts.dispatcher.step_if_needed()
            self._parts.flush.flush_queues()
            self._parts.allocate.step()

    def _wait_for(self, offset: int, timeout: float | None = None, *, unflushed: bool = False) -> bool:
        """Wait as ``RawLog.wait_for``, in a simulated thread."""
        log = self.store.log

        def end() -> int:
            self.store._check_open()
            log.check_state()
            return log.written if unflushed else log.readable

        thread = self._loop.threads.running
        assert thread is not None
        if end() <= offset:
            self._waiting.append((offset, thread))
            thread.wait(timeout)
            if (offset, thread) in self._waiting:
                self._waiting.remove((offset, thread))
        return end() > offset

    def abandon(self) -> None:
        """Drop the memory and the descriptors of the store of a dead process."""
        store = self.store
        vars(store.engine.raw).pop("wait_for", None)  # the collector does not see all of this cycle
        if store._is_closed:
            return
        store._is_closed = True
        for file in self._parts.allocate._ready.values():
            file.drop()
        for step in reversed(store._close_steps):
            with contextlib.suppress(Exception):
                step()


class Disk:
    """The disk of a machine. Attributes: ``path``: of the live tree of this life."""

    def __init__(self, base: Path, loop: SimLoop, rng: random.Random) -> None:
        self._base: Final = base
        self._loop: Final = loop
        self._rng: Final = rng
        self._life = 0
        self._open: list[StoreSteps] = []
        self._systems: list[Sim] = []
        self._image_taken = False
        base.mkdir()
        self.path.mkdir()

    @property
    def path(self) -> Path:
        """Return the directory of this life."""
        return self._base / f"{self._life:06}"

    @property
    def _next(self) -> Path:
        return self._base / f"{self._life + 1:06}"

    def begin(self, process: Process) -> Sim:
        """Begin the life of a process on this disk."""
        process.system = system = Sim(self.path)
        self._systems.append(system)
        self._loop.set_clocks(process)
        process.after_turn = self._after_turn
        self._process = process
        return system

    def _after_turn(self) -> None:
        for steps in self._open:
            steps.after_turn()

    def open_store(self, path: str, **options: Any) -> MessageStore:
        """Open a store as ``mqfast.open_store``, without threads."""
        store = open_store(path, _start_services=False, **options)
        for steps in [steps for steps in self._open if steps.store._is_closed]:
            steps.abandon()
            self._open.remove(steps)
        self._open.append(StoreSteps(self._process, self._loop, self._rng, store))
        return store

    @property
    def stores(self) -> list[MessageStore]:
        """Return the open stores."""
        return [steps.store for steps in self._open if not steps.store._is_closed]

    def plan_crash(self, process: Process, calls: int, *, power: bool) -> None:
        """Let the process end in front of its ``calls``-th next system call."""
        assert process.system is not None
        process.crash_at = at = process.system.calls + calls
        mode = self._rng.choice(_POWER_CUTS) if power else KILLED
        target = self._base / "image"
        target.mkdir(exist_ok=True)
        process.system.image_at(str(target), at, mode, self._rng.getrandbits(32))

    def crash(self, process: Process, *, power: bool) -> None:
        """End the life: keep what a crash leaves. The process is dead already."""
        system = process.system
        assert system is not None
        planned = self._base / "image" / "0"
        if process.crash_at is not None and planned.exists():
            planned.rename(self._next)
        else:
            mode = self._rng.choice(_POWER_CUTS) if power else KILLED
            system.image(str(self._next), mode, self._rng.getrandbits(32))
        shutil.rmtree(self._base / "image", ignore_errors=True)
        system.freeze(True)  # of the dead process: no call counts, and none takes an image
        for steps in self._open:
            steps.abandon()
        self._open.clear()
        old = self.path
        self._life += 1
        shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """Free everything."""
        for system in self._systems:
            system.freeze(True)
        for steps in self._open:
            steps.abandon()
        self._open.clear()
        for system in self._systems:
            system.free()
        shutil.rmtree(self._base, ignore_errors=True)
