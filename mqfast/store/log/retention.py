"""Retention: old log files are deleted by the settings; queue and index files follow the log (RocketMQ:
CleanCommitLogService, CleanConsumeQueueService).

Nothing is deleted without a setting. Never deleted: the last log file, a file with unflushed bytes, or bytes under a
reader: a held file loses its name and keeps the bytes until the last hold is released. Age and size settings apply at
any hour and disk use; a broker's rules are RocketMQ's. Messages that a group had not read are counted and logged when
deleted. Ranges leased by a reader in another process stay while the disk has room (``leases.py``).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from mqfast.errors import MqfastError
from mqfast.store.base.disk_use import DiskUse, disk_use
from mqfast.store.base.event import Event
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.results import LogFlag
from mqfast.store.base.service import Service
from mqfast.store.meta.leases import least_leased

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.retention_rules import RetentionRules
    from mqfast.store.base.mapped_file import MappedFile
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.base.paths import StorePaths
    from mqfast.store.index.index_service import IndexService
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.offsets import ConsumerOffsets
    from mqfast.store.queues.queue_store import QueueStore

__all__ = ["RetentionService"]

_log = logging.getLogger("mqfast.store")

_POP_RECORDS: Final = "rmq_sys_REVIVE_LOG_"
_WARN_MS: Final = 60_000  # pause between two warnings of a kind
_NAMED_MAX: Final = 8  # groups that a warning names


def _words(count: int, unit: str) -> str:
    return f"{count} {unit}" + ("" if count == 1 else "s")


def _age(ms: int) -> str:
    hours, rest = divmod(ms, 3_600_000)
    return f"{hours} h" if hours and not rest else f"{ms / 1000:g} s"


class RetentionService:
    """Selects and deletes expired log files.

    Thread: its own loop every ``clean_resource_interval_ms``; ``run_once`` for tests and for the roll path.
    """

    def __init__(
        self,
        os_api: OsApi,
        paths: StorePaths,
        log: CommitLog,
        queues: QueueStore,
        index: IndexService | None,
        offsets: ConsumerOffsets,
        config: StoreConfig,
    ) -> None:
        self._os_api = os_api
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
        self._unread: dict[tuple[str, str], int] = {}  # (group, topic): not logged yet
        self._unread_warned_ms = self._forced_warned_ms = -_WARN_MS
        self._forced = 0
        self._min_seen = log.min_offset
        self._manual_runs = 0
        self._held: list[tuple[MappedFile, int]] = []
        self._held_check_at = 0
        self._between = Event()
        self._passes = Mutex(nests=True)
        self.service = Service("retention", self._run_once)

    @property
    def _rules(self) -> RetentionRules:
        return self._config.retention_rules

    def policy(self) -> str:
        """Return the policy in effect, in one line."""
        c, rules = self._config, self._rules
        if rules.rocketmq:
            return self._policy_of_rocketmq()
        parts = []
        if rules.age_ms is not None:
            parts.append(f"log files whose youngest message is older than {_age(rules.age_ms)} are deleted")
        if rules.log_bytes is not None:
            parts.append(f"the oldest log files beyond {rules.log_bytes} bytes are deleted")
        words = c.retention or ("never" if rules.log_bytes is None else f"{rules.log_bytes}B")
        return f"{words}: {'; '.join(parts) or 'nothing is deleted'}; a full disk refuses puts"

    def _policy_of_rocketmq(self) -> str:
        c = self._config
        hours = ",".join(f"{hour:02d}" for hour in sorted(c.delete_hours))
        budget = f"{self._rules.log_bytes} bytes" if self._rules.log_bytes is not None else "no byte budget"
        forcibly = "" if c.clean_file_forcibly_enable and c.retention_when_full == "drop_oldest" else " (off)"
        full = "refuses puts" if c.retention_when_full == "refuse" else "also refuses puts until there is space"
        return (
            f"rocketmq: {c.file_reserved_time_hours} h, deleted at hour {hours}; {budget}; disk use above "
            f"{c.disk_max_used_space_percent} % deletes expired files at once, "
            f"above {c.disk_space_clean_forcibly_percent} % the oldest whatever their age{forcibly}, "
            f"above {c.disk_space_warning_level_percent} % {full}"
        )

    def _run_once(self, event: Event) -> None:
        event.wait(self._config.clean_resource_interval_ms / 1000)
        if not self.service.is_stopping:
            self.run_once(self._os_api.now_ms())

    def disk_use(self) -> DiskUse:
        """Return the use of the fullest filesystem that holds log, queue or index files (links resolved).

        Raises: StorageError.
        """
        return disk_use(self._os_api, self._paths)

    def clean_now(self) -> None:
        """Let the next runs delete expired files at any hour (RocketMQ: the admin command sets a counter of 20)."""
        self._manual_runs = 20
        self.service.wake()

    def follow(self, config: StoreConfig) -> None:
        """Apply other settings: ages, hours, disk levels, intervals."""
        self._config = config
        self.service.wake()

    def run_once(self, now_ms: int) -> int:
        """Run one pass; return the number of deleted log files.

        Raises: StorageError. Thread: any; passes are serialized.
        """
        with self._passes:
            return self._pass(now_ms)

    def paused(self) -> Mutex:
        """Return a context manager: no pass runs meanwhile."""
        return self._passes

    def _pass(self, now_ms: int) -> int:
        c, rules = self._config, self._rules
        use = self.last_use = self.disk_use()
        age_ms = rules.age_ms
        expired_due, at_once = age_ms is not None, False
        if rules.rocketmq:
            age_ms = c.file_reserved_time_hours * 3_600_000
            expired_due = time.localtime(now_ms // 1000).tm_hour in c.delete_hours
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
        at_once = at_once and c.clean_file_forcibly_enable and c.retention_when_full == "drop_oldest"
        removed = young = 0
        log = self._commit_log
        # A reader in another process is about to read from there on. A disk that runs full does not wait for the
        # reader.
        leased = None if at_once else least_leased(self._os_api, self._paths.root, now_ms)
        while removed < c.delete_file_batch_max and log.first_is_flushed():
            file = log.files[0]
            over_budget = rules.log_bytes is not None and log.written - file.start_offset > rules.log_bytes
            expired = (
                (expired_due or at_once) and age_ms is not None and self._youngest_ms(file, now_ms) + age_ms <= now_ms
            )
            if not (at_once or over_budget or expired):
                break
            if leased is not None and file.start_offset + file.file_bytes > leased:
                break
            if removed:
                self._pause(c.delete_files_interval_ms_commit_log / 1000)
            log.remove_first()
            self._os_api.fsync_dir(log.path)  # each synced: a power cut in between must not leave a gap
            removed += 1
            young += at_once and not (over_budget or expired)
            if file.holds:
                self._held.append((file, now_ms))
            self.deleted_files += 1
            self.deleted_bytes += file.file_bytes
            _log.info("removed log file %s", file.path)
        self._check_held(now_ms)
        if removed:
            if log.allocator is not None:
                log.allocator.retry_now()
            self._count_unread(log.min_offset)  # once a pass: the bounds of the queues change only below
            self._warn_forced(young, use, now_ms)
        self._warn_unread(now_ms)
        min_physical = log.min_offset
        if min_physical > self._min_seen:
            self._queues.delete_expired(min_physical)
            if self._index is not None:
                self._index.delete_expired(min_physical)
            self._min_seen = min_physical
        return removed

    def _youngest_ms(self, file: MappedFile, now_ms: int) -> int:
        """Return an upper bound of the store times in a log file.

        RocketMQ takes the time of the file's last change, which a filesystem in memory does not update for a mapping.
        The first record of the next file is younger than all records of this file. A time in the future is ignored.
        """
        changed = self._os_api.mtime_ms(file.path)
        if self._rules.rocketmq:
            return changed
        behind = self._commit_log.first_store_timestamp(file.start_offset + file.file_bytes)
        return max(changed, behind) if behind <= now_ms else changed

    def _pause(self, seconds: float) -> None:
        """Wait between two deletions, so that the disk is not kept busy; a close of the store ends the wait."""
        if not self.service.is_stopping:
            self._between.wait(seconds)

    def _check_held(self, now_ms: int) -> None:
        """Warn of removed files that readers hold longer than the interval: their bytes stay on the disk.

        RocketMQ unmaps such files by force then; a reader would crash.
        """
        c = self._config
        if now_ms < self._held_check_at:
            return
        self._held_check_at = now_ms + c.redelete_hanged_file_interval_ms
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
        """Number of removed log files with a hold."""
        return sum(1 for file, _ in self._held if file.holds)

    def _refuse(self, on: bool) -> None:
        if on != self.refusing:
            self.refusing = on
            self._commit_log.set_flag(LogFlag.REFUSING, on)
            _log.warning(
                "disk use is above %d %%: %s",
                self._config.disk_space_warning_level_percent,
                "puts are refused" if on else "over",
            )

    def _count_unread(self, min_physical: int) -> None:
        """Count deleted messages that a group had not read; a message that several groups had not read counts once."""
        positions = self._offsets.positions()
        for queue in self._queues.all() if positions else ():
            groups = positions.get(queue.topic)
            if not groups or queue.topic.startswith(
                _POP_RECORDS
            ):  # the offset there is of the last record that was read
                continue
            try:
                first = low = max(0, queue.min_offset)
                high = queue.max_offset
                while low < high:
                    middle = (low + high) // 2
                    if queue.unit(middle)[0] < min_physical:
                        low = middle + 1
                    else:
                        high = middle
            except MqfastError:
                continue
            max_unread = 0
            for group, committed in groups.items():
                unread = low - max(committed.get(queue.queue_id, 0), first)
                if unread > 0:
                    key = (group, queue.topic)
                    self._unread[key] = self._unread.get(key, 0) + unread
                    max_unread = max(max_unread, unread)
            self.dropped_unread += max_unread

    def _warn_unread(self, now_ms: int) -> None:
        if not self._unread or 0 <= now_ms - self._unread_warned_ms < _WARN_MS:
            return
        self._unread_warned_ms = now_ms
        rows = sorted(self._unread.items(), key=lambda row: -row[1])
        self._unread = {}
        named = ", ".join(
            f"group {group} had not read {_words(count, 'message')} of topic {topic}"
            for (group, topic), count in rows[:_NAMED_MAX]
        )
        more = f", and {len(rows) - _NAMED_MAX} more groups and topics" if len(rows) > _NAMED_MAX else ""
        _log.warning("retention deleted unread messages: %s%s (in effect: %s)", named, more, self.policy())

    def _warn_forced(self, young: int, use: DiskUse, now_ms: int) -> None:
        """Warn of files that were deleted before their time, because the disk is nearly full."""
        self._forced += young
        if self._forced and not 0 <= now_ms - self._forced_warned_ms < _WARN_MS:
            _log.warning(
                "retention deleted %s before their time: the filesystem of %s is used %d %%",
                _words(self._forced, "log file"),
                use.path,
                use.percent,
            )
            self._forced, self._forced_warned_ms = 0, now_ms

    def close(self) -> None:
        """Stop the loop."""
        self._between.set()
        self.service.stop()
        self._warn_unread(self._unread_warned_ms + _WARN_MS)  # warnings that waited for the pause
