"""Threads of a simulation: greenlets if that library is there, else real threads. A single thread runs at a time.

A thread runs until it waits for an event, a socket or a time. The loop then continues, and resumes the thread by a
callback of the process. Code that waits in any other way would stop the whole simulation.
"""

from __future__ import annotations

import _thread
import contextvars
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from mqfast.sim.process import PROCESS, Process, current

if TYPE_CHECKING:
    from mqfast.sim.loop import SimLoop

__all__ = ["Crashed", "SimThread", "Threads"]


class Crashed(BaseException):
    """The process of this thread has crashed: the thread ends at once."""


class _Worker:
    """A real thread that runs simulated threads, in turn."""

    def __init__(self, idle: list[_Worker | _GreenWorker]) -> None:
        self._idle: Final = idle
        self.go: Final = _thread.allocate_lock()
        self.back: Final = _thread.allocate_lock()
        self.go.acquire()
        self.back.acquire()
        self.job: Callable[[], None] | None = None
        _thread.start_new_thread(self._main, ())

    def _main(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                self.back.release()
                return
            self.job()
            self.job = None
            self._idle.append(self)
            self.back.release()

    def step(self) -> None:
        """Let the thread run until the next wait. Thread: the loop's."""
        self.go.release()
        self.back.acquire()

    def pause(self) -> None:
        """Let the loop continue until the next ``step``. Thread: the same."""
        self.back.release()
        self.go.acquire()


class _GreenWorker:
    """The same as ``_Worker`` without a real thread, which switches a hundred times faster on a busy machine."""

    def __init__(self, idle: list[_Worker | _GreenWorker]) -> None:
        import greenlet

        self._idle: Final = idle
        self._current: Final = greenlet.getcurrent
        self._green: Final = greenlet.greenlet(self._main)
        self._loop: Any = None
        self.job: Callable[[], None] | None = None

    def _main(self) -> None:
        while self.job is not None:
            self.job()
            self.job = None
            self._idle.append(self)
            self.pause()

    def step(self) -> None:
        """Let the greenlet run until the next wait."""
        self._loop = self._current()
        self._green.switch()

    def pause(self) -> None:
        """Let the loop continue until the next ``step``."""
        self._loop.switch()


def _new_worker(idle: list[_Worker | _GreenWorker]) -> _Worker | _GreenWorker:
    try:
        return _GreenWorker(idle)
    except ImportError:  # real threads do the same
        return _Worker(idle)


class SimThread:
    """A simulated thread."""

    def __init__(self, threads: Threads, target: Callable[[], object], name: str, process: Process) -> None:
        self.name: Final = name
        self.is_done = False
        self._threads: Final = threads
        self._target: Final = target
        self._process: Final = process
        self._context: Final = process.context.copy()
        self._worker: _Worker | _GreenWorker | None = None
        self._token: object | None = None
        self._was_woken = False
        self._joining: list[SimThread] = []
        process.threads[self] = None

    def start(self, delay_s: float = 0.0) -> None:
        """Start the thread after a virtual time."""
        self._threads.loop.call_later(delay_s, self._resume, context=self._process.context)

    def _resume(self) -> None:
        if self.is_done:
            return
        threads = self._threads
        if self._worker is None:
            if not self._process.is_alive:
                self.is_done = True
                return
            self._worker = threads.idle.pop() if threads.idle else _new_worker(threads.idle)
            self._worker.job = self._main
        outer, threads.running = threads.running, self
        self._worker.step()
        threads.running = outer

    def _main(self) -> None:
        try:
            self._context.run(self._target)
        except Crashed:
            pass
        except BaseException as error:
            self._context.run(
                self._threads.loop.call_exception_handler, {"message": f"thread {self.name}", "exception": error}
            )
        self.is_done = True
        self._process.threads.pop(self, None)
        for other in self._joining:
            other.wake()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until ``wake`` or the end of the time. Returns: whether the thread was woken. Thread: the same."""
        assert self._worker is not None
        if not self._process.is_alive:
            raise Crashed
        self._token = token = object()
        self._was_woken = False
        if timeout_s is not None:
            self._threads.loop.call_later(max(0.0, timeout_s), self._time_out, token, context=self._process.context)
        self._worker.pause()
        if not self._process.is_alive:
            raise Crashed
        return self._was_woken

    def wake(self) -> None:
        """Resume the thread by a callback, if the thread waits."""
        if self._token is not None:
            self._token, self._was_woken = None, True
            self._threads.loop.call_soon(self._resume, context=self._process.context)

    def _time_out(self, token: object) -> None:
        if self._token is token:
            self._token = None
            self._resume()

    def finish(self) -> None:
        """End the thread of a dead process, wherever it waits. Thread: the loop's."""
        if self._worker is not None and not self.is_done:
            self._token = None
            self._resume()

    @property
    def may_run(self) -> bool:
        """Return whether the thread was woken and runs next."""
        return not self.is_done and self._token is None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread. In the loop only a thread that can end without a wait is waited for."""
        running = self._threads.running
        if running is None:
            while self.may_run and self._worker is not None:
                self._resume()
            return
        while not self.is_done:
            self._joining.append(running)
            if not running.wait(timeout_s) and timeout_s is not None:
                return

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._worker is not None and not self.is_done


class Threads:
    """All threads of a simulation. Attributes: ``running``: the thread that runs now, None in the loop."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop: Final = loop
        self.running: SimThread | None = None
        self.idle: Final[list[_Worker | _GreenWorker]] = []

    def start(self, target: Callable[[], object], name: str, delay_s: float = 0.0) -> SimThread:
        """Start a thread of the current process."""
        thread = SimThread(self, target, name, current())
        thread.start(delay_s)
        return thread

    def close(self) -> None:
        """End the real threads."""
        for worker in self.idle:
            worker.step()
        self.idle.clear()

    def sleep(self, seconds: float) -> None:
        """Sleep a virtual time; in the loop the whole simulation sleeps, as a blocked loop does."""
        if self.running is not None:
            self.running.wait(seconds)
        else:
            self.loop.now_s += max(0.0, seconds)

    def module(self) -> Any:
        """Return what stands for the module ``threading`` in code of the product that starts threads."""
        threads = self

        class Event:
            """An event of simulated threads."""

            def __init__(self) -> None:
                self._is_set = False
                self._waiting: list[SimThread] = []

            def is_set(self) -> bool:
                return self._is_set

            def set(self) -> None:
                self._is_set = True
                waiting, self._waiting = self._waiting, []
                for thread in waiting:
                    thread.wake()

            def clear(self) -> None:
                self._is_set = False

            def wait(self, timeout: float | None = None) -> bool:
                if not self._is_set and threads.running is not None:
                    self._waiting.append(threads.running)
                    threads.running.wait(timeout)
                    if threads.running in self._waiting:
                        self._waiting.remove(threads.running)
                return self._is_set

        def make_thread(*, target: Any, name: str = "", args: Any = (), daemon: bool = True) -> SimThread:
            return SimThread(threads, lambda: target(*args), name, current())

        import threading

        return SimpleNamespace(
            Event=Event, Thread=make_thread, Lock=threading.Lock, RLock=threading.RLock, get_ident=threading.get_ident
        )


def in_process(process: Process, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as a process does. Returns: the result."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return context.run(function, *arguments)
