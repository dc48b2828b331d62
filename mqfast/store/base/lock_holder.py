"""The process that holds the lock of a store: read from ``/proc``, only after the lock was refused.

Does not open the ``lock`` file, wait or fail: unreadable entries are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from mqfast.errors import StorageError, StoreNotFound
from mqfast.store.base.paths import OsFiles

__all__ = ["Holder", "find_holder"]

_UNREADABLE: Final = (StorageError, StoreNotFound)
_MOST_CPU_S: Final = 0.5  # of a scan of the open files of all processes
_MOST_COMMAND: Final = 200


class Holder(NamedTuple):
    """A process: id, and command line where readable."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


def find_holder(os_api: OsFiles, lock_path: str, abort_path: str) -> Holder | None:
    """Return the process that holds the lock on ``lock_path``, else the process that ``abort`` names, else None.

    The process of ``abort`` is not returned if /proc shows the open files, since the lock is not among those. The
    kernel names the owner of a record lock (a Java broker) in ``/proc/locks``. An open file description lock has no
    owner there, but is listed in ``/proc/<pid>/fdinfo`` of each process that has the file open.
    """
    with suppress(*_UNREADABLE):
        inode = os_api.file_id(lock_path)[1]
        noted = _noted(os_api, abort_path)
        pid = _of_record_lock(os_api, inode) or _of_open_file(os_api, inode, noted)
        if pid is not None:
            return Holder(pid, _command(os_api, pid))
        if noted is not None and not _can_be_seen(os_api, noted):
            return Holder(noted, _command(os_api, noted))
    return None


def _text(os_api: OsFiles, path: str) -> str:
    try:
        return os_api.read_file(path).decode("utf-8", "replace")
    except _UNREADABLE:
        return ""


def _noted(os_api: OsFiles, abort_path: str) -> int | None:
    text = _text(os_api, abort_path).strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 else None


def _command(os_api: OsFiles, pid: int) -> str:
    words = _text(os_api, f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    text = "".join(c if c.isprintable() else "?" for c in words)
    return text if len(text) <= _MOST_COMMAND else text[:_MOST_COMMAND] + "..."


def _is_lock_on(words: list[str], inode: int) -> bool:
    # "1:" "POSIX" "ADVISORY" "WRITE" "4711" "08:01:131085" "0" "0"
    return len(words) >= 8 and words[3] == "WRITE" and words[5].rpartition(":")[2] == str(inode)


def _of_record_lock(os_api: OsFiles, inode: int) -> int | None:
    for line in _text(os_api, "/proc/locks").splitlines():
        words = line.split()
        if _is_lock_on(words, inode) and words[1] == "POSIX" and words[4].isdigit() and int(words[4]) > 0:
            return int(words[4])
    return None


def _processes(os_api: OsFiles, first: int | None) -> Iterator[int]:
    if first is not None:
        yield first
    with suppress(*_UNREADABLE):
        for name in os_api.listdir("/proc"):
            if name.isdigit() and int(name) != first:
                yield int(name)


def _of_open_file(os_api: OsFiles, inode: int, first: int | None) -> int | None:
    cpu_limit_s = time.thread_time() + _MOST_CPU_S  # CPU time, not wall time: a busy machine finds the holder as well
    for pid in _processes(os_api, first):
        if time.thread_time() > cpu_limit_s:
            break
        with suppress(*_UNREADABLE):  # the process has ended, or belongs to another user
            for descriptor in os_api.listdir(f"/proc/{pid}/fd"):
                with suppress(*_UNREADABLE):
                    opened = os_api.file_id(f"/proc/{pid}/fd/{descriptor}")
                    if opened[1] == inode and _has_lock(os_api, pid, descriptor, inode):
                        return pid
    return None


def _can_be_seen(os_api: OsFiles, pid: int) -> bool:
    with suppress(*_UNREADABLE):
        return bool(os_api.listdir(f"/proc/{pid}/fd"))  # empty: there is no such process
    return False


def _has_lock(os_api: OsFiles, pid: int, descriptor: str, inode: int) -> bool:
    return any(
        line.startswith("lock:") and _is_lock_on(line.split()[1:], inode)
        for line in _text(os_api, f"/proc/{pid}/fdinfo/{descriptor}").splitlines()
    )
