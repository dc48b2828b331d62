"""A limit for log lines that a peer can cause: a few of a kind in an interval, and the count of omitted lines.

Messages are not stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["LogLimit"]


class LogLimit:
    """A logger that writes lines of the same kind at most ``burst`` times every ``interval_s`` seconds."""

    def __init__(
        self,
        logger: logging.Logger,
        interval_s: float = 10.0,
        clock: Callable[[], float] | None = None,
        *,
        burst: int = 1,
    ) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._clock = clock or time.monotonic
        self._burst = burst
        self._kinds: dict[str, tuple[float, int, int]] = {}

    def warning(self, kind: str, message: str, *args: object, exc_info: bool | BaseException = False) -> None:
        """Log, unless the limit of this kind is reached. Args: kind: one of a few fixed texts."""
        self._say(logging.WARNING, kind, message, args, exc_info)

    def info(self, kind: str, message: str, *args: object) -> None:
        """Log at level INFO, with the same limit."""
        self._say(logging.INFO, kind, message, args, False)

    def _say(
        self, level: int, kind: str, message: str, args: tuple[object, ...], exc_info: bool | BaseException
    ) -> None:
        now = self._clock()
        since, said, left_out = self._kinds.get(kind, (float("-inf"), 0, 0))
        if now - since >= self._interval_s:
            self._kinds[kind] = (now, 1, 0)
        elif said < self._burst:
            self._kinds[kind] = (since, said + 1, 0)
        else:
            self._kinds[kind] = (since, said, left_out + 1)
            return
        more = f" ({left_out} more of this kind since the last line)" if left_out else ""
        self._logger.log(level, message + more, *args, exc_info=exc_info)
