"""Unique ids of messages (UNIQ_KEY) in Python: the form of ``remoting/unique_ids.pyx`` without compiled code.

No id is repeated. Source: MessageClientIDSetter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import datetime


def month_of(seconds: float) -> tuple[int, int]:
    """Return the begin of the month of a time in local time, and that of the next month, both in ms."""
    now = datetime.fromtimestamp(seconds)
    begin = datetime(now.year, now.month, 1)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


class UniqueIds:
    """Generates the unique ids of a process. Arguments and guarantees: as in ``unique_ids.pyx``.

    Thread: any; a signal handler in the middle of a call gets ids of a generator with another head.
    """

    def __init__(
        self,
        host: bytes,
        clock: Callable[[], float] = time.time,
        month: Callable[[float], tuple[int, int]] = month_of,
    ) -> None:
        head = host + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
        self._head = head.hex().upper()
        self._host = host
        self._clock = clock
        self._month = month
        self._now = self._next_month = -1
        self._begin = self._first = self._count = 0
        self._lock = threading.RLock()
        self._entered = False
        self._nested: UniqueIds | None = None

    def next(self) -> str:
        """Return a new id."""
        now = int(self._clock() * 1000)
        with self._lock:
            if self._entered:
                if self._nested is None:
                    self._nested = UniqueIds(self._host, self._clock, self._month)
                return self._nested.next()
            self._entered = True
            try:
                return self._head + self._tail(now)
            finally:
                self._entered = False

    def _tail(self, now: int) -> str:
        while True:
            late = now if now > self._now else self._now + (self._count - self._first >= 65536)
            if late < self._next_month:
                break
            self._begin, self._next_month = self._month(late / 1000)
        if late > self._now:
            self._now, self._first = late, self._count
        number = self._count
        self._count = number + 1
        return f"{late - self._begin & 0xFFFFFFFF:08X}{number & 0xFFFF:04X}"
