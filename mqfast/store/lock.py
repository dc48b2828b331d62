"""Who may write a store: the ``lock`` file, and the ``abort`` file that says whether the last writer left in order.

The lock is a POSIX record lock on byte 0, so it excludes Java brokers and other processes, but never the own
process: that is what the registry here is for. No other room may open the ``lock`` file, since closing any
descriptor of it drops the lock of the whole process. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final
from weakref import WeakValueDictionary

from mqfast.errors import StoreLocked
from mqfast.store._os import Mutex
from mqfast.store.paths import ByteLockHandle, DirectoryHandle, Door

__all__ = ["StoreLock", "abort_exists", "create_abort", "remove_abort"]


class _Registry:
    """Directories of the stores that this process has open, as (device, inode)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Record locks are not inherited by a forked child, and another thread may have held the mutex at the fork.
        self.mutex = Mutex()
        self.held: WeakValueDictionary[tuple[int, int], StoreLock] = WeakValueDictionary()


_registry: Final = _Registry()
os.register_at_fork(after_in_child=_registry.reset)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


class StoreLock:
    """The right to write one store; a context manager.

    Thread: any.
    """

    def __init__(self, key: tuple[int, int], directory: DirectoryHandle, handle: ByteLockHandle) -> None:
        self._key: Final = key
        # Kept open, so that its number cannot become another store's while this one lasts, should somebody remove it.
        self._directory: Final = directory
        self._handle: ByteLockHandle | None = handle
        self._held: Final = _registry.held

    @classmethod
    def acquire(cls, door: Door, path: str) -> StoreLock:
        """Lock the store whose lock file is ``path``, without waiting; its directory must exist.

        Raises: StoreLocked when this process or another one has the store open, StorageError.
        """
        with _registry.mutex:
            # Looked up before the file is opened: opening and closing it would drop the lock that is already held.
            # The directory stands for the store, so that neither another spelling of its path nor a deleted lock
            # file lets a second writer in.
            key = door.file_id(_parent(path))
            if key in _registry.held:
                raise StoreLocked(f"store is already open in this process: {path}")
            lock = cls(key, door.open_directory(_parent(path)), door.lock_byte(path))
            _registry.held[key] = lock
            return lock

    def release(self) -> None:
        """Let go of the store. Safe to call twice, and without effect in a forked child: the lock is the parent's."""
        # Without memory and without the mutex: whoever wants the store sees it held until the lock is gone.
        handle = self._handle
        if handle is not None and self._held is _registry.held:
            handle.release()
            self._held.pop(self._key, None)
            self._directory.close()
            self._handle = None

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def abort_exists(door: Door, path: str) -> bool:
    """Did the last writer leave without closing? The content of the file does not matter."""
    return door.exists(path)


def create_abort(door: Door, path: str, pid: int) -> None:
    """Note that a writer is at work: the file holds its decimal process id, and is durable on return."""
    door.write_file(path, str(pid).encode("ascii"))
    door.fsync_dir(_parent(path))


def remove_abort(door: Door, path: str) -> None:
    """Note that the store was closed in order; only to be called after everything else was flushed."""
    door.unlink(path, missing_ok=True)
    door.fsync_dir(_parent(path))
