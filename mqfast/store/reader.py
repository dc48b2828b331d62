"""StoreReader: any RocketMQ store, read-only, beside a live writer (Java or mqfast) or dead.

It takes no lock, starts no thread and writes nothing; everything is read by pread (``tail`` maps the file that it
follows) and checked, so that a file which is foreign, damaged, shrinking or gone ends in an exception of
``mqfast.errors`` and never in a crash.

Beside a live writer the reader sees what is in the page cache: a record as soon as its unit is in the queue and the
whole record is in the log. It may see messages that a sync-flushing writer has not yet shown to its own readers and
that a power loss would still take back. It does not see what a writer with a transient store pool has not committed;
through queues and index it does not see what the writer has not yet dispatched, which a writer does some milliseconds
after the put, or when it reads itself (``scan`` shows it at once). It never waits for a writer. Retention may remove a
file between two calls: what was removed counts as removed, not as damage. The lists of topics and queues are as of the
last ``refresh()``; a queue that is asked for by name is looked for.

A dead store shows what is on disk, without recovering it: units whose record is torn are cut off, records behind the
damage stay readable through their queues. File formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from types import TracebackType
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar, overload

from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, OffsetError, StoreClosed, StoreNotFound, UsageError
from mqfast.message import LMQ_PREFIX, decode_message_id
from mqfast.properties import jhash, split_keys
from mqfast.store._gather import Gather
from mqfast.store._index_file import IndexFile, search
from mqfast.store._os import REAL, Mutex, OsDoor
from mqfast.store._record import StoredMessage
from mqfast.store._scan import ExtFiles, LogWalk, PreadFile
from mqfast.store._tail import LogTail
from mqfast.store.batch_queue import claimed_places
from mqfast.store.checkpoint import StoreCheckpoint
from mqfast.store.column_scan import COLUMNS, LogColumns, QueueColumns
from mqfast.store.index_service import infer_index_sizes
from mqfast.store.offsets import ConsumerOffsets
from mqfast.store.paths import OffsetFile, StorePaths, list_index_files, list_offset_files, list_queues, queue_dir
from mqfast.store.results import BoundaryType, GetMessageStatus

__all__ = ["LogScan", "QueueRange", "ReadResult", "StoreReader"]

UNIT_BYTES: Final = 20
BATCH_UNIT_BYTES: Final = 46
FILLER_SIZE: Final = 0x7FFFFFFF
# Beyond this many open files the one that was not used for the longest time is closed.
_OPEN_FILES: Final = 128
_UNITS_AT_ONCE: Final = 1638
_UNIT_BYTES_AT_ONCE: Final = 1 << 20
# Where the log is divided: so many queues are asked, and from a record further away than this nobody walks.
_BOUNDARY_QUEUES: Final = 4
_BOUNDARY_BYTES: Final = 4 << 20
# So often a call begins again because files that it had listed went meanwhile.
_TRIES: Final = 5
_LEAST_TAGS_CODE: Final = -(2**31)
_MAX_TAGS: Final = 64
_END_OF_TIME: Final = 2**63 - 1
_UNIT: Final = struct.Struct(">qiq")
_BATCH_UNIT: Final = struct.Struct(">qiqqqh8x")


class QueueRange(NamedTuple):
    """One queue and what can be read from it: ``min_offset`` up to, not including, ``max_offset``."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class Unit(NamedTuple):
    """One unit of a queue; ``messages`` is above 1 only in batch queues."""

    physical_offset: int
    size: int
    tags_code: int
    queue_offset: int
    messages: int

    @property
    def is_filler(self) -> bool:
        """Does it only fill the space below the first message of a queue that began above 0?"""
        return self.physical_offset == 0 and self.size == FILLER_SIZE


class ReadResult(Sequence[StoredMessage]):
    """What a get found: a status, the offset to go on from, the queue's bounds and the messages, each over bytes of
    its own."""

    __slots__ = ("max_offset", "messages", "min_offset", "next_offset", "status", "total_bytes")

    def __init__(self, status: GetMessageStatus, next_offset: int, min_offset: int, max_offset: int) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.total_bytes = 0
        self.messages: list[StoredMessage] = []

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredMessage]: ...
    def __getitem__(self, index: int | slice) -> StoredMessage | list[StoredMessage]:
        return self.messages[index]

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def bodies(self) -> list[bytes]:
        """All bodies, copied into bytes objects."""
        return [bytes(message.body) for message in self.messages]

    def __repr__(self) -> str:
        return f"<ReadResult {self.status.name} {len(self.messages)} messages, next_offset={self.next_offset}>"


class _OpenFiles:
    """The open files of one reader, the longest unused one closed first."""

    def __init__(self, door: OsDoor) -> None:
        self._door = door
        self._files: OrderedDict[str, PreadFile] = OrderedDict()

    def get(self, file: OffsetFile) -> PreadFile:
        found = self._files.get(file.path)
        if found is None:
            found = PreadFile(self._door, file.path, file.start_offset)
            self._files[file.path] = found
            if len(self._files) > _OPEN_FILES:
                # Not closed by hand: a scan or an extension may still be reading it.
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(file.path)
        return found

    def forget(self, path: str) -> None:
        self._files.pop(path, None)

    def clear(self) -> None:
        self._files.clear()


class _Stream:
    """A row of files named by their start offsets; the log, one queue, or one extension."""

    def __init__(self, door: OsDoor, directories: Sequence[str], files: _OpenFiles) -> None:
        self._door = door
        self._directories = directories
        self._open = files
        self.files: list[OffsetFile] = []
        self.starts: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """List the directories again."""
        files: list[OffsetFile] = []
        for directory in self._directories:
            files += list_offset_files(self._door, directory)[0]
        files.sort()
        for file in set(self.files).difference(files):
            self._open.forget(file.path)
        self.files = files
        self.starts = [file.start_offset for file in files]

    def open(self, i: int) -> PreadFile:
        """The i-th file, with its present length."""
        return self._open.get(self.files[i])

    def find(self, offset: int) -> int:
        """Number of the file that holds a stream offset, -1: none does."""
        i = bisect_right(self.starts, offset) - 1
        if i < 0:
            return -1
        file = self.open(i)
        if offset >= file.end:
            # Somebody may have been making the file when it was opened.
            file.length()
        return i if offset < file.end else -1

    @property
    def begin(self) -> int:
        """Stream offset of the first file, 0 when there is none."""
        return self.starts[0] if self.starts else 0


