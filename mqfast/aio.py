"""asyncio support: a wait for the disk becomes an awaitable. The engine itself does not use asyncio.

No call blocks the event loop, and only the thread of the loop finishes a future. One sync costs one call into the loop,
for any number of waiting futures.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Final

from mqfast.store.base.results import PutMessageStatus

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.errors import MqfastError
    from mqfast.store.core import Core
    from mqfast.store.put.put_result import PutResult, Ticket

__all__ = ["DurableFutures", "durable", "readable", "settled"]


class DurableFutures:
    """The futures of one event loop that wait for physical offsets of one store to be durable.

    Thread: the loop's.
    """

    def __init__(self, engine: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._most = 0
        self._is_asked = False
        self._watch = engine.waiters.watch(self._on_flushed)

    @classmethod
    def of(cls, engine: Core) -> DurableFutures:
        """Return the futures of the running loop."""
        loop = asyncio.get_running_loop()
        known = engine.waiters.futures
        adapter = known.get(loop)
        if adapter is None:
            for other in [other for other in known if other.is_closed()]:
                known.pop(other).close()
            adapter = known[loop] = cls(engine, loop)
        return adapter

    async def wait(self, end_offset: int, timeout_s: float | None = None) -> bool:
        """Await until the log is durable up to ``end_offset``. Returns: False at the timeout. Raises: FlushError,
        StoreClosed.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        heapq.heappush(self._waiting, (end_offset, next(self._numbers), future))
        self._most = max(self._most, end_offset)
        if not self._is_asked:  # after all other puts of this iteration of the loop: one sync covers all puts
            self._is_asked = True
            self._loop.call_soon(self._request_flush)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _finish, future, False)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Remove the futures of a closed loop, which gets no more calls."""
        self._watch.close()

    def _request_flush(self) -> None:
        self._is_asked = False
        try:
            self._watch.want(self._most)
        except Exception as error:
            self._fail(error)

    def _on_flushed(self, flushed: int, error: MqfastError | None) -> None:
        # A loop that was closed meanwhile has no waiting future.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, flushed, error)

    def _settle(self, flushed: int, error: MqfastError | None) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed:
            _finish(heapq.heappop(waiting)[2], True)
        if error is not None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        while self._waiting:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_exception(error)


def _finish(future: asyncio.Future[bool], outcome: bool) -> None:
    if not future.done():
        future.set_result(outcome)


async def durable(ticket: Ticket, timeout_s: float | None = None) -> bool:
    """Await until the ticket's message is durable. Returns: False at the timeout. Raises: FlushError."""
    return await DurableFutures.of(ticket.engine).wait(ticket.end_offset, timeout_s)


async def settled(ticket: Ticket, config: StoreConfig) -> PutResult:
    """Await the result of the put. With sync flush: until the message is durable, or with the status
    FLUSH_DISK_TIMEOUT after ``sync_flush_timeout_ms``.
    """
    result = ticket.result
    if config.sync_flush and not await durable(ticket, config.sync_flush_timeout_ms / 1000):
        return result.with_status(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    return result


async def readable(descriptor: int, timeout_s: float | None = None) -> bool:
    """Await until a descriptor can be read. Returns: False at the timeout."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    loop.add_reader(descriptor, _finish, future, True)
    timer = None if timeout_s is None else loop.call_later(timeout_s, _finish, future, False)
    try:
        return await future
    finally:
        loop.remove_reader(descriptor)
        if timer is not None:
            timer.cancel()
