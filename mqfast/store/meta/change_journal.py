"""ChangeJournal: changes of a table that are on disk before the file of the table is replaced, in ``<file>.changes``.

RocketMQ replaces the whole file for each change, which takes longer with each topic. A record here names the content
of the file to which the changes behind the record apply, so that changes never apply to a file of another program.
Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from mqfast.errors import CorruptFile, StorageError, StoreNotFound
from mqfast.store.base.paths import OsFiles
from mqfast.util import fastjson

__all__ = ["ChangeJournal", "JournalContent", "TableChange"]

_HEAD: Final = re.compile(rb"([0-9a-f]{8}) ([0-9]{1,9})\n")
_NO_CONTENT: Final = (0, 0)


class TableChange(NamedTuple):
    """A change of one entry. ``value``: None for a deletion; ``version``: the data version of the table after it."""

    name: str
    value: dict[Any, Any] | None
    is_new: bool
    version: dict[str, int]


class JournalContent(NamedTuple):
    """``changes``: to make in this order; ``unknown``: names of changes that cannot be made."""

    changes: list[TableChange]
    unknown: list[str]


class ChangeJournal:
    """The journal of one file. Thread: the caller serialises all calls.

    Attributes: ``bytes``: size of the valid records; ``exists``: True if the journal may have changes.
    """

    def __init__(self, os_api: OsFiles, path: str) -> None:
        self.path: Final = path + ".changes"
        self.bytes = 0
        self.exists = False
        self._os_api: Final = os_api

    def read(self, content: bytes | None) -> JournalContent:
        """Return the changes that the file lacks. Args: content: of the file, None for a missing file.

        A record that a power cut has left incomplete ends the journal. Raises: StorageError.
        """
        self.bytes, self.exists = 0, False
        try:
            data = self._os_api.read_file(self.path, max_bytes=fastjson.MAX_FILE_BYTES)
        except StoreNotFound:
            return JournalContent([], [])
        self.exists = True
        identity = _identity(content)
        is_known = False
        changes: list[TableChange] = []
        for end, record in _records(data):
            if isinstance(record, TableChange):
                changes.append(record)
            elif record == identity:
                changes, is_known = [], True
            self.bytes = end
        if is_known:
            return JournalContent(changes, [])
        last = {change.name: change for change in changes}
        created = {change.name for change in changes if change.is_new}
        new = [last[name]._replace(is_new=True) for name in last if name in created and last[name].value is not None]
        return JournalContent(new, sorted(last.keys() - created))

    def append(self, base: bytes, changes: Sequence[TableChange]) -> None:
        """Append changes. Args: base: content of the file that an empty journal is for.

        Raises: StorageError; the changes may be on disk then. Durability: when the call returns, the changes survive
        power loss.
        """
        records = [_record({"change": change._asdict()}) for change in changes]
        if not self.bytes:
            self._os_api.unlink(self.path, missing_ok=True)
            records.insert(0, _content_record(base))
        self.exists = True
        data = b"".join(records)
        self._os_api.overwrite(self.path, data, self.bytes)
        if not self.bytes:
            self._os_api.fsync_dir(self.path.rpartition("/")[0] or ".")
        self.bytes += len(data)

    def note_content(self, content: bytes) -> None:
        """Note the content that is about to replace the file and has all changes so far."""
        if not self.bytes:
            return
        data = _content_record(content)
        try:
            self._os_api.overwrite(self.path, data, self.bytes)
        except StorageError:
            return  # without the record a kill between the two files is reported as another program's file
        self.bytes += len(data)

    def discard(self) -> None:
        """Remove the journal, whose changes are in the file. Raises: StorageError."""
        if self.exists:
            self._os_api.unlink(self.path, missing_ok=True)
        self.bytes, self.exists = 0, False


def _identity(content: bytes | None) -> tuple[int, int]:
    return _NO_CONTENT if content is None else (len(content), zlib.crc32(content))


def _content_record(content: bytes) -> bytes:
    size, crc = _identity(content)
    return _record({"content": {"bytes": size, "crc32": crc}})


def _record(value: dict[str, Any]) -> bytes:
    text = fastjson.dumps(value)
    return b"%08x %d\n%s\n" % (zlib.crc32(text), len(text), text)


def _records(data: bytes) -> Iterator[tuple[int, TableChange | tuple[int, int]]]:
    """Yield each whole record with its end: a change, or the size and CRC of a content."""
    at = 0
    while (head := _HEAD.match(data, at)) is not None:
        text = data[head.end() : head.end() + int(head[2])]
        at = head.end() + len(text) + 1
        if len(text) != int(head[2]) or data[at - 1 : at] != b"\n" or zlib.crc32(text) != int(head[1], 16):
            return
        try:
            value = fastjson.loads(text)
            if (content := value.get("content")) is not None:
                yield at, (content["bytes"], content["crc32"])
            else:
                yield at, TableChange(**value["change"])
        except (CorruptFile, KeyError, TypeError):
            return
