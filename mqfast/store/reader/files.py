"""The files of a StoreReader: sequences of files named by start offset, and the units of a queue in these files.

Everything is read by pread through the OS API and by the current length of a file. No file is written, locked or
mapped, and ``scan.pyx`` checks every unit. Formats: ``FORMAT.md``.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from mqfast.errors import CorruptFile, StoreNotFound
from mqfast.store.base.os_api import OsApi, encode_path
from mqfast.store.base.paths import OffsetFile, list_offset_files, queue_dir
from mqfast.store.reader.scan import ExtFiles, PreadFile

__all__ = [
    "BATCH_UNIT_BYTES", "UNITS_AT_ONCE", "UNIT_BYTES", "FileStream", "OpenFiles", "Unit", "UnitQueue"
]  # fmt: skip

UNIT_BYTES: Final = 20
BATCH_UNIT_BYTES: Final = 46
FILLER_SIZE: Final = 0x7FFFFFFF
UNITS_AT_ONCE: Final = 1638
# Beyond this many open files the least recently used file is closed.
_OPEN_FILES: Final = 128
_LEAST_TAGS_CODE: Final = -(2**31)
_UNIT: Final = struct.Struct(">qiq")
_BATCH_UNIT: Final = struct.Struct(">qiqqqh8x")


class Unit(NamedTuple):
    """A unit of a queue; ``messages`` is above 1 only in batch queues."""

    physical_offset: int
    size: int
    tags_code: int
    queue_offset: int
    messages: int

    @property
    def is_filler(self) -> bool:
        """True if the unit only fills the space below the first message of a queue that began above 0."""
        return self.physical_offset == 0 and self.size == FILLER_SIZE


class OpenFiles:
    """The open files of a reader; the least recently used is closed first."""

    def __init__(self, os_api: OsApi) -> None:
        self._door = os_api
        self._files: OrderedDict[str, PreadFile] = OrderedDict()
        self.changes = 0
        """Number of times that a directory had other files than at its previous listing."""

    def get(self, file: OffsetFile) -> PreadFile:
        file_opened = self._files.get(file.path)
        if file_opened is None:
            file_opened = PreadFile(self._door, file.path, file.start_offset)
            self._files[file.path] = file_opened
            if len(self._files) > _OPEN_FILES:
                # Not closed explicitly: a scan or an extension may still read the file.
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(file.path)
        return file_opened

    def forget(self, path: str) -> None:
        self._files.pop(path, None)

    def clear(self) -> None:
        self._files.clear()


class FileStream:
    """A sequence of files named by start offset: the log, a queue, or an extension.

    Args: ``unit_bytes``: a file ends behind its last whole unit, whatever start offset the next file's name has; the
        offsets of the stream count whole units only.
    """

    def __init__(self, os_api: OsApi, directories: Sequence[str], files: OpenFiles, unit_bytes: int = 1) -> None:
        self._door = os_api
        self._unit_bytes = unit_bytes
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
        if self._unit_bytes > 1 and (size := self._length(files)):
            rest = size % self._unit_bytes
            files = [OffsetFile(start - start // size * rest, path) for start, path in files]
        if files == self.files:
            return
        for file in set(self.files).difference(files):
            self._open.forget(file.path)
        self._open.changes += 1
        self.files = files
        self.starts = [file.start_offset for file in files]

    def _length(self, files: Sequence[OffsetFile]) -> int:
        """Return the common length of the files, from the first file that still exists; 0 without a file."""
        for file in files:
            with contextlib.suppress(StoreNotFound):
                return self._door.file_size(file.path)
        return 0

    def open(self, i: int) -> PreadFile:
        """Return the i-th file, with its present length."""
        return self._open.get(self.files[i])

    def find(self, offset: int) -> int:
        """Return the number of the file that holds a stream offset, -1 for none."""
        i = bisect_right(self.starts, offset) - 1
        if i < 0:
            return -1
        file = self.open(i)
        if offset >= file.end:
            # The file may have been created at the time of the open.
            file.length()
        return i if offset < file.end else -1

    @property
    def begin(self) -> int:
        """Stream offset of the first file, 0 without a file."""
        return self.starts[0] if self.starts else 0


class UnitQueue:
    """The units of a queue, read by position: a byte of the queue's stream."""

    def __init__(
        self, os_api: OsApi, base: str, topic: str, queue_id: int, ext_base: str | None, batch: bool, files: OpenFiles
    ) -> None:
        directory = queue_dir(base, topic, queue_id)
        ext_directory = queue_dir(ext_base, topic, queue_id) if ext_base is not None else None
        self.directory = directory
        self.topic = encode_path(topic)
        self.queue_id = queue_id
        self.unit_bytes = BATCH_UNIT_BYTES if batch else UNIT_BYTES
        self.is_batch = batch
        # RocketMQ lets no unit of a batch queue cross two files, whatever the file length.
        self.stream = FileStream(os_api, (directory,), files, BATCH_UNIT_BYTES if batch else 1)
        self.ext = FileStream(os_api, (ext_directory,), files) if ext_directory is not None else None
        self._end = -1
        self._seen = (0, b"")
        self._ext_files: ExtFiles | None = None
        self.whole_end = -1
        """Position up to which the last record was seen to be whole."""
        self.found_begin = (-1, -1, -1)
        """First byte of the log, first byte of the queue, and the first position that results."""

    def refresh(self) -> None:
        """List the files again. Known positions stay while their file and its units exist: a topic that was deleted and
        created again has files of the same names.
        """
        self.stream.refresh()
        if self.ext is not None:
            self.ext.refresh()
            self._ext_files = None
        self.whole_end = -1
        position, unit = self._seen
        if not self.stream.files or self._end < self.stream.begin or unit != self._bytes_before(position, len(unit)):
            self._end = -1
            self.found_begin = (-1, -1, -1)
        self._seen = (self._end, self._bytes_before(self._end, self.unit_bytes))

    def _bytes_before(self, position: int, n: int) -> bytes:
        """Return the last ``n`` bytes before a known end position; empty if they no longer exist."""
        with contextlib.suppress(CorruptFile, StoreNotFound):
            i = bisect_right(self.stream.starts, position - 1) - 1
            if n > 0 and i >= 0 and position > self.stream.begin:
                file = self.stream.open(i)
                return file.read(position - n - file.start, n) if position <= file.start + file.length() else b""
        return b""

    def end(self) -> int:
        """Return the position behind the last valid unit, searched from the third-last file on, as recovery does."""
        if not self.stream.files:
            self.stream.refresh()  # the directory may have been listed before its first file was made
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
            if self.stream.starts[i + 1] != self._end:
                return self._end
            i += 1

    def units(self, position: int, end: int, limit: int = UNITS_AT_ONCE) -> list[Unit]:
        """Return the units from a position on, at most ``limit`` and never across files."""
        i = self.stream.find(position)
        if i < 0:
            return []
        file = self.stream.open(i)
        n = min(limit * self.unit_bytes, end - position, file.end - position)
        n -= n % self.unit_bytes
        data = file.read(position - file.start, n)
        ext = self.ext
        if self.is_batch:
            return [Unit(p, size, tags, base, n) for p, size, tags, _, base, n in _BATCH_UNIT.iter_unpack(data)]
        first = position // UNIT_BYTES
        return [
            Unit(physical, size, tags if ext is None or tags >= _LEAST_TAGS_CODE else self._tags_code(ext, tags), i, 1)
            for i, (physical, size, tags) in enumerate(_UNIT.iter_unpack(data), first)
        ]

    def unit(self, position: int) -> Unit:
        """Return the unit at a known position.

        Raises: CorruptFile if the unit no longer exists.
        """
        for unit in self.units(position, position + self.unit_bytes, 1):
            return unit
        raise CorruptFile("the queue has lost a unit", path=self.directory, offset=position)

    def _tags_code(self, ext: FileStream, value: int) -> int:
        if self._ext_files is None:
            self._ext_files = ExtFiles([ext.open(i) for i in range(len(ext.files))])
        code = self._ext_files.tags_code(value)
        if code == value:
            # The writer may have created a file since.
            before = len(ext.files)
            ext.refresh()
            if len(ext.files) != before:
                self._ext_files = ExtFiles([ext.open(i) for i in range(len(ext.files))])
                code = self._ext_files.tags_code(value)
        return code