class _Queue:
    """The units of one queue, read by position: a byte of the queue's stream."""

    def __init__(
        self, door: OsDoor, base: str, topic: str, queue_id: int, ext_base: str | None, batch: bool, files: _OpenFiles
    ) -> None:
        directory = queue_dir(base, topic, queue_id)
        ext_directory = queue_dir(ext_base, topic, queue_id) if ext_base is not None else None
        self.directory = directory
        self.topic = os.fsencode(topic)
        self.queue_id = queue_id
        self.unit_bytes = BATCH_UNIT_BYTES if batch else UNIT_BYTES
        self.is_batch = batch
        self.stream = _Stream(door, (directory,), files)
        self.ext = _Stream(door, (ext_directory,), files) if ext_directory is not None else None
        self._end = -1
        self._ext_files: ExtFiles | None = None
        self.whole_end = -1
        """Up to here the last record was seen to be whole."""
        self.found_begin = (-1, -1, -1)
        """First byte of the log, first byte of the queue, and what they made the first position."""

    def refresh(self) -> None:
        """List the files again; positions that were found stay as long as their file does."""
        self.stream.refresh()
        if self.ext is not None:
            self.ext.refresh()
            self._ext_files = None
        self.whole_end = -1
        if not self.stream.files or self._end < self.stream.begin:
            self._end = -1

    def end(self) -> int:
        """Position behind the last valid unit, looked for from the third-last file on, as recovery does."""
        files = self.stream.files
        if not files:
            return 0
        i = max(0, len(files) - 3) if self._end < 0 else max(0, bisect_right(self.stream.starts, self._end - 1) - 1)
        while True:
            file = self.stream.open(i)
            file.length()
            valid = file.valid_units(max(0, self._end - file.start), self.unit_bytes)
            self._end = file.start + valid
            if valid == 0 or valid < file.bytes - file.bytes % self.unit_bytes:
                return self._end
            if i + 1 == len(self.stream.files):
                self.stream.refresh()
                i = bisect_right(self.stream.starts, file.start) - 1
                if i < 0:
                    self._end = -1
                    return self.end()
                if i + 1 == len(self.stream.files):
                    return self._end
            if self.stream.starts[i + 1] != file.end:
                return self._end
            i += 1

    def units(self, position: int, end: int, limit: int = _UNITS_AT_ONCE) -> list[Unit]:
        """Units from a position on, at most ``limit`` and never beyond one file."""
        i = self.stream.find(position)
        if i < 0:
            return []
        file = self.stream.open(i)
        n = min(limit * self.unit_bytes, end - position, file.end - position)
        n -= n % self.unit_bytes
        data = file.read(position - file.start, n)
        resolve = self._tags_code if self.ext is not None else None
        if self.is_batch:
            return [Unit(p, size, tags, base, n) for p, size, tags, _, base, n in _BATCH_UNIT.iter_unpack(data)]
        first = position // UNIT_BYTES
        return [
            Unit(physical, size, tags if resolve is None or tags >= _LEAST_TAGS_CODE else resolve(tags), i, 1)
            for i, (physical, size, tags) in enumerate(_UNIT.iter_unpack(data), first)
        ]

    def unit(self, position: int) -> Unit:
        """The unit at a position that was found to exist.

        Raises: CorruptFile when it is gone.
        """
        for unit in self.units(position, position + self.unit_bytes, 1):
            return unit
        raise CorruptFile("the queue has lost a unit", path=self.directory, offset=position)

    def _tags_code(self, value: int) -> int:
        if self._ext_files is None and self.ext is not None:
            self._ext_files = ExtFiles([self.ext.open(i) for i in range(len(self.ext.files))])
        if self._ext_files is None:
            return value
        code = self._ext_files.tags_code(value)
        if code == value and self.ext is not None:
            # The writer may have made a file since.
            before = len(self.ext.files)
            self.ext.refresh()
            if len(self.ext.files) != before:
                self._ext_files = ExtFiles([self.ext.open(i) for i in range(len(self.ext.files))])
                code = self._ext_files.tags_code(value)
        return code


