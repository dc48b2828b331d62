"""Leases that end with what they are for: while something is read, whoever reads renews them; then they go.

Room: the Spark adapter; nothing of Spark in it. Nobody tells a source that a query has ended. So the plan of a batch
read leaves a lease of ``leaseTtl``; each task that begins makes it one of a minute and renews it while it runs; the
last one of the planned tasks to end removes it. A query that stops early, or is killed, holds its messages for that
minute. What has a process of its own for as long as it runs, a stream or a job, renews and ends its lease itself.
It must never fail a read: a store that may not be written is read without. Format: ``mqfast/store/meta/leases.py``.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from mqfast.errors import StorageError, StoreNotFound
from mqfast.store.base.os_api import REAL
from mqfast.store.meta.leases import end_lease, renew_lease, write_lease

__all__ = ["HeldLease", "TaskLease", "hold"]

_log = logging.getLogger("mqfast.spark")

_HELD_MS: Final = 60_000
_RENEWALS: Final = 4  # within that time
_ENDED: Final = ".ended"
_NUMBER: Final = struct.Struct("<I")


@dataclass(frozen=True)
class TaskLease:
    """The lease of a planned read, as one of its tasks knows it: ``number`` of ``tasks``; of 0 tasks none ends it."""

    path: str
    min_physical_offset: int
    ttl_ms: int
    number: int = 0
    tasks: int = 0


@contextmanager
def hold(lease: TaskLease | None) -> Iterator[None]:
    """Keep the lease while a task reads, however it ends."""
    if lease is None:
        yield
        return
    keeper = _Keeper(lambda: _renew(lease.path, lease.min_physical_offset, min(lease.ttl_ms, _HELD_MS)))
    try:
        yield
    finally:
        keeper.stop()
        if lease.tasks:
            _end_one(lease)


def _renew(path: str, min_physical_offset: int, ttl_ms: int) -> None:
    try:
        renew_lease(REAL, path, min_physical_offset, ttl_ms)
    except (StorageError, StoreNotFound) as error:
        _log.info("the lease is not renewed: %s", error)


def _end_one(lease: TaskLease) -> None:
    """Note that a task has ended; the last one ends the lease. One that runs again has renewed it before."""
    try:
        fd = os.open(lease.path + _ENDED, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, _NUMBER.pack(lease.number))
            size = os.fstat(fd).st_size
            if size < lease.tasks * _NUMBER.size:
                return
            data = os.pread(fd, size - size % _NUMBER.size, 0)
        finally:
            os.close(fd)
        if len(set(_NUMBER.iter_unpack(data))) >= lease.tasks:
            end_lease(REAL, lease.path)
    except OSError as error:
        _log.info("the end of the lease is not noted: %s", error)


class _Keeper:
    """Does something now, and again and again until it is stopped."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._stopped = threading.Event()
        self._renew = renew
        renew()
        self._thread = threading.Thread(target=self._run, name="mqfast-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_HELD_MS / 1000 / _RENEWALS):
            self._renew()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class HeldLease:
    """A lease of this process: until ``close``, or for ``ttl_ms`` after it was last moved; a minute longer at most
    if the process dies.

    Thread: one.
    """

    def __init__(self, root: str, ttl_ms: int) -> None:
        self._root: Final = root
        self._ttl_ms: Final = ttl_ms
        self._held_ms: Final = min(ttl_ms, _HELD_MS)
        self._path: str | None = None
        self._min = 0
        self._until = 0.0
        self._keeper: _Keeper | None = None

    def move(self, min_physical_offset: int) -> TaskLease | None:
        """Keep what begins here from now on, and nothing before it any more.

        Returns: what the tasks are to renew; None, when there is no lease.
        """
        if self._ttl_ms <= 0:
            return None
        self._min, self._until = min_physical_offset, time.monotonic() + self._ttl_ms / 1000
        try:
            if self._path is None or not os.path.exists(os.path.dirname(self._path)):  # another store is here now
                self._path = write_lease(REAL, self._root, min_physical_offset, self._held_ms)
            else:
                renew_lease(REAL, self._path, min_physical_offset, self._held_ms)
        except (StorageError, StoreNotFound) as error:
            _log.info("no lease: %s", error)
            return None
        if self._keeper is None:
            self._keeper = _Keeper(self._keep)
        return TaskLease(self._path, min_physical_offset, self._held_ms)

    def _keep(self) -> None:
        if self._path is not None and time.monotonic() < self._until:
            _renew(self._path, self._min, self._held_ms)

    def close(self) -> None:
        """End it. Safe to call twice."""
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        if self._path is not None:
            try:
                end_lease(REAL, self._path)
            except StorageError as error:
                _log.info("the lease is not ended: %s", error)
            self._path = None

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
