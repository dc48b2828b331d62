"""The thread "mqfast-io": it runs the event loop of all sync clients of a process.

No user code runs in this thread, and a sync send does not need the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from mqfast.client.net.green import refuse_green_threads
from mqfast.client.net.guard import Guard, check_may_wait, serve_here
from mqfast.errors import ClientError
from mqfast.remoting.loop import runner

__all__ = ["IoThread", "forget", "shared", "start_limit"]

T = TypeVar("T")
_START_S: Final = 10.0
_STEP_S: Final = 1.0


class IoThread:
    """A daemon thread that runs an event loop until the process ends or ``stop`` is called."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="mqfast-io", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ClientError(f"the thread of sync clients could not be started: {error}") from None
        if not self._ready.wait(_START_S):
            raise ClientError(f"the thread of sync clients did not start in {_START_S:g} s")
        if self._failure is not None:
            raise ClientError(f"the event loop of sync clients could not be made: {self._failure}") from self._failure

    def _main(self) -> None:
        serve_here()
        try:
            with contextlib.suppress(asyncio.CancelledError), runner() as loop_runner:
                self.loop = loop_runner.get_loop()
                loop_runner.run(self._stay())
        except OSError as error:  # no file descriptors are left
            if self._ready.is_set():
                raise
            self._failure = error
            self._ready.set()

    async def _stay(self) -> None:
        self._stopping = asyncio.Event()
        self._ready.set()
        await self._stopping.wait()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs in this process."""
        return self.pid == os.getpid() and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Run a coroutine in the loop and wait for its end; an interrupted caller (Ctrl-C) cancels the coroutine.

        Args: timeout_s: None: without end.
        Raises: the errors of the coroutine; ClientError when the time is over, or where this thread may not wait
            (``check_may_wait``).
        """
        call = _Call(work)
        try:
            check_may_wait()
            self.loop.call_soon_threadsafe(call.begin, self.loop)
        except BaseException:
            work.close()
            raise
        try:
            has_ended = call.wait(timeout_s)
        except BaseException:
            self.soon(call.cancel)
            raise
        if not has_ended and call.ended.acquire(blocking=False) is False:
            self.soon(call.cancel)
            raise ClientError(f"expected an end within {timeout_s:g} s, found none")
        assert call.task is not None
        return call.task.result()

    def soon(self, work: Callable[[], object]) -> None:
        """Call a function in the loop; nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop and the thread."""
        if self.is_alive:
            self.soon(self._stopping.set)
            self._thread.join(timeout_s)


def start_limit(own_s: float, start_timeout_s: float | None) -> float | None:
    """Return the limit of a start: the wait for a name server and the start's own steps. Returns: None: without end."""
    return None if start_timeout_s is None else own_s + start_timeout_s


class _Call(Generic[T]):
    """One call: its end releases a lock without other users, so that the loop waits for no caller."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.ended = threading.Lock()
        self.ended.acquire()
        self.task: asyncio.Task[T] | None = None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end, in short steps: between two steps a signal handler can run.

        Returns: whether the call ended in time.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _STEP_S if until is None else min(_STEP_S, until - time.monotonic())
            if self.ended.acquire(timeout=max(0.0, left_s)):
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the call. Thread: the loop's."""
        self.task = loop.create_task(self._work)
        self.task.add_done_callback(lambda task: self.ended.release())

    def cancel(self) -> None:
        """Cancel the call after ``begin``. Thread: the loop's."""
        assert self.task is not None
        self.task.cancel()


_lock = Guard()
_shared: IoThread | None = None


def shared() -> IoThread:
    """Return the thread of this process, started at the first call and after a fork.

    Raises: ClientError, also under gevent or eventlet with their threads.
    """
    global _shared
    io_thread = _shared
    if io_thread is not None and io_thread.is_alive:
        return io_thread
    refuse_green_threads()
    with _lock:
        if _shared is None or not _shared.is_alive:
            _shared = IoThread()
        return _shared


def forget() -> IoThread | None:
    """Drop the inherited thread and its lock in a child process. Returns: objects to keep."""
    global _lock, _shared
    inherited, _lock, _shared = _shared, Guard(), None
    return inherited
