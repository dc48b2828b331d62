"""The time of a test's cluster: the system's, moved ahead by a test, or a time that only a test moves.

The clock of the process, of its clients and of sockets is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from mqfast.errors import UsageError
from mqfast.testing import checks

__all__ = ["Clock", "Time"]

_SECONDS_MAX: Final = 10 * 365 * 86_400


class Time:
    """The time of brokers, name servers and stores. Args: stands: whether the time stands still.

    Attributes: ``on_change``: called with (ms ahead of the system's clock, ms of a time that stands still, or 0).
        ``jumps``: ms of active jumps.
    Thread: read by any, moved by one.
    """

    def __init__(self, *, stands: bool) -> None:
        self.on_change: Callable[[int, int], object] = lambda _ahead_ms, _stands_ms: None
        self._stands = stands
        self._ahead_ms = 0
        self._at_ms = _whole_second_ms() if stands else 0
        self.jumps: list[int] = []

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._at_ms or _system_ms() + self._ahead_ms

    @property
    def setting(self) -> tuple[int, int]:
        """Return (ms ahead of the system's clock, ms of a time that stands still, or 0)."""
        return self._ahead_ms, self._at_ms

    def move_to(self, ms: int) -> None:
        """Move the time to then; never back."""
        now = self.now_ms()
        if ms > now:
            if self._stands:
                self._at_ms = ms
            else:
                self._ahead_ms += ms - now
            self.on_change(self._ahead_ms, self._at_ms)

    def jump(self, ms: int) -> None:
        """Set the clocks ahead or back, without the work between."""
        self.jumps.append(ms)
        self._add(ms)

    def jump_back(self, ms: int) -> None:
        """End a jump; nothing after a reset."""
        if ms in self.jumps:
            self.jumps.remove(ms)
            self._add(-ms)

    def _add(self, ms: int) -> None:
        if self._stands:
            self._at_ms += ms
        else:
            self._ahead_ms += ms
        self.on_change(self._ahead_ms, self._at_ms)

    def reset(self) -> None:
        """Use the system's time again."""
        self.jumps.clear()
        self._ahead_ms = 0
        self._at_ms = _whole_second_ms() if self._stands else 0
        self.on_change(self._ahead_ms, self._at_ms)


class Clock:
    """The clock of a test.

    What waits in the cluster (delays, retries, timed messages, checks of transactions, locks of queues, pulls that are
    held) takes place in its order while the clock is moved. The clocks of clients and of the process are not touched.
    Thread: any, one at a time.
    """

    def __init__(self, time_: Time, advance_to: Callable[[int], int], next_ms: Callable[[], int | None]) -> None:
        self._time = time_
        self._advance_to = advance_to
        self._next_ms = next_ms

    def now(self) -> datetime:
        """Return the cluster's time, in the local zone."""
        return datetime.fromtimestamp(self._time.now_ms() / 1000).astimezone()

    def now_ms(self) -> int:
        """Return the cluster's time in milliseconds since the epoch."""
        return self._time.now_ms()

    def advance(self, seconds: float | timedelta) -> int:
        """Move the clock ahead. Returns, once the messages can be pulled: count of messages that came due.

        Args: seconds: from 0 to ten years. Raises: UsageError.
        """
        given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        return self._advance_to(self._time.now_ms() + round(checks.seconds("advance", given, _SECONDS_MAX) * 1000))

    def travel_to(self, when: datetime) -> int:
        """Move the clock to a later moment. Returns: as ``advance``. Raises: UsageError."""
        if not isinstance(when, datetime):
            raise UsageError(f"travel_to: expected a datetime, found {when!r}")
        seconds = when.timestamp() - self._time.now_ms() / 1000
        if seconds < 0:
            raise UsageError(f"travel_to: expected a moment from {self.now().isoformat()} on, found {when.isoformat()}")
        return self.advance(seconds)

    def advance_to_next(self) -> timedelta | None:
        """Move the clock to the next waiting work. Returns: the step; None: nothing waits."""
        next_ms = self._next_ms()
        if next_ms is None:
            return None
        before = self._time.now_ms()
        self._advance_to(max(next_ms, before))
        return timedelta(milliseconds=self._time.now_ms() - before)


def _whole_second_ms() -> int:
    """Return the first virtual time: a whole second, since brokers deliver timed messages at whole seconds."""
    return _system_ms() // 1000 * 1000


def _system_ms() -> int:
    return time.time_ns() // 1_000_000
