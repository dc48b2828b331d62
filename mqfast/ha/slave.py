"""A slave: appends what its master sends, at the same offsets, each record checked before it lands.

A plain master sends whatever follows the offset that a slave reports, also to a log of another history. So the slave
reports a little less than it has, and compares what comes with its own bytes before it appends the first new one.

Room: ha. It must never cut its log unless it is told to, and never append behind bytes that differ from the master's.
Source: DefaultHAClient; the comparison is our own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from mqfast.errors import (
    CorruptFile,
    DataLoss,
    FrameError,
    LogPlaceError,
    MqfastError,
    StorageError,
    StoreClosed,
    StoreFailed,
)
from mqfast.ha.settings import HaSettings
from mqfast.ha.wire import Frames, report
from mqfast.store.raw_log import RawLog

__all__ = ["Diverged", "FollowState", "FollowStatus", "HaSlave"]

_log = logging.getLogger("mqfast.ha")
_BUFFER_BYTES: Final = 1 << 20
_TURN_S: Final = 1.0


class FollowState(StrEnum):
    """What a slave does. The first three are RocketMQ's."""

    READY = "READY"
    """It has no connection."""
    TRANSFER = "TRANSFER"
    """It follows."""
    SHUTDOWN = "SHUTDOWN"
    """It was stopped, or its store failed."""
    DIVERGED = "DIVERGED"
    """Its log is not the beginning of its master's: an operator decides."""


class Diverged(DataLoss):
    """The log of a slave is not the beginning of its master's log.

    Attributes: ``end``: where the slave's log ends; ``master``: the first physical offset that differs, or where the
        master's log ends if that is before.
    """

    def __init__(self, end: int, master: int, text: str) -> None:
        super().__init__(text)
        self.end = end
        self.master = master


class FollowStatus(NamedTuple):
    """How it goes. ``end``: physical offset up to which the slave has the log; ``master_end``: as far as it heard."""

    state: FollowState
    master: str | None
    end: int
    master_end: int
    bytes_received: int
    connected_s: float
    error: str | None


