"""An hour of numbers in memory: one ring of 4-byte floats for each series, and a limit on the number of series.

Must never grow with time. A slot without a measurement is a gap, not a zero.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Final

__all__ = ["SLOTS", "SPARK_SLOTS", "History"]

SLOTS: Final = 360
SPARK_SLOTS: Final = 90
_GAP: Final = math.nan


class History:
    """The series of a collector, by kind and name. Thread: that of the event loop.

    Args: slot_s: seconds of a slot; series_max: number of series, beyond which the smallest series is replaced.
    """

    def __init__(self, slot_s: float = 10.0, series_max: int = 6000) -> None:
        self.slot_s = slot_s
        self._series_max = series_max
        self._series: dict[tuple[str, str], array[float]] = {}
        self._latest: dict[tuple[str, str], float] = {}
        self._slot = -1

    def __len__(self) -> int:
        return len(self._series)

    def add(self, now_s: float, values: Mapping[tuple[str, str], float]) -> None:
        """Add the values of a round, which also count for the slots since the last round.

        A series begins with the first value other than zero.
        """
        slot = int(now_s / self.slot_s)
        first = slot if self._slot < 0 else min(slot, max(self._slot + 1, slot - SLOTS + 1))
        self._clear_until(slot)
        passed = [number % SLOTS for number in range(first, slot + 1)]
        for key, value in values.items():
            ring = self._series.get(key)
            if ring is None:
                if value == 0:
                    continue
                ring = self._made(key, value)
                if ring is None:
                    continue
            for at in passed:
                ring[at] = value
            self._latest[key] = value

    def values(self, kind: str, name: str, slots: int = SLOTS) -> list[float | None]:
        """Return the last values, the oldest first; None where there is no measurement."""
        ring = self._series.get((kind, name))
        if ring is None or self._slot < 0:
            return [None] * slots
        first = self._slot - slots + 1
        picked = (ring[slot % SLOTS] for slot in range(first, self._slot + 1))
        return [None if math.isnan(value) else round(value, 3) for value in picked]

    def times(self, slots: int = SLOTS) -> list[float]:
        """Return the times of ``values``, in seconds since the epoch."""
        return [slot * self.slot_s for slot in range(self._slot - slots + 1, self._slot + 1)]

    def _clear_until(self, slot: int) -> None:
        if self._slot >= 0:
            for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
                for ring in self._series.values():
                    ring[passed % SLOTS] = _GAP
        self._slot = max(self._slot, slot)

    def _made(self, key: tuple[str, str], value: float) -> array[float] | None:
        """Return a new ring; None where all other series are larger."""
        if len(self._series) >= self._series_max:
            smallest = min(self._latest, key=self._latest.__getitem__)
            if self._latest[smallest] >= value:
                return None
            del self._series[smallest], self._latest[smallest]
        ring = self._series[key] = array("f", [_GAP]) * SLOTS
        return ring
