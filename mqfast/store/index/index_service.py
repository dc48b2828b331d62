"""IndexService: the index files of a store, oldest first.

Chooses the file for the next entry, the files of a query, and the files to remove; index_file.pyx handles the content
of a file. The log is never read here: the caller dispatches records, compares the messages of the hits, and dispatches
dropped records again. All files can be rebuilt from the log. Format: FORMAT.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from mqfast.errors import CorruptFile, DiskFull, FlushError, StoreClosed, UsageError
from mqfast.store.base.os_api import Mutex, OsApi
from mqfast.store.index.index_file import IndexFile, infer_sizes, key_hash, search

__all__ = ["IndexLoad", "IndexQuery", "IndexService", "infer_index_sizes"]

log = logging.getLogger(__name__)

# yyyyMMddHHmmssSSS. RocketMQ accepts any number and never reads it as a time; the last year is left out so that a later
# name always exists.
_NAME = re.compile(r"(?!9999)[0-9]{17}")
_UNFINISHED = re.compile(r"[0-9]{17}\.tmp")
_MUCH_BYTES = 64 << 20  # of log: some ten thousand keys, or hundreds of thousands


class IndexConfig(Protocol):
    """The settings that the service reads."""

    @property
    def max_hash_slot_num(self) -> int: ...
    @property
    def max_index_num(self) -> int: ...
    @property
    def max_msgs_num_batch(self) -> int: ...
    @property
    def message_index_enable(self) -> bool: ...


class IndexCheckpoint(Protocol):
    """The part of the store's checkpoint that the service uses."""

    index_msg_timestamp: int

    def flush(self) -> object: ...


class IndexQuery(NamedTuple):
    """Hits of a query, newest first, with hash collisions; and the end of the index (0 and 0: no file)."""

    physical_offsets: list[int]
    last_timestamp: int
    last_offset: int


@dataclass
class IndexLoad:
    """The result of load(): names of files."""

    kept: list[str] = field(default_factory=list)
    destroyed: list[str] = field(default_factory=list)
    """Possibly incomplete after an abnormal exit, or without a length; a new dispatch restores the keys."""
    skipped: list[str] = field(default_factory=list)
    """Not named like an index file; ignored."""
    damaged: list[str] = field(default_factory=list)
    """Kept, with an impossible header: the fault as text."""


def _file_name(now_ms: int, newest: str | None) -> str:
    """Return the local time as yyyyMMddHHmmssSSS, moved on to sort behind the newest file, whatever the clock."""
    name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
    return name if newest is None or name > newest else _next_name(newest)


def _next_name(name: str) -> str:
    """Return the name one millisecond later; of a number that is no time, the next number."""
    try:
        later = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)
    except ValueError:
        return f"{int(name) + 1:017d}"
    return later.strftime("%Y%m%d%H%M%S").rjust(14, "0") + f"{later.microsecond // 1000:03d}"


def infer_index_sizes(
    os_api: OsApi, directory: str, slots: int | None = None, capacity: int | None = None
) -> tuple[int, int] | None:
    """Return (slots, capacity) of the files in an index directory; None without files.

    All files of a store have the same sizes, so one readable file is enough; the newest may be empty and give no size.
    Raises: CorruptFile if there are files and none gives the sizes; StorageError.
    """
    refused: CorruptFile | None = None
    for name in os_api.listdir(directory):
        path = os.path.join(directory, name)
        if not _NAME.fullmatch(name) or os_api.is_dir(path) or os_api.file_size(path) == 0:
            continue
        try:
            return infer_sizes(os_api, path, slots, capacity)
        except CorruptFile as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return None


