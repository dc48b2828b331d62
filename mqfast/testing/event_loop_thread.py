"""The thread of a test's cluster, with an event loop of its own: the application's loop is not used."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from mqfast.errors import StoreForked, UsageError
from mqfast.remoting.loop import new_event_loop

__all__ = ["EventLoopThread"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
THREAD_NAME: Final = "mqfast-test-broker"


class EventLoopThread:
    """A daemon thread with an event loop. Thread: the methods are for any other thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.run_until_complete(loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            loop.close()

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float = 60.0) -> _T:
        """Run a coroutine in the loop, and wait. Raises: its errors; TimeoutError; StoreForked in a child."""
        self._check(work.close)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"the test broker did not come to an end within {timeout_s:g} s") from None
        except BaseException:
            future.cancel()  # an interrupt of the waiting thread
            raise

    def call(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in the loop, and wait. Raises: errors of the function; StoreForked in a child."""

        async def work() -> _T:
            return function(*args, **kwargs)

        return self.run(work())

    def _check(self, give_up: Callable[[], object]) -> None:
        if self._pid != os.getpid():
            give_up()
            raise StoreForked("this test broker belongs to the parent process; start one in this process")
        if threading.current_thread() is self._thread:
            give_up()
            raise UsageError("a test broker cannot wait for itself: expected a call from outside of its thread")

    def close(self) -> None:
        """Stop the loop and the thread."""
        if self._pid == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
