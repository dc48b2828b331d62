"""FlushWaiters: everything that waits for the disk by callback, in one heap ordered by end offset.

One sync costs one call for each watch and one for each ticket that the sync covers, however many more wait behind. This
module must never sync: the flush thread does, and then calls ``notify``. Waiting threads are no matter of this module:
they sleep in group_commit.pyx.
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
    """One callback that hears how far the log is durable.

    The callback gets ``(flushed, error)``: the physical offset up to which the log is durable, and None or the
    exception after which nothing more becomes durable. The flush thread calls it once for each sync that covers
    something new, as long as an offset is wanted. It must not block.
    Thread: any.
    """

    def __init__(self, waiters: FlushWaiters, callback: Callable[[int, MqfastError | None], object]) -> None:
        self._waiters: Final = waiters
        self._callback: Final = callback
        self.wanted = 0
        self._told = 0

    def want(self, end_offset: int) -> None:
        """Ask for durability up to this physical offset; returns at once.

        The callback comes also for an offset that is durable already. Raises: StoreClosed.
        """
        self._waiters.want(self, end_offset)

    def close(self) -> None:
        """Call the callback no more. Safe to call twice."""
        self._waiters.forget(self)

    @property
    def is_due(self) -> bool:
        """Does the watch wait for an offset that it has not been told of?"""
        return self.wanted > self._told

    def is_due_below(self, end_offset: int) -> bool:
        """The same, of what the log has."""
        return min(self.wanted, end_offset) > self._told

    def cut(self, end_offset: int) -> None:
        """A slave's log was cut there."""
        self.wanted = min(self.wanted, end_offset)
        self._told = min(self._told, end_offset)

    def notify(self, flushed: int, error: MqfastError | None) -> None:
        """Called by the flush thread after a sync."""
        if error is None and flushed <= self._told:
            return
        self._told = self.wanted if error is not None else max(flushed, self._told)
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
        self.acks: AckTable | None = None  # of a master whose puts wait for slaves
        self.futures: dict[Any, Any] = {}  # of an adapter: what waits in one event loop

    @property
    def pending(self) -> bool:
        """Does anything wait for a sync?"""
        written = self._log.written  # what was never put cannot be waited for awake
        tickets = self._tickets
        return bool(tickets and tickets[0][0] <= written) or any(watch.is_due_below(written) for watch in self._watches)

    def add(self, ticket: Ticket) -> None:
        """Finish this ticket once its message is durable, or once that failed."""
        with self._lock:
            heapq.heappush(self._tickets, (ticket.end_offset, next(self._numbers), ticket))
        self._wake()

    def watch(self, callback: Callable[[int, MqfastError | None], object]) -> FlushWatch:
        """A new watch; it costs nothing until it wants an offset."""
        watch = FlushWatch(self, callback)
        with self._lock:
            self._watches = [*self._watches, watch]
        return watch

    def want(self, watch: FlushWatch, end_offset: int) -> None:
        """As FlushWatch.want."""
        if self._closed:
            raise StoreClosed("the store was closed")
        with self._lock:
            if end_offset <= watch.wanted and watch.is_due:
                return  # the flush thread knows already
            if end_offset <= watch._told:
                watch._told = end_offset - 1  # durable already: the watch hears of it again
            watch.wanted = max(end_offset, watch._told + 1)
        self._wake()

    def forget(self, watch: FlushWatch) -> None:
        """As FlushWatch.close."""
        with self._lock:
            self._watches = [other for other in self._watches if other is not watch]

    def notify(self) -> None:
        """Tell everybody whom the log's flushed position covers; everybody when the log is latched."""
        failed = self._log.error_number
        flushed = self._log.flushed
        error = FlushError(failed, "the message is stored but the flush failed", self._log.path) if failed else None
        for watch in self._watches:
            if watch.is_due:
                _call(lambda watch=watch: watch.notify(flushed, error))  # type: ignore[misc]
        while self._tickets and (failed or self._tickets[0][0] <= flushed):
            end, _, ticket = self._tickets[0]
            # The ticket leaves behind the call: without memory for it, the next turn goes on with this one.
            _call(lambda: ticket.finish(None if end <= flushed else error))  # noqa: B023
            with self._lock:
                self._remove_first(ticket)

    def _remove_first(self, ticket: Ticket) -> None:
        if self._tickets[0][2] is ticket:
            heapq.heappop(self._tickets)
        else:  # an earlier one came meanwhile
            self._tickets = [entry for entry in self._tickets if entry[2] is not ticket]
            heapq.heapify(self._tickets)

    def cut(self, end_offset: int) -> None:
        """A slave's log was cut there: nobody waits for what is gone, and what comes in its place is told of again."""
        with self._lock:
            for watch in self._watches:
                watch.cut(end_offset)

    def close(self) -> None:
        """After the last sync: who is not covered hears that the store was closed."""
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
    """A callback that fails is logged and ends nothing; one without memory is called again in the next turn."""
    try:
        call()
    except MemoryError:
        raise
    except Exception:
        with contextlib.suppress(MemoryError):
            _log.exception("a flush callback failed")
