"""ReaderBounds: the base of StoreReader: the opened store, its log and its queues, their bounds, and the record of a
unit.

No lock of the store is taken and nothing is written. Every position below a bound can be read: damaged, torn or
missing data ends a queue or the log. If retention removes files meanwhile, the files are listed again.
File formats: ``FORMAT.md``.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar

from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, StoreClosed, StoreNotFound, UsageError
from mqfast.message import is_topic_name
from mqfast.store.base.os_api import REAL, Mutex, OsApi
from mqfast.store.base.paths import StorePaths, list_queues, queue_dir, root_of
from mqfast.store.queues.batch_queue import claimed_places
from mqfast.store.queues.placement import may_stand
from mqfast.store.reader.files import BATCH_UNIT_BYTES, UNIT_BYTES, FileStream, OpenFiles, Unit, UnitQueue
from mqfast.store.reader.scan import LogTally, LogWalk, PreadFile
from mqfast.store.record.record import StoredMessage

__all__ = ["QueueRange", "ReaderBounds", "check_is_store", "on_files_that_are_there"]

# Maximum number of restarts of a call whose listed files were removed meanwhile.
_TRIES: Final = 5


class QueueRange(NamedTuple):
    """A queue and its readable range: ``min_offset`` up to, not including, ``max_offset``."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R", bound="ReaderBounds")


def on_files_that_are_there(
    method: Callable[Concatenate[_R, _P], _T],
) -> Callable[Concatenate[_R, _P], _T]:
    """Run a method under the lock, and again with a new listing if retention or the deletion of a topic removed a file
    meanwhile.
    """

    @functools.wraps(method)
    def run(self: _R, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._lock:
            for _ in range(_TRIES):
                self._check_open()
                changes = self._files.changes
                try:
                    return method(self, *args, **kwargs)
                except (CorruptFile, StoreNotFound):
                    self.refresh()
                    if self._files.changes == changes:
                        raise
            return method(self, *args, **kwargs)

    return run


def check_numbers(**given: object) -> None:
    """Raise UsageError for a value that is no whole number of 64 bits."""
    for name, value in given.items():
        if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"{name}: expected a whole number of 64 bits, found {value!r:.80}")


