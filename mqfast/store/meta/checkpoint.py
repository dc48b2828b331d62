"""The ``checkpoint`` file: up to which store times the log, the queues and the index are known to be on disk.

4096 bytes: six big-endian i64 and zeros; releases before 5.5 leave the sixth 0. It is written in place, never renamed,
because a Java broker keeps the file mapped; the six numbers lie in one sector, so a crash leaves the old ones or the
new ones. It must never claim more than was flushed: the callers set a value only after their flush. Format:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from mqfast.errors import StoreNotFound
from mqfast.store.base._os import Mutex
from mqfast.store.base.paths import Door

if TYPE_CHECKING:
    from mqfast.store.base._os import Overwrite

__all__ = ["StoreCheckpoint"]

_log = logging.getLogger("mqfast.store")

_FIELDS: Final = struct.Struct(">6q")
_FILE_BYTES: Final = 4096
# Flushes of log and queues are up to this far behind the times noted here.
_ALLOWANCE_MS: Final = 3000


class StoreCheckpoint:
    """The six numbers in memory, and their file.

    Attributes: ``physic_msg_timestamp``, ``logics_msg_timestamp``, ``index_msg_timestamp`` (store times, ms),
        ``master_flushed_offset``, ``confirm_phy_offset``, ``logics_physical_offset`` (physical offsets), ``warnings``
        (what load found wrong).
    Thread: attributes may be set from any thread; flush is serialised.
    Source: StoreCheckpoint.
    """

    def __init__(self, door: Door, path: str) -> None:
        self._door = door
        self._path = path
        self._lock = Mutex()
        self._whole = False
        self._written: bytes | None = None
        self.warnings: list[str] = []
        self.physic_msg_timestamp = 0
        self.logics_msg_timestamp = 0
        self.index_msg_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0
        self.logics_physical_offset = 0

    @classmethod
    def load(cls, door: Door, path: str) -> StoreCheckpoint:
        """Read the file; all values are 0 if it is missing, of another length, or holds what no store writes (then
        with a warning).

        0 is the safe value: recovery then reads the log from its first file.

        Raises: StorageError.
        """
        self = cls(door, path)
        if not door.exists(path):
            return self
        found = door.file_size(path)
        if found != _FILE_BYTES:
            self._warn(f"checkpoint {path}: expected {_FILE_BYTES} bytes, found {found}; starting from 0")
            return self
        data = door.read_file(path, max_bytes=_FILE_BYTES)[: _FIELDS.size]
        values = _FIELDS.unpack(data) if len(data) == _FIELDS.size else (-1,)
        # The confirm offset may be -1 (not known); every other number counts up from 0.
        if min(*values[:4], *values[5:]) < 0 or values[4] < -1:
            self._warn(f"checkpoint {path}: expected numbers of at least 0, found {values}; starting from 0")
            return self
        self._whole = True
        self._written = data
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_physical_offset,
        ) = values
        return self

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    @property
    def is_whole(self) -> bool:
        """Is there a file of the right length, so that numbers may be written in place?"""
        return self._whole

    def get_min_timestamp(self) -> int:
        """The store time up to which log and queues agree on disk, less 3 s; at least 0."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _ALLOWANCE_MS)

    def get_min_timestamp_index(self) -> int:
        """The same with the index."""
        return min(self.get_min_timestamp(), self.index_msg_timestamp)

    def lower(self, timestamp_ms: int) -> None:
        """Vouch for nothing that was stored at this time or later: the clock fell to it."""
        self.physic_msg_timestamp = min(self.physic_msg_timestamp, timestamp_ms)
        self.logics_msg_timestamp = min(self.logics_msg_timestamp, timestamp_ms)
        self.index_msg_timestamp = min(self.index_msg_timestamp, timestamp_ms)

    def flush(self) -> bool:
        """Write the six numbers and wait for the disk; does nothing when they are there already.

        Returns: whether anything was written.
        Raises: StorageError; the numbers then count as not written.
        Durability: after it returns they survive power loss.
        """
        with self._lock:
            data = self._packed()
            if data == self._written:
                return False
            self._written = None
            if self._whole:
                try:
                    self._door.overwrite(self._path, data, 0, create=False)
                except StoreNotFound:
                    self._whole = False  # somebody has removed the file of a running store
            if not self._whole:
                self._door.replace_file(self._path, data.ljust(_FILE_BYTES, b"\0"))
                self._whole = True
            self._written = data
            return True

    def prepare_flush(self) -> Overwrite | None:
        """The same as an errand, of a file that ``is_whole``; None when the numbers are there."""
        with self._lock:
            data = self._packed()
            if data == self._written:
                return None
            self._written = None
            return self._door.overwriting(self._path, data, 0, create=False)

    def finish_flush(self, errand: Overwrite) -> None:
        """Believe the errand, if it was carried out. Raises: as ``flush``."""
        with self._lock:
            try:
                if errand.finish():
                    self._written = errand.data
            except StoreNotFound:
                self._whole = False  # the next flush makes another

    def _packed(self) -> bytes:
        return _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
            self.logics_physical_offset,
        )
