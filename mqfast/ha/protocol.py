"""The protocol between master and slave, without I/O: reports of a slave, frames of a master.

A slave reports the end of its log as 8 bytes. A master sends frames: 8 bytes offset, 4 bytes size, then the log bytes.
A frame of size 0 is a heartbeat; its offset is that of the next frame.

A slave that knows its master for an mqfast broker sends ASKS_HISTORY as its first report, a request for the history of
the log. The response is a frame with the offset HISTORY, which is repeated whenever the master begins a term. So the
connection that transfers the log also identifies the log. A broker of RocketMQ neither sends nor gets such requests.

The bytes of the log are not kept. Source: DefaultHAConnection, DefaultHAClient.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from mqfast.errors import FrameError
from mqfast.ha.term_history import Term, terms_of

__all__ = [
    "ASKS_HISTORY",
    "FRAME_BYTES_MAX",
    "HISTORY",
    "Frames",
    "MasterHistory",
    "Reports",
    "frame_head",
    "identity_report",
    "report",
]

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
_ID_BITS: Final = 24
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A master sends at most haTransferBatchSize; a larger size is damage."""
ASKS_HISTORY: Final = -(2**63)
"""The first report of a slave that requests the history of the master's log."""
HISTORY: Final = -(2**63)
"""The offset of the response frame to ASKS_HISTORY."""
_HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024


class MasterHistory(NamedTuple):
    """The identity of the log that a master sends.

    Attributes: session: random id of this start of the master, also in the response to 1007; first, end: of the log at
        that moment; file_bytes: mappedFileSizeCommitLog; terms: of the log.
    """

    session: str
    first: int
    end: int
    file_bytes: int
    terms: tuple[Term, ...]

    def frame(self) -> bytes:
        """Return the frame with this history."""
        body = json.dumps({**self._asdict(), "terms": [list(term) for term in self.terms]}).encode()
        return frame_head(HISTORY, len(body)) + body

    @classmethod
    def parsed(cls, data: bytes) -> MasterHistory:
        """Parse the body of a history frame. Raises: FrameError."""
        try:
            fields = json.loads(data)
            first, end, file_bytes = (int(fields[name]) for name in ("first", "end", "file_bytes"))
            return cls(str(fields["session"]), first, end, file_bytes, terms_of(fields["terms"]))
        except (ValueError, TypeError, LookupError) as error:
            raise FrameError(
                f"history of a master: expected session, first, end, file_bytes and terms, found {error!r}"
            ) from None


def report(offset: int) -> bytes:
    """Return the report of an offset."""
    return _REPORT.pack(offset)


def frame_head(offset: int, size: int) -> bytes:
    """Return the header of a frame."""
    return _HEAD.pack(offset, size)


def identity_report(broker_id: int, epoch: int) -> bytes:
    """Return the report of broker id and newest epoch, for a fail-over master, which is never a Java broker."""
    return _REPORT.pack(-1 - ((epoch << _ID_BITS) | broker_id))


class Reports:
    """Parser of the reports of a slave.

    Attributes: ``identity``: (broker id, epoch) of the last identity report, None without a report; ``asks_history``:
        the slave requested the history.
    """

    def __init__(self) -> None:
        self.identity: tuple[int, int] | None = None
        self.asks_history = False
        self._part = b""

    def feed(self, data: bytes) -> int | None:
        """Parse bytes. Returns: the newest complete report, None without a report."""
        data = self._part + data
        whole = len(data) // _REPORT.size * _REPORT.size
        self._part = data[whole:]
        newest = None
        for (number,) in _REPORT.iter_unpack(data[:whole]):
            if number >= 0:
                newest = int(number)
            elif number == ASKS_HISTORY:
                self.asks_history = True
            else:
                said = -1 - int(number)
                self.identity = said & ((1 << _ID_BITS) - 1), said >> _ID_BITS
        return newest


class Frames:
    """Parser of the frames of a master: yields log bytes as they arrive, and the body of a history frame as a whole.

    Args: with_history: the slave requested a history.
    """

    def __init__(self, *, with_history: bool = False) -> None:
        self._with_history: Final = with_history
        self._history: bytearray | None = None
        self._head = bytearray()
        self._offset = 0
        self._left = 0

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Parse bytes. Yields: (offset, log bytes at this offset); no bytes for a heartbeat; (HISTORY, the whole body)
        of a history.

        Raises: FrameError for a frame that no master sends; bytes behind that frame cannot be parsed.
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
                if self._with_history and self._offset == HISTORY and 0 < self._left <= _HISTORY_BYTES_MAX:
                    self._history = bytearray()
                    continue
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
            if self._history is not None:
                self._history += piece
                if self._left == 0:
                    whole, self._history = memoryview(self._history), None
                    yield HISTORY, whole
                continue
            self._offset += taken
            yield offset, piece
