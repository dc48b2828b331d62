"""``config/timercheck``: up to where wheel, timer log and deliveries are durable (RocketMQ: TimerCheckpoint).

The caller writes the file last, so that the checkpoint never claims more than was flushed. 4096 bytes, of which seven
big-endian i64 are used; these are in the first sector and are written in place. Format: ``mqfast/store/FORMAT.md``,
"Timer files".
"""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple, Self

from mqfast.errors import FieldError, StoreNotFound
from mqfast.store.base.paths import OsFiles
from mqfast.store.reader.timer_files import CHECKPOINT_BYTES

__all__ = ["TimerCheckpoint", "load_checkpoint", "of_master", "write_checkpoint"]

_log = logging.getLogger("mqfast.schedule")

_FIELDS: Final = struct.Struct(">7q")
_FILE_BYTES: Final = 4096
_OLD_BYTES: Final = 32
assert _FIELDS.size == CHECKPOINT_BYTES


class TimerCheckpoint(NamedTuple):
    """The numbers of the file, in the order of the file."""

    read_ms: int = 0  # slots before this time were delivered
    flushed: int = 0  # position in the timer log
    queue_offset: int = 0  # of the timer's queue: earlier messages are parked
    master_queue_offset: int = 0  # on a slave that of its master, on a master its own
    state_version: int = 0
    timestamp: int = 0  # of the latest change, ms
    counter: int = 0  # of changes

    def encode(self) -> bytes:
        """Return the numbers as in the file and as sent to a slave."""
        return _FIELDS.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the result of ``encode`` of a master; 4.9 sends no version. Raises: FieldError."""
        if len(data) not in (_OLD_BYTES, CHECKPOINT_BYTES):
            raise FieldError("checkpoint of the timer", f"{_OLD_BYTES} or {CHECKPOINT_BYTES} bytes", str(len(data)))
        return cls(*_FIELDS.unpack(data.ljust(CHECKPOINT_BYTES, b"\0")))

    @property
    def is_of_master(self) -> bool:
        """Return True if a slave wrote the file and has a wheel behind the deliveries of the master."""
        return self.queue_offset < self.master_queue_offset

    def moved(self, read_ms: int, flushed: int, queue_offset: int, now_ms: int) -> Self:
        """Return the next checkpoint of a master."""
        if (read_ms, queue_offset) == (self.read_ms, self.queue_offset):
            return self._replace(flushed=flushed)
        return self._replace(
            read_ms=read_ms,
            flushed=flushed,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            timestamp=now_ms,
            counter=self.counter + 1,
        )


def of_master(checkpoint: TimerCheckpoint) -> TimerCheckpoint:
    """Return the part of a master's checkpoint that a slave without a wheel keeps: deliveries, no parked messages."""
    return checkpoint._replace(flushed=0, queue_offset=0)


def load_checkpoint(os_api: OsFiles, path: str) -> TimerCheckpoint | None:
    """Read the file; None for a file that is missing, too short, or has invalid numbers (logged as a warning).

    Raises: StorageError.
    """
    if not os_api.exists(path):
        return None
    data = os_api.read_file(path, max_bytes=_FILE_BYTES)
    if len(data) < CHECKPOINT_BYTES:
        _log.warning("%s: expected at least %d bytes, found %d; it is not used", path, CHECKPOINT_BYTES, len(data))
        return None
    checkpoint = TimerCheckpoint(*_FIELDS.unpack_from(data))
    if min(checkpoint[:4]) < 0:
        _log.warning("%s: expected numbers of at least 0, found %s; it is not used", path, checkpoint[:4])
        return None
    return checkpoint if any(checkpoint[:4]) else None


def write_checkpoint(os_api: OsFiles, path: str, checkpoint: TimerCheckpoint) -> None:
    """Write and sync the file. Raises: StorageError. Durability: the checkpoint survives power loss."""
    data = checkpoint.encode()
    if os_api.exists(path) and os_api.file_size(path) == _FILE_BYTES:
        try:
            os_api.overwrite(path, data, 0, create=False)
            return
        except StoreNotFound:
            pass  # removed since the check
    os_api.makedirs(path.rpartition("/")[0])
    os_api.replace_file(path, data.ljust(_FILE_BYTES, b"\0"))
