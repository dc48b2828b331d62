"""The folders ``repair-<time>``: recovery and repair copy records into them before the records are removed from the
log.

A folder holds ``commitlog/<20 digits>`` (a whole file that was moved), ``commitlog/<20 digits>.from-<position>`` (the
end of a file that was truncated), other files that repair moved, and ``kept.json``, the list of the whole records.
All of this is durable before the log is changed, and only ``salvaged.json`` is written afterwards.
Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import CorruptFile, DiskFull, MqfastError, StorageError, StoreNotFound
from mqfast.store.base.paths import OffsetFile
from mqfast.store.check.boundaries import Behind, Damaged, Stretch, look_behind
from mqfast.store.reader.scan import PreadFile, RecordPositions

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi

__all__ = ["KeptRecordsWriter", "KeptFolder", "kept_folders", "new_folder", "no_room"]

_CHUNK_BYTES: Final = 8 << 20
_LIST: Final = "kept.json"
_SALVAGED: Final = "salvaged.json"
_PREFIX: Final = "repair-"


def new_folder(os_api: OsApi, root: str) -> str:
    """Return an unused name for a folder."""
    path = os.path.join(root, time.strftime(_PREFIX + "%Y%m%d-%H%M%S", time.gmtime(os_api.now_ms() // 1000)))
    while os_api.exists(path):
        path += "+"
    return path


def copy_start(os_api: OsApi, path: str, size: int) -> None:
    """Replace a file by a copy of its first ``size`` bytes.

    Durability: a crash leaves the old file or the copy, whole. Raises: DiskFull, StorageError; the file is then
    unchanged.
    """
    temporary = path + ".tmp"
    file = PreadFile(os_api, path, 0, size)
    try:
        os_api.write_file(temporary, b"")
        for at in range(0, size, _CHUNK_BYTES):
            os_api.overwrite(temporary, file.read(at, min(_CHUNK_BYTES, size - at)), at)
        os_api.rename(temporary, path)
        os_api.fsync_dir(os.path.dirname(path))
    except BaseException:
        with contextlib.suppress(MqfastError):
            os_api.unlink(temporary, missing_ok=True)
        raise
    finally:
        file.close()


class KeptRecordsWriter:
    """Writer of one folder. ``copy_rest`` and ``write_list`` do not change the log."""

    def __init__(self, os_api: OsApi, folder: str) -> None:
        self.folder: Final = folder
        self._os_api: Final = os_api
        self._directory: Final = os.path.join(folder, "commitlog")

    def copy_rest(self, path: str, position: int) -> list[tuple[int, int]]:
        """Copy a log file from a position on. Returns: the nonzero parts as (position, bytes).

        Durability: synced when the call returns. Raises: DiskFull, StorageError.
        """
        os_api = self._os_api
        target = self.rest_name(path, position)
        file = PreadFile(os_api, path)
        os_api.makedirs(self._directory)
        temporary = target + ".tmp"
        filled = []
        try:
            os_api.write_file(temporary, b"")
            for at in range(position, file.bytes, _CHUNK_BYTES):
                data = file.read(at, min(_CHUNK_BYTES, file.bytes - at))
                if data.strip(b"\0"):
                    os_api.overwrite(temporary, data.rstrip(b"\0"), at - position)
                    filled.append((at, len(data)))
            if position < file.bytes:
                # Zeros at the end of the part may belong to a record.
                last = file.bytes - position - 1
                os_api.overwrite(temporary, file.read(file.bytes - 1, 1), last)
            os_api.rename(temporary, target)
            os_api.fsync_dir(self._directory)
        except BaseException:
            with contextlib.suppress(MqfastError):
                os_api.unlink(temporary, missing_ok=True)
            raise
        finally:
            file.close()
        return filled

    def give_up(self) -> None:
        """Remove the folder if it is empty, after a copy that failed."""
        with contextlib.suppress(MqfastError):
            self._os_api.rmdir(self._directory)
            self._os_api.rmdir(self.folder)

    def rest_name(self, path: str, position: int) -> str:
        """Return the path of the copy that ``copy_rest`` makes."""
        return os.path.join(self._directory, f"{os.path.basename(path)}.from-{position}")

    def whole_name(self, path: str) -> str:
        """Return the path to which ``keep_file`` moves the file."""
        return os.path.join(self._directory, os.path.basename(path))

    def keep_file(self, path: str, also_empty: bool = False) -> None:
        """Move a whole log file into the folder, or copy the file from another file system. An empty file stays in the
        log,
        unless ``also_empty``.
        """
        os_api = self._os_api
        file = PreadFile(os_api, path)
        holds_something = file.first_set_byte(0) >= 0
        file.close()
        if not holds_something and not also_empty:
            return
        os_api.makedirs(self._directory)
        target = self.whole_name(path)
        try:
            os_api.rename(path, target)
        except StorageError as error:
            if error.errno != errno.EXDEV:
                raise
            self.copy_rest(path, 0)
            os_api.rename(self.rest_name(path, 0), target)
            os_api.unlink(path)
        os_api.fsync_dir(self._directory)
        os_api.fsync_dir(os.path.dirname(path))

    def write_list(self, behind: Behind, *, cut_at: int, reason: str, floors: dict[str, int]) -> None:
        """Write the list of the kept whole records. Durability: synced when the call returns."""
        value = {
            "cutAt": cut_at,
            "reason": reason,
            "records": [[*stretch[:3], stretch.by_scan] for stretch in behind.stretches],
            "damaged": [list(damaged) for damaged in behind.damaged],
            "deletedTopics": floors,
        }
        self._os_api.makedirs(self.folder)
        self._os_api.replace_file(os.path.join(self.folder, _LIST), json.dumps(value, indent=1).encode())


@dataclass
class KeptFolder:
    """A folder with parts of a log."""

    path: str
    files: list[OffsetFile]
    """The files, each with the physical offset of its first byte."""
    behind: Behind = field(default_factory=Behind)
    floors: dict[str, int] = field(default_factory=dict)
    salvaged: dict[str, Any] = field(default_factory=dict)
    """The note of salvage: ``beganAt`` (physical offset), ``done``, ``records``."""

    @property
    def is_salvaged(self) -> bool:
        """True if salvage has put the records back into the log."""
        return self.salvaged.get("done") is True

    def note_salvage(self, os_api: OsApi, began_at: int, *, done: bool, records: int) -> None:
        """Write the note of salvage. Durability: synced when the call returns."""
        self.salvaged = {"beganAt": began_at, "done": done, "records": records}
        os_api.replace_file(os.path.join(self.path, _SALVAGED), json.dumps(self.salvaged).encode())

    def __str__(self) -> str:
        records = self.behind.records
        scanned = f", {self.behind.by_scan} of them found by a scan" if self.behind.by_scan else ""
        back = "put back already" if self.is_salvaged else "not put back"
        return f"{records} whole records{scanned}, {back}"


def kept_folders(os_api: OsApi, root: str, *more: str) -> list[KeptFolder]:
    """Return the folders of a store that hold parts of its log, oldest first. Raises: StorageError."""
    names = [os.path.join(root, name) for name in os_api.listdir(root) if name.startswith(_PREFIX)]
    folders = []
    for path in [*names, *(path for path in more if path not in names)]:
        directory = os.path.join(path, "commitlog")
        if not os_api.is_dir(directory):
            continue
        files = sorted(filter(None, (_kept_file(directory, name) for name in os_api.listdir(directory))))
        if files:
            folders.append(_load(os_api, KeptFolder(path, files)))
    return folders


def _kept_file(directory: str, name: str) -> OffsetFile | None:
    start, mark, position = name.partition(".from-")
    digits = len(start) == 20 and start.isascii() and start.isdigit()
    if not digits or (mark and not (position.isascii() and position.isdigit())):
        return None
    return OffsetFile(int(start) + (int(position) if mark else 0), os.path.join(directory, name))


def _json(os_api: OsApi, path: str) -> dict[str, Any]:
    try:
        value = json.loads(os_api.read_file(path))
    except StoreNotFound:
        return {}
    except ValueError:
        raise CorruptFile("JSON is damaged", path=path, expected="an object", found="something else") from None
    if not isinstance(value, dict):
        raise CorruptFile("JSON is damaged", path=path, expected="an object", found=type(value).__name__)
    return value


def _load(os_api: OsApi, folder: KeptFolder) -> KeptFolder:
    path = os.path.join(folder.path, _LIST)
    listed = _json(os_api, path)
    folder.salvaged = _json(os_api, os.path.join(folder.path, _SALVAGED))
    if not listed:
        # Written by an older release, or the copy broke off before the list: find the records as behind any damage.
        for file in folder.files:
            part = look_behind(os_api, [file], file.start_offset, RecordPositions)
            folder.behind.stretches += part.stretches
            folder.behind.damaged += part.damaged
        return folder
    try:
        folder.behind.stretches = [
            Stretch(int(row[0]), int(row[1]), int(row[2]), bool(row[3])) for row in listed["records"]
        ]
        folder.behind.damaged = [Damaged(int(row[0]), int(row[1]), str(row[2])) for row in listed["damaged"]]
        folder.floors = {str(topic): int(end) for topic, end in listed.get("deletedTopics", {}).items()}
    except (KeyError, TypeError, ValueError, IndexError):
        raise CorruptFile("JSON is damaged", path=path, expected="the list of what is kept", found="other") from None
    return folder


def no_room(error: DiskFull, folder: str, wanted: int) -> DiskFull:
    """Return the DiskFull error of a copy that does not fit. Nothing was cut."""
    full = DiskFull(
        error.errno,
        f"whole records behind damage must be kept before the log is cut, up to {wanted} bytes: free some space and"
        f" open the store again; nothing was cut ({error.strerror})",
        folder,
    )
    full.wanted_bytes, full.free_bytes = wanted, error.free_bytes
    return full
