"""The flush and commit threads (RocketMQ: FlushRealTimeService, GroupCommitService, CommitRealTimeService,
FlushConsumeQueueService).

After a failed flush nothing is flushed again: the log is latched, every waiting ticket fails, and the store must be
reopened. Group commit itself has no thread: a waiter leads (see group_commit.pyx). Here are the interval flushes, and
the tickets that wait by callback.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from errno import EIO
from typing import TYPE_CHECKING

from mqfast.errors import DiskFull, MqfastError, StorageError
from mqfast.store.base.mapped_file import mapping_count
from mqfast.store.base.service import Service
from mqfast.store.base.space import Space
from mqfast.store.log.service_loops import FlushLoop, keep_committed
from mqfast.store.log.watermarks import FlushWaiters

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.base.event import Event
    from mqfast.store.base.os_api import Mutex
    from mqfast.store.index.index_service import IndexService
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.checkpoint import StoreCheckpoint
    from mqfast.store.queues.queue_store import QueueStore

__all__ = ["CommitService", "FlushService", "SyncService"]

_log = logging.getLogger("mqfast.store")


def _utc(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms / 1000))


class FlushService:
    """Flushes the log by interval and page count, then the queues; advances the checkpoint to the durable positions.

    ``waiters`` has the tickets and watches that wait for the disk by callback. Thread: its own; ``waiters`` from any.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        config: StoreConfig,
        space: Space | None = None,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._warn = warn
        self._log = log
        self._space = space or Space()
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._config = config
        self.loop = FlushLoop(
            log,
            config.flush_interval_ms_commit_log / 1000,
            config.flush_thorough_interval_ms_commit_log / 1000,
            self._least_pages(),
            queues.table,
            checkpoint,
            config.flush_interval_ms_consume_queue / 1000,
            config.max_mapped_files,
        )
        self.service = Service("flush", self._run_once)
        self.waiters = FlushWaiters(log, self.service.wake)

    def _run_once(self, event: Event) -> None:
        due = False
        self.loop.many = self._queues.many
        try:
            if self.waiters.pending:
                self._log.flush()
                due = self.loop.run(event, 0)
            else:
                due = self.loop.run(event)
        finally:
            self.waiters.notify()
        self.see_clock()
        if due:
            self.flush_queues(by_clock=True)
        self.keep_few_mapped()
        self._log.reap()

    def step(self) -> None:
        """Run the interval flush of the queues once. Raises: as ``flush_queues``."""
        self.see_clock()
        if self.loop.flush_queues():
            self.flush_queues(by_clock=True)

    def _least_pages(self) -> int:
        return 0 if self._log.sync_flush else self._config.flush_least_pages_commit_log

    def _see_flushed(self) -> None:
        checkpoint = self._checkpoint
        checkpoint.physic_msg_timestamp = self._log.flushed_timestamp

    def see_clock(self) -> None:
        """Handle a clock that fell: the checkpoint keeps no later time, and the user gets a warning."""
        fall = self._log.take_clock_fall()
        if fall is None:
            return
        self._checkpoint.lower(fall[1])
        self._warn(
            f"the clock fell from {_utc(fall[0])} to {_utc(fall[1])}, or was wrong before: store times fall with it, "
            "and offset_by_time and query between two times may miss messages that were stored before the fall"
        )

    def flush_log(self, *, thorough: bool) -> None:
        """Flush the log: whole, or only when enough pages are dirty. Raises: FlushError."""
        self._log.flush_pages(0 if thorough else self._least_pages())
        self._see_flushed()

    def step_log(self) -> None:
        """Flush the whole log once, and notify all waiters. Raises: FlushError."""
        try:
            self.flush_log(thorough=True)
        finally:
            self.waiters.notify()

    def flush_queues(self, *, by_clock: bool = False) -> None:
        """Make queue units durable, then advance the checkpoint, which never claims more than a sync covered.

        ``by_clock``: the page that a busy queue writes to is left to the next flush.

        No effect once the log is latched: after a failed sync this store syncs nothing any more.

        Raises: StorageError; where a sync failed, the log is latched.
        """
        with self.loop.flushing:
            if self._log.error_number:
                return
            covered = self.loop.cover()
            try:
                self._queues.flush(by_clock)
            except StorageError as error:
                # The kernel may have dropped the pages: a second sync would report them durable.
                self._log.fail(error.errno or EIO)
                raise
            self.loop.see_synced(covered, self._queues.left_page)
            self._see_flushed()
            self._flush_checkpoint()
        self.keep_few_mapped()

    def paused(self) -> Mutex:
        """Return a context manager: only the caller's own flushes of the queues run meanwhile."""
        return self.loop.flushing

    def _flush_checkpoint(self) -> None:
        """Write the checkpoint; on a full disk it waits for the next flush, since it only speeds up a recovery."""
        try:
            self._checkpoint.flush()
        except DiskFull as error:
            self._space.see("checkpoint", error)
            self.loop.by_hand = True
        else:
            self._space.see("checkpoint", None)
            self.loop.by_hand = False

    def keep_few_mapped(self) -> None:
        """Unmap unused files when too many are mapped."""
        if mapping_count() > self._config.max_mapped_files:
            self._queues.unmap_idle()
            for file in list(self._log.files):
                file.unmap_idle()

    def close(self) -> None:
        """Stop; flush log, queues, index and checkpoint one last time; fail or finish every ticket.

        Raises: FlushError.
        """
        self.service.stop()
        error: MqfastError | None = None
        try:
            if not self._log.error_number:
                self.see_clock()
                self.flush_log(thorough=True)
                self.flush_queues()
                if self._index is not None:
                    self._index.flush()
        except MqfastError as failure:
            error = failure
        self.waiters.close()
        if error is not None:
            raise error


class SyncService:
    """Leads the syncs for waiters with a deadline, since fsync cannot be cancelled.

    Thread: its own.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.service = Service("sync", self._run_once, end_turn=log.end_syncs)

    def _run_once(self, event: Event) -> None:
        self._log.serve_syncs()

    def close(self) -> None:
        """Stop after the current sync."""
        self.service.stop()


class CommitService:
    """Copies pool buffers to the page cache by interval and page count. Thread: its own."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self.service = Service("commit", self._run_once)

    def _run_once(self, event: Event) -> None:
        keep_committed(
            self._log,
            event,
            self._config.commit_interval_ms_commit_log / 1000,
            self._config.commit_thorough_interval_ms_commit_log / 1000,
            self._config.commit_least_pages_commit_log,
        )

    def close(self) -> None:
        """Stop and commit the rest. Raises: StoreFailed."""
        self.service.stop()
        if not self._log.error_number:
            self._log.commit()
