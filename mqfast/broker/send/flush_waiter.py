"""Waits in the event loop until a part of the log is committed: flushed to this disk, or acknowledged by slaves.

All requests of a kind share one watch, notified once per flush or per acknowledgement. No wait blocks the loop, and
none flushes. Source: GroupCommitService, GroupTransferService.
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
"""Of a wait: in time; timed out; the failure of the store."""


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
    """The requests that wait for a physical offset.

    Args: timeout_s: the longest wait of a request.
    Thread: that of the event loop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._waiting: deque[_Waiting] = deque()  # puts are made in this loop only: offsets and deadlines ascend
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the timeout of later requests, and shorten the wait of requests that wait already."""
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        latest_s = self._loop.time() + timeout_s
        self._waiting = deque(wait._replace(deadline_s=min(wait.deadline_s, latest_s)) for wait in self._waiting)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._time_is_over) if self._waiting else None

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """Call ``notify`` once, in this loop and perhaps within the call. Args: notify: must not raise."""
        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._timeout_s, notify))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_is_over)

    def wait(self, end_offset: int) -> asyncio.Future[bool]:
        """Return a future: True once the log is committed up to this offset, False after the timeout.

        The future raises FlushError or StoreClosed after a failure of the store.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when(end_offset, partial(_settle, future))
        return future

    def _complete(self, reached: int, error: MqfastError | None = None) -> None:
        while self._waiting and (error is not None or self._waiting[0].end_offset <= reached):
            waiting = self._waiting.popleft()
            waiting.notify(True if waiting.end_offset <= reached or error is None else error)

    def _time_is_over(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline_s <= now:
            self._waiting.popleft().notify(False)
        self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._time_is_over) if self._waiting else None

    def close(self) -> None:
        """End all waits as timed out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft().notify(False)


class FlushWaiter(_Waits):
    """Requests that are answered once their messages are on disk.

    Args: timeout_s: the longest wait of a request (RocketMQ: syncFlushTimeout).
    Thread: that of the event loop.
    """

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._watch = engine.watch_flushed(self._from_the_flush_thread)

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """Call ``notify`` once, as in the base class."""
        super().when(end_offset, notify)
        self._watch.want(end_offset)

    def want(self, end_offset: int) -> None:
        """Request durability up to a physical offset, without a wait. Raises: StoreClosed."""
        self._watch.want(end_offset)

    def _from_the_flush_thread(self, flushed: int, error: MqfastError | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._complete, flushed, error)

    def close(self) -> None:
        """Stop watching the store; end all waits as timed out."""
        self._watch.close()
        super().close()


class ReplicaWaiter(_Waits):
    """Requests that are answered once the required number of slaves has their messages.

    Args: acks: notified by the slaves' connections, in this loop; wake: sends to slaves at once.
    Attributes: as the arguments.
    Thread: that of the event loop.
    """

    def __init__(self, acks: AckTable, wake: Callable[[], object]) -> None:
        super().__init__(acks.timeout_s)
        self.acks = acks
        self.wake = wake
        self._is_woken = False
        acks.watch(self._complete)

    def is_possible(self, end_offset: int, max_gap_bytes: int) -> bool:
        """Return True if the required number of slaves is within the gap."""
        return self.acks.in_sync(end_offset, max_gap_bytes) >= self.acks.needed

    def when(self, end_offset: int, notify: Callable[[Outcome], object]) -> None:
        """Call ``notify`` once, as in the base class; at once for an acknowledged offset."""
        if self.acks.acked >= end_offset:
            notify(True)
            return
        super().when(end_offset, notify)
        if not self._is_woken:  # after other puts of the same loop iteration
            self._is_woken = True
            self._loop.call_soon(self._send_now)

    def _send_now(self) -> None:
        self._is_woken = False
        self.wake()

    def close(self) -> None:
        """Stop watching slaves; end all waits as timed out."""
        self.acks.unwatch(self._complete)
        super().close()
