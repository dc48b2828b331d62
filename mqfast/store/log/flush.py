"""The flush and commit threads (RocketMQ: FlushRealTimeService, GroupCommitService, CommitRealTimeService,
FlushConsumeQueueService).

They must never flush again after a flush failed: the log is latched, every waiting ticket fails, and the store must be
reopened. Group commit itself has no thread: who waits leads (see _group_commit.pyx); here is what runs by the clock,
and the tickets that wait by callback.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from errno import EIO
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import DiskFull, MqfastError, StorageError
from mqfast.store.base._mapped_file import mapping_count
from mqfast.store.base._os import let_puts
from mqfast.store.base.service import Service
from mqfast.store.base.space import Space
from mqfast.store.log.watermarks import FlushWaiters

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.base._os import Overwrite
    from mqfast.store.index.index_service import IndexService
    from mqfast.store.log._commit_log import Bell, CommitLog
    from mqfast.store.meta.checkpoint import StoreCheckpoint
    from mqfast.store.queues._queue_flush import QueueFlush
    from mqfast.store.queues.queue_store import QueueStore

__all__ = ["CommitService", "FlushService", "SyncService"]

_log = logging.getLogger("mqfast.store")

_LONGEST_S: Final = 1.0  # without a look at mappings and at files that are durable now


class _Covered(NamedTuple):
    """Up to where the queues agree with the log."""

    timestamp: int
    physical_offset: int


def _utc(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms / 1000))


class FlushService:
    """Flushes the log by interval and page count, and the queues behind it; moves the checkpoint to what is durable.

    ``waiters`` has who waits for the disk by callback. Thread: its own; ``waiters`` from any.
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
        self._covered = _Covered(0, 0)  # what was dispatched before the newest flush of the queues
        self._syncs: QueueFlush | None = None  # errands for the next sleep: what was prepared before it began
        self._writes: Overwrite | None = None
        self._syncs_cover = _Covered(0, 0)
        self._queues_due = time.monotonic() + config.flush_interval_ms_consume_queue / 1000
        self.service = Service("flush", self._turn, heavy=True, log=log)
        self.waiters = FlushWaiters(log, self.service.wake)

    def _turn(self, bell: Bell) -> None:
        config = self._config
        synced = False
        try:
            if self.waiters.pending:
                if not self._log.error_number:
                    for errand in filter(None, (self._writes, self._syncs)):
                        errand.run()
                self._log.flush()
            else:
                self._log.keep_flushed(
                    bell,
                    min(self._queues_due - time.monotonic(), _LONGEST_S),
                    config.flush_interval_ms_commit_log / 1000,
                    config.flush_thorough_interval_ms_commit_log / 1000,
                    self._least_pages(),
                    self._writes,
                    self._syncs,
                )
        finally:
            let_puts()
            self.waiters.tell()
            let_puts()
            synced = self._finish_errands()
            let_puts()
        self.see_clock()
        self._see_flushed()
        if time.monotonic() >= self._queues_due:
            self._queues_due = time.monotonic() + config.flush_interval_ms_consume_queue / 1000
            self._prepare_syncs()
            let_puts()
        if synced:
            self._writes = self._checkpoint.prepare_flush()
            let_puts()
        self.keep_few_mapped()
        let_puts()
        self._log.reap()

    def _least_pages(self) -> int:
        return 0 if self._log.sync_flush else self._config.flush_least_pages_commit_log

    def _see_flushed(self) -> None:
        checkpoint = self._checkpoint
        checkpoint.physic_msg_timestamp = self._log.flushed_timestamp

    def see_clock(self) -> None:
        """When the clock fell: the checkpoint vouches for no later time, and the user hears of it."""
        fall = self._log.take_clock_fall()
        if fall is None:
            return
        self._checkpoint.lower(fall[1])
        self._warn(
            f"the clock fell from {_utc(fall[0])} to {_utc(fall[1])}, or was wrong before: store times fall with it, "
            "and offset_by_time and query between two times may miss messages that were stored before the fall"
        )

    def flush_log(self, *, thorough: bool) -> None:
        """One interval flush: whole, or only when enough pages are dirty. Raises: FlushError."""
        self._log.flush_pages(0 if thorough else self._least_pages())
        self._see_flushed()

    def flush_queues(self, *, by_clock: bool = False) -> None:
        """Make queue units durable, then say so in the checkpoint: it never claims more than a sync covered.

        By the clock the page that a busy queue puts units in is left to the next flush.

        Does nothing once the log is latched: after a failed sync this store syncs nothing any more.

        Raises: StorageError; where a sync failed, the log is latched.
        """
        if self._log.error_number:
            return
        covered = self._dispatched()
        with self._latching():
            self._queues.flush(by_clock)
        self._see_synced(covered)
        self._flush_checkpoint()
        self.keep_few_mapped()

    def _flush_checkpoint(self) -> None:
        """Nothing needs what it says but the speed of a recovery: on a full disk it waits for the next flush."""
        try:
            self._checkpoint.flush()
        except DiskFull as error:
            self._space.see("checkpoint", error)
        else:
            self._space.see("checkpoint", None)

    @contextlib.contextmanager
    def _latching(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            # The kernel may have dropped the pages: a second sync would say that they are durable.
            self._log.fail(error.errno or EIO)
            raise

    def _dispatched(self) -> _Covered:
        # First: the time may be that of a later record, of which there is a unit as well. What is not flushed may be
        # gone after a power cut, and a recovery of RocketMQ's begins at this offset.
        offset = min(self._log.dispatched, self._log.flushed)
        return _Covered(self._log.dispatched_timestamp, offset)

    def _see_synced(self, covered: _Covered) -> None:
        # Of what there was at the flush before nothing is left now.
        synced = self._covered if self._queues.left_page else covered
        self._covered = covered
        checkpoint = self._checkpoint
        checkpoint.logics_msg_timestamp = synced.timestamp
        checkpoint.logics_physical_offset = max(checkpoint.logics_physical_offset, synced.physical_offset)

    def _prepare_syncs(self) -> None:
        """``flush_queues`` by the clock for the next sleep, whose thread has no GIL anyway; the checkpoint says a sleep
        later what was synced in this one. Where that cannot be, now.
        """
        if self._log.error_number:
            return
        covered = self._dispatched()
        self._syncs = self._queues.prepare_flush() if self._checkpoint.is_whole else None
        self._syncs_cover = covered
        if self._syncs is None:
            self.flush_queues(by_clock=True)

    def _finish_errands(self) -> bool:
        """Believe what was carried out in the last sleep: were queues synced? Raises: as ``flush_queues``."""
        syncs, self._syncs = self._syncs, None
        writes, self._writes = self._writes, None
        synced = False
        if syncs is not None:
            with self._latching():
                synced = self._queues.finish_flush(syncs)
            let_puts()
            if synced:
                self._see_synced(self._syncs_cover)
        if writes is not None:
            try:
                self._checkpoint.finish_flush(writes)
            except DiskFull as error:
                self._space.see("checkpoint", error)
            else:
                self._space.see("checkpoint", None)
        return synced

    def keep_few_mapped(self) -> None:
        """Unmap what nobody reads or writes, where too much is mapped."""
        if mapping_count() > self._config.maps_max:
            self._queues.rest()
            for file in list(self._log.files):
                file.rest()

    def close(self) -> None:
        """Stop; flush log, queues, index and checkpoint one last time; fail or finish every ticket. Raises:
        FlushError.
        """
        self.service.stop()
        error: MqfastError | None = None
        try:
            self._finish_errands()
        except MqfastError as failure:
            error = failure  # of a queue or the checkpoint: the log is flushed all the same, unless it was latched
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
    """Leads the syncs of those who wait with a deadline: nobody can leave a sync before the disk is done with it.

    Thread: its own.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.service = Service("sync", self._turn, log=log, end_turn=log.end_syncs)

    def _turn(self, bell: Bell) -> None:
        self._log.serve_syncs()

    def close(self) -> None:
        """Stop, behind the sync under way."""
        self.service.stop()


class CommitService:
    """Copies pool buffers to the page cache by interval and page count. Thread: its own."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self.service = Service("commit", self._turn, heavy=True, log=log)

    def _turn(self, bell: Bell) -> None:
        self._log.keep_committed(
            bell,
            self._config.commit_interval_ms_commit_log / 1000,
            self._config.commit_thorough_interval_ms_commit_log / 1000,
            self._config.commit_least_pages_commit_log,
        )

    def close(self) -> None:
        """Stop and commit what is left. Raises: StoreFailed."""
        self.service.stop()
        if not self._log.error_number:
            self._log.commit()
