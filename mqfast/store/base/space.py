"""Space: the work that waits for space on a full disk, and the log messages.

Decides nothing: a part that waits for space reports begin and end of the wait here. The state of the store
and ``stats()`` show what waits; the log gets at most a line a minute.
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
    """The work of a store that waits for space, with the DiskFull of each.

    Thread: any.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._waiting: dict[str, DiskFull] = {}
        self._told_at: float | None = None
        self.wake: Callable[[], object] | None = None  # called when work waits that the dispatcher retries

    def see(self, what: str, error: DiskFull | None) -> None:
        """Record that work (a name in ``WHAT``) waits because of this error, or (None) that the wait has ended."""
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
        """True if any work waits for space."""
        return bool(self._waiting)

    def texts(self) -> list[str]:
        """Return a line for each work that waits."""
        with self._lock:
            return [f"{what}: {WHAT[what]}: {error}" for what, error in self._waiting.items()]
