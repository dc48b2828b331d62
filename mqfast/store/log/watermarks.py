"""FlushWaiters: tickets and watches that wait for the disk by callback, in a heap ordered by end offset.

A sync costs a call for each watch and for each ticket that the sync covers, however many more wait. This module does
not sync: the flush thread does, and then calls ``notify``. Waiting threads sleep in group_commit.pyx.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import FlushError, MqfastError, StoreClosed
from mqfast.store.base.os_api import Mutex

if TYPE_CHECKING:
    from mqfast.store.log.acks import AckTable
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.put.put_result import Ticket

__all__ = ["FlushWaiters", "FlushWatch"]

_log = logging.getLogger("mqfast.store")


class FlushWatch:
    """A callback for the durable position of the log.

    The callback gets ``(flushed, error)``: the physical offset up to which the log is durable, and None or the
    exception after which nothing more becomes durable. The flush thread calls it once for each sync that covers new
    bytes, as long as an offset is wanted. The callback must not block.
    Thread: any.
    """

    def __init__(self, waiters: FlushWaiters, callback: Callable[[int, MqfastError | None], object]) -> None:
        self._waiters: Final = waiters
        self._callback: Final = callback
        self.wanted = 0
        self._reported = 0

    def want(self, end_offset: int) -> None:
        """Request durability up to this physical offset; returns at once.

        The callback is also called for an offset that is durable already. Raises: StoreClosed.
        """
        self._waiters.want(self, end_offset)

    def close(self) -> None:
        """Remove the callback. Safe to call twice."""
        self._waiters.forget(self)

    @property
    def is_due(self) -> bool:
        """True if the watch waits for an offset that was not reported yet."""
        return self.wanted > self._reported

    def is_due_below(self, end_offset: int) -> bool:
        """Return the same for offsets up to ``end_offset``, the end of the log."""
        return min(self.wanted, end_offset) > self._reported

    def cut(self, end_offset: int) -> None:
        """Lower the offsets after a slave's log was truncated there."""
        self.wanted = min(self.wanted, end_offset)
        self._reported = min(self._reported, end_offset)

    def notify(self, flushed: int, error: MqfastError | None) -> None:
        """Report the flushed position. Called by the flush thread after a sync."""
        if error is None and flushed <= self._reported:
            return
        self._reported = self.wanted if error is not None else max(flushed, self._reported)
        self._callback(flushed, error)


class FlushWaiters:
    """Tickets and watches of one store. Thread: ``notify`` and ``close`` by the flush service, the rest by any."""

    def __init__(self, log: CommitLog, wake: Callable[[], object]) -> None:
        self._log = log
        self._wake = wake
        self._lock = Mutex()
        self._numbers = itertools.count()
        self._tickets: list[tuple[int, int, Ticket]] = []
        self._watches: list[FlushWatch] = []
        self._closed = False
        self.acks: AckTable | None = None  # of a master with puts that wait for slaves
        self.futures: dict[Any, Any] = {}  # of an adapter: the waiters of an event loop

    @property
    def pending(self) -> bool:
        """True if a ticket or watch waits for a sync."""
        written = self._log.written  # offsets behind the log's end need no wake-up
        tickets = self._tickets
        return bool(tickets and tickets[0][0] <= written) or any(watch.is_due_below(written) for watch in self._watches)

    def add(self, ticket: Ticket) -> None:
        """Finish this ticket once the message is durable, or the flush failed."""
        with self._lock:
            heapq.heappush(self._tickets, (ticket.end_offset, next(self._numbers), ticket))
        self._wake()

    def watch(self, callback: Callable[[int, MqfastError | None], object]) -> FlushWatch:
        """Return a new watch; no cost until an offset is wanted."""
        watch = FlushWatch(self, callback)
        with self._lock:
            self._watches = [*self._watches, watch]
        return watch

    def want(self, watch: FlushWatch, end_offset: int) -> None:
        """Request durability, as FlushWatch.want."""
        if self._closed:
            raise StoreClosed("the store was closed")
        with self._lock:
            if end_offset <= watch.wanted and watch.is_due:
                return  # the flush thread has this offset already
            if end_offset <= watch._reported:
                watch._reported = end_offset - 1  # durable already: the callback is called again
            watch.wanted = max(end_offset, watch._reported + 1)
        self._wake()

    def forget(self, watch: FlushWatch) -> None:
        """Remove the watch, as FlushWatch.close."""
        with self._lock:
            self._watches = [other for other in self._watches if other is not watch]

    def notify(self) -> None:
        """Notify the tickets and watches that the flushed position covers; all of them when the log is latched."""
        failed = self._log.error_number
        flushed = self._log.flushed
        error = FlushError(failed, "the message is stored but the flush failed", self._log.path) if failed else None
        for watch in self._watches:
            if watch.is_due:
                _call(lambda watch=watch: watch.notify(flushed, error))  # type: ignore[misc]
        while self._tickets and (failed or self._tickets[0][0] <= flushed):
            end, _, ticket = self._tickets[0]
            # The ticket is removed after the call: without memory for the call, the next turn repeats it.
            _call(lambda: ticket.finish(None if end <= flushed else error))  # noqa: B023
            with self._lock:
                self._remove_first(ticket)

    def _remove_first(self, ticket: Ticket) -> None:
        if self._tickets[0][2] is ticket:
            heapq.heappop(self._tickets)
        else:  # an earlier ticket was added meanwhile
            self._tickets = [entry for entry in self._tickets if entry[2] is not ticket]
            heapq.heapify(self._tickets)

    def cut(self, end_offset: int) -> None:
        """Lower the watches after a slave's log was truncated: removed bytes are not waited for, their replacements are
        reported again.
        """
        with self._lock:
            for watch in self._watches:
                watch.cut(end_offset)

    def close(self) -> None:
        """Fail the tickets and watches that the last sync did not cover with StoreClosed."""
        self._closed = True
        self.notify()
        closed = StoreClosed("the store was closed")
        for watch in self._watches:
            if watch.is_due:
                _call(lambda watch=watch: watch.notify(self._log.flushed, closed))  # type: ignore[misc]
        while self._tickets:
            self._tickets[0][2].finish(closed)
            with self._lock:
                heapq.heappop(self._tickets)


def _call(call: Callable[[], object]) -> None:
    """Call a callback and log an exception. MemoryError is raised, so that the next turn repeats the call."""
    try:
        call()
    except MemoryError:
        raise
    except Exception:
        with contextlib.suppress(MemoryError):
            _log.exception("a flush callback failed")