class IndexService:
    """The hash index of a store.

    Thread: a single dispatcher calls current, roll and put; query and the properties from any thread; the rest is
    serialised by a lock. truncate, close and destroy_all only after the dispatcher stopped.
    Durability: that of the files; the checkpoint's index time is moved only after a full file was flushed.
    Source: IndexService.
    """

    def __init__(self, os_api: OsApi, directory: str, config: IndexConfig, checkpoint: IndexCheckpoint) -> None:
        self._os_api = os_api
        self._directory = directory
        self._config = config
        self._checkpoint = checkpoint
        self._lock = Mutex(nests=True)
        # The open files, oldest first. Replaced, never changed: a query uses its own tuple.
        self.files: tuple[IndexFile, ...] = ()
        self.is_closed = False
        # Maximum number of entries of an index lookup.
        self.batch = config.max_msgs_num_batch

    # --- life --------------------------------------------------------------------------------------------------------

    def load(self, last_exit_ok: bool = True) -> IndexLoad:
        """Open the files of the directory.

        After an abnormal exit the files that end behind the checkpoint's index time are destroyed, as in RocketMQ, and
        files that are not full, whatever the time.
        Raises: CorruptFile if a file's length fits neither the configured sizes nor an unfinished creation;
        StorageError.
        """
        report = IndexLoad()
        with self._lock:
            self.check_open()
            if self.files:
                raise UsageError("the index is loaded already")
            files: list[IndexFile] = []
            try:
                for name in reversed(self._os_api.listdir(self._directory)):
                    self._load_one(name, last_exit_ok, files, report)
            except BaseException:
                for file in files:
                    file.close()
                raise
            self.files = tuple(reversed(files))
        for names in (report.kept, report.destroyed, report.skipped, report.damaged):
            names.reverse()
        for text in report.damaged:
            log.warning("index: %s", text)
        if report.skipped:
            log.warning("index: no index files, left alone in %s: %s", self._directory, ", ".join(report.skipped))
        return report

    def _load_one(self, name: str, last_exit_ok: bool, files: list[IndexFile], report: IndexLoad) -> None:
        """Open, destroy or skip a directory entry."""
        path = os.path.join(self._directory, name)
        if _UNFINISHED.fullmatch(name) and not self._os_api.is_dir(path):
            self._os_api.unlink(path, missing_ok=True)
            report.destroyed.append(name)
            return
        if not _NAME.fullmatch(name) or self._os_api.is_dir(path):
            report.skipped.append(name)
            return
        if self._os_api.file_size(path) == 0:
            # An unfinished creation by another implementation: the file has no length yet.
            self._os_api.unlink(path, missing_ok=True)
            report.destroyed.append(name)
            return
        file = IndexFile.open(self._os_api, path, self._config.max_hash_slot_num, self._config.max_index_num)
        # The checkpoint covers full files only; any page of another file may be lost, the header first. Each file was
        # flushed before the next was created: after a step back of the clock, a file with a later end may precede a
        # kept file.
        vouched = files or file.end_timestamp <= self._checkpoint.index_msg_timestamp
        if not last_exit_ok and not (vouched and file.is_full):
            file.destroy()
            report.destroyed.append(name)
            return
        files.append(file)
        report.kept.append(name)
        if file.damage is not None:
            report.damaged.append(file.damage)

    def flush(self) -> None:
        """Make all earlier puts durable. Raises: FlushError."""
        for file in self.files:
            self._flush(file)

    def _flush(self, file: IndexFile) -> bool:
        """Flush a file; False: the file was retired meanwhile, and nothing of it is left to make durable."""
        try:
            file.flush()
        except (FlushError, StoreClosed):
            self.check_open()
            if file in self.files:
                raise
            return False
        return True

    def close(self) -> None:
        """Flush and close every file, also behind a file that cannot be flushed. Safe to call twice.

        Raises: the first FlushError.
        """
        with self._lock:
            files, self.files, self.is_closed = self.files, (), True
        failure: BaseException | None = None
        for file in files:
            try:
                file.flush()
            except Exception as error:
                failure = failure or error
            file.close()
        if failure is not None:
            raise failure

    def destroy_all(self) -> None:
        """Remove every index file; the service stays open and empty, for rebuilding."""
        with self._lock:
            self.check_open()
            self._retire(0, len(self.files))

    # --- put ---------------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Physical offset of the last record with a key in the index, 0: none. Records below are not put again."""
        files = self.files
        return files[-1].end_offset if files else 0

    def current(self) -> IndexFile | None:
        """Return the file for the next entry; None if it is missing or full: then call roll().

        Raises: StoreClosed.
        """
        files = self.files
        if not files:
            self.check_open()
            return None
        return None if files[-1].is_full else files[-1]

    def roll(self, log_bytes: int = 0) -> IndexFile:
        """Create the next file if the current file is full or missing; otherwise return the current file, with blocks
        for an
        entry.

        A full file is flushed here, then the checkpoint's index time is set to its end and flushed. Safe to repeat
        after a failure: completed steps are not repeated.

        Args: log_bytes: how much of the log waits to be indexed. Much of it (a recovery) will touch most pages of the
        slots, in random order; the kernel makes all pages at once in a third of the time.

        Raises: DiskFull, StorageError (no file was created, or the file got no blocks); FlushError (the file was
        created, the checkpoint was not moved).
        """
        with self._lock:
            current = self.current()
            if current is not None:
                current.reserve()
                return current
            full = self.files[-1] if self.files else None
            self._os_api.makedirs(self._directory)
            name = _file_name(self._os_api.now_ms(), os.path.basename(full.path) if full else None)
            while self._os_api.exists(os.path.join(self._directory, name)):
                name = _next_name(name)
            file = IndexFile.create(
                self._os_api,
                os.path.join(self._directory, name),
                self._config.max_hash_slot_num,
                self._config.max_index_num,
                (full.end_timestamp, full.end_offset) if full else None,
            )
            try:
                # Not unpacked: without memory for that, CPython keeps the files of the old tuple for ever.
                self.files = self.files + (file,)  # noqa: RUF005
            except MemoryError:
                file.destroy()  # otherwise the file would be found behind the next file
                raise
        if log_bytes > _MUCH_BYTES:
            file.populate_slots()
        if full is not None and self._flush(full) and full.end_timestamp > 0:
            self._checkpoint.index_msg_timestamp = full.end_timestamp
            with contextlib.suppress(DiskFull):  # the flush of the queues tries again
                self._checkpoint.flush()
        return file

    def put(self, topic: str, keys: Iterable[str], physical_offset: int, store_timestamp: int) -> int:
        """Index a record under each key, in this order (RocketMQ: the unique key, then KEYS); empty keys are skipped.

        Nothing is put if indexing is off or the record is below the index's end (it was dispatched before).
        Returns: number of entries. Raises: as roll.
        """
        if not self._config.message_index_enable:
            return 0
        file = self.current() or self.roll()
        if physical_offset < file.end_offset:
            return 0
        done = 0
        for key in keys:
            if not key:
                continue
            h = key_hash(topic, key)
            while not file.put(h, physical_offset, store_timestamp):
                file = self.roll()
            done += 1
        return done

    # --- query -------------------------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> IndexQuery:
        """Return the physical offsets of records that may carry this key and were stored in [begin_ms, end_ms], newest
        first.

        At most ``max_count`` and ``max_msgs_num_batch``. Keys with the same hash are included: compare the message.
        Raises: StoreClosed.
        """
        limit = min(max_count, self.batch)
        hits = search(self.files, topic, key, begin_ms, end_ms, limit)
        # Checked afterwards: a file that was retired meanwhile is no error, a closed store is.
        self.check_open()
        return IndexQuery._make(hits)

    # --- retire ------------------------------------------------------------------------------------------------------

    def delete_expired(self, min_physical_offset: int) -> list[str]:
        """Remove the oldest files that end below the log's first byte, never the newest file. Returns: the names."""
        with self._lock:
            self.check_open()
            n = 0
            while n < len(self.files) - 1 and self.files[n].end_offset < min_physical_offset:
                n += 1
            return self._retire(0, n)

    def truncate(self, physical_offset: int) -> int:
        """Drop every entry that may point at or behind ``physical_offset``, where the log was cut.

        Single entries cannot be removed from a file, so the first file that reaches the cut is removed with all newer
        files.
        Returns: the lowest physical offset from which keys must be dispatched again; 0 for all of the log.
        """
        with self._lock:
            self.check_open()
            keep = 0
            while keep < len(self.files) and self.files[keep].end_offset < physical_offset:
                keep += 1
            self._retire(keep, len(self.files))
            return self.files[-1].end_offset if self.files else 0

    def _retire(self, first: int, stop: int) -> list[str]:
        """Take files[first:stop] out of the list, then remove the files. Under the lock."""
        gone = self.files[first:stop]
        self.files = self.files[:first] + self.files[stop:]
        for file in gone:
            file.destroy()
        return [os.path.basename(file.path) for file in gone]

    def check_open(self) -> None:
        """Raise StoreClosed after close()."""
        if self.is_closed:
            raise StoreClosed(f"the index in {self._directory} is closed")
