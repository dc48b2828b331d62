"""AckTable: the offsets that slaves acknowledged, and the puts that wait for them (RocketMQ: GroupTransferService,
CommitLog.handleHA).

Disconnected slaves do not count. Replication reports the acknowledgements; this module knows no connections. A report
wakes only the waiters that it covers.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable, Hashable
from typing import Final

from mqfast.errors import UsageError
from mqfast.store.base.event import Event
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.results import PutMessageStatus

__all__ = ["AckTable"]

_log = logging.getLogger("mqfast.store")

_POLL_S: Final = 0.1  # longest sleep between two checks for signals
_EVERYTHING: Final = 2**63 - 1  # acked, where no put waits for slaves


class AckTable:
    """Acknowledged offsets of the connected slaves of a master.

    Args: needed: slaves that must have a message before the put returns (RocketMQ's inSyncReplicas less the master).
    timeout_s: longest wait of a put (slaveTimeout). fail_fast: a put returns SLAVE_NOT_AVAILABLE at once while fewer
    slaves are connected than needed, as in brokers of 4.9; otherwise the put waits, and returns FLUSH_SLAVE_TIMEOUT, as
    in brokers of 5.x.
    Attributes: ``on_change``: called after each report, removal and change, in the thread that makes it.
    Thread: any.
    Source: GroupTransferService.
    """

    def __init__(self, needed: int, timeout_s: float = 3.0, *, fail_fast: bool = False) -> None:
        if needed < 0:
            raise UsageError(f"needed: expected at least 0 slaves, found {needed}")
        self.needed = needed
        self.timeout_s = timeout_s
        self.fail_fast: Final = fail_fast
        self._lock = Mutex()
        self._slaves: dict[Hashable, int] = {}
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Event]] = []
        self._acked = 0
        self._watches: list[Callable[[int], object]] = []
        self.on_change: list[Callable[[], object]] = []

    @property
    def slaves(self) -> dict[Hashable, int]:
        """Connected slaves and the last acknowledgement of each (physical offset behind the slave's last byte)."""
        with self._lock:
            return dict(self._slaves)

    @property
    def reach(self) -> int:
        """Physical offset that as many connected slaves as needed have reached; -1: too few slaves are connected."""
        with self._lock:
            return self._reach()

    @property
    def acked(self) -> int:
        """Physical offset that as many slaves as needed have reached; monotonic."""
        return self._acked

    def in_sync(self, end_offset: int, max_gap_bytes: int = 256 << 20) -> int:
        """Return the number of slaves that are less than ``max_gap_bytes`` (haMaxGapNotInSync) behind
        ``end_offset``.
        """
        with self._lock:
            return sum(end_offset - acked < max_gap_bytes for acked in self._slaves.values())

    def report(self, slave: Hashable, offset: int) -> None:
        """Record that a slave has the log up to this physical offset. The first report of a slave connects the
        slave.
        """
        if offset < 0:
            raise UsageError(f"offset: expected at least 0, found {offset}")
        with self._lock:
            self._slaves[slave] = offset
            moved = self._update()
        if moved:
            self._notify(self.acked)
        self._tell_changes()

    def change(self, needed: int, timeout_s: float) -> None:
        """Change the number of needed slaves and the timeout, also for puts that wait already. Args: as of the
        table.
        """
        if needed < 0:
            raise UsageError(f"needed: expected at least 0 slaves, found {needed}")
        with self._lock:
            self.needed, self.timeout_s = needed, timeout_s
            moved = self._update()
            if needed == 0:
                while self._waiting:
                    heapq.heappop(self._waiting)[2].set()
        if needed == 0:
            self._notify(_EVERYTHING)
        elif moved:
            self._notify(self.acked)
        self._tell_changes()

    def remove(self, slave: Hashable) -> None:
        """Remove a slave whose connection ended: later acknowledgements need the other slaves. ``acked`` stays."""
        with self._lock:
            self._slaves.pop(slave, None)
        self._tell_changes()

    def watch(self, callback: Callable[[int], object]) -> None:
        """Call ``callback(acked)`` whenever ``acked`` grows, in the thread that reports; the callback must not
        block.
        """
        self._watches = [*self._watches, callback]

    def unwatch(self, callback: Callable[[int], object]) -> None:
        """Remove the callback."""
        self._watches = [other for other in self._watches if other is not callback]

    def wait_for(self, end_offset: int, timeout_s: float | None = None) -> PutMessageStatus:
        """Wait until enough slaves have everything before ``end_offset``.

        Args: timeout_s: seconds, None for the table's timeout.
        Returns: PUT_OK; FLUSH_SLAVE_TIMEOUT; SLAVE_NOT_AVAILABLE (``fail_fast`` only). The message is stored in each
        case.
        GIL: released while waiting; signal handlers run.
        """
        if self.needed == 0 or self._acked >= end_offset:
            return PutMessageStatus.PUT_OK
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        event = Event()
        with self._lock:
            if self.fail_fast and len(self._slaves) < self.needed:
                return PutMessageStatus.SLAVE_NOT_AVAILABLE
            entry = (end_offset, next(self._numbers), event)
            heapq.heappush(self._waiting, entry)
        try:
            while self.needed > 0 and self._acked < end_offset:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                event.wait(min(remaining_s, _POLL_S))
            return PutMessageStatus.PUT_OK
        finally:
            with self._lock:
                if entry in self._waiting:  # at the timeout, or a signal handler raised
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)

    def _tell_changes(self) -> None:
        for callback in self.on_change:
            callback()

    def _reach(self) -> int:
        if len(self._slaves) < max(1, self.needed):
            return -1
        return sorted(self._slaves.values(), reverse=True)[max(1, self.needed) - 1]

    def _update(self) -> bool:
        """Update ``acked`` and wake the waiters that it covers; return true if ``acked`` has grown. The lock is
        held.
        """
        reached = self._reach() if self.needed else -1
        if reached <= self._acked:
            return False
        self._acked = reached
        while self._waiting and self._waiting[0][0] <= reached:
            heapq.heappop(self._waiting)[2].set()
        return True

    def _notify(self, acked: int) -> None:
        for callback in self._watches:
            try:
                callback(acked)
            except Exception:
                _log.exception("a callback of acknowledged offsets failed")
