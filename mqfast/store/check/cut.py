"""Completion of a truncation of a slave's log that a crash interrupted. Runs before the log is loaded.

A log that another writer has appended to is never cut: the note of the cut holds the bytes behind the cut, and the
log must still hold these bytes, or zeros. ``raw_log.py`` begins a cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.base.paths import list_offset_files
from mqfast.store.reader.scan import PreadFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.store.base.os_api import OsApi
    from mqfast.store.log.commit_log import CommitLog
    from mqfast.store.meta.notes import StoreNotes

__all__ = ["finish_cut", "record_head"]

HEAD_BYTES: Final = 64  # includes the physical offset, the queue offset and both times


def record_head(log: CommitLog, offset: int) -> bytes:
    """Return the first bytes of the record at a physical offset of an open log."""
    file = log.find_file(offset)
    return b"" if file is None else _head(log.os_api, file.path, offset - file.start_offset)


def finish_cut(
    os_api: OsApi, directory: str, file_bytes: int, notes: StoreNotes, warn: Callable[[str], None]
) -> int | None:
    """Finish the noted cut, if any, before the log is loaded. Returns: the end of the log after the cut, or None.

    Raises: StorageError; the next open tries again.
    """
    cut = notes.cut
    if cut is None:
        return None
    offset, head = cut
    files = list_offset_files(os_api, directory)[0]
    holder = next((file for file in files if file.start_offset <= offset < file.start_offset + file_bytes), None)
    if holder is not None and not _is_same(os_api, holder.path, offset - holder.start_offset, head):
        warn(f"a cut of the log at physical offset {offset} was left out: other records stand there now")
    elif holder is not None:
        first = files[0].start_offset
        for start, path in reversed(files):
            if start >= offset and start != first:
                os_api.unlink(path)
                os_api.fsync_dir(directory)  # once per file: a crash in between must not leave a gap
        if (holder.start_offset < offset or holder.start_offset == first) and os_api.file_size(
            holder.path
        ) == file_bytes:
            file = MappedFile.load(os_api, holder.path, holder.start_offset, file_bytes)
            file.zero_tail(offset - holder.start_offset)
            file.drop()
            os_api.overwrite(
                holder.path, b"\0", offset - holder.start_offset, create=False
            )  # also syncs the cleared bytes
    notes.forget_cut()
    return offset


def _head(os_api: OsApi, path: str, position: int) -> bytes:
    file = PreadFile(os_api, path)
    try:
        return file.read(position, HEAD_BYTES, whole=False)
    finally:
        file.close()


def _is_same(os_api: OsApi, path: str, position: int, head: bytes) -> bool:
    stored = _head(os_api, path, position)
    return stored == head or not any(stored)
