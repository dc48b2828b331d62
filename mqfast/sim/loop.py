"""The event loop of a simulation: virtual time, and an order of processes that a seed decides.

Callbacks of one process run in the order of their registration, as asyncio promises; which process runs next is drawn.
Time advances when no callback is ready. No callback waits for the real time, and no real socket is opened.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import select
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from mqfast.sim.process import PROCESS, Process

__all__ = ["SimLoop", "Stuck"]

_TURN_S: Final = 1e-6
_EXECUTOR_S: Final = 0.002
_TURNS_MAX: Final = 20_000


class Stuck(RuntimeError):
    """The scenario waits for ever: no callback is ready and no timer is set, or callbacks run without end."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop for all processes of a simulation.

    Args: rng: decides the order of processes; note: gets (process, kind, text) of each event.
    Attributes: ``now_s``: the virtual time; ``errors``: exceptions that no code has handled; ``turns``: callbacks
    so far.
    """

    network: Any
    threads: Any

    def __init__(self, rng: random.Random, note: Callable[[Process | None, str, str], None]) -> None:
        super().__init__()
        self.now_s = 0.0
        self.turns = 0
        self.deadline_s: float | None = None
        self.on_crash: Callable[[Process], object] = lambda _: None
        self.errors: Final[list[str]] = []
        self.graveyard: Final[list[Any]] = []
        """Objects of dead processes: a finalizer in the middle of a run would change the run."""
        self._rng: Final = rng
        self._note: Final = note
        self._numbers: Final = itertools.count()
        self._timers: Final[list[tuple[float, int, asyncio.TimerHandle]]] = []
        self._busy: Final[list[Process]] = []
        self._epoll: Final = select.epoll()
        self._watched: Final[dict[int, tuple[int, Process, Callable[[], None]]]] = {}
        self._signalled: Final[set[int]] = set()
        self._may_signal = False
        self._turns_before = 0  # before the last timer
        self._executors: Final[dict[Any, asyncio.Future[Any]]] = {}
        self.set_task_factory(self._make_task)

    # -- time ----------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """Run a callback as soon as its process is drawn."""
        return self._call_soon(callback, args, context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """Run a callback as ``call_soon``: threads of a simulation run only while the loop waits for them."""
        return self._call_soon(callback, args, context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Run a callback after a virtual time."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Run a callback at a virtual time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave a cancelled timer in the heap, which drops the timer when due."""

    def _process_of(self, handle: asyncio.Handle) -> Process:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        assert process is not None, f"a callback without a process: {handle}"
        return process  # type: ignore[no-any-return]

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if self.is_closed():
            return
        process = self._process_of(handle)
        if not process.is_alive:
            return
        if not process.ready:
            self._busy.append(process)
        process.ready.append(handle)

    def bury(self, process: Process) -> None:
        """Drop all callbacks of a process that has ended."""
        self.graveyard.append((list(process.ready), process.tasks))
        process.ready.clear()
        if process in self._busy:
            self._busy.remove(process)
        for descriptor in [d for d, (_, owner, _) in self._watched.items() if owner is process]:
            self.remove_reader(descriptor)

    def _run_once(self) -> None:
        if self._may_signal:
            self._may_signal = False
            self._poll()
        while not self._busy:
            self._advance()
        at = int(self._rng.random() * len(self._busy)) if len(self._busy) > 1 else 0
        process = self._busy[at]
        if self.turns - self._turns_before > _TURNS_MAX:
            raise Stuck(f"{_TURNS_MAX} callbacks have run without a wait, the last ones of {process.name}")
        handle = process.ready.popleft()
        if not process.ready:
            del self._busy[at]
        if handle.cancelled():
            return
        self.turns += 1
        self.now_s += _TURN_S
        if process.system is not None:
            self._may_signal = True  # a store signals during a callback of the process only
            self.set_clocks(process)
        handle._run()
        if process.after_turn is not None and process.is_alive:
            process.after_turn()
        if process.crash_at is not None and process.is_alive and not process.is_seen:
            self.on_crash(process)

    def set_clocks(self, process: Process) -> None:
        """Set the clocks of the process's disk to the virtual time."""
        machine = process.machine
        if process.system is not None:
            process.system.set_time(
                int(machine.wall_s(self.now_s) * 1e6), int(machine.monotonic_s(self.now_s) * 1e9) + 1
            )

    def _advance(self) -> None:
        while self._timers:
            when, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                continue
            process = self._process_of(timer)
            if not process.is_alive:
                continue
            if self.deadline_s is not None and when > self.deadline_s:
                raise Stuck(f"the scenario did not end within {self.deadline_s:.0f} virtual seconds")
            self.now_s = max(self.now_s, when)
            self._turns_before = self.turns
            self._enqueue(timer)
            return
        raise Stuck("no callback is ready and no timer is set")

    # -- event descriptors of stores -----------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Call a function when an event descriptor of a store is readable."""
        process = PROCESS.get()
        assert process is not None
        if fd in self._watched:
            self.remove_reader(fd)
        self._watched[fd] = next(self._numbers), process, lambda: callback(*args)
        self._may_signal = True
        self._epoll.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: Any) -> bool:
        """Stop watching a descriptor."""
        if self._watched.pop(fd, None) is None:
            return False
        self._signalled.discard(fd)
        try:
            self._epoll.unregister(fd)
        except OSError:
            pass  # the owner has closed the descriptor
        return True

    def _poll(self) -> None:
        if not self._watched:
            return
        for fd, _ in sorted(self._epoll.poll(0), key=lambda row: self._watched[row[0]][0]):
            if fd not in self._signalled:
                self._signalled.add(fd)
                _, process, _ = self._watched[fd]
                self.call_soon(self._readable, fd, process, context=process.context)

    def _readable(self, fd: int, process: Process) -> None:
        self._signalled.discard(fd)
        self._may_signal = True
        watched = self._watched.get(fd)
        if watched is not None and watched[1] is process:
            watched[2]()

    # -- threads -------------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a function in a simulated thread; calls of the same executor run one after the other."""
        future: asyncio.Future[Any] = self.create_future()
        before = self._executors.get(executor) if executor is not None else None
        if executor is not None:
            self._executors[executor] = done = self.create_future()
        else:
            done = self.create_future()

        def work() -> None:
            result, error = None, None
            try:
                if not future.cancelled():
                    result = func(*args)
            except BaseException as raised:
                error = raised
            self.call_soon(_settle, future, result, error)
            self.call_soon(_settle, done, None, None)

        def begin(_: object = None) -> None:
            self.threads.start(work, "executor", delay_s=self._rng.random() * _EXECUTOR_S)

        if before is not None and not before.done():
            before.add_done_callback(begin)
        else:
            begin()
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            if len(process.tasks) > 256:
                for done in [other for other in process.tasks if other.done()]:
                    del process.tasks[done]
            process.tasks[task] = None
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that no code has handled."""
        process = PROCESS.get()
        text = f"{context.get('message')}: {context.get('exception')!r}"
        if process is not None and process.is_alive and "was destroyed but it is pending" not in text:
            self.errors.append(f"{process.name}: {text}")
            self._note(process, "error", text)

    # -- network -------------------------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to a listener of the simulated network. Raises: OSError."""
        return await self.network.connect(protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen in the simulated network. Raises: OSError for a port in use."""
        return self.network.listen(protocol_factory, int(port))

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return a host that is an address."""
        import socket

        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port or 0))]

    def _write_to_self(self) -> None:
        """Nothing waits for a signal."""

    def close(self) -> None:
        """Close the loop and its descriptors."""
        if not self.is_closed():
            self._epoll.close()
        self._timers.clear()
        self._watched.clear()
        self.graveyard.clear()
        super().close()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
