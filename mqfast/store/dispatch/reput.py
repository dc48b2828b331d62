"""ReputMessageService: dispatches new records to queues and index (RocketMQ: ReputMessageService).

Dispatches only readable records, and delays no reader: a get that needs more records dispatches them itself. The loop
sleeps and walks without the GIL; both are in dispatch.pyx.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from mqfast.errors import DiskFull
from mqfast.store.base.results import LogFlag
from mqfast.store.base.service import Service
from mqfast.store.log.service_loops import keep_prefaulted

if TYPE_CHECKING:
    from mqfast.store.base.event import Event
    from mqfast.store.dispatch.dispatch import CommitLogDispatcher
    from mqfast.store.log.commit_log import CommitLog

__all__ = ["PrefaultService", "ReputMessageService"]

_NO_LIMIT: Final = -1.0
_RETRY_S: Final = 1.0  # while work waits for space on the disk


class ReputMessageService:
    """Dispatches new records. Thread: own."""

    def __init__(self, log: CommitLog, dispatcher: CommitLogDispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self.service = Service("reput", self._run_once)
        # A get that dispatches may find no space while the thread sleeps.
        dispatcher.space.wake = self.service.wake

    def _run_once(self, event: Event) -> None:
        log, dispatcher = self._log, self._dispatcher
        waits = dispatcher.waits or log.flags & LogFlag.WAITING
        wanted = dispatcher.wait_for_records(event, _RETRY_S if waits else _NO_LIMIT) or dispatcher.waits
        # that wait may have consumed the event of a stop: no second wait then
        if wanted and not self.service.is_stopping:
            dispatcher.follow(event)
        if log.flags & LogFlag.WAITING:
            with contextlib.suppress(DiskFull):
                log.get_ready()

    def close(self) -> None:
        """Stop, then dispatch the rest; work without space on the disk is left to the next open."""
        self.service.stop()
        self._dispatcher.step(-1, True)


class PrefaultService:
    """Keeps the pages ahead of the written position writable, and those of a pool's buffer in memory, so that no put
    waits for them. Thread: own.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.service = Service("prefault", self._run_once)

    def _run_once(self, event: Event) -> None:
        keep_prefaulted(self._log, event)

    def close(self) -> None:
        """Stop the loop."""
        self.service.stop()
