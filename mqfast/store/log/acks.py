"""AckTable: how far the slaves of a master have its log, and who waits for that (RocketMQ: GroupTransferService,
CommitLog.handleHA).

It must never count a slave that is gone, and knows nothing of connections: replication reports for them. One report
wakes only those whom it covers.
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

_LOOK_S: Final = 0.1  # longest sleep without a look at signals
_EVERYTHING: Final = 2**63 - 1  # acked, where nobody is waited for


class AckTable:
    """Acknowledged offsets of the connected slaves of one master.

    Args: needed: slaves that must have a message before its put ends (RocketMQ's inSyncReplicas less the master).
    timeout_s: longest wait of a put (slaveTimeout). fail_fast: a put ends at once with SLAVE_NOT_AVAILABLE while
    fewer slaves are connected than needed, as brokers of 4.9 do; otherwise it waits, and ends with FLUSH_SLAVE_TIMEOUT,
    as brokers of 5.x do.
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

    @property
    def slaves(self) -> dict[Hashable, int]:
        """Connected slaves and what each acknowledged last (physical offset behind the last byte that it has)."""
        with self._lock:
            return dict(self._slaves)

    @property
    def acked(self) -> int:
        """Physical offset that as many slaves as needed have reached; it never falls."""
        return self._acked

    def in_sync(self, end_offset: int, max_gap_bytes: int = 256 << 20) -> int:
        """How many slaves are less than ``max_gap_bytes`` (haMaxGapNotInSync) behind ``end_offset``."""
        with self._lock:
            return sum(end_offset - acked < max_gap_bytes for acked in self._slaves.values())

    def report(self, slave: Hashable, offset: int) -> None:
        """A slave has the log up to this physical offset. The first report of a slave connects it."""
        if offset < 0:
            raise UsageError(f"offset: expected at least 0, found {offset}")
        with self._lock:
            self._slaves[slave] = offset
            moved = self._see()
        if moved:
            self._tell(self.acked)

    def change(self, needed: int, timeout_s: float) -> None:
        """So many slaves are needed from now on, also for what waits already. Args: as of the table."""
        if needed < 0:
            raise UsageError(f"needed: expected at least 0 slaves, found {needed}")
        with self._lock:
            self.needed, self.timeout_s = needed, timeout_s
            moved = self._see()
            if needed == 0:
                while self._waiting:
                    heapq.heappop(self._waiting)[2].set()
        if needed == 0:
            self._tell(_EVERYTHING)
        elif moved:
            self._tell(self.acked)

    def remove(self, slave: Hashable) -> None:
        """The connection of a slave ended: its acknowledgements count no more. What was acked stays so."""
        with self._lock:
            self._slaves.pop(slave, None)

    def watch(self, callback: Callable[[int], object]) -> None:
        """Call ``callback(acked)`` whenever ``acked`` grows, in the thread that reports; it must not block."""
        self._watches = [*self._watches, callback]

    def unwatch(self, callback: Callable[[int], object]) -> None:
        """Call it no more."""
        self._watches = [other for other in self._watches if other is not callback]

    def wait_for(self, end_offset: int, timeout_s: float | None = None) -> PutMessageStatus:
        """Wait until enough slaves have everything before ``end_offset``.

        Args: timeout_s: seconds, None for that of the table.
        Returns: PUT_OK; FLUSH_SLAVE_TIMEOUT; SLAVE_NOT_AVAILABLE (``fail_fast`` only). The message is stored anyway.
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
                left = deadline - time.monotonic()
                if left <= 0:
                    return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                event.wait(min(left, _LOOK_S))
            return PutMessageStatus.PUT_OK
        finally:
            with self._lock:
                if entry in self._waiting:  # at the timeout, or a signal handler raised
                    self._waiting.remove(entry)
                    heapq.heapify(self._waiting)

    def _see(self) -> bool:
        """Has ``acked`` grown? Wakes those whom it covers. The lock is held."""
        if self.needed == 0 or len(self._slaves) < self.needed:
            return False
        reached = sorted(self._slaves.values(), reverse=True)[self.needed - 1]
        if reached <= self._acked:
            return False
        self._acked = reached
        while self._waiting and self._waiting[0][0] <= reached:
            heapq.heappop(self._waiting)[2].set()
        return True

    def _tell(self, acked: int) -> None:
        for callback in self._watches:
            try:
                callback(acked)
            except Exception:
                _log.exception("a callback of acknowledged offsets failed")
