"""What master and slave say to each other, without I/O: reports of a slave, frames of a master.

A slave reports its end of the log as 8 bytes. A master sends frames: 8 bytes offset, 4 bytes size, then so many bytes
of its log; a frame of size 0 is a heartbeat, whose offset is where the next one begins.

Room: ha. It must never keep the bytes of the log. Source: DefaultHAConnection, DefaultHAClient.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from mqfast.errors import FrameError

__all__ = ["FRAME_BYTES_MAX", "Frames", "Reports", "frame_head", "identity_report", "report"]

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
_ID_BITS: Final = 24
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A master sends at most haTransferBatchSize; a larger size is damage."""


def report(offset: int) -> bytes:
    """What a slave sends."""
    return _REPORT.pack(offset)


def frame_head(offset: int, size: int) -> bytes:
    """What stands before the bytes of a frame."""
    return _HEAD.pack(offset, size)


def identity_report(broker_id: int, epoch: int) -> bytes:
    """Who the slave is, and the newest epoch of its store: for a master of a fail-over, which no Java broker is."""
    return _REPORT.pack(-1 - ((epoch << _ID_BITS) | broker_id))


class Reports:
    """The reports in the bytes of a slave.

    Attributes: ``identity``: (broker id, epoch) as the slave said last, None where it did not.
    """

    def __init__(self) -> None:
        self.identity: tuple[int, int] | None = None
        self._part = b""

    def feed(self, data: bytes) -> int | None:
        """Take bytes. Returns: the newest complete report, None where there is none."""
        data = self._part + data
        whole = len(data) // _REPORT.size * _REPORT.size
        self._part = data[whole:]
        newest = None
        for (number,) in _REPORT.iter_unpack(data[:whole]):
            if number >= 0:
                newest = int(number)
            else:
                said = -1 - int(number)
                self.identity = said & ((1 << _ID_BITS) - 1), said >> _ID_BITS
        return newest


class Frames:
    """The frames in the bytes of a master, handed out piece by piece as they come."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._offset = 0
        self._left = 0

    @property
    def is_between(self) -> bool:
        """Has everything of the last frame come, and nothing of the next?"""
        return self._left == 0 and not self._head

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Take bytes. Yields: (offset, bytes of the log that begin there); no bytes for a heartbeat.

        Raises: FrameError for a frame that no master sends; nothing behind it can be read.
        """
        at = 0
        while at < len(data):
            if self._left == 0:
                taken = min(_HEAD.size - len(self._head), len(data) - at)
                self._head += data[at : at + taken]
                at += taken
                if len(self._head) < _HEAD.size:
                    return
                self._offset, self._left = _HEAD.unpack(self._head)
                self._head.clear()
                if self._offset < 0 or not 0 <= self._left <= FRAME_BYTES_MAX:
                    raise FrameError(
                        f"frame of a master: expected an offset of at least 0 and 0 to {FRAME_BYTES_MAX} bytes, found "
                        f"offset {self._offset} and {self._left} bytes"
                    )
                if self._left == 0:
                    yield self._offset, data[:0]
                continue
            taken = min(self._left, len(data) - at)
            piece, offset = data[at : at + taken], self._offset
            at += taken
            self._left -= taken
            self._offset += taken
            yield offset, piece
