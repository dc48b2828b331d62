"""The one thread of a process in which the event loop of all sync clients runs: "mqfast-io".

Room: client. It must never run a user's code, and a sync send must never need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from mqfast.errors import ClientError
from mqfast.remoting.loop import runner

__all__ = ["IoThread", "forget", "shared"]

T = TypeVar("T")
_START_S: Final = 10.0


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
        try:
            with contextlib.suppress(asyncio.CancelledError), runner() as one:
                self.loop = one.get_loop()
                one.run(self._stay())
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
        """Does it run, in this process?"""
        return self.pid == os.getpid() and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Is the caller this very thread?"""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine in the loop and wait for it; a caller that is interrupted (Ctrl-C) ends it.

        Raises: what it raises; ClientError when the time is over.
        """
        if self.is_current:
            work.close()
            raise ClientError("a sync client was called in the thread that serves sync clients: it would wait for ever")
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise ClientError(f"expected an end within {timeout_s:g} s, found none") from None
        except BaseException:
            future.cancel()  # nothing where the work has ended
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Call a function in the loop; nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop and the thread."""
        if self.is_alive:
            self.soon(self._stopping.set)
            self._thread.join(timeout_s)


_lock = threading.Lock()
_shared: IoThread | None = None


def shared() -> IoThread:
    """The thread of this process, started at the first call and after a fork."""
    global _shared
    with _lock:
        if _shared is None or not _shared.is_alive:
            _shared = IoThread()
        return _shared


def forget() -> IoThread | None:
    """In a child process: the thread did not come along, and its lock may have been held. Returns: what is to stay."""
    global _lock, _shared
    inherited, _lock, _shared = _shared, threading.Lock(), None
    return inherited
