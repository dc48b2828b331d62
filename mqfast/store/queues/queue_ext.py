"""QueueExt: reads the extension units of a queue (RocketMQ: ConsumeQueueExt).

With ``enableConsumeQueueExt`` the tags code field of a queue unit holds an address. The extension unit at that address
has the tags code, the store time and a Bloom bitmap of the filters that match the message. mqfast reads such files and
truncates them with the queue, but writes no units. Lengths in the file are validated, and unknown bytes are never
cleared. Layout: FORMAT.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile
from mqfast.store.base import paths as _paths
from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.queues.unit_bytes import read_bytes

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi

__all__ = ["ExtUnit", "QueueExt", "is_address"]

_HEADER: Final = struct.Struct(">hqqh")
_LEAST: Final = -(2**63)
# Larger values are tags codes: those have 32 bits, so no tags code is that far below zero.
_MAX_ADDRESS: Final = -(2**31) - 1


def is_address(code: int) -> bool:
    """Return true if the third field of a queue unit is an address of the extension; otherwise the field is a tags
    code.
    """
    return _LEAST <= code <= _MAX_ADDRESS


class ExtUnit(NamedTuple):
    """The extension unit of a message."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes

    @property
    def size(self) -> int:
        """Length of the unit in the file, bytes."""
        return _HEADER.size + len(self.bitmap)


class QueueExt:
    """The extension of a queue.

    Thread: any thread may read during a truncation.
    """

    def __init__(self, os_api: OsApi, base: str, topic: str, queue_id: int, file_bytes: int) -> None:
        if file_bytes < _HEADER.size + 4:
            raise ValueError(f"file_bytes: expected {_HEADER.size + 4} or more, found {file_bytes}")
        self.os_api = os_api
        self.topic = topic
        self.queue_id = queue_id
        self.path = _paths.queue_dir(base, topic, queue_id)
        self.file_bytes = file_bytes
        self._files: list[MappedFile] = []  # replaced, never changed: a reader uses the list that it took
        self._end = 0  # byte behind the last unit

    @property
    def file_list(self) -> list[MappedFile]:
        """The files, oldest first."""
        return list(self._files)

    @property
    def min_address(self) -> int:
        """Address of the first byte in the files."""
        files = self._files
        return (files[0].start_offset if files else 0) + _LEAST

    @property
    def max_address(self) -> int:
        """Address behind the last unit."""
        return self._end + _LEAST

    # --- load, recover, truncate ---

    def load(self) -> None:
        """Load the files of the directory; units can be read at once, ``recover`` finds the end.

        Raises: CorruptFile for a file of another length or a gap between files.
        """
        segments = _paths.list_offset_files(self.os_api, self.path)[0]
        files: list[MappedFile] = []
        expected: int | None = None
        for number, (start, path) in enumerate(segments, 1):
            if number == len(segments) and self.os_api.file_size(path) == 0:
                continue  # created, but without its length
            if start % self.file_bytes or (expected is not None and start != expected):
                raise CorruptFile(
                    "queue extension file out of place",
                    path=path,
                    expected=expected if expected is not None else f"a multiple of {self.file_bytes}",
                    found=start,
                )
            files.append(MappedFile.load(self.os_api, path, start, self.file_bytes, False))
            expected = start + self.file_bytes
        self._files = files
        self._end = expected or 0

    def recover(self) -> None:
        """Find the end: the first size in the last file that is no unit's (in earlier files it ends that file only)."""
        if not self._files:
            return
        last = self._files[-1]
        self._end = last.start_offset + sum(unit.size for _, unit in self._walk(last))

    def _walk(self, file: MappedFile) -> Iterator[tuple[int, ExtUnit]]:
        position = 0
        while (unit := self._read(file, position, self.file_bytes)) is not None:
            yield position, unit
            position += unit.size

    def units(self) -> Iterator[tuple[int, ExtUnit]]:
        """Yield every unit with the address, oldest first (verify, dump)."""
        for file in self._files:
            for position, unit in self._walk(file):
                if file.start_offset + position < self._end:
                    yield file.start_offset + position + _LEAST, unit

    def truncate(self, max_address: int) -> None:
        """Truncate the extension behind the unit of this address, the largest that the queue still holds.

        No effect without a unit there. Whole files behind the end are removed; other bytes behind the end stay, as in
        RocketMQ.
        """
        unit = self.get(max_address)
        if unit is None:
            return
        self._end = end = max_address - _LEAST + unit.size
        self._remove_files([file for file in self._files if file.start_offset > end])

    def _remove_files(self, removed: list[MappedFile]) -> None:
        self._files = [file for file in self._files if file not in removed]
        for file in removed:
            file.destroy()
        if removed:
            self.os_api.fsync_dir(self.path)

    # --- read ---

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit of an address; None for a tags code, a removed file, or an incomplete unit."""
        if not is_address(address):
            return None
        offset = address - _LEAST
        files = self._files
        if not files or not files[0].start_offset <= offset < self._end:
            return None
        index, position = divmod(offset - files[0].start_offset, self.file_bytes)
        if index >= len(files):
            return None
        return self._read(files[index], position, min(self.file_bytes, self._end - files[index].start_offset))

    def _read(self, file: MappedFile, position: int, limit: int) -> ExtUnit | None:
        if position + _HEADER.size > limit:
            return None
        size, tags_code, store_timestamp, bitmap_bytes = _HEADER.unpack(read_bytes(file, position, _HEADER.size))
        if size < _HEADER.size or position + size > limit or bitmap_bytes != size - _HEADER.size:
            return None
        return ExtUnit(tags_code, store_timestamp, read_bytes(file, position + _HEADER.size, bitmap_bytes))

    # --- close ---

    def unmap_idle(self) -> None:
        """Unmap files without holds; the next use maps them again."""
        for file in self._files:
            file.unmap_idle()

    def close(self) -> None:
        """Unmap the files; the extension is empty from then on."""
        files, self._files = self._files, []
        self._end = 0
        for file in files:
            file.drop()

    def destroy(self) -> None:
        """Remove all files and the directory."""
        files = self._files
        self.close()
        for file in files:
            self.os_api.unlink(file.path, missing_ok=True)
        if self.os_api.is_dir(self.path) and not self.os_api.listdir(self.path):
            self.os_api.rmdir(self.path)
            self.os_api.fsync_dir(os.path.dirname(self.path))

    def __repr__(self) -> str:
        return f"<QueueExt {self.topic}/{self.queue_id} {len(self._files)} files>"
