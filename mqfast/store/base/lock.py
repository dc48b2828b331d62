"""The writer's lock of a store: the ``lock`` file, and the ``abort`` file that marks a store without a clean close.

The lock is an open file description lock on byte 0. The lock excludes Java brokers, other processes and other opens of
this process by any path. Reading, copying or closing the ``lock`` file elsewhere does not release the lock. Kernels
without such locks have record locks, which belong to a process: the registry here keeps the process from locking twice,
and no other module may open the file. The directories of the log are locked as well, with ``flock``: a removed ``lock``
file, or another root with the same ``store_path_commit_log``, admits no second writer. Format:
``mqfast/store/FORMAT.md``.

A forked child closes the inherited descriptors at once, so that the lock ends with the parent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import EAGAIN
from types import TracebackType
from typing import Final
from weakref import WeakValueDictionary

from mqfast.errors import DiskFull, StoreLocked
from mqfast.store.base.lock_holder import find_holder
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import ByteLockHandle, DirectoryHandle, OsFiles

__all__ = ["ADVICE", "StoreLock", "abort_exists", "create_abort", "remove_abort"]

ADVICE: Final = (
    "a store has one writer at a time. To read beside it use mqfast.StoreReader; to write, send to that process "
    "or stop it first"
)
_ADVICE_HERE: Final = "use that MessageStore, from every thread, or close it first"


class _Registry:
    """Directories of the stores and logs that this process has open for writing, as (device, inode)."""

    def __init__(self) -> None:
        self.mutex = Mutex(nests=True)
        self.held: WeakValueDictionary[tuple[int, int], StoreLock] = WeakValueDictionary()

    def before_fork(self) -> None:
        self.mutex.__enter__()  # no lock is being taken at the fork: the child would not know of it

    def in_parent(self) -> None:
        self.mutex.__exit__(None, None, None)

    def in_child(self) -> None:
        self.in_parent()  # this thread took it
        for lock in set(self.held.values()):
            lock._abandon()
        self.__init__()  # type: ignore[misc]


_registry: Final = _Registry()
os.register_at_fork(
    before=_registry.before_fork, after_in_parent=_registry.in_parent, after_in_child=_registry.in_child
)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _refusal(os_api: OsFiles, path: str, store: str) -> StoreLocked:
    holder = find_holder(os_api, path, f"{_parent(path)}/abort")
    if holder is not None and holder.pid == os.getpid():
        return StoreLocked(EAGAIN, f"the store is already open in this process: {_ADVICE_HERE}", store)
    error = StoreLocked(EAGAIN, f"the store is open for writing in {holder or 'another process'}: {ADVICE}", store)
    if holder is not None:
        error.pid, error.command = holder
    return error


class StoreLock:
    """The writer's lock of a store; a context manager.

    Thread: any.
    """

    def __init__(self, path: str, key: tuple[int, int], directory: DirectoryHandle, handle: ByteLockHandle) -> None:
        self._path: Final = path
        self._keys: Final = [key]
        # Kept open, so that the inode number is not reused while this lock is held, even if the directory is removed.
        self._directories: Final = [directory]
        self._handle: ByteLockHandle | None = handle
        self._held: Final = _registry.held

    @classmethod
    def acquire(cls, os_api: OsFiles, path: str) -> StoreLock:
        """Lock the store of the lock file ``path``, without waiting; the directory must exist.

        Raises: StoreLocked, with the process that has the store open, if the system reports the process; StorageError.
        """
        with _registry.mutex:
            # The directory identifies the store, so that neither another spelling of its path nor a deleted lock file
            # admits a second writer. It is looked up before the file is opened, as record locks need it.
            key = os_api.file_id(_parent(path))
            if key in _registry.held:
                raise StoreLocked(EAGAIN, f"the store is already open in this process: {_ADVICE_HERE}", _parent(path))
            try:
                handle = os_api.lock_byte(path)
            except StoreLocked:
                raise _refusal(os_api, path, _parent(path)) from None
            lock = cls(path, key, os_api.open_directory(_parent(path)), handle)
            _registry.held[key] = lock
            return lock

    def cover(self, os_api: OsFiles, directories: Sequence[str]) -> None:
        """Lock these log directories as well, and create missing directories.

        Raises: StoreLocked, StorageError.
        """
        with _registry.mutex:
            for path in directories:
                os_api.makedirs(path)
                key = os_api.file_id(path)
                if _registry.held.get(key, self) is not self:
                    raise StoreLocked(
                        EAGAIN,
                        "another store that is open in this process has the same directory for its log: "
                        "give each store its own store_path_commit_log",
                        path,
                    )
                directory = os_api.open_directory(path)
                if not directory.lock():
                    raise _refusal(os_api, self._path, path)
                self._directories.append(directory)
                self._keys.append(key)
                self._held[key] = self

    def release(self) -> None:
        """Release the lock. Safe to call twice; no effect in a forked child: the lock is the parent's."""
        # No allocation and no mutex: other openers see the store held until the lock is released.
        handle = self._handle
        if handle is not None and self._held is _registry.held:
            handle.release()
            for key in self._keys:
                self._held.pop(key, None)
            for directory in self._directories:
                directory.unlock()
                directory.close()
            self._handle = None

    def _abandon(self) -> None:
        """Close the descriptors in a forked child."""
        if self._handle is not None:
            self._handle.abandon()
            self._handle = None
        for directory in self._directories:
            directory.close()

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def abort_exists(os_api: OsFiles, path: str) -> bool:
    """Return true if the last writer ended without closing the store. The content of the file does not matter."""
    return os_api.exists(path)


def create_abort(os_api: OsFiles, path: str, pid: int) -> None:
    """Create the abort file with the writer's decimal process id; the file is durable on return.

    Raises: DiskFull where not even the name has room; the content, which is not needed, may be missing.
    """
    try:
        os_api.write_file(path, str(pid).encode("ascii"))
    except DiskFull:
        if not os_api.exists(path):
            raise
    os_api.fsync_dir(_parent(path))


def remove_abort(os_api: OsFiles, path: str) -> None:
    """Remove the abort file at a clean close; call after everything else was flushed."""
    os_api.unlink(path, missing_ok=True)
    os_api.fsync_dir(_parent(path))
