"""``config/timercheck``: up to where wheel, timer log and deliveries are durable (RocketMQ: TimerCheckpoint).

It must never claim more than was flushed: the caller writes it last. 4096 bytes, of which seven big-endian i64 are
used; they lie in one sector and are written in place. Format: ``mqfast/store/FORMAT.md``, "Timer files".
"""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple, Self

from mqfast.errors import FieldError, StoreNotFound
from mqfast.store.base.paths import Door
from mqfast.store.reader.timer_files import CHECKPOINT_BYTES

__all__ = ["TimerCheckpoint", "load_checkpoint", "of_master", "write_checkpoint"]

_log = logging.getLogger("mqfast.schedule")

_FIELDS: Final = struct.Struct(">7q")
_FILE_BYTES: Final = 4096
_OLD_BYTES: Final = 32
assert _FIELDS.size == CHECKPOINT_BYTES


class TimerCheckpoint(NamedTuple):
    """The numbers of the file, in its order."""

    read_ms: int = 0  # slots before this time were delivered
    flushed: int = 0  # position in the timer log
    queue_offset: int = 0  # of the timer's queue: messages before it are parked
    master_queue_offset: int = 0  # a slave's; a master writes its own
    state_version: int = 0
    timestamp: int = 0  # of the latest change, ms
    counter: int = 0  # of changes

    def encode(self) -> bytes:
        """The numbers as they stand in the file, and go to a slave."""
        return _FIELDS.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What ``encode`` of a master gave; 4.9 sends no version. Raises: FieldError."""
        if len(data) not in (_OLD_BYTES, CHECKPOINT_BYTES):
            raise FieldError("checkpoint of the timer", f"{_OLD_BYTES} or {CHECKPOINT_BYTES} bytes", str(len(data)))
        return cls(*_FIELDS.unpack(data.ljust(CHECKPOINT_BYTES, b"\0")))

    @property
    def is_of_master(self) -> bool:
        """Was it written by a slave, whose own wheel is behind what the master did?"""
        return self.queue_offset < self.master_queue_offset

    def moved(self, read_ms: int, flushed: int, queue_offset: int, now_ms: int) -> Self:
        """The checkpoint of a master after this one."""
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
    """What a slave without a wheel keeps of its master's checkpoint: what was delivered, and nothing that is parked."""
    return checkpoint._replace(flushed=0, queue_offset=0)


def load_checkpoint(os_api: Door, path: str) -> TimerCheckpoint | None:
    """Read the file; None where it is missing, too short, or holds numbers that no broker writes (then with a warning).

    Raises: StorageError.
    """
    if not os_api.exists(path):
        return None
    data = os_api.read_file(path, max_bytes=_FILE_BYTES)
    if len(data) < CHECKPOINT_BYTES:
        _log.warning("%s: expected at least %d bytes, found %d; it is not used", path, CHECKPOINT_BYTES, len(data))
        return None
    found = TimerCheckpoint(*_FIELDS.unpack_from(data))
    if min(found[:4]) < 0:
        _log.warning("%s: expected numbers of at least 0, found %s; it is not used", path, found[:4])
        return None
    return found if any(found[:4]) else None


def write_checkpoint(os_api: Door, path: str, checkpoint: TimerCheckpoint) -> None:
    """Write the file and wait for the disk. Raises: StorageError. Durability: then it survives power loss."""
    data = checkpoint.encode()
    if os_api.exists(path) and os_api.file_size(path) == _FILE_BYTES:
        try:
            os_api.overwrite(path, data, 0, create=False)
            return
        except StoreNotFound:
            pass  # removed meanwhile
    os_api.makedirs(path.rpartition("/")[0])
    os_api.replace_file(path, data.ljust(_FILE_BYTES, b"\0"))