class LogScan:
    """Iterates over the records of the log in their order.

    Attributes: ``at`` (physical offset of the next record), ``reason`` (None while it runs; then ``"limit"``,
    ``"end"`` (no further file), ``"zero"`` (nothing written there), ``"no record"``, ``"length"``, ``"place"``,
    ``"crc"`` or ``"gap"`` (the next file does not begin where this one ends)).
    Raises: CorruptFile, StorageError when a file shrinks or cannot be read.
    """

    def __init__(self, reader: StoreReader, start: int, limit: int, check_crc: bool) -> None:
        self.at = start
        self.reason: str | None = None
        self._reader = reader
        self._limit = limit
        self._check_crc = check_crc
        self._walk: LogWalk | None = None
        self._ready: list[StoredMessage] = []
        self._given = 0

    def __iter__(self) -> LogScan:
        return self

    def __next__(self) -> StoredMessage:
        while self._given == len(self._ready):
            if self.reason is not None:
                raise StopIteration
            self._ready = self._more()
            self._given = 0
        message = self._ready[self._given]
        self._given += 1
        return message

    def _more(self) -> list[StoredMessage]:
        if self._walk is None:
            file = self._reader._log_file(self.at)
            if file is None:
                self.reason = "gap" if self._reader._log_goes_on(self.at) else "end"
                return []
            self._file_end = file.end
            self._walk = LogWalk(file, self.at, self._check_crc)
        messages, stop = self._walk.batch(self._limit)
        self.at = self._walk.at
        if stop in ("blank", "end"):
            self.at = self._file_end
            self._walk = None
        elif stop is not None:
            self.reason = stop
        return messages


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _on_files_that_are_there(
    method: Callable[Concatenate[StoreReader, _P], _T],
) -> Callable[Concatenate[StoreReader, _P], _T]:
    """Under the lock; again with a new listing where retention or the deletion of a topic took a file meanwhile."""

    @functools.wraps(method)
    def run(self: StoreReader, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._lock:
            for _ in range(_TRIES):
                self._check_open()
                listed = self._listing()
                try:
                    return method(self, *args, **kwargs)
                except (CorruptFile, StoreNotFound):
                    self.refresh()
                    if self._listing() == listed:
                        raise
            return method(self, *args, **kwargs)

    return run


class StoreReader:
    """Reads the store at ``path``.

    Args: ``config`` gives the sizes of index files and the log directories where the files do not tell;
        ``commit_log`` the log directory or directories when the log does not lie in the store.
    Raises: StoreNotFound, StorageError.
    Thread: any; calls take turns. Messages may be kept as long as wanted and passed on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: StoreConfig | None = None,
        commit_log: str | Sequence[str] | None = None,
        max_hash_slot_num: int | None = None,
        max_index_num: int | None = None,
        door: OsDoor | None = None,
    ) -> None:
        self._door = door if door is not None else REAL
        directories: Sequence[str] = (commit_log,) if isinstance(commit_log, str) else tuple(commit_log or ())
        read_only: Sequence[str] = ()
        if config is not None:
            directories = directories or config.commit_log_dirs
            read_only = config.read_only_commit_log_dirs
        self.paths: Final = StorePaths(os.fspath(path), directories, read_only)
        check_is_store(self._door, self.paths)
        self._slots = max_hash_slot_num or (config.max_hash_slot_num if config is not None else None)
        self._entries = max_index_num or (config.max_index_num if config is not None else None)
        self._lock = Mutex()
        self._closed = False
        self._files = _OpenFiles(self._door)
        self._log = _Stream(self._door, (*self.paths.commit_logs, *self.paths.read_only_commit_logs), self._files)
        self._log_end = -1
        self._readable_end = -1
        self._index: tuple[IndexFile, ...] = ()
        self._index_names: list[str] = []
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._largest: list[_Queue] | None = None
        self._list_queues()

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all files. Safe to call twice; messages stay valid."""
        with self._lock:
            self._closed = True
            self._files.clear()
            self._drop_index()
            self._queues.clear()

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"reader is closed: {self.paths.root}")

    def refresh(self) -> None:
        """List the directories again: new and removed files, topics and queues.

        Raises: StorageError.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
            if self._log_end < self._log.begin:
                self._log_end = -1
            self._list_queues()
            for queue in self._queues.values():
                queue.refresh()
            self._drop_index()

    def _listing(self) -> tuple[list[int], dict[tuple[str, int], list[int]]]:
        return self._log.starts, {key: queue.stream.starts for key, queue in self._queues.items()}

    def _list_queues(self) -> None:
        paths = self.paths
        found: dict[tuple[str, int], _Queue] = {}
        ext = list_queues(self._door, paths.consume_queue_ext)
        # A topic is of one kind only; where both are there, the batch queue is the younger one.
        for base, batch in ((paths.consume_queue, False), (paths.batch_consume_queue, True)):
            for topic, queue_ids in list_queues(self._door, base).items():
                for queue_id in queue_ids:
                    known = self._queues.get((topic, queue_id))
                    if known is not None and known.is_batch == batch:
                        found[topic, queue_id] = known
                        continue
                    has_ext = not batch and queue_id in ext.get(topic, ())
                    found[topic, queue_id] = _Queue(
                        self._door,
                        base,
                        topic,
                        queue_id,
                        paths.consume_queue_ext if has_ext else None,
                        batch,
                        self._files,
                    )
        self._queues = found
        self._largest = None

    # --- the log -----------------------------------------------------------------------------------------------------

    def _log_file(self, physical_offset: int) -> PreadFile | None:
        try:
            i = self._log.find(physical_offset)
            if i >= 0:
                return self._log.open(i)
            if physical_offset < self._log.begin:
                return None
        except StoreNotFound:
            # Removed by retention since the last listing.
            pass
        # Behind the last file that is known there may be a new one.
        self._log.refresh()
        i = self._log.find(physical_offset)
        return self._log.open(i) if i >= 0 else None

    def _log_goes_on(self, physical_offset: int) -> bool:
        return bool(self._log.starts) and self._log.starts[-1] > physical_offset

    def log_range(self) -> tuple[int, int]:
        """Physical offset of the first file, and of the end of the last whole record before the first damage in the
        last file in use.

        The first call reads that file; later ones go on from there.
        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
            if not self._log.files:
                return 0, 0
            if self._log_end < self._log.begin:
                self._log_end = self._last_used_file()
            self._log_end = self._whole_until(self._log_end)
            return self._log.begin, self._log_end

    def _whole_until(self, physical_offset: int) -> int:
        """The end of the last whole record from a record's beginning on, before the first damage."""
        at = physical_offset
        while (file := self._log_file(at)) is not None:
            walk = LogWalk(file, at)
            stop = walk.skip()
            at = walk.at
            if stop not in ("blank", "end"):
                break
            following = self._log_file(file.end)
            if following is None or following.read(0, min(8, following.bytes)).strip(b"\0") == b"":
                # The blank belongs to the log; whether there is a next file yet is a matter of preallocation.
                return file.end if stop == "blank" else at
            at = file.end
        return at

    @_on_files_that_are_there
    def readable_range(self) -> tuple[int, int]:
        """As log_range, but the end is at least that of the last whole record that any queue points at: records behind
        damage are within, and only what no queue has yet is looked at.

        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
            if not self._log.files:
                return 0, 0
            known = max(self._readable_end, self._log.begin)
            for queue in self._queues.values():
                end = self._end(queue)
                if end > queue.stream.begin:
                    unit = queue.unit(end - queue.unit_bytes)
                    if not unit.is_filler:
                        known = max(known, unit.physical_offset + unit.size)
            if known <= self._log.begin:
                return self.log_range()
            self._readable_end = self._whole_until(known)
            return self._log.begin, self._readable_end

    def log_starts(self) -> list[tuple[int, str]]:
        """Physical offset of the first byte and path of every file of the log, as of the last listing."""
        with self._lock:
            self._check_open()
            return [(file.start_offset, file.path) for file in self._log.files]

    def release_files(self) -> None:
        """Let go of all open files, so that removed ones give their space back; they are opened again when needed."""
        with self._lock:
            self._files.clear()

    def log_files(self) -> list[tuple[str, int, int]]:
        """Path, physical offset of the first byte and length of every file of the log, as of the last listing.

        Raises: StorageError.
        """
        with self._lock:
            self._check_open()
            return [(f.path, f.start_offset, self._door.file_size(f.path)) for f in self._log.files]

    @_on_files_that_are_there
    def record_boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record, blank or file at or behind a physical offset begins; ``limit`` when none does before
        it. For dividing the log among several readers.

        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
            i = bisect_left(self._log.starts, physical_offset)
            following = min(self._log.starts[i], limit) if i < len(self._log.starts) else limit
            file = self._log_file(physical_offset)
            if file is None or following == physical_offset:
                return following
            # From a record that a queue knows, as bytes of a body may look like a record; else there is no other way.
            known = self._record_before(file, physical_offset)
            if physical_offset - known <= _BOUNDARY_BYTES:
                walk = LogWalk(file, known, False)
                stop = walk.skip(physical_offset)
                if stop == "limit":
                    return min(walk.at, following)
                if stop in ("blank", "end"):
                    return following
            found = file.find_record(physical_offset)
            return min(found, following) if found >= 0 else following

    def _record_before(self, file: PreadFile, physical_offset: int) -> int:
        """Where a record of this file, or the file itself, begins: as near before an offset as is easily found."""
        if self._largest is None:
            self._largest = nlargest(_BOUNDARY_QUEUES, self._queues.values(), key=lambda queue: queue.end())
        best = file.start
        for queue in self._largest:
            begin, end = self._span(queue)
            low, high = 0, (end - begin) // queue.unit_bytes
            found = None
            while low < high:
                middle = (low + high) // 2
                unit = queue.unit(begin + middle * queue.unit_bytes)
                if unit.physical_offset <= physical_offset:
                    low, found = middle + 1, unit
                else:
                    high = middle
            if found is not None and found.physical_offset > best and self._is_whole(found):
                best = found.physical_offset
        return best

    @_on_files_that_are_there
    def unit_at(self, topic: str, queue_id: int, offset: int) -> Unit:
        """The unit of a queue that holds a queue offset.

        Raises: OffsetError outside of the queue's bounds, CorruptFile, StorageError.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            begin, end = self._span(queue) if queue is not None else (0, 0)
            first, last = self._bounds(queue, begin, end) if queue is not None else (0, 0)
            if queue is None or not first <= offset < last:
                raise OffsetError(
                    f"queue {topic}/{queue_id}: expected an offset from {first} to {last - 1}, found {offset}"
                )
            return queue.unit(self._position(queue, offset, begin, end))

    def _last_used_file(self) -> int:
        for i in range(len(self._log.files) - 1, 0, -1):
            file = self._log.open(i)
            if file.read(0, min(8, file.bytes)).strip(b"\0"):
                return file.start
        return self._log.begin

    def scan(self, from_offset: int | None = None, to_offset: int | None = None, check_crc: bool = True) -> LogScan:
        """All records of the log in order, from the record at ``from_offset`` (None: the first) up to ``to_offset``.

        It stops at the first byte that is no whole record; the iterator's ``reason`` and ``at`` say why and where.
        Messages of one block of 256 KiB share its memory.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
            start = self._log.begin if from_offset is None else from_offset
            if start < self._log.begin:
                raise OffsetError(f"physical offset: expected at least {self._log.begin}, found {start}")
            return LogScan(self, start, -1 if to_offset is None else to_offset, check_crc)

    def scan_columns(
        self,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_bytes: int = 1 << 20,
        queued_only: bool = False,
    ) -> LogColumns:
        """All records of the log as scan has them, in columns: batches of about ``batch_bytes``, each of which Arrow
        libraries take over without copying (``pyarrow.record_batch(batch)``).

        Args: columns: names of ``column_scan.COLUMNS``, None for all but ``raw_properties``; queued_only: leave out
            half and rolled back messages of transactions.
        Raises: OffsetError; while it runs CorruptFile at what is no whole record or has another checksum, DataLoss
            where a file is gone, StorageError.
        """
        with self._lock:
            self._check_open()
        begin, end = self.readable_range()
        start = begin if from_offset is None else from_offset
        if start < begin:
            raise OffsetError(f"physical offset: expected at least {begin}, found {start}")
        gather = Gather(
            _column_names(columns), batch_bytes=batch_bytes, batch_rows=1 << 16, check_crc=True, queued_only=queued_only
        )
        stop = end if to_offset is None else min(to_offset, end)
        return LogColumns(self, gather, start, stop, skip_damage=False, skip_lost=False)

    def queue_columns(
        self,
        topic: str,
        queue_id: int,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_bytes: int = 1 << 20,
    ) -> QueueColumns:
        """The messages of one queue in columns, as scan_columns gives them; one row for each batch of a batch queue.

        Raises: OffsetError when there is no such queue, or an offset lies outside of it; otherwise as scan_columns.
        """
        gather = Gather(_column_names(columns), batch_bytes=batch_bytes, batch_rows=1 << 16, check_crc=True)
        start = self.min_offset(topic, queue_id) if from_offset is None else from_offset
        end = self.max_offset(topic, queue_id) if to_offset is None else to_offset
        return self.queue_run(
            topic, queue_id, start, end, gather, check_crc=True, mark=False, skip_damage=False, skip_lost=False
        )

    def queue_run(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        gather: Gather,
        *,
        check_crc: bool,
        mark: bool,
        skip_damage: bool,
        skip_lost: bool,
    ) -> QueueColumns:
        """As queue_columns, with a Gather of one's own; see QueueColumns for the rest.

        Raises: OffsetError.
        """
        with self._lock:
            first, last = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
            queue = self._queue(topic, queue_id)
            if queue is None or not first <= start <= end <= last:
                raise OffsetError(
                    f"queue {topic}/{queue_id}: expected offsets from {first} to {last}, found {start}, {end}"
                )
            return QueueColumns(
                self, gather, queue, start, end,
                check_crc=check_crc, mark=mark, skip_damage=skip_damage, skip_lost=skip_lost,
            )  # fmt: skip

    def units(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[list[Unit]]:
        """The units of queue offsets from ``start`` up to, not including, ``end``, some at a time.

        Raises: OffsetError outside of the queue's bounds, CorruptFile, StorageError.
        """
        queue, position, stop = self._unit_positions(topic, queue_id, start, end)
        while position < stop:
            with self._lock:
                found = queue.units(position, stop)
            if not found:
                raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
            position += len(found) * queue.unit_bytes
            yield found

    def unit_bytes(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[bytes]:
        """The same as they stand in the file, for whoever wants very many: 20 bytes each, ``>qiq`` (physical offset,
        size, tags code). Only where ``has_plain_units``.

        Raises: as units.
        """
        queue, position, stop = self._unit_positions(topic, queue_id, start, end)
        while position < stop:
            with self._lock:
                i = queue.stream.find(position)
                if i < 0:
                    raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
                file = queue.stream.open(i)
                n = min(_UNIT_BYTES_AT_ONCE, stop - position, file.end - position)
                data = file.read(position - file.start, n - n % UNIT_BYTES)
            if not data:
                raise CorruptFile("the queue has lost a unit", path=queue.directory, offset=position)
            position += len(data)
            yield data

    def has_plain_units(self, topic: str, queue_id: int) -> bool:
        """Has this queue units of 20 bytes that hold their tags code themselves?"""
        with self._lock:
            queue = self._queue(topic, queue_id)
            return queue is not None and not queue.is_batch and queue.ext is None

    def _unit_positions(self, topic: str, queue_id: int, start: int, end: int) -> tuple[_Queue, int, int]:
        with self._lock:
            if start < end:
                self.unit_at(topic, queue_id, start)
                self.unit_at(topic, queue_id, end - 1)
            queue = self._queue(topic, queue_id)
            if queue is None:
                raise OffsetError(f"queue {topic}/{queue_id}: there is none")
            if start >= end:
                return queue, 0, 0
            low, high = self._span(queue)
            stop = self._position(queue, end - 1, low, high) + queue.unit_bytes
            return queue, self._position(queue, start, low, high), stop

    def tail(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        tags: str | None = None,
        *,
        from_offset: int | None = None,
        spin: bool = False,
        poll_interval_us: float = 20.0,
        check_crc: bool = True,
    ) -> LogTail:
        """Follow the log that another process writes: ``for message in reader.tail("T"): ...``.

        Args: topic, queue_id, tags (``"A || B"``): what to show, None for all; from_offset: physical offset of the
            record to begin with, None for what is written from now on; spin: wait without sleeping, which takes a
            processor and sees a message within a microsecond or two; otherwise it sleeps ``poll_interval_us`` between
            two looks (to which the kernel adds some 50 microseconds).
        Unlike the rest of the reader it maps the file that it follows, and needs no ``refresh``.
        Raises: OffsetError when ``from_offset`` is below the log; CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
        position = self.log_range()[1] if from_offset is None else from_offset
        directories = (*self.paths.commit_logs, *self.paths.read_only_commit_logs)
        return LogTail(self._door, directories, position, topic, queue_id, tags, spin, poll_interval_us, check_crc)

    @_on_files_that_are_there
    def look(self, place: int | str) -> StoredMessage:
        """The message at a physical offset, or of an offset message id.

        Raises: OffsetError when there is no whole record, CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
            physical = decode_message_id(place).physical_offset if isinstance(place, str) else place
            file = self._log_file(physical) if physical >= 0 else None
            if file is None:
                raise OffsetError(f"physical offset {physical}: not in the log of {self.paths.root}")
            found = file.record(physical)
            if isinstance(found, str):
                raise OffsetError(f"physical offset {physical}: expected a record, found: {found}")
            return found

    def _store_time(self, unit: Unit) -> int:
        """Store time of the record that a unit points at, -1 when it is not there."""
        if unit.is_filler or unit.size < 91:
            return -1
        file = self._log_file(unit.physical_offset)
        position = unit.physical_offset - file.start if file is not None else 0
        if file is None or position + unit.size > file.bytes:
            return -1
        head = file.read(position, 76)
        if head[:4] != unit.size.to_bytes(4, "big"):
            return -1
        at = 68 if head[39] & 0x10 else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    @property
    def earliest_message_time(self) -> int:
        """Store time of the first record of the log, ms since the epoch; -1 when there is none."""
        with self._lock:
            self._check_open()
            file = self._log_file(self._log.begin) if self._log.files else None
            found = file.record(file.start) if file is not None else ""
            return -1 if isinstance(found, str) else found.store_timestamp

    # --- queues ------------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Every topic that has a queue, sorted; light queues among them."""
        with self._lock:
            self._check_open()
            return sorted({topic for topic, _ in self._queues})

    @_on_files_that_are_there
    def queues(self) -> list[QueueRange]:
        """Every queue with its bounds, sorted."""
        with self._lock:
            self._check_open()
            found = []
            for key in sorted(self._queues):
                queue = self._queues[key]
                found.append(QueueRange(*key, *self._bounds(queue, *self._span(queue))))
            return found

    def _queue(self, topic: str, queue_id: int) -> _Queue | None:
        self._check_open()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            # One look at the disk, so that a reader that follows a writer needs no refresh for a queue it waits for.
            fits = topic and "/" not in topic and "\0" not in topic and topic not in (".", "..") and queue_id >= 0
            bases = (self.paths.consume_queue, self.paths.batch_consume_queue)
            if fits and any(self._door.is_dir(queue_dir(base, topic, queue_id)) for base in bases):
                self._list_queues()
                queue = self._queues.get((topic, queue_id))
        return queue

    def _is_whole(self, unit: Unit) -> bool:
        file = self._log_file(unit.physical_offset)
        return file is not None and not isinstance(file.record(unit.physical_offset, unit.size), str)

    def _end(self, queue: _Queue) -> int:
        """Position behind the last unit whose record is there."""
        end, size = queue.end(), queue.unit_bytes
        begin = queue.stream.begin
        if end <= begin:
            return begin
        if end == queue.whole_end:
            return end
        last = queue.unit(end - size)
        if last.is_filler or last.physical_offset < self._log.begin or self._is_whole(last):
            queue.whole_end = end
            return end
        log_end = self.log_range()[1]
        low, high = begin // size if not queue.is_batch else 0, (end - (begin if queue.is_batch else 0)) // size
        offset = begin if queue.is_batch else 0
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(offset + middle * size)
            if unit.is_filler or unit.physical_offset + unit.size <= log_end:
                low = middle + 1
            else:
                high = middle
        return offset + low * size

    def _begin(self, queue: _Queue, end: int) -> int:
        """Position of the first unit that is no filler and whose record was not removed; ``end`` when there is none."""
        size = queue.unit_bytes
        log_begin, stream_begin, begin = queue.found_begin
        if (log_begin, stream_begin) == (self._log.begin, queue.stream.begin) and begin < end:
            return begin
        low, high = 0, (end - queue.stream.begin) // size
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(queue.stream.begin + middle * size)
            if unit.is_filler or unit.physical_offset < self._log.begin:
                low = middle + 1
            else:
                high = middle
        begin = queue.stream.begin + low * size
        queue.found_begin = (self._log.begin, queue.stream.begin, begin)
        return begin

    def _span(self, queue: _Queue) -> tuple[int, int]:
        end = self._end(queue)
        return self._begin(queue, end), end

    def _bounds(self, queue: _Queue, begin: int, end: int) -> tuple[int, int]:
        if not queue.is_batch:
            return begin // UNIT_BYTES, end // UNIT_BYTES
        if end <= queue.stream.begin:
            return 0, 0
        last = queue.unit(end - BATCH_UNIT_BYTES)
        most = last.queue_offset + last.messages
        return (queue.unit(begin).queue_offset if begin < end else most), most

    @_on_files_that_are_there
    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the first message still in the log; max_offset when there is none, 0 without queue."""
        with self._lock:
            queue = self._queue(topic, queue_id)
            return self._bounds(queue, *self._span(queue))[0] if queue is not None else 0

    @_on_files_that_are_there
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last message; 0 without queue."""
        with self._lock:
            queue = self._queue(topic, queue_id)
            return self._bounds(queue, *self._span(queue))[1] if queue is not None else 0

    def _position(self, queue: _Queue, offset: int, begin: int, end: int) -> int:
        """Position of the unit that holds a queue offset within the bounds."""
        if not queue.is_batch:
            return offset * UNIT_BYTES
        low, high = begin // BATCH_UNIT_BYTES, end // BATCH_UNIT_BYTES
        shift = begin - low * BATCH_UNIT_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            if queue.unit(shift + middle * BATCH_UNIT_BYTES).queue_offset <= offset:
                low = middle
            else:
                high = middle
        return shift + low * BATCH_UNIT_BYTES

    @_on_files_that_are_there
    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 128 << 20,
        tags: str | None = None,
    ) -> ReadResult:
        """Up to ``max_count`` messages and ``max_bytes`` (the first one always) of one queue from an offset on.

        ``tags`` is ``"A || B"``; None and ``*`` take all. A message of a batch queue is a whole batch and counts as
        often as it holds messages.
        Raises: CorruptFile when the message at the offset is damaged (those before damage are returned first),
            StorageError.
        Source: DefaultMessageStore.getMessage.
        """
        wanted = _tag_filter(tags)
        with self._lock:
            queue = self._queue(topic, queue_id)
            if queue is None:
                return ReadResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            if queue.stream.begin % queue.unit_bytes:
                raise CorruptFile(
                    "queue file is named between two units",
                    path=queue.stream.files[0].path,
                    expected=f"a multiple of {queue.unit_bytes}",
                    found=queue.stream.begin,
                )
            begin, end = self._span(queue)
            first, last = self._bounds(queue, begin, end)
            if last == 0:
                return ReadResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, first, last)
            if offset < first:
                return ReadResult(GetMessageStatus.OFFSET_TOO_SMALL, first, first, last)
            if offset == last:
                return ReadResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, last, first, last)
            if offset > last:
                return ReadResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, last, first, last)
            position = self._position(queue, offset, begin, end)
            result = ReadResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, first, last)
            if queue.is_batch:
                unit = queue.unit(position)
                if unit.queue_offset + unit.messages <= offset:
                    position += queue.unit_bytes  # a hole: go on behind it
                    if position >= end:
                        result.next_offset = last
            self._collect(queue, position, end, result, max_count, max_bytes, wanted)
            return result

    def _collect(
        self,
        queue: _Queue,
        position: int,
        end: int,
        result: ReadResult,
        max_count: int,
        max_bytes: int,
        wanted: dict[int, set[str]] | None,
    ) -> None:
        count = 0
        removed = False
        while position < end and count < max_count:
            limit = _UNITS_AT_ONCE if wanted is not None else min(_UNITS_AT_ONCE, max_count - count)
            units = queue.units(position, end, limit)
            if not units:
                if count == 0:
                    # As RocketMQ: go on in the next file, which may not be there yet.
                    result.status = GetMessageStatus.OFFSET_FOUND_NULL
                    starts = queue.stream.starts
                    i = bisect_right(starts, position)
                    result.next_offset = -(-starts[i] // UNIT_BYTES) if i < len(starts) else result.max_offset
                break
            for unit in units:
                if count and (count + unit.messages > max_count or result.total_bytes + unit.size > max_bytes):
                    return
                position += queue.unit_bytes
                following = unit.queue_offset + unit.messages
                if following <= result.next_offset:  # a consumer would ask for the same offset for ever
                    if count:
                        return
                    raise CorruptFile(
                        f"the unit of queue offset {result.next_offset} does not lead on",
                        path=queue.stream.files[queue.stream.find(position - queue.unit_bytes)].path,
                        expected=f"a unit that ends behind offset {result.next_offset}",
                        found=f"one that ends at {following}",
                    )
                if unit.is_filler or not _may_match(unit.tags_code, wanted):
                    result.next_offset = following
                    continue
                try:
                    message = self._message(queue, unit)
                    if message is None:
                        removed = True
                        result.next_offset = following
                        continue
                except CorruptFile:
                    if count:
                        return
                    raise
                result.next_offset = following
                if wanted is not None and message.tags not in wanted.get(jhash(message.tags or ""), ()):
                    continue
                result.status = GetMessageStatus.FOUND
                result.messages.append(message)
                result.total_bytes += unit.size
                count += unit.messages
        if removed and not count:
            result.status = GetMessageStatus.MESSAGE_WAS_REMOVING

    def _message(self, queue: _Queue, unit: Unit) -> StoredMessage | None:
        """The record of a unit; None when it was removed with its file."""
        file = self._log_file(unit.physical_offset)
        if unit.physical_offset < self._log.begin:
            return None
        found: StoredMessage | str = "no such file in the log"
        if file is not None:
            found = file.record(unit.physical_offset, unit.size, unit.queue_offset)
        if not isinstance(found, str):
            why = self._misplaced(queue, unit, found)
            if why is None:
                return found
            found = why
        raise CorruptFile(
            f"unit {unit.queue_offset} of queue {queue.directory} does not point at its record",
            path=file.path if file is not None else self.paths.commit_logs[0],
            offset=unit.physical_offset,
            expected=f"a record of {unit.size} bytes",
            found=found,
        )

    def _misplaced(self, queue: _Queue, unit: Unit, message: StoredMessage) -> str | None:
        """Why the record that a unit points at does not belong there; None: it does."""
        place = unit.queue_offset
        if queue.is_batch:
            base, count = claimed_places(message)
            same = (message.topic_bytes, message.queue_id) == (queue.topic, queue.queue_id)
            if same and (base, count) == (place, unit.messages):
                return None
            return f"one of {message.topic}/{message.queue_id}, queue offset {base}, {count} messages"
        claimed = message.offset_in(queue.topic, queue.queue_id)
        if claimed is None:
            return f"one of {message.topic}/{message.queue_id}"
        if claimed in (place, -1):
            return None
        # A queue that once lost units has all later ones too low, in the order of the log, but never its first one;
        # where the unit of the claimed place is not later in the log, one of the two is damaged. RocketMQ takes a
        # record of queue offset 0 wherever the queue ends.
        if claimed < place:
            if claimed == 0 and place * UNIT_BYTES > queue.stream.begin:
                before = queue.unit((place - 1) * UNIT_BYTES)
                if before.physical_offset < unit.physical_offset:
                    return None
        elif self._goes_on(queue, claimed, unit.physical_offset):
            oldest = queue.unit(queue.stream.begin)
            if oldest.queue_offset > 0 or oldest.is_filler or oldest.physical_offset < self._log.begin:
                return None
            file = self._log_file(oldest.physical_offset)
            found = "" if file is None else file.record(oldest.physical_offset, oldest.size)
            if not isinstance(found, str) and found.offset_in(queue.topic, queue.queue_id) in (0, -1):
                return None
        return f"one that claims queue offset {claimed}"

    def _goes_on(self, queue: _Queue, place: int, physical: int) -> bool:
        """Is what stands at a place, if anything does, a later record of the queue that claims a higher place?"""
        if place >= queue.end() // UNIT_BYTES:
            return True
        later = queue.unit(place * UNIT_BYTES)
        file = self._log_file(later.physical_offset)
        if later.physical_offset <= physical or file is None:
            return False
        found = file.record(later.physical_offset, later.size)
        if isinstance(found, str):
            return False
        claimed = found.offset_in(queue.topic, queue.queue_id)
        return claimed is not None and (claimed > place or claimed == -1)

    def messages(self, topic: str, queue_id: int) -> Iterator[StoredMessage]:
        """Every message of one queue, oldest first, up to where it ended at the first call.

        Raises: CorruptFile at the first damaged message, StorageError.
        """
        with self._lock:
            offset, last = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        while offset < last:
            result = self.get(topic, queue_id, offset, 256, 4 << 20)
            for message in result:
                if message.queue_offset >= last:
                    return
                yield message
            if result.next_offset <= offset:
                return
            offset = result.next_offset

    # --- by time -----------------------------------------------------------------------------------------------------

    @_on_files_that_are_there
    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Queue offset for a store time (ms): LOWER the first message not before it, UPPER the last one not after it,
        within [min_offset, max_offset]; the edges are RocketMQ's.

        Source: ConsumeQueueStore.getOffsetInQueueByTime, ConsumeQueue, BatchConsumeQueue.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            if queue is None:
                return 0
            begin, end = self._span(queue)
            first, last = self._bounds(queue, begin, end)
            if end <= queue.stream.begin:
                return min(max(0, first), last)
            if queue.is_batch:
                answer = self._batch_by_time(queue, begin, end, timestamp, boundary)
            else:
                answer = self._by_time(queue, begin, end, timestamp, boundary)
            return min(max(answer, first), last)

    def _spans(self, queue: _Queue, end: int) -> list[tuple[int, int]]:
        """(position, end of data) of every file that holds units."""
        spans = []
        for i, start in enumerate(queue.stream.starts):
            if start < end:
                spans.append((start, min(queue.stream.open(i).end, end)))
        return spans

    def _by_time(self, queue: _Queue, begin: int, end: int, timestamp: int, boundary: BoundaryType) -> int:
        lower = boundary == BoundaryType.LOWER

        def time_at(position: int) -> int:
            return self._store_time(queue.unit(position))

        spans = self._spans(queue, end)
        if lower:
            span = next((s for s in spans[:-1] if time_at(s[1] - UNIT_BYTES) >= timestamp), spans[-1])
        else:
            found = next((s for s in reversed(spans) if time_at(s[0]) <= timestamp), None)
            if found is None:
                return 0
            span = found
        start, stop = span
        floor = low = max(start, begin) if begin < stop else start
        ceiling = high = stop - UNIT_BYTES
        if time_at(ceiling) < timestamp:
            return (ceiling + (UNIT_BYTES if lower else 0)) // UNIT_BYTES
        if time_at(floor) > timestamp:
            return start // UNIT_BYTES if lower else 0
        left = right = -UNIT_BYTES
        while low <= high:
            middle = (low + high) // (2 * UNIT_BYTES) * UNIT_BYTES
            unit = queue.unit(middle)
            if unit.physical_offset < self._log.begin:
                low, left = middle + UNIT_BYTES, middle
                continue
            time = self._store_time(unit)
            if time < 0:
                return 0
            if time == timestamp:
                way = -UNIT_BYTES if lower else UNIT_BYTES
                while floor <= middle + way <= ceiling and time_at(middle + way) == timestamp:
                    middle += way
                return middle // UNIT_BYTES
            if time > timestamp:
                high, right = middle - UNIT_BYTES, middle
            else:
                low, left = middle + UNIT_BYTES, middle
        return (right if lower else left) // UNIT_BYTES

    def _batch_by_time(self, queue: _Queue, begin: int, end: int, timestamp: int, boundary: BoundaryType) -> int:
        size = BATCH_UNIT_BYTES

        def time_at(position: int) -> int:
            file = queue.stream.open(queue.stream.find(position))
            return int.from_bytes(file.read(position - file.start + 20, 8), "big", signed=True)

        def base_at(position: int) -> int:
            return queue.unit(position).queue_offset

        spans = [(max(start, begin), stop) for start, stop in self._spans(queue, end) if stop > begin]
        span = next((s for s in reversed(spans) if time_at(s[0]) <= timestamp), None)
        if span is None:
            return -1
        shift, left, right = span[0], 0, (span[1] - span[0]) // size - 1
        if timestamp >= time_at(shift + right * size):
            return base_at(shift + right * size)
        # RocketMQ's own search, whose UPPER has no answer where the hit is not exact: the clamp makes that the minimum.
        while left <= right:
            middle = (left + right) // 2
            time = time_at(shift + middle * size)
            if middle == right:
                return base_at(shift + middle * size) if time >= timestamp else -1
            if middle == left:
                if time >= timestamp:
                    return base_at(shift + middle * size)
                left = middle + 1
            elif boundary == BoundaryType.LOWER:
                left, right = (middle + 1, right) if time < timestamp else (left, middle)
            else:
                left, right = (middle, right) if time <= timestamp else (left, middle - 1)
        return -1

    # --- by key ------------------------------------------------------------------------------------------------------

    def _drop_index(self) -> None:
        for file in self._index:
            file.close()
        self._index = ()
        self._index_names = []

    def _index_files(self) -> tuple[IndexFile, ...]:
        names = [
            name
            for name in list_index_files(self._door, self.paths.index)[0]
            if self._door.file_size(os.path.join(self.paths.index, name)) > 0
        ]
        if names == self._index_names:
            return self._index
        self._drop_index()
        try:
            sizes = infer_index_sizes(self._door, self.paths.index, self._slots, self._entries)
        except CorruptFile:
            if any(self._index_count(name) > 1 for name in names):
                raise
            # No file has an entry yet: there is nothing to find, whatever the sizes are.
            sizes = None
        if sizes is None:
            return ()
        files: list[IndexFile] = []
        try:
            for name in names:
                files.append(IndexFile.open(self._door, os.path.join(self.paths.index, name), *sizes, writable=False))
        except BaseException:
            for file in files:
                file.close()
            raise
        self._index = tuple(files)
        self._index_names = names
        return self._index

    def _index_count(self, name: str) -> int:
        head = PreadFile(self._door, os.path.join(self.paths.index, name)).read(0, 40, False)
        return int.from_bytes(head[36:40], "big", signed=True)

    def query(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = _END_OF_TIME
    ) -> list[StoredMessage]:
        """Messages of a topic that carry this key (or unique key), stored in [begin_ms, end_ms], newest first.

        Every hit of the index is compared with the message; hits whose record was removed are left out. The index
        knows times to the second only, counted from the first entry of a file: as in RocketMQ these decide.
        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            self._check_open()
            files = self._index_files()
            ask = max(1, max_count) * 2 + 16
            while True:
                hits = search(files, topic, key, begin_ms, end_ms, ask)[0]
                found: list[StoredMessage] = []
                for physical in dict.fromkeys(hits):
                    message = self._carrying(physical, topic, key)
                    if message is not None:
                        found.append(message)
                        if len(found) >= max_count:
                            return found[: max(0, max_count)]
                if len(hits) < ask:
                    return found
                ask *= 4

    def _carrying(self, physical: int, topic: str, key: str) -> StoredMessage | None:
        file = self._log_file(physical)
        message = file.record(physical) if file is not None else ""
        if isinstance(message, str) or message.topic != topic:
            return None
        properties = message.properties
        if properties.get("UNIQ_KEY") == key or key in split_keys(properties.get("KEYS")):
            return message
        return None

    # --- small files -------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> StoreCheckpoint:
        """The numbers of the checkpoint file; do not flush it."""
        self._check_open()
        return StoreCheckpoint.load(self._door, self.paths.checkpoint)

    @property
    def is_dirty(self) -> bool:
        """Is a writer at work, or did it leave without closing (the ``abort`` file is there)?"""
        self._check_open()
        return self._door.exists(self.paths.abort)

    def consumer_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Topic -> queue id -> next queue offset of a consumer group, as persisted.

        Raises: CorruptFile, StorageError.
        """
        self._check_open()
        light = group.startswith(LMQ_PREFIX) or not self._door.exists(self.paths.consumer_offset)
        if light and self._door.exists(self.paths.lmq_consumer_offset):
            return ConsumerOffsets.load(self._door, self.paths.lmq_consumer_offset, lmq=True).offsets(group)
        return ConsumerOffsets.load(self._door, self.paths.consumer_offset).offsets(group)

    def consumer_groups(self) -> list[str]:
        """Every consumer group that has persisted offsets, sorted.

        Raises: CorruptFile, StorageError.
        """
        self._check_open()
        groups: set[str] = set()
        for path, light in ((self.paths.consumer_offset, False), (self.paths.lmq_consumer_offset, True)):
            if self._door.exists(path):
                groups.update(ConsumerOffsets.load(self._door, path, lmq=light).groups())
        return sorted(groups)

    def __repr__(self) -> str:
        return f"<StoreReader {self.paths.root!r}{' closed' if self._closed else ''}>"


def check_is_store(door: OsDoor, paths: StorePaths) -> None:
    """Refuse what is no store. One whose writer has not yet put anything has no directory for its log; one that has
    queues but no log has its log elsewhere.

    Raises: StoreNotFound, StorageError.
    """
    for directory in paths.commit_logs:
        if door.is_dir(directory):
            continue
        queues = any(list_queues(door, base) for base in (paths.consume_queue, paths.batch_consume_queue))
        if queues or not (door.exists(paths.lock) or door.exists(paths.abort)):
            raise StoreNotFound(errno.ENOENT, "no store here: expected the directory of its log", directory)


def _column_names(columns: Sequence[str] | None) -> list[tuple[str, str, bool]]:
    chosen = [name for name in COLUMNS if name not in ("raw_properties", "crc_ok")] if columns is None else columns
    return [(name, name, False) for name in chosen]


def _tag_filter(expression: str | None) -> dict[int, set[str]] | None:
    """Hash -> tags of ``"A || B"``; None: everything.

    Raises: UsageError beyond 64 tags.
    """
    if expression is None or expression.strip() in ("", "*"):
        return None
    tags = {part.strip() for part in expression.split("||") if part.strip()}
    if len(tags) > _MAX_TAGS:
        raise UsageError(f"tags: expected at most {_MAX_TAGS}, found {len(tags)}")
    if not tags:
        return None
    wanted: dict[int, set[str]] = {}
    for tag in tags:
        wanted.setdefault(jhash(tag), set()).add(tag)
    return wanted


def _may_match(tags_code: int, wanted: dict[int, set[str]] | None) -> bool:
    # An address that could not be resolved says nothing; the tag of the record is compared in any case.
    if wanted is None or tags_code < _LEAST_TAGS_CODE:
        return True
    low = tags_code & 0xFFFFFFFF
    return (low - (1 << 32) if low >> 31 else low) in wanted
