"""Space: what waits for room on a full disk, and how the user hears of it.

It must never decide anything: whoever cannot go on says so here, and says when that is over. The state of the store and
``stats()`` show what waits; the log gets one line a minute at most.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqfast.store.base.os_api import Mutex

if TYPE_CHECKING:
    from mqfast.errors import DiskFull

__all__ = ["Space"]

_log = logging.getLogger("mqfast.store")
_QUIET_S: Final = 60.0

WHAT: Final = {
    "queues": "messages wait for their place in a queue file, readers see those before them",
    "index": "keys wait for the index, their messages are found by queue and offset",
    "log": "the next log file waits, puts go on in the present one while it has room",
    "blocks": "the present log file has holes, and waits for blocks in front of its end",
    "puts": "puts are refused until what the open left to do has room",
    "checkpoint": "the checkpoint waits, a recovery would begin further back",
    "consumerOffset.json": "consumer offsets wait in memory",
    "topics.json": "the table of topics waits in memory",
}


class Space:
    """What of one store waits, each with the DiskFull that stopped it.

    Thread: any.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._waiting: dict[str, DiskFull] = {}
        self._told_at: float | None = None
        self.wake: Callable[[], object] | None = None  # called when something waits that the dispatcher tries again

    def see(self, what: str, error: DiskFull | None) -> None:
        """Note that something (a name in ``WHAT``) waits because of this error, or (None) waits no more."""
        if error is None and what not in self._waiting:
            return
        with self._lock:
            if error is None:
                self._waiting.pop(what, None)
            else:
                self._waiting[what] = copy.copy(error)  # without its traceback, which would keep files open
        if error is not None and self.wake is not None:
            self.wake()
        with self._lock:
            now = time.monotonic()
            if error is None or (self._told_at is not None and now - self._told_at < _QUIET_S):
                return
            self._told_at = now
        _log.warning("disk full: %s: %s", WHAT[what], error)

    @property
    def waits(self) -> bool:
        """Does anything wait?"""
        return bool(self._waiting)

    def texts(self) -> list[str]:
        """What waits, one line each."""
        with self._lock:
            return [f"{what}: {WHAT[what]}: {error}" for what, error in self._waiting.items()]
