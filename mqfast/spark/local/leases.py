"""Leases of reads: renewed by the reader during the read, and removed afterwards.

A source gets no notice of the end of a query. So the plan of a batch read writes a lease of ``leaseTtl``. Each starting
task shortens the lease to a minute and renews the lease while running; the last planned task removes the lease. After
an early end or a kill the lease lasts for that minute. A stream or a job, which runs in a process of its own, renews
and removes its lease itself. A read never fails because of a lease: a store that is not writable is read without.
Format: ``mqfast/store/meta/leases.py``. Uses no Spark.
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
_RENEWALS: Final = 4  # in _HELD_MS
_ENDED: Final = ".ended"
_NUMBER: Final = struct.Struct("<I")


@dataclass(frozen=True)
class TaskLease:
    """The lease of a planned read in a task: ``number`` of ``tasks``; with 0 tasks no task removes the lease."""

    path: str
    min_physical_offset: int
    ttl_ms: int
    number: int = 0
    tasks: int = 0


@contextmanager
def hold(lease: TaskLease | None) -> Iterator[None]:
    """Renew the lease while a task reads; a context manager."""
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
    """Note the end of a task; the last task removes the lease. A repeated task has renewed the lease before."""
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
    """A thread that calls a function at once, and periodically until stopped."""

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
    """A lease of this process: until ``close``, or for ``ttl_ms`` after the last move; at most a minute longer if the
    process dies.

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
        """Keep the messages from this physical offset on, and no earlier messages.

        Returns: the lease for the tasks to renew; None without a lease.
        """
        if self._ttl_ms <= 0:
            return None
        self._min, self._until = min_physical_offset, time.monotonic() + self._ttl_ms / 1000
        try:
            if self._path is None or not os.path.exists(
                os.path.dirname(self._path)
            ):  # the directory holds another store now
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
        """Remove the lease. Idempotent."""
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
