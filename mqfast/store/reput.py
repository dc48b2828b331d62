"""ReputMessageService: follows the log and keeps queues and index in step with it (RocketMQ: ReputMessageService).

It must never run ahead of what readers may see, and never be what a reader waits for: a get that needs more dispatches
it itself. The loop sleeps without the GIL; the walk is in _dispatch.pyx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.store.service import Service

if TYPE_CHECKING:
    from mqfast.store._commit_log import Bell, CommitLog
    from mqfast.store._dispatch import Dispatcher

__all__ = ["PrefaultService", "ReputMessageService"]

_NAP_S: Final = 10.0


class ReputMessageService:
    """Dispatches whenever there is something to dispatch. Thread: its own."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self.service = Service("reput", self._turn, log=log)

    def _turn(self, bell: Bell) -> None:
        if self._log.nap(bell, _NAP_S, True):
            self._dispatcher.step()

    def close(self) -> None:
        """Stop, then dispatch what is left."""
        self.service.stop()
        self._dispatcher.step()


class PrefaultService:
    """Keeps the pages ahead of the written position writable, those of a pool's buffer in memory, so that no put waits
    for them. Thread: its own.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.service = Service("prefault", self._turn, heavy=True, log=log)

    def _turn(self, bell: Bell) -> None:
        self._log.keep_prefaulted(bell)

    def close(self) -> None:
        """Stop."""
        self.service.stop()
