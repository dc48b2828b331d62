"""Faults of the disk below the brokers of a test, and what a power cut leaves.

Room: testing. It must never touch a file of a store that is open, nor of one that no test made.
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
    """What is wrong with the disk now. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._full = 0
        self._failing = 0
        self._slow_s: list[float] = []

    def count_full(self, on: int) -> None:
        """One fault of this kind more (1), or less (-1)."""
        self._full = max(0, self._full + on)

    def count_failing(self, on: int) -> None:
        """One fault of this kind more (1), or less (-1)."""
        self._failing = max(0, self._failing + on)

    def count_slow(self, on: int, seconds: float) -> None:
        """One fault of this kind more (1), or less (-1)."""
        if on > 0:
            self._slow_s.append(seconds)
        elif seconds in self._slow_s:
            self._slow_s.remove(seconds)

    def heal(self) -> None:
        """Nothing is wrong."""
        self.__init__()  # type: ignore[misc]

    @property
    def texts(self) -> list[str]:
        """What is wrong, in words."""
        slow_s = sum(self._slow_s)
        return [
            *(["disk full"] if self._full else []),
            *(["syncs fail"] if self._failing else []),
            *([f"syncs take {slow_s:g} s longer"] if slow_s else []),
        ]

    def apply(self, os_api: FaultDoor, store: MessageStore | None) -> None:
        """Let a door and its open store feel it."""
        full = self._full > 0
        os_api.set_disk(full=full, failing=self._failing > 0, slow_ns=int(sum(self._slow_s) * 1e9))
        if store is not None:
            store.log.set_flag(LogFlag.REFUSING, full)


def cut_power(path: str, flushed: int) -> None:
    """Take from the log of a closed store what no sync covered.

    What is derived from the log (queues, index) stays and is made to agree by the recovery of the next open: this is
    one of the states that a power cut can leave. Args: flushed: physical offset up to which syncs came.
    """
    log = os.path.join(path, "commitlog")
    for name in sorted(os.listdir(log)):
        begin = max(flushed - int(name), 0)
        with open(os.path.join(log, name), "r+b") as file:
            file.seek(begin)
            unsynced = len(file.read().rstrip(b"\0"))
            file.seek(begin)
            file.write(bytes(unsynced))
