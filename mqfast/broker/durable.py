"""Waiting for the disk in the event loop: requests that are answered when their messages are durable.

All of them share one watch of the store, which the flush thread calls once a sync. It must never block the loop, and
never sync by itself. Source: GroupCommitService, AppendMessageCallback's futures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.store.engine import Engine

__all__ = ["Durable"]


class _Waiting(NamedTuple):
    end_offset: int
    deadline_s: float
    future: asyncio.Future[bool]


class Durable:
    """Who waits for which physical offset.

    Args: timeout_s: how long a request waits at most (RocketMQ: syncFlushTimeout).
    Thread: that of the event loop.
    """

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s: Final = timeout_s
        self._waiting: deque[_Waiting] = deque()  # puts come from this loop only, so ends and deadlines both grow
        self._timer: asyncio.TimerHandle | None = None
        self._watch = engine.watch_flushed(self._from_the_flush_thread)

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, end_offset: int) -> asyncio.Future[bool]:
        """A future of whether the log is durable up to this offset in time: False where the time is over.

        It raises FlushError or StoreClosed where the store can promise nothing more.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._timeout_s, future))
        self._watch.want(end_offset)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_is_over)
        return future

    def _from_the_flush_thread(self, flushed: int, error: MqfastError | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, flushed, error)

    def _tell(self, flushed: int, error: MqfastError | None) -> None:
        while self._waiting and (error is not None or self._waiting[0].end_offset <= flushed):
            one = self._waiting.popleft()
            if one.future.done():
                continue
            if one.end_offset <= flushed:
                one.future.set_result(True)
            elif error is not None:
                one.future.set_exception(error)

    def _time_is_over(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline_s <= now:
            one = self._waiting.popleft()
            if not one.future.done():
                one.future.set_result(False)
        self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._time_is_over) if self._waiting else None

    def close(self) -> None:
        """Hear no more of the store; who still waits hears that time is over."""
        self._watch.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in self._waiting:
            if not one.future.done():
                one.future.set_result(False)
        self._waiting.clear()
