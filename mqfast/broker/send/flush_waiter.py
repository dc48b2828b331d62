"""Waiting in the event loop until a part of the log is safe: on this disk, or at slaves.

All requests of one kind share one watch, which is told once a sync or once a report of a slave. It must never block the
loop, and never sync by itself. Source: GroupCommitService, GroupTransferService.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.store.engine import Engine
    from mqfast.store.log.acks import AckTable

__all__ = ["FlushWaiter", "Outcome", "ReplicaWaiter"]


Outcome = bool | MqfastError
"""Of a wait: in time; not in time; the store can promise nothing more."""


class _Waiting(NamedTuple):
    end_offset: int
    deadline_s: float
    notify: Callable[[Outcome], object]


def _settle(future: asyncio.Future[bool], outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, bool):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


class _Waits:
    """Who waits for which physical offset.

    Args: timeout_s: how long a request waits at most.
    Thread: that of the event loop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._waiting: deque[_Waiting] = deque()  # puts come from this loop only, so ends and deadlines both grow
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def set_timeout(self, timeout_s: float) -> None:
        """So long a request waits from now on, also one that waits already."""
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        latest_s = self._loop.time() + timeout_s
        self._waiting = deque(one._replace(deadline_s=min(one.deadline_s, latest_s)) for one in self._waiting)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._time_is_over) if self._waiting else None

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """Call ``notify`` once, in this loop and perhaps within the call. Args: notify: it must not raise."""
        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._timeout_s, notify))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_is_over)

    def wait(self, end_offset: int) -> asyncio.Future[bool]:
        """A future of whether the log is safe up to this offset in time: False where the time is over.

        It raises FlushError or StoreClosed where the store can promise nothing more.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when(end_offset, partial(_settle, future))
        return future

    def _tell(self, reached: int, error: MqfastError | None = None) -> None:
        while self._waiting and (error is not None or self._waiting[0].end_offset <= reached):
            one = self._waiting.popleft()
            one.notify(True if one.end_offset <= reached or error is None else error)

    def _time_is_over(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline_s <= now:
            self._waiting.popleft().notify(False)
        self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._time_is_over) if self._waiting else None

    def close(self) -> None:
        """Who still waits hears that time is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft().notify(False)


class FlushWaiter(_Waits):
    """Requests that are answered when their messages are on disk.

    Args: timeout_s: how long a request waits at most (RocketMQ: syncFlushTimeout).
    Thread: that of the event loop.
    """

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._watch = engine.watch_flushed(self._from_the_flush_thread)

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """As of any wait."""
        super().when(end_offset, notify)
        self._watch.want(end_offset)

    def _from_the_flush_thread(self, flushed: int, error: MqfastError | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, flushed, error)

    def close(self) -> None:
        """Hear no more of the store; who still waits hears that time is over."""
        self._watch.close()
        super().close()


class ReplicaWaiter(_Waits):
    """Requests that are answered when as many slaves as needed have their messages.

    Args: acks: told by the slaves' connections, in this loop; wake: sends to slaves at once.
    Thread: that of the event loop.
    """

    def __init__(self, acks: AckTable, wake: Callable[[], object]) -> None:
        super().__init__(acks.timeout_s)
        self._acks = acks
        self._wake = wake
        self._is_woken = False
        acks.watch(self._tell)

    def is_possible(self, end_offset: int, max_gap_bytes: int) -> bool:
        """Are as many slaves near as are needed?"""
        return self._acks.in_sync(end_offset, max_gap_bytes) >= self._acks.needed

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """As of any wait."""
        if self._acks.acked >= end_offset:
            notify(True)
            return
        super().when(end_offset, notify)
        if not self._is_woken:  # behind whatever else this turn of the loop puts
            self._is_woken = True
            self._loop.call_soon(self._send_now)

    def _send_now(self) -> None:
        self._is_woken = False
        self._wake()

    def close(self) -> None:
        """Hear no more of slaves; who still waits hears that time is over."""
        self._acks.unwatch(self._tell)
        super().close()
