"""Pauses of long work in an event loop, so that pages of other users do not wait for a round of the collector.

Must never pause more often than each few milliseconds: a pause costs a turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

__all__ = ["Breath"]

_WORK_S: Final = 0.004


class Breath:
    """The pauses of one task. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._since_s = 0.0

    async def pause(self) -> None:
        """Give others a turn if the last turn is some milliseconds ago."""
        if time.perf_counter() - self._since_s > _WORK_S:
            await asyncio.sleep(0)
            self._since_s = time.perf_counter()
