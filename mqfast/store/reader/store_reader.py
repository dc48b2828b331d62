"""StoreReader: any RocketMQ store, read-only, beside a live writer (Java or mqfast) or without a writer.

The reader takes no lock, starts no thread and writes nothing. All files are read by pread (``tail`` maps the current
log file) and checked: a foreign, damaged, shrinking or missing file raises an exception of ``mqfast.errors`` and
never crashes the process.

Beside a live writer the reader sees the page cache: a record as soon as its unit is in the queue and the whole record
is in the log. The reader may see messages that a sync-flushing writer does not yet show to its own readers, and that a
power cut may still remove. The reader does not see records that a writer with a transient store pool has not committed.
Queues and index lack records that the writer has not yet dispatched, which happens some milliseconds after the put, or
at the writer's next read; ``scan`` shows these records at once. The reader never waits for a writer. Retention may
remove a file between two calls; its messages count as removed, not as damaged. The lists of topics and queues are those
of the last ``refresh()``; a queue that is named is looked up in the directory.

A dead store shows the state on disk, without recovery: units with a torn record are cut off, records behind the
damage stay readable through their queues. File formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, overload

from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, OffsetError, UsageError
from mqfast.message import LMQ_PREFIX, decode_message_id, not_a_message_id
from mqfast.properties import TAG_KEY, split_keys
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import list_index_files
from mqfast.store.base.results import BoundaryType, GetMessageStatus
from mqfast.store.index.index_file import IndexFile, search
from mqfast.store.index.index_service import infer_index_sizes
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.meta.offsets import ConsumerOffsets
from mqfast.store.queues.batch_queue import crossed_bounds
from mqfast.store.queues.by_time import find_by_time
from mqfast.store.reader.bounds import QueueRange, check_numbers, on_files_that_are_there
from mqfast.store.reader.bulk import BulkReader
from mqfast.store.reader.files import BATCH_UNIT_BYTES, UNIT_BYTES, UNITS_AT_ONCE, Unit, UnitQueue
from mqfast.store.reader.scan import LogWalk, PreadFile
from mqfast.store.reader.tail import LogTail
from mqfast.store.record.filter import TagFilter, tag_filter
from mqfast.store.record.record import StoredMessage
from mqfast.util.deprecated import former_argument
from mqfast.util.validate import is_whole

__all__ = ["LogScan", "QueueRange", "ReadResult", "StoreReader"]

_END_OF_TIME: Final = 2**63 - 1


class ReadResult(Sequence[StoredMessage]):
    """The result of a get: status, next offset, bounds of the queue, and messages. Each message owns its bytes."""

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
        """Return all bodies, copied into bytes objects."""
        return [bytes(message.body) for message in self.messages]

    def __repr__(self) -> str:
        return f"<ReadResult {self.status.name} {len(self.messages)} messages, next_offset={self.next_offset}>"


class LogScan:
    """An iterator over the records of the log, in log order.

    Attributes: ``at`` (physical offset of the next record), ``reason`` (None during the iteration; then ``"limit"``,
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


class StoreReader(BulkReader):
    """A read-only view of the store at ``path``.

    Args: config: sizes of index files and log directories, used if the files do not contain them. commit_log: the log
        directory or directories, if the log is outside the store.
    Raises: StoreNotFound, StorageError.
    Thread: any; calls are serialised. Messages own their bytes and may be kept and passed to other threads.
    """

    @former_argument("door", "os_api")
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: StoreConfig | None = None,
        commit_log: str | Sequence[str] | None = None,
        max_hash_slot_num: int | None = None,
        max_index_num: int | None = None,
        os_api: OsApi | None = None,
    ) -> None:
        super().__init__(path, config, commit_log, os_api)
        self._slots = max_hash_slot_num or (config.max_hash_slot_num if config is not None else None)
        self._entries = max_index_num or (config.max_index_num if config is not None else None)
        self._index: tuple[IndexFile, ...] = ()
        self._index_names: list[str] = []

    def close(self) -> None:
        """Close all files. A second call has no effect; messages stay valid."""
        with self._lock:
            super().close()
            self._drop_index()

    def refresh(self) -> None:
        """List the directories again: new and removed files, topics and queues.

        Raises: StorageError.
        """
        with self._lock:
            super().refresh()
            self._drop_index()

    # --- along the log -----------------------------------------------------------------------------------------------

    def scan(self, from_offset: int | None = None, to_offset: int | None = None, check_crc: bool = True) -> LogScan:
        """Return all records of the log in order, from the record at ``from_offset`` (None: the first) up to
        ``to_offset``.

        The scan ends at the first byte that is no whole record; ``reason`` and ``at`` of the iterator give reason and
        offset.
        Messages of a block of 256 KiB share the block's memory.
        Raises: OffsetError if ``from_offset`` is below the log or within a record; StorageError.
        """
        check_numbers(
            from_offset=0 if from_offset is None else from_offset, to_offset=0 if to_offset is None else to_offset
        )
        with self._lock:
            self._check_open()
            self._log.refresh()
            start = self._log.begin if from_offset is None else from_offset
            if start < self._log.begin:
                raise OffsetError(f"physical offset: expected at least {self._log.begin}, found {start}")
            if from_offset is not None:
                self.check_boundary(from_offset)
            return LogScan(self, start, -1 if to_offset is None else to_offset, check_crc)

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

        Args: topic, queue_id, tags (``"A || B"``): filters, None for all. from_offset: physical offset of the first
            record, None for records that are written from now on. spin: poll without sleeping, which occupies a core
            and sees a message within 1 to 2 us. poll_interval_us: sleep between two polls otherwise; the kernel adds
            some 50 us.
        The tail maps the file that it follows and needs no ``refresh``.
        Raises: OffsetError if ``from_offset`` is below the log or within a record; CorruptFile, StorageError.
        """
        check_numbers(
            from_offset=0 if from_offset is None else from_offset, queue_id=0 if queue_id is None else queue_id
        )
        for what, text in (("topic", topic), ("tags", tags)):
            if not isinstance(text, str | None):
                raise UsageError(f"{what}: expected str or None, found {type(text).__name__}")
            try:
                (text or "").encode("utf-8")
            except UnicodeEncodeError:
                raise UsageError(f"{what}: expected text that has a UTF-8 form, found {text!r:.80}") from None
        with self._lock:
            self._check_open()
        if from_offset is not None:
            self.check_boundary(from_offset)
        position = self.log_range()[1] if from_offset is None else from_offset
        directories = (*self.paths.commit_logs, *self.paths.read_only_commit_logs)
        return LogTail(self._door, directories, position, topic, queue_id, tags, spin, poll_interval_us, check_crc)

    @on_files_that_are_there
    def look(self, place: int | str) -> StoredMessage:
        """Return ``get_by_offset``; the deprecated name."""
        warnings.warn("StoreReader.look is get_by_offset now", DeprecationWarning, stacklevel=3)
        return self.get_by_offset(place)

    def get_by_offset(self, place: int | str) -> StoredMessage:
        """Return the message at a physical offset, or of an offset message id.

        Use ``get`` for a queue offset, and ``query`` for a client's unique key, which has the form of a message id.
        Raises: OffsetError if no whole record begins there, also if bytes of a body look like a record; CorruptFile if
        the
            record does not agree with its checksum; StorageError.
        """
        with self._lock:
            self._check_open()
            if isinstance(place, str):
                physical = decode_message_id(place).physical_offset
                try:
                    return self._message_at(physical)
                except OffsetError as error:
                    raise OffsetError(f"{not_a_message_id(place)} ({error})") from None
            return self._message_at(_physical_offset(place))

    def _message_at(self, physical: int) -> StoredMessage:
        file = self._log_file(physical) if physical >= 0 else None
        if file is None:
            raise OffsetError(f"physical offset {physical}: not in the log of {self.paths.root}")
        result = file.record(physical)
        if result == "crc":
            raise CorruptFile("the content of the record does not agree with its CRC", path=file.path, offset=physical)
        if isinstance(result, str):
            raise OffsetError(
                f"physical offset {physical} (of the log; a queue offset is another number): "
                f"expected a record, found: {result}"
            )
        if not self._is_claimed(result):
            self._check_walked(file, physical)
        return result

    @property
    def earliest_message_time(self) -> int:
        """Store time of the first record of the log, ms since the epoch; -1 without a record."""
        with self._lock:
            self._check_open()
            file = self._log_file(self._log.begin) if self._log.files else None
            message = file.record(file.start) if file is not None else ""
            return -1 if isinstance(message, str) else message.store_timestamp

    # --- along a queue -----------------------------------------------------------------------------------------------

    @on_files_that_are_there
    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 128 << 20,
        tags: str | None = None,
    ) -> ReadResult:
        """Read messages of one queue from an offset on.

        Args: max_count: most messages. max_bytes: limit of record bytes; the first message is returned whatever its
            size. tags: ``"A || B"``, None or ``*`` for all. A message of a batch queue is a whole batch and counts as
            the number of its messages.
        Raises: CorruptFile if the message at the offset is damaged (messages before damage are returned first);
            StorageError.
        Source: DefaultMessageStore.getMessage.
        """
        wanted = tag_filter(tags)
        check_numbers(offset=offset, max_count=max_count, max_bytes=max_bytes)
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
            if queue.is_batch and first > last:
                raise crossed_bounds(topic, queue_id, first, last, queue.stream.files[0].path)
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
                    position += queue.unit_bytes  # a hole: continue behind it, as some unit reaches up to last
            self._collect(queue, position, end, result, max_count, max_bytes, wanted)
            return result

    def _collect(
        self,
        queue: UnitQueue,
        position: int,
        end: int,
        result: ReadResult,
        max_count: int,
        max_bytes: int,
        wanted: TagFilter | None,
    ) -> None:
        count = 0
        removed = False
        while position < end and count < max_count:
            limit = UNITS_AT_ONCE if wanted is not None else min(UNITS_AT_ONCE, max_count - count)
            units = queue.units(position, end, limit)
            if not units:
                if count == 0:
                    # As RocketMQ: continue in the next file, which may not exist yet.
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
                if following <= result.next_offset:  # a consumer would request the same offset for ever
                    if count:
                        return
                    raise CorruptFile(
                        f"the unit of queue offset {result.next_offset} does not lead on",
                        path=queue.stream.files[queue.stream.find(position - queue.unit_bytes)].path,
                        expected=f"a unit that ends behind offset {result.next_offset}",
                        found=f"one that ends at {following}",
                    )
                if unit.is_filler or (wanted is not None and not wanted.may_have(unit.tags_code)):
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
                if wanted is not None and not wanted.has(message.tags):
                    continue
                result.status = GetMessageStatus.FOUND
                result.messages.append(message)
                result.total_bytes += unit.size
                count += unit.messages
        if removed and not count:
            result.status = GetMessageStatus.MESSAGE_WAS_REMOVING

    def _message(self, queue: UnitQueue, unit: Unit) -> StoredMessage | None:
        """Return the record of a unit; None if it was removed with its file."""
        file = self._log_file(unit.physical_offset)
        if unit.physical_offset < self._log.begin:
            return None
        message: StoredMessage | str = "no such file in the log"
        if file is not None:
            message = file.record(unit.physical_offset, unit.size, unit.queue_offset)
        if not isinstance(message, str):
            why = self._misplaced(queue, unit, message)
            if why is None:
                return message
            message = why
        raise CorruptFile(
            f"unit {unit.queue_offset} of queue {queue.directory} does not point at its record",
            path=file.path if file is not None else self.paths.commit_logs[0],
            offset=unit.physical_offset,
            expected=f"a record of {unit.size} bytes",
            found=message,
        )

    def messages(self, topic: str, queue_id: int) -> Iterator[StoredMessage]:
        """Yield every message of a queue, oldest first, up to the end of the queue at the first call.

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

    @on_files_that_are_there
    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the queue offset for a store time (ms). LOWER: the first message at or after the time; UPPER: the last
        message at or before the time. The result is within [min_offset, max_offset]; the edge cases are RocketMQ's.

        Source: ConsumeQueueStore.getOffsetInQueueByTime, ConsumeQueue, BatchConsumeQueue.
        """
        check_numbers(timestamp=timestamp)
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

    def _store_time(self, unit: Unit) -> int:
        """Return the store time of the record that a unit points at, -1 for a missing record."""
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

    def _spans(self, queue: UnitQueue, end: int) -> list[tuple[int, int]]:
        """Return (position, end of data) of every file that holds units."""
        spans = []
        for i, start in enumerate(queue.stream.starts):
            if start < end:
                spans.append((start, min(queue.stream.open(i).end, end)))
        return spans

    def _by_time(self, queue: UnitQueue, begin: int, end: int, timestamp: int, boundary: BoundaryType) -> int:
        def stored_at(offset: int) -> int:
            unit = queue.unit(offset * UNIT_BYTES)
            return self._store_time(unit) if unit.physical_offset >= self._log.begin else -1

        return find_by_time(begin // UNIT_BYTES, end // UNIT_BYTES, timestamp, boundary, stored_at)

    def _batch_by_time(self, queue: UnitQueue, begin: int, end: int, timestamp: int, boundary: BoundaryType) -> int:
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
        shift, low, high = span[0], 0, (span[1] - span[0]) // size - 1
        if timestamp >= time_at(shift + high * size):
            return base_at(shift + high * size)
        # RocketMQ's own search, whose UPPER has no result without an exact match: the clamp makes that the minimum.
        while low <= high:
            middle = (low + high) // 2
            time = time_at(shift + middle * size)
            if middle == high:
                return base_at(shift + middle * size) if time >= timestamp else -1
            if middle == low:
                if time >= timestamp:
                    return base_at(shift + middle * size)
                low = middle + 1
            elif boundary == BoundaryType.LOWER:
                low, high = (middle + 1, high) if time < timestamp else (low, middle)
            else:
                low, high = (middle, high) if time <= timestamp else (low, middle - 1)
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
            # No file has an entry yet: the result is empty, whatever the sizes are.
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
        self,
        topic: str,
        key: str | None = None,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME,
        *,
        tag: str | None = None,
    ) -> list[StoredMessage]:
        """Return the newest ``max_count`` messages of a topic with this key (KEYS or unique key), or this tag, newest
        first.

        The same messages in the same order as MessageStore.query, as far as the index is written. Every hit of the
        index is compared with its message; hits whose record was removed are skipped.
        Args: key or tag, not both. tag: the whole text of the TAGS property; messages that a RocketMQ release before
            5.5 indexed are found by their keys only. begin_ms, end_ms: store times, both included.
        Raises: UsageError, CorruptFile, StorageError.
        Source: IndexService.queryOffset (index type T for tags).
        """
        if (key is None) == (tag is None):
            raise UsageError(f"query: expected a key or a tag, found {'neither' if key is None else 'both'}")
        for what, text in (("topic", topic), ("key", key) if tag is None else ("tag", tag)):
            if not isinstance(text, str):
                raise UsageError(f"{what}: expected str, found {type(text).__name__}")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise UsageError(f"{what}: expected text that has a UTF-8 form, found {text!r:.80}") from None
        check_numbers(max_count=max_count, begin_ms=begin_ms, end_ms=end_ms)
        wanted = f"{TAG_KEY}{tag}" if key is None else key
        with self._lock:
            self._check_open()
            files = self._index_files()
            ask = max(1, max_count) * 2 + 16
            # The index keeps whole seconds: its time of a message may be up to a second before the store time.
            begin = max(0, begin_ms - 1000)
            while True:
                hits = search(files, topic, wanted, begin, end_ms, ask)[0]
                messages: dict[int, StoredMessage] = {}
                for physical in dict.fromkeys(hits):
                    message = self._carrying(physical, topic, key, tag)
                    if message is not None and begin_ms <= message.store_timestamp <= end_ms:
                        messages[physical] = message
                if len(messages) >= max_count or len(hits) < ask:
                    # Dispatch may have run twice over a part of the log, so the index alone gives no order.
                    return [messages[physical] for physical in sorted(messages, reverse=True)[: max(0, max_count)]]
                ask *= 4

    def _carrying(self, physical: int, topic: str, key: str | None, tag: str | None) -> StoredMessage | None:
        file = self._log_file(physical)
        message = file.record(physical) if file is not None else ""
        if isinstance(message, str) or message.topic != topic:
            return None
        properties = message.properties
        if key is None:
            if properties.get("TAGS") != tag:
                return None
        elif properties.get("UNIQ_KEY") != key and key not in split_keys(properties.get("KEYS")):
            return None
        # An entry that outlived its record may point into another record's body.
        if self._is_claimed(message) or self._boundary(physical, physical + 1, -1) == physical:
            return message
        return None

    # --- small files -------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> StoreCheckpoint:
        """Return the content of the checkpoint file; do not flush it."""
        self._check_open()
        return StoreCheckpoint.load(self._door, self.paths.checkpoint)

    @property
    def is_dirty(self) -> bool:
        """True if a writer has the store open, or ended without closing it (the ``abort`` file exists)."""
        self._check_open()
        return self._door.exists(self.paths.abort)

    def consumer_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Return topic -> queue id -> next queue offset of a consumer group, as persisted.

        Raises: UsageError for another type than str; CorruptFile, StorageError.
        """
        self._check_open()
        given: object = group
        if not isinstance(given, str):
            raise UsageError(f"group: expected str, found {type(given).__name__}")
        light = group.startswith(LMQ_PREFIX) or not self._door.exists(self.paths.consumer_offset)
        if light and self._door.exists(self.paths.lmq_consumer_offset):
            return ConsumerOffsets.load(self._door, self.paths.lmq_consumer_offset, lmq=True).offsets(group)
        return ConsumerOffsets.load(self._door, self.paths.consumer_offset).offsets(group)

    def consumer_groups(self) -> list[str]:
        """Return every consumer group that has persisted offsets, sorted.

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


def _physical_offset(place: object) -> int:
    if not is_whole(place):
        raise OffsetError(f"look: expected a physical offset or a message id, found {place!r}")
    return place
