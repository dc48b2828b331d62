"""A cut of a slave's log that a crash interrupted: the next open goes on with it before it looks at the log.

It must never cut a log that somebody else went on with: what stood behind the cut is noted with it, and the bytes there
must still be those, or zeros. Where the cut begins: raw_log.py.
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

HEAD_BYTES: Final = 64  # physical offset, queue offset, and both times are in it


def record_head(log: CommitLog, offset: int) -> bytes:
    """The first bytes of what stands at a physical offset of an open log."""
    file = log.find_file(offset)
    return b"" if file is None else _head(log.os_api, file.path, offset - file.start_offset)


def finish_cut(
    os_api: OsApi, directory: str, file_bytes: int, notes: StoreNotes, warn: Callable[[str], None]
) -> int | None:
    """Finish the cut that is noted, if there is one; returns where the log ends then. Before the log is loaded.

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
                os_api.fsync_dir(directory)  # one by one: a crash in between must not leave a gap
        if (holder.start_offset < offset or holder.start_offset == first) and os_api.file_size(
            holder.path
        ) == file_bytes:
            file = MappedFile.load(os_api, holder.path, holder.start_offset, file_bytes)
            file.zero_tail(offset - holder.start_offset)
            file.drop()
            os_api.overwrite(
                holder.path, b"\0", offset - holder.start_offset, create=False
            )  # and syncs what was cleared
    notes.forget_cut()
    return offset


def _head(os_api: OsApi, path: str, position: int) -> bytes:
    file = PreadFile(os_api, path)
    try:
        return file.read(position, HEAD_BYTES, whole=False)
    finally:
        file.close()


def _is_same(os_api: OsApi, path: str, position: int, head: bytes) -> bool:
    found = _head(os_api, path, position)
    return found == head or not any(found)
