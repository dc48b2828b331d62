"""Retention: old log files go by age, by disk use and by an absolute budget; queue and index files follow the log
(RocketMQ: CleanCommitLogService, CleanConsumeQueueService).

It must never remove the last log file, a file with unflushed bytes, or bytes under a reader: a held file loses its
name and keeps its bytes until the last hold goes. Messages that a group had not read yet are counted when they go, and
whether the oldest go or new ones are refused when the disk is full is an explicit policy. What a reader in another
process has leased stays as long as the disk has room (``leases.py``).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.errors import MqfastError
from mqfast.store._commit_log import Bell
from mqfast.store._os import Mutex, let_puts
from mqfast.store.leases import least_leased
from mqfast.store.service import Service

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store._commit_log import CommitLog
    from mqfast.store._mapped_file import MappedFile
    from mqfast.store._os import OsDoor
    from mqfast.store.index_service import IndexService
    from mqfast.store.offsets import ConsumerOffsets
    from mqfast.store.paths import StorePaths
    from mqfast.store.queue_store import QueueStore

__all__ = ["DiskUse", "RetentionService"]

_log = logging.getLogger("mqfast.store")

REFUSING: Final = 8  # LogFlag: puts raise DiskFull


@dataclass(frozen=True)
class DiskUse:
    """Percent of the filesystem in use (rounded up as df does), and bytes of the log."""

    percent: int
    log_bytes: int


class RetentionService:
    """Decides what goes, and removes it.

    Thread: its own loop every ``clean_resource_interval_ms``; ``run_once`` for tests and for the roll path.
    """

    def __init__(
        self,
        door: OsDoor,
        paths: StorePaths,
        log: CommitLog,
        queues: QueueStore,
        index: IndexService | None,
        offsets: ConsumerOffsets,
        config: StoreConfig,
    ) -> None:
        self._door = door
        self._paths = paths
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._offsets = offsets
        self._config = config
        self.deleted_files = 0
        self.deleted_bytes = 0
        self.dropped_unread = 0
        self.refusing = False
        self.last_use: DiskUse | None = None
        self._min_seen = log.min_offset
        self._manual_runs = 0
        self._held: list[tuple[MappedFile, int]] = []
        self._held_look_at = 0
        self._between = Bell()
        self._passes = Mutex()
        self.service = Service("retention", self._turn, log=log)

    def policy(self) -> str:
        """What is in effect, in one line."""
        c = self._config
        hours = ",".join(f"{hour:02d}" for hour in sorted(c.delete_hours))
        budget = f"{c.retention_bytes} bytes" if c.retention_bytes is not None else "no byte budget"
        forcibly = "" if c.clean_file_forcibly_enable else " (off)"
        full = "refuses puts" if c.retention_when_full == "refuse" else "also refuses puts until there is space"
        return (
            f"retention: {c.file_reserved_time_hours} h, deleted at hour {hours}; {budget}; disk use above "
            f"{c.disk_max_used_space_percent} % deletes expired files at once, "
            f"above {c.disk_space_clean_forcibly_percent} % the oldest whatever their age{forcibly}, "
            f"above {c.disk_space_warning_level_percent} % {full}"
        )

    def _turn(self, bell: Bell) -> None:
        bell.sleep(self._config.clean_resource_interval_ms / 1000)
        if not self.service.is_stopping:
            self.run_once(self._door.now_ms())

    def disk_use(self) -> DiskUse:
        """How full the filesystem is now."""
        total, available = self._door.statvfs(self._paths.root)
        used = total - available
        percent = -(-used * 100 // total) if total > 0 else 0
        return DiskUse(percent, self._commit_log.written - max(0, self._commit_log.min_offset))

    def clean_now(self) -> None:
        """Let the next runs delete expired files whatever the hour (RocketMQ: the admin command sets a counter of
        20).
        """
        self._manual_runs = 20
        self.service.wake()

    def run_once(self, now_ms: int) -> int:
        """One pass; returns how many log files went.

        Raises: StorageError. Thread: any; one pass at a time.
        """
        with self._passes:
            return self._pass(now_ms)

    def _pass(self, now_ms: int) -> int:
        c = self._config
        use = self.last_use = self.disk_use()
        let_puts()
        expired_due = time.localtime(now_ms // 1000).tm_hour in c.delete_hours
        at_once = False
        if use.percent > c.disk_space_warning_level_percent:
            self._refuse(True)
            at_once = True
        elif use.percent > c.disk_space_clean_forcibly_percent:
            at_once = True
        else:
            self._refuse(False)
            if use.percent > c.disk_max_used_space_percent:
                expired_due = True
        if self._manual_runs > 0:
            self._manual_runs -= 1
            expired_due = True
        let_puts()
        at_once = at_once and c.clean_file_forcibly_enable and c.retention_when_full == "drop_oldest"
        removed = 0
        log = self._commit_log
        # Somebody is about to read from there on. A disk that runs full does not wait for it.
        leased = None if at_once else least_leased(self._door, self._paths.root, now_ms)
        let_puts()
        while removed < c.delete_file_batch_max and log.first_is_flushed():
            file = log.files[0]
            over_budget = c.retention_bytes is not None and log.written - file.start_offset > c.retention_bytes
            expired = expired_due and self._door.mtime_ms(file.path) + c.file_reserved_time_hours * 3_600_000 <= now_ms
            if not (at_once or over_budget or expired):
                break
            if leased is not None and file.start_offset + file.file_bytes > leased:
                break
            if removed:
                self._pause(c.delete_files_interval_ms_commit_log / 1000)
            log.remove_first()
            self._door.fsync_dir(log.path)  # one by one: a power cut in between must not leave a gap
            removed += 1
            if file.holds:
                self._held.append((file, now_ms))
            self.deleted_files += 1
            self.deleted_bytes += file.file_bytes
            _log.info("removed log file %s", file.path)
        let_puts()
        self._look_after_held(now_ms)
        if removed:
            self._count_unread(log.min_offset)  # once a pass: the bounds of the queues move only below
        least = log.min_offset
        if least > self._min_seen:
            self._queues.delete_expired(least)
            if self._index is not None:
                self._index.delete_expired(least)
            self._min_seen = least
        return removed

    def _pause(self, seconds: float) -> None:
        """Between two deletions, so that the disk is not kept busy; cut short when the store closes."""
        if not self.service.is_stopping:
            self._between.sleep(seconds)

    def _look_after_held(self, now_ms: int) -> None:
        """Removed files that somebody still reads keep their bytes on the disk: say so once they outstay the interval.

        RocketMQ unmaps them by force then; a reader would crash.
        """
        c = self._config
        if now_ms < self._held_look_at:
            return
        self._held_look_at = now_ms + c.redelete_hanged_file_interval_ms
        self._held = [(file, since) for file, since in self._held if file.holds]
        for file, since in self._held:
            if now_ms - since >= c.destroy_mapped_file_interval_forcibly_ms:
                _log.warning(
                    "removed log file %s is still held by %d readers after %d s; its %d bytes stay on the disk",
                    file.path,
                    file.holds,
                    (now_ms - since) // 1000,
                    file.file_bytes,
                )

    @property
    def held_count(self) -> int:
        """Removed log files whose bytes somebody still holds."""
        return sum(1 for file, _ in self._held if file.holds)

    def _refuse(self, on: bool) -> None:
        if on != self.refusing:
            self.refusing = on
            self._commit_log.set_flag(REFUSING, on)
            _log.warning(
                "disk use is above %d %%: %s",
                self._config.disk_space_warning_level_percent,
                "puts are refused" if on else "over",
            )

    def _count_unread(self, min_physical: int) -> None:
        """Count units that go although some group had not come so far."""
        for group in self._offsets.groups():
            for topic, queues in self._offsets.offsets(group).items():
                for queue_id, committed in queues.items():
                    queue = self._queues.get(topic, queue_id)
                    if queue is None:
                        continue
                    try:
                        first = max(committed, queue.min_offset)
                        low, high = first, queue.max_offset
                        while low < high:
                            middle = (low + high) // 2
                            if queue.unit(middle)[0] < min_physical:
                                low = middle + 1
                            else:
                                high = middle
                    except MqfastError:
                        continue
                    self.dropped_unread += low - first

    def close(self) -> None:
        """Stop."""
        self._between.ring()
        self.service.stop()
