"""repair: cuts the log at the first damage and moves derived files away, so that the next open rebuilds them.

Needs the store's lock. Every byte is copied and synced into the repair directory before a change. ``salvage.py`` puts
the copied messages back into the log. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqfast.errors import ConfigError
from mqfast.store.base.lock import StoreLock, create_abort
from mqfast.store.base.os_api import REAL, OsApi
from mqfast.store.check.boundaries import Behind
from mqfast.store.check.kept import KeptRecordsWriter, copy_start, new_folder
from mqfast.store.check.repair_report import RepairReport
from mqfast.store.check.salvage import put_back
from mqfast.store.check.verify import Damage, LogFile, Severity, Verifier, run_verify, store_paths
from mqfast.util.deprecated import former_argument

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.base.paths import StorePaths

__all__ = ["RepairReport", "repair"]


class _Repair:
    """A run of ``repair``, under the lock."""

    def __init__(self, os_api: OsApi, paths: StorePaths, run: Verifier, keep: str, dry_run: bool) -> None:
        self.os_api = os_api
        self.paths = paths
        self.run = run
        self.report = RepairReport(run.report, dry_run, keep)

    def carry_out(self) -> None:
        serious = [d for d in self.run.report.damages if d.severity is not Severity.NOTE]
        cut = self._cut_at()
        queues = self._damaged_queues(serious)
        index = any(d.kind.startswith("index.") and d.severity is Severity.DAMAGE for d in serious)
        behind = {"checkpoint", "queue.none", "queue.behind", "queue.hole", "index.none", "index.missing"}
        short, grown = self._short_files(), self._grown_files()
        if cut is None and not (queues or index or short or grown) and not any(d.kind in behind for d in serious):
            return
        # The abort file first: the next open then reads the whole log, so that an interrupted repair hides nothing.
        self._act(f"create {self.paths.abort}")
        if not self.report.dry_run and not self.os_api.exists(self.paths.abort):
            create_abort(self.os_api, self.paths.abort, os.getpid())
        for log in short:
            self._lengthen(log)
        for log in grown:
            self._shorten(log)
        self._move(self.paths.checkpoint)
        for directory in queues:
            self._move(directory)
        if index:
            self._move(self.paths.index)
        if cut is not None:
            self.report.cut_at = cut
            behind_cut = self._count_losses(cut)
            self._cut_log(cut, behind_cut)

    def _act(self, text: str) -> None:
        self.report.actions.append(text)

    def _cut_at(self) -> int | None:
        kinds = ("log.record", "log.tail", "log.hole", "log.gap")
        offsets = [d.offset for d in self.run.report.damages if d.kind in kinds and d.offset is not None]
        return min(offsets) if offsets else None

    def _short_files(self) -> list[LogFile]:
        """Return the log files that were cut short. Raises: ConfigError if the former length is unknown."""
        size, logs = self.run.log_file_bytes, self.run.logs
        if size == 0 and logs:
            raise ConfigError(
                f"{logs[0].file.path}: expected a log file of whole KiB, found"
                f" {logs[0].end - logs[0].file.start_offset} bytes: give the size that it should have as"
                " mapped_file_bytes_commit_log in the config"
            )
        # A new file without its length is removed by the next open.
        return [log for log in logs if log.end - log.file.start_offset < size and log.end > log.file.start_offset]

    def _lengthen(self, log: LogFile) -> None:
        size = self.run.log_file_bytes
        self._act(f"bring {log.file.path} back to {size} bytes, from {log.end - log.file.start_offset}")
        if not self.report.dry_run:
            self.os_api.overwrite(log.file.path, b"\0", size - 1)

    def _grown_files(self) -> list[LogFile]:
        """Return the log files that are too long. No record uses the additional bytes."""
        return [log for log in self.run.logs if log.file_bytes > self.run.log_file_bytes > 0]

    def _shorten(self, log: LogFile) -> None:
        """Copy the additional bytes to the repair directory, then replace the file by the valid part."""
        path, size, keeper = log.file.path, self.run.log_file_bytes, KeptRecordsWriter(self.os_api, self.report.kept_in)
        self._act(f"copy {path} from byte {size} on to {keeper.rest_name(path, size)}")
        self._act(f"bring {path} back to {size} bytes, from {log.file_bytes}")
        if not self.report.dry_run:
            keeper.copy_rest(path, size)
            copy_start(self.os_api, path, size)

    def _count_losses(self, cut: int) -> Behind:
        """Count the records and the damage behind the cut."""
        report = self.report
        behind = Behind()
        for log in self.run.logs:
            report.damaged_ranges += [(damaged.start, damaged.end) for damaged in log.bad]
            behind.damaged += [damaged for damaged in log.bad if damaged.end > cut]
            behind.stretches += [stretch for stretch in log.stretches if stretch.start >= cut]
            if log.data_end > cut:
                report.bytes_lost += log.data_end - max(cut, log.file.start_offset)
        report.found_by_scan = behind.by_scan
        for message in self.run.records():
            if message.physical_offset >= cut:
                report.messages_lost += 1
                name = f"{message.topic}/{message.queue_id}"
                report.lost_offsets.setdefault(name, []).append(message.record_queue_offset)
        return behind

    def _damaged_queues(self, serious: Iterable[Damage]) -> list[str]:
        """Return the directories of queues that must be rebuilt from the log.

        Recovery itself handles damage that a kill or the cut of the log leaves.
        """
        directories = set()
        for damage in serious:
            if (
                damage.kind.startswith("queue.")
                and damage.severity is Severity.DAMAGE
                and damage.kind != "queue.beyond"
            ):
                directory = damage.path if self.os_api.is_dir(damage.path) else os.path.dirname(damage.path)
                if self.os_api.is_dir(directory):
                    directories.add(directory)
                ext = directory.replace(self.paths.consume_queue + os.sep, self.paths.consume_queue_ext + os.sep)
                if ext != directory and self.os_api.is_dir(ext):
                    directories.add(ext)
        return sorted(directories)

    def _move(self, path: str) -> None:
        """Move a file or directory into the repair directory, under the same path as in the store."""
        if not self.os_api.exists(path):
            return
        target = os.path.join(self.report.kept_in, os.path.relpath(path, self.paths.root))
        self._act(f"move {path} to {target}")
        if not self.report.dry_run:
            self.os_api.makedirs(os.path.dirname(target))
            self.os_api.rename(path, target)
            self.os_api.fsync_dir(os.path.dirname(target))
            self.os_api.fsync_dir(os.path.dirname(path))

    def _cut_log(self, cut: int, behind: Behind) -> None:
        keeper = KeptRecordsWriter(self.os_api, self.report.kept_in)
        rest: list[tuple[str, list[tuple[int, int]]]] = []
        for log in self.run.logs:
            start, path = log.file.start_offset, log.file.path
            if start < cut < start + max(self.run.log_file_bytes, log.end - start):
                position = cut - start
                self._act(f"copy {path} from byte {position} on to {keeper.rest_name(path, position)}")
                self._act(f"clear {path} from byte {position} on")
                if not self.report.dry_run:
                    rest.append((path, keeper.copy_rest(path, position)))
        if not self.report.dry_run:
            keeper.write_list(behind, cut_at=cut, reason="repair", floors=self.run.floors)
        for log in reversed(self.run.logs):
            if log.file.start_offset >= cut:
                # The empty file that was allocated ahead as well: it would leave a gap, and RocketMQ removes it too.
                self._act(f"move {log.file.path} to {keeper.whole_name(log.file.path)}")
                if not self.report.dry_run:
                    keeper.keep_file(log.file.path, also_empty=True)
        for path, filled in rest:
            # From the end on, so that the damage at the cut still marks the place after an interruption.
            for at, size in reversed(filled):
                self.os_api.overwrite(path, bytes(size), at)


@former_argument("door", "os_api")
def repair(
    path: str | os.PathLike[str],
    *,
    keep: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    salvage: bool = False,
    config: StoreConfig | None = None,
    os_api: OsApi | None = None,
) -> RepairReport:
    """Truncate the log at its first damage, and move damaged queues, index and checkpoint away.

    Removed bytes and moved files go to ``keep`` (default: ``repair-<time>`` in the store; the same file system). The
    next open by mqfast or RocketMQ, with its usual settings, then recovers: it reads the whole log and rebuilds queues
    and index. A log file that was cut short or has grown gets its size back first.

    Args: dry_run: only report what would be done; the lock is taken all the same. salvage: open the store afterwards,
        and put every whole message that repair or recovery has kept back at the end of the log as a new message, with
        its topic, queue, body, properties, flags, born time and host. Each message is put back once, in any number of
        calls.
    Raises: StoreNotFound, StoreLocked, StorageError; ConfigError if the size of a log file is unknown; DiskFull, before
        the log is changed, if the copy does not fit.
    Durability: each step is synced before the next; an interrupted repair or salvage can be run again.
    """
    used = os_api if os_api is not None else REAL
    paths = store_paths(used, path, config)
    target = os.path.abspath(os.fspath(keep)) if keep is not None else new_folder(used, paths.root)
    with StoreLock.acquire(used, paths.lock):
        run = run_verify(used, paths, config, True, None, 2)
        work = _Repair(used, paths, run, target, dry_run)
        work.carry_out()
    if salvage:
        put_back(used, paths, config, work.report)
    return work.report