class ReaderBounds:
    """An open store, the listing of its files, and the bounds of log and queues. ``StoreReader`` is the
    public class.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: StoreConfig | None,
        commit_log: str | Sequence[str] | None,
        os_api: OsApi | None,
    ) -> None:
        self._door = os_api if os_api is not None else REAL
        directories: Sequence[str] = (commit_log,) if isinstance(commit_log, str) else tuple(commit_log or ())
        read_only: Sequence[str] = ()
        if config is not None:
            directories = directories or config.commit_log_dirs
            read_only = config.read_only_commit_log_dirs
        self.paths: Final = StorePaths(root_of(path, self._door), directories, read_only)
        check_is_store(self._door, self.paths)
        self._lock = Mutex(nests=True)
        self._closed = False
        self._files = OpenFiles(self._door)
        self._log = FileStream(self._door, (*self.paths.commit_logs, *self.paths.read_only_commit_logs), self._files)
        self._log_end = -1
        self._readable_end = -1
        self.newest_record = -1
        """Physical offset of the last record that any queue pointed at, as of readable_range; -1 for none."""
        self._queues: dict[tuple[str, int], UnitQueue] = {}
        self._longest: list[UnitQueue] | None = None
        self._list_queues()

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files. Safe to call twice; messages stay valid."""
        with self._lock:
            self._closed = True
            self._files.clear()
            self._queues.clear()

    def __enter__(self) -> Self:
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

    def _list_queues(self) -> None:
        paths = self.paths
        listed: dict[tuple[str, int], UnitQueue] = {}
        ext = list_queues(self._door, paths.consume_queue_ext)
        # A topic is of a single kind; if both kinds exist, the batch queue is newer.
        for base, batch in ((paths.consume_queue, False), (paths.batch_consume_queue, True)):
            for topic, queue_ids in list_queues(self._door, base).items():
                for queue_id in queue_ids:
                    known = self._queues.get((topic, queue_id))
                    if known is not None and known.is_batch == batch:
                        listed[topic, queue_id] = known
                        continue
                    has_ext = not batch and queue_id in ext.get(topic, ())
                    listed[topic, queue_id] = UnitQueue(
                        self._door,
                        base,
                        topic,
                        queue_id,
                        paths.consume_queue_ext if has_ext else None,
                        batch,
                        self._files,
                    )
        if listed.keys() != self._queues.keys():
            self._files.changes += 1
        self._queues = listed
        self._longest = None

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
        # A new file may follow the last known file.
        self._log.refresh()
        i = self._log.find(physical_offset)
        return self._log.open(i) if i >= 0 else None

    def _log_goes_on(self, physical_offset: int) -> bool:
        return bool(self._log.starts) and self._log.starts[-1] > physical_offset

    def log_range(self) -> tuple[int, int]:
        """Return the physical offset of the first file, and the end of the last whole record before the first damage in
        the last file in use.

        The first call reads that file; later calls continue from there.
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

    def _whole_until(self, physical_offset: int, tally: LogTally | None = None) -> int:
        """Return the end of the last whole record from a record's start on, before the first damage."""
        at = physical_offset
        while (file := self._log_file(at)) is not None:
            walk = LogWalk(file, at)
            stop = walk.skip() if tally is None else walk.tally(tally)
            at = walk.at
            if stop not in ("blank", "end"):
                break
            following = self._log_file(file.end)
            if following is None or following.read(0, min(8, following.bytes)).strip(b"\0") == b"":
                # The blank belongs to the log; a next file may exist or not, depending on preallocation.
                return file.end if stop == "blank" else at
            at = file.end
        return at

    def _last_used_file(self) -> int:
        for i in range(len(self._log.files) - 1, 0, -1):
            file = self._log.open(i)
            if file.read(0, min(8, file.bytes)).strip(b"\0"):
                return file.start
        return self._log.begin

    @on_files_that_are_there
    def readable_range(self) -> tuple[int, int]:
        """Return log_range, with an end that includes the last whole record that any queue points at. Records behind
        damage are included, and only records outside all queues are read.

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
                        self.newest_record = max(self.newest_record, unit.physical_offset)
            if known <= self._log.begin:
                return self.log_range()
            self._readable_end = self._whole_until(known)
            return self._log.begin, self._readable_end

    @on_files_that_are_there
    def whole_until(self, physical_offset: int, tally: LogTally) -> int:
        """Return the end of the last whole record from a record's start on, and count the records up to there into
        ``tally``.
        For followers of the log.

        Raises: StorageError.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
            return self._whole_until(physical_offset, tally)

    def log_starts(self) -> list[tuple[int, str]]:
        """Return the physical offset of the first byte and the path of every log file, as of the last listing."""
        with self._lock:
            self._check_open()
            return [(file.start_offset, file.path) for file in self._log.files]

    def list_log(self) -> list[tuple[int, str]]:
        """Return log_starts of a new listing.

        Raises: StorageError.
        """
        with self._lock:
            self._check_open()
            self._log.refresh()
        return self.log_starts()

    def log_files(self) -> list[tuple[str, int, int]]:
        """Return path, physical offset of the first byte and length of every log file, as of the last listing.

        Raises: StorageError.
        """
        with self._lock:
            self._check_open()
            return [(f.path, f.start_offset, self._door.file_size(f.path)) for f in self._log.files]

    def release_files(self) -> None:
        """Close all open files, so that removed files free their space; files are opened again when needed."""
        with self._lock:
            self._files.clear()

    # --- queues ------------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return every topic with a queue, sorted, including light queues."""
        with self._lock:
            self._check_open()
            return sorted({topic for topic, _ in self._queues})

    @on_files_that_are_there
    def queues(self) -> list[QueueRange]:
        """Return every queue with its bounds, sorted."""
        with self._lock:
            self._check_open()
            ranges = []
            for key in sorted(self._queues):
                queue = self._queues[key]
                ranges.append(QueueRange(*key, *self._bounds(queue, *self._span(queue))))
            return ranges

    @on_files_that_are_there
    def queue_end(self, topic: str, queue_id: int) -> tuple[QueueRange, int] | None:
        """Return a queue with its current bounds, and the physical offset behind its last record (0 for none); None for
        an unknown queue. Lists the files of this queue only.

        Raises: CorruptFile, StorageError.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            if queue is None:
                return None
            for file in queue.stream.files:
                self._files.forget(file.path)
            queue.refresh()
            begin, end = self._span(queue)
            last = queue.unit(end - queue.unit_bytes) if end > queue.stream.begin else None
            behind = last.physical_offset + last.size if last is not None and not last.is_filler else 0
            return QueueRange(topic, queue_id, *self._bounds(queue, begin, end)), behind

    def _queue(self, topic: str, queue_id: int) -> UnitQueue | None:
        self._check_open()
        if not isinstance(topic, str):
            raise UsageError(f"topic: expected str, found {type(topic).__name__}")
        check_numbers(queue_id=queue_id)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            # A single check of the disk, so that a reader that follows a writer needs no refresh for an awaited queue.
            fits = queue_id >= 0 and is_topic_name(topic)
            bases = (self.paths.consume_queue, self.paths.batch_consume_queue)
            if fits and any(self._door.is_dir(queue_dir(base, topic, queue_id)) for base in bases):
                self._list_queues()
                queue = self._queues.get((topic, queue_id))
        return queue

    @on_files_that_are_there
    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message still in the log; max_offset without a message, 0
        without queue.
        """
        with self._lock:
            queue = self._queue(topic, queue_id)
            return self._bounds(queue, *self._span(queue))[0] if queue is not None else 0

    @on_files_that_are_there
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last message; 0 without queue."""
        with self._lock:
            queue = self._queue(topic, queue_id)
            return self._bounds(queue, *self._span(queue))[1] if queue is not None else 0

    def _span(self, queue: UnitQueue) -> tuple[int, int]:
        """Return the positions of the first unit with an existing record and behind the last such unit.

        Ends even if retention is faster than this thread: each attempt begins with a later file.
        """
        while True:
            first = queue.stream.files[:1]
            try:
                end = self._end(queue)
                return self._begin(queue, end), end
            except (CorruptFile, StoreNotFound):
                self._log.refresh()
                queue.refresh()
                if queue.stream.files[:1] in ([], first):
                    raise

    def _end(self, queue: UnitQueue) -> int:
        """Return the position behind the last unit with an existing record."""
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

    def _begin(self, queue: UnitQueue, end: int) -> int:
        """Return the position of the first unit that is no filler and whose record was not removed; ``end`` without
        such a unit.
        """
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

    def _bounds(self, queue: UnitQueue, begin: int, end: int) -> tuple[int, int]:
        if not queue.is_batch:
            return begin // UNIT_BYTES, end // UNIT_BYTES
        if end <= queue.stream.begin:
            return 0, 0
        last = queue.unit(end - BATCH_UNIT_BYTES)
        max_offset = last.queue_offset + last.messages
        return (queue.unit(begin).queue_offset if begin < end else max_offset), max_offset

    def _position(self, queue: UnitQueue, offset: int, begin: int, end: int) -> int:
        """Return the position of the unit that holds a queue offset within the bounds."""
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

    def _is_whole(self, unit: Unit) -> bool:
        file = self._log_file(unit.physical_offset)
        return file is not None and not isinstance(file.record(unit.physical_offset, unit.size), str)

    def _misplaced(self, queue: UnitQueue, unit: Unit, message: StoredMessage) -> str | None:
        """Return the reason why the record that a unit points at does not belong there; None if it does."""
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
        places = _ReaderPlaces(queue, self._log.begin, self._log_file)
        if may_stand(place, claimed, unit.physical_offset, places):
            return None
        return f"one that claims queue offset {claimed}"


class _ReaderPlaces:
    """The units of a reader's queue, for the rule of placement.py."""

    def __init__(self, queue: UnitQueue, log_begin: int, log_file: Callable[[int], PreadFile | None]) -> None:
        self._queue = queue
        self._log_begin = log_begin
        self._log_file = log_file

    @property
    def first(self) -> int:
        return self._queue.stream.begin // UNIT_BYTES

    @property
    def end(self) -> int:
        return self._queue.end() // UNIT_BYTES

    def physical_at(self, place: int) -> int:
        return self._queue.unit(place * UNIT_BYTES).physical_offset

    def claim_at(self, place: int) -> int | None:
        unit = self._queue.unit(place * UNIT_BYTES)
        file = self._log_file(unit.physical_offset)
        message = "" if file is None else file.record(unit.physical_offset, unit.size)
        return None if isinstance(message, str) else message.offset_in(self._queue.topic, self._queue.queue_id)

    def first_is_gone(self) -> bool:
        oldest = self._queue.unit(self._queue.stream.begin)
        return oldest.is_filler or oldest.physical_offset < self._log_begin


def check_is_store(os_api: OsApi, paths: StorePaths) -> None:
    """Raise StoreNotFound for a path that is no store.

    The store of a writer without puts has no directory for its log; a store with queues but no log has the log
    elsewhere.

    Raises: StoreNotFound, StorageError.
    """
    for directory in paths.commit_logs:
        if os_api.is_dir(directory):
            continue
        queues = any(list_queues(os_api, base) for base in (paths.consume_queue, paths.batch_consume_queue))
        if queues or not (os_api.exists(paths.lock) or os_api.exists(paths.abort)):
            raise StoreNotFound(errno.ENOENT, "no store here: expected the directory of its log", directory)
