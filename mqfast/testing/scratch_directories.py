"""Directories of a test's stores: in memory if there is room, else in the directory for temporary files.

A directory is marked by a lock that ends with its process, so that the next test finds and removes directories of
killed tests. Directories of live processes, and those of other programs, stay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from typing import Final

__all__ = ["ScratchDirectory", "remove_tree"]

_MEMORY: Final = "/dev/shm"
_ROOM_BYTES: Final = 256 << 20
_PREFIX: Final = "mqfast-test-"
_MARK: Final = "in-use"
_YOUNG_S: Final = 60.0
_swept: set[str] = set()


class ScratchDirectory:
    """A directory of this process. Attributes: ``path``. Raises: OSError."""

    def __init__(self) -> None:
        parent = _parent()
        if parent not in _swept:
            _swept.add(parent)
            _sweep(parent)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self._mark = os.open(os.path.join(self.path, _MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the directory with all files."""
        remove_tree(self.path)
        os.close(self._mark)


def _parent() -> str:
    try:
        room = os.statvfs(_MEMORY)
        if os.access(_MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= _ROOM_BYTES:
            return _MEMORY
    except OSError:
        pass
    return tempfile.gettempdir()


def _sweep(parent: str) -> None:
    """Remove directories of this user's ended processes."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            about = entry.stat(follow_symlinks=False)
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG_S:
                continue  # a young directory may not have its lock yet
            mark = os.open(os.path.join(entry.path, _MARK), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            remove_tree(entry.path)  # its removal had begun
            continue
        except OSError:
            continue
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            remove_tree(entry.path)
        finally:
            os.close(mark)


def remove_tree(path: str) -> None:
    """Remove a directory with all files; a missing file is no error."""
    shutil.rmtree(path, ignore_errors=True)