class HaSlave:
    """Follows a master in a thread of its own, which works without the GIL where bytes move.

    Args: raw: of a store with broker_role SLAVE; master: asked for ``(host, port)`` before each connection, None while
        nobody knows; on_append: called in the thread after bytes were appended.
    Thread: ``start``, ``stop`` and ``status``: any.
    """

    def __init__(
        self,
        raw: RawLog,
        settings: HaSettings,
        master: Callable[[], tuple[str, int] | None],
        *,
        on_append: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._raw: Final = raw
        self._settings: Final = settings
        self._master = master
        self._on_append = on_append
        self._clock = clock
        self._compared_bytes = settings.compared_bytes
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._state = FollowState.READY
        self._address: str | None = None
        self._master_end = 0
        self._received = 0
        self._connected_s = 0.0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._main, name="mqfast-ha-slave", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Follow no more; what was received whole is in the log."""
        self._stopping.set()
        self.reconnect()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._state = FollowState.SHUTDOWN

    def reconnect(self) -> None:
        """End the connection that there is: the master is another one, say."""
        with contextlib.suppress(OSError):
            if (one := self._socket) is not None:
                one.shutdown(socket.SHUT_RDWR)

    @property
    def status(self) -> FollowStatus:
        """How it goes now."""
        return FollowStatus(
            self._state,
            self._address,
            self._raw.end,
            self._master_end,
            self._received,
            self._connected_s,
            self._error,
        )

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while not self._stopping.is_set():
            address = self._master()
            if address is None:
                self._stopping.wait(min(_TURN_S, self._settings.reconnect_s))
                continue
            self._address = f"{address[0]}:{address[1]}"
            try:
                self._follow(address)
            except Diverged as error:
                self._say(FollowState.DIVERGED, error)
            except (StoreFailed, StoreClosed) as error:
                self._say(FollowState.SHUTDOWN, error)
                return
            except (OSError, FrameError, CorruptFile, LogPlaceError, StorageError) as error:
                self._say(FollowState.READY, error)
            except MqfastError as error:
                self._say(FollowState.READY, error)
            self._stopping.wait(self._settings.reconnect_s)

    def _say(self, state: FollowState, error: Exception) -> None:
        if self._stopping.is_set():
            return
        self._state = state
        text = str(error) or type(error).__name__
        level = logging.ERROR if state in (FollowState.DIVERGED, FollowState.SHUTDOWN) else logging.WARNING
        if text != self._error:  # once, not with every attempt
            _log.log(level, "master %s: %s", self._address, text)
        self._error = text

    def _follow(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address, self._settings.connect_timeout_s) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(min(_TURN_S, self._settings.heartbeat_s))
            self._socket = one
            self._connected_s = self._clock()
            try:
                self._transfer(one)
            finally:
                self._socket = None
                self._raw.forget_part()
                if self._state is FollowState.TRANSFER:
                    self._state = FollowState.READY

    def _transfer(self, one: socket.socket) -> None:
        raw, settings, clock = self._raw, self._settings, self._clock
        frames, buffer = Frames(), memoryview(bytearray(_BUFFER_BYTES))
        comparison = _Comparison(raw, self._compared_bytes)
        reported = comparison.start
        one.sendall(report(reported))
        wrote_s = read_s = clock()
        while not self._stopping.is_set():
            try:
                size = one.recv_into(buffer)
            except TimeoutError:
                size = -1
            now_s = clock()
            if size == 0:
                raise ConnectionError("the master ended the connection")
            if size > 0:
                read_s = now_s
                self._received += size
                self._take(frames, buffer[:size], comparison)
            elif now_s - read_s > settings.housekeeping_s:
                raise ConnectionError(f"expected a frame within {settings.housekeeping_s:g} s, found none")
            if comparison.is_done and (raw.end > reported or now_s - wrote_s >= settings.heartbeat_s):
                reported = raw.end
                one.sendall(report(reported))
                wrote_s = now_s

    def _take(self, frames: Frames, data: memoryview, comparison: _Comparison) -> None:
        raw = self._raw
        for start, piece in frames.feed(data):
            offset = start
            self._master_end = max(self._master_end, offset + len(piece))
            if not comparison.is_done:
                try:
                    piece = comparison.compare(offset, piece)
                except Diverged as error:
                    self._cut(error, comparison)
                    raise ConnectionError("the log was cut; it goes on with a new connection") from None
                offset = comparison.position
                if not comparison.is_done:
                    continue
            if self._state is not FollowState.TRANSFER:
                self._state, self._error = FollowState.TRANSFER, None
                _log.info("master %s: followed from %d on", self._address, raw.end)
            if not piece:
                if offset != raw.next_offset:
                    raise FrameError(f"heartbeat: expected offset {raw.next_offset}, found {offset}")
                continue
            raw.append(offset, piece)
            if self._on_append is not None:
                self._on_append()

    def _cut(self, error: Diverged, comparison: _Comparison) -> None:
        """Cut off what the master does not have, where that is allowed. Raises: the error, where it is not."""
        if not self._settings.truncate_diverged:
            raise error
        end = self._raw.last_boundary(comparison.position)
        if end < comparison.start:
            if comparison.start <= max(self._raw.min_offset, 1):
                raise Diverged(error.end, error.master, f"{error}; nothing is common to both, so nothing was cut")
            self._compared_bytes *= 16
            raise ConnectionError(f"{error}; more is compared with a new connection")
        _log.warning("%s; haTruncateDiverged is set: the log is cut from %d to %d", error, error.end, end)
        self._raw.truncate_to(end)


class _Comparison:
    """The last bytes of a slave's log beside what its master sends for the same place."""

    def __init__(self, raw: RawLog, compared_bytes: int) -> None:
        self._raw = raw
        self._end = raw.end
        self.start = 0
        if self._end > 0:
            # A report of 0 means "nothing"; a master would begin with its last file.
            self.start = max(raw.min_offset, self._end - compared_bytes, 1)
        self.position = self.start

    @property
    def is_done(self) -> bool:
        """Was everything compared?"""
        return self.position >= self._end

    def compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare the next bytes. Returns: what is behind the slave's end. Raises: Diverged, FrameError."""
        if offset != self.position:
            raise FrameError(f"frame: expected offset {self.position}, found {offset}")
        if not piece:
            raise Diverged(
                self._end,
                offset,
                f"the log of this slave ends at {self._end}, its master's at {offset}: the slave is ahead",
            )
        mine = min(len(piece), self._end - self.position)
        done = 0
        while done < mine:
            for view in self._raw.read(self.position, mine - done, unflushed=True):
                other = piece[done : done + len(view)]
                if view != other:
                    at = next(i for i in range(len(view)) if view[i] != other[i])
                    self.position += at
                    raise Diverged(
                        self._end,
                        self.position,
                        f"the log of this slave, which ends at {self._end}, differs from its master's at "
                        f"{self.position}",
                    )
                done += len(view)
                self.position += len(view)
                view.release()
        return piece[mine:]
