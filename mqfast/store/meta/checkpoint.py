"""The ``checkpoint`` file: the store times up to which the log, the queues and the index are known to be on disk.

4096 bytes: six big-endian i64 and zeros; releases before 5.5 leave the sixth 0. The file is written in place, never
renamed, because a Java broker keeps the file mapped. The six numbers are in one sector, so a crash leaves the old or
the new numbers. A number never claims more than was flushed: the callers set a value only after the flush. Format:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import logging
import struct
from typing import Any, Final

from mqfast.store.base.paths import OsFiles
from mqfast.store.meta.checkpoint_file import CheckpointFile

__all__ = ["StoreCheckpoint"]

_log = logging.getLogger("mqfast.store")

_FIELDS: Final = struct.Struct(">6q")
_FILE_BYTES: Final = 4096
# Flushes of log and queues are up to this far behind these times.
_ALLOWANCE_MS: Final = 3000


def _number(place: int) -> Any:
    """Return the property of a number, by position in the file."""
    return property(lambda self: self.number(place), lambda self, value: self.set_number(place, value))


class StoreCheckpoint(CheckpointFile):
    """The six numbers in memory, and the file.

    Attributes: ``physic_msg_timestamp``, ``logics_msg_timestamp``, ``index_msg_timestamp`` (store times, ms),
        ``master_flushed_offset``, ``confirm_phy_offset``, ``logics_physical_offset`` (physical offsets), ``warnings``
        (problems at load).
    Thread: attributes may be set from any thread; flush is serialised.
    Source: StoreCheckpoint.
    """

    physic_msg_timestamp: int = _number(0)
    logics_msg_timestamp: int = _number(1)
    index_msg_timestamp: int = _number(2)
    master_flushed_offset: int = _number(3)
    confirm_phy_offset: int = _number(4)
    logics_physical_offset: int = _number(5)

    def __init__(self, os_api: OsFiles, path: str) -> None:
        super().__init__(os_api, path)
        self.warnings: list[str] = []

    @classmethod
    def load(cls, os_api: OsFiles, path: str) -> StoreCheckpoint:
        """Read the file. All values are 0 for a missing file, and with a warning for a wrong length or impossible
        values.

        0 is the safe value: recovery then reads the log from the first file.

        Raises: StorageError.
        """
        self = cls(os_api, path)
        if not os_api.exists(path):
            return self
        size = os_api.file_size(path)
        if size != _FILE_BYTES:
            self._warn(f"checkpoint {path}: expected {_FILE_BYTES} bytes, found {size}; starting from 0")
            return self
        data = os_api.read_file(path, max_bytes=_FILE_BYTES)[: _FIELDS.size]
        values = _FIELDS.unpack(data) if len(data) == _FIELDS.size else (-1,)
        # The confirm offset may be -1 (unknown); every other number counts up from 0.
        if min(*values[:4], *values[5:]) < 0 or values[4] < -1:
            self._warn(f"checkpoint {path}: expected numbers of at least 0, found {values}; starting from 0")
            return self
        self.assume_written(data)
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

    def get_min_timestamp(self) -> int:
        """Return the store time up to which log and queues agree on disk, less 3 s; at least 0."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _ALLOWANCE_MS)

    def get_min_timestamp_index(self) -> int:
        """Return the store time up to which log, queues and index agree on disk, less 3 s; at least 0."""
        return min(self.get_min_timestamp(), self.index_msg_timestamp)

    def lower(self, timestamp_ms: int) -> None:
        """Lower the times below this time: the clock went back to it, and later store times prove nothing."""
        self.physic_msg_timestamp = min(self.physic_msg_timestamp, timestamp_ms)
        self.logics_msg_timestamp = min(self.logics_msg_timestamp, timestamp_ms)
        self.index_msg_timestamp = min(self.index_msg_timestamp, timestamp_ms)
