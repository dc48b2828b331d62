"""Faults of the disk below the brokers of a test, and the state after a power cut.

Only closed stores of tests are changed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mqfast.store.base.results import LogFlag

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore
    from mqfast.testing.fault_os_api import FaultDoor

__all__ = ["Disk", "cut_power"]


class Disk:
    """The present faults of the disk. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._full = 0
        self._failing = 0
        self._slow_s: list[float] = []

    def count_full(self, on: int) -> None:
        """Add (1) or remove (-1) a fault of this kind."""
        self._full = max(0, self._full + on)

    def count_failing(self, on: int) -> None:
        """Add (1) or remove (-1) a fault of this kind."""
        self._failing = max(0, self._failing + on)

    def count_slow(self, on: int, seconds: float) -> None:
        """Add (1) or remove (-1) a fault of this kind."""
        if on > 0:
            self._slow_s.append(seconds)
        elif seconds in self._slow_s:
            self._slow_s.remove(seconds)

    def heal(self) -> None:
        """Clear all faults."""
        self.__init__()  # type: ignore[misc]

    @property
    def texts(self) -> list[str]:
        """Return the faults in words."""
        slow_s = sum(self._slow_s)
        return [
            *(["disk full"] if self._full else []),
            *(["syncs fail"] if self._failing else []),
            *([f"syncs take {slow_s:g} s longer"] if slow_s else []),
        ]

    def apply(self, os_api: FaultDoor, store: MessageStore | None) -> None:
        """Apply the faults to an OsApi and the open store."""
        full = self._full > 0
        os_api.set_disk(full=full, failing=self._failing > 0, slow_ns=int(sum(self._slow_s) * 1e9))
        if store is not None:
            store.log.set_flag(LogFlag.REFUSING, full)


def cut_power(path: str, flushed: int) -> None:
    """Truncate the log of a closed store to the synced bytes.

    Derived files (queues, index) stay, and the recovery of the next open repairs these files: this is a possible
    state after a power cut. Args: flushed: physical offset up to which syncs came.
    """
    log = os.path.join(path, "commitlog")
    for name in sorted(os.listdir(log)):
        begin = max(flushed - int(name), 0)
        with open(os.path.join(log, name), "r+b") as file:
            file.seek(begin)
            unsynced = len(file.read().rstrip(b"\0"))
            file.seek(begin)
            file.write(bytes(unsynced))
