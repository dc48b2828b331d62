"""The flush of the timer: parked and delivered messages become durable.

The checkpoint is written last, so that the checkpoint never claims more than is durable.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mqfast.schedule.timer.checkpoint import TimerCheckpoint, write_checkpoint

if TYPE_CHECKING:
    from mqfast.schedule.timer.metrics import TimerMetrics
    from mqfast.schedule.timer.timer_log import TimerLog
    from mqfast.schedule.timer.wheel import TimerWheel
    from mqfast.store.message_store import MessageStore

__all__ = ["TimerFlush", "TimerFlusher"]


class TimerFlusher:
    """Makes the files of a timer durable, without concurrent flushes. Thread: any."""

    def __init__(self, store: MessageStore, wheel: TimerWheel, log: TimerLog, metrics: TimerMetrics) -> None:
        self._store = store
        self._wheel = wheel
        self._log = log
        self._metrics = metrics
        self._lock = threading.Lock()
        self._flushed_number = 0
        root = store.paths.root
        self._snapshots = [
            f"{root}/{name}"
            for name in store.log.os_api.listdir(root)
            if name.startswith("timerwheel.") and name.removeprefix("timerwheel.").isdigit()
        ]

    @property
    def has_snapshots(self) -> bool:
        """Return True while there are files of ``timerWheelSnapshotFlush``."""
        return bool(self._snapshots)

    def flush(self, number: int, checkpoint: TimerCheckpoint, metrics: bytes) -> None:
        """Flush log, timer log, wheel and checkpoint, in this order, unless a flush of a higher number has run.

        Raises: StorageError.
        """
        with self._lock:
            if number < self._flushed_number:
                return
            self._store.flush()
            self._log.sync()
            while self._wheel.write():
                pass
            self._wheel.sync()
            write_checkpoint(self._store.log.os_api, self._store.paths.timer_check, checkpoint)
            self._flushed_number = number
            self._remove_snapshots()
            self._metrics.persist(metrics)

    def _remove_snapshots(self) -> None:
        """Remove the files of ``timerWheelSnapshotFlush``: the wheel is durable, and newer."""
        while self._snapshots:
            self._store.log.os_api.unlink(self._snapshots[-1], missing_ok=True)
            self._snapshots.pop()


class TimerFlush:
    """The state that a flush makes durable; ``run`` may be called in another thread."""

    def __init__(self, flusher: TimerFlusher, number: int, checkpoint: TimerCheckpoint, metrics: bytes) -> None:
        self._flusher = flusher
        self._number = number
        self._checkpoint = checkpoint
        self._metrics = metrics

    def run(self) -> None:
        """Flush log, timer log, wheel and checkpoint, in this order; does nothing after a later flush.

        Raises: StorageError; the flush then counts as not done.
        Durability: messages parked and delivered before ``prepare_flush`` survive power loss.
        """
        self._flusher.flush(self._number, self._checkpoint, self._metrics)
