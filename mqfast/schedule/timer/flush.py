"""One flush of the timer: what was parked and delivered becomes durable.

It must never claim more than is durable: the checkpoint is written last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqfast.schedule.timer.checkpoint import TimerCheckpoint, write_checkpoint

if TYPE_CHECKING:
    from mqfast.schedule.timer.service import TimerService

__all__ = ["TimerFlush"]


class TimerFlush:
    """What one flush makes durable; ``run`` may be called in another thread."""

    def __init__(self, timer: TimerService, number: int, checkpoint: TimerCheckpoint, metrics: bytes) -> None:
        self._timer = timer
        self._number = number
        self._checkpoint = checkpoint
        self._metrics = metrics

    def run(self) -> None:
        """Flush log, timer log, wheel and checkpoint, in this order; does nothing after a later flush.

        Raises: StorageError; the flush then counts as not done.
        Durability: what was parked and delivered before ``prepare_flush`` survives power loss.
        """
        timer = self._timer
        with timer.flushing:
            if self._number < timer.flushed_number:
                return
            timer.store.flush()
            timer.log.sync()
            while timer.wheel.write():
                pass
            timer.wheel.sync()
            write_checkpoint(timer.store.log.os_api, timer.paths.timer_check, self._checkpoint)
            timer.flushed_number = self._number
            timer.drop_snapshots()
            timer.metrics.persist(self._metrics)
