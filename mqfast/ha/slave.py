"""A slave: appends what its master sends, at the same offsets, each record checked before it lands.

A plain master sends whatever follows the offset that a slave reports, also to a log of another history. So the slave
reports a little less than it has, and compares what comes with its own bytes before it appends the first new one. Where
its master has those bytes no more, it compares from the master's first byte on.

Room: ha. It must never cut its log unless it is told to, and never append behind bytes that differ from the master's.
Source: DefaultHAClient; the comparison is our own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from mqfast.errors import DataLoss, FrameError, StoreClosed, StoreFailed
from mqfast.ha.settings import HaSettings
from mqfast.ha.wire import Frames, identity_report, report
from mqfast.store.raw_log import RawLog

__all__ = ["Diverged", "FollowState", "FollowStatus", "HaSlave"]

_log = logging.getLogger("mqfast.ha")
_BUFFER_BYTES: Final = 1 << 20
_TURN_S: Final = 1.0
_REFUSED: Final = (
    " before it sent a byte: where this goes on, the master's haAllowedAddresses does not name this host, or only one "
    "of them has haTlsCertFile"
)


class FollowState(StrEnum):
    """What a slave does. The first three are RocketMQ's."""

    READY = "READY"
    """It has no connection."""
    TRANSFER = "TRANSFER"
    """It follows."""
    SHUTDOWN = "SHUTDOWN"
    """It was stopped, or its store failed."""
    DIVERGED = "DIVERGED"
    """Its log does not go on in its master's: an operator decides."""


class Diverged(DataLoss):
    """The log of a slave does not go on in its master's log.

    Attributes: ``end``: where the slave's log ends; ``master``: the first physical offset that differs; where the
        master's log ends if that is before; where the master's log begins if that is behind ``end``.
    """

    def __init__(self, end: int, master: int, text: str) -> None:
        super().__init__(text)
        self.end = end
        self.master = master


class FollowStatus(NamedTuple):
    """How it goes.

    Attributes: end: physical offset up to which the slave has the log; master_end: the end of its master's, as far as
        it heard; behind_ms: since when it lacks a byte of that, 0 where it lacks none; bytes_per_s: received in the
        last second; silent_ms: since the last byte of the master, None before the first; unreported_ms: since the last
        report; error: why it does not follow.
    """

    state: FollowState
    master: str | None
    end: int
    master_end: int
    bytes_received: int
    connected_s: float
    error: str | None
    behind_ms: int = 0
    bytes_per_s: int = 0
    silent_ms: int | None = None
    unreported_ms: int | None = None

    @property
    def behind_bytes(self) -> int:
        """What it lacks of its master's log, as far as it heard."""
        return max(0, self.master_end - self.end)


class HaSlave:
    """Follows a master in a thread of its own, which works without the GIL where bytes move.

    Args: raw: of a store with broker_role SLAVE; master: asked for ``(host, port)`` before each connection, None while
        nobody knows; on_append: called in the thread after bytes were appended; on_cut: after the log was cut, with its
        new end; identity: broker id and newest epoch of the store, told to a master of a fail-over; bounds: first byte
        and end of the master's log, where another way than this connection tells them, None while it does not: a Java
        master says nothing of bytes that it does not have, and a master may pause. Without that way silence is an end.
        tls: makes the context of each connection; None for plain ones.
    Thread: ``start``, ``stop`` and ``status``: any.
    """

    def __init__(
        self,
        raw: RawLog,
        settings: HaSettings,
        master: Callable[[], tuple[str, int] | None],
        *,
        on_append: Callable[[], object] | None = None,
        bounds: Callable[[], tuple[int, int] | None] | None = None,
        on_cut: Callable[[int], object] | None = None,
        identity: Callable[[], tuple[int, int] | None] = lambda: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._raw: Final = raw
        self._settings: Final = settings
        self._master = master
        self._bounds = bounds
        self._on_append = on_append
        self._on_cut = on_cut
        self._identity = identity
        self._tls = tls
        self._clock = clock
        self._compared_bytes = settings.compared_bytes
        self._master_first = 0  # of the next comparison
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._state = FollowState.READY
        self._address: str | None = None
        self._master_end = 0
        self._received = 0
        self._connected_s = 0.0
        self._error: str | None = None
        self._read_s: float | None = None
        self._wrote_s: float | None = None
        self._whole_s = clock()  # when it had all that it had heard of
        self._rate = (0.0, 0, 0)  # since when, bytes received before, bytes a second in the second before
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
        now_s, end, master_end = self._clock(), self._raw.end, self._master_end
        return FollowStatus(
            self._state,
            self._address,
            end,
            master_end,
            self._received,
            self._connected_s,
            self._error,
            round((now_s - self._whole_s) * 1000) if end < master_end else 0,
            self._rate[2] if now_s - self._rate[0] < 2 * _TURN_S else 0,
            None if self._read_s is None else round((now_s - self._read_s) * 1000),
            None if self._wrote_s is None else round((now_s - self._wrote_s) * 1000),
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
            except Exception as error:  # an address may be no address: a thread that ended would follow nobody any more
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
        with self._connection(address) as one:
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

    def _connection(self, address: tuple[str, int]) -> socket.socket:
        """A connection, encrypted where the settings ask for that."""
        one = socket.create_connection(address, self._settings.connect_timeout_s)
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return one
            return self._tls().wrap_socket(one)
        except ssl.SSLError as error:
            one.close()
            raise ConnectionError(f"expected TLS and a certificate of the same CA at the master: {error}") from None
        except BaseException:
            one.close()
            raise

    def _transfer(self, one: socket.socket) -> None:
        raw, settings, clock = self._raw, self._settings, self._clock
        frames, buffer = Frames(), memoryview(bytearray(_BUFFER_BYTES))
        comparison = _Comparison(raw, self._compared_bytes, self._master_first)
        self._master_first = 0
        reported = comparison.start
        one.sendall(report(reported))
        self._wrote_s = wrote_s = read_s = clock()
        told: tuple[int, int] | None = None
        before = self._received
        while not self._stopping.is_set():
            try:
                size = one.recv_into(buffer)
            except TimeoutError:
                size = -1
            now_s = clock()
            if size == 0:
                raise ConnectionError(f"the master ended the connection{_REFUSED if self._received == before else ''}")
            if size > 0:
                self._read_s = read_s = now_s
                self._received += size
                self._take(frames, buffer[:size], comparison)
            elif now_s - read_s > settings.housekeeping_s:
                raise ConnectionError(f"expected a frame within {settings.housekeeping_s:g} s, found none")
            if comparison.is_done and (identity := self._identity()) != told and identity is not None:
                one.sendall(identity_report(*identity))
                told = identity
            if comparison.is_done and (raw.end > reported or now_s - wrote_s >= settings.heartbeat_s):
                reported = raw.safe_end()
                one.sendall(report(reported))
                self._wrote_s = wrote_s = now_s
            if raw.end >= self._master_end:
                self._whole_s = now_s
            since_s, before, _ = self._rate
            if now_s - since_s >= _TURN_S:
                self._rate = (now_s, self._received, round((self._received - before) / (now_s - since_s)))

    def _take(self, frames: Frames, data: memoryview, comparison: _Comparison) -> None:
        raw = self._raw
        for start, piece in frames.feed(data):
            offset = start
            if piece or comparison.is_done:
                self._master_end = max(self._master_end, offset + len(piece))
            if not comparison.is_done:
                try:
                    if not piece:
                        self._hear_nothing(offset, comparison)
                        continue
                    piece = comparison.compare(offset, piece)
                except Diverged as error:
                    self._cut(error, comparison)
                    raise ConnectionError("the log was cut; it goes on with a new connection") from None
                offset = comparison.position
                if not comparison.is_done:
                    continue
            if self._state is not FollowState.TRANSFER:
                self._state, self._error = FollowState.TRANSFER, None
                self._compared_bytes = self._settings.compared_bytes
                _log.info("master %s: followed from %d on", self._address, raw.end)
            if not piece:
                if offset != raw.next_offset:
                    raise FrameError(f"heartbeat: expected offset {raw.next_offset}, found {offset}")
                continue
            raw.append(offset, piece)
            if self._on_append is not None:
                self._on_append()

    def _hear_nothing(self, offset: int, comparison: _Comparison) -> None:
        """A heartbeat before everything was compared: the master may not have what was asked for.

        Raises: Diverged; ConnectionError where the comparison begins anew elsewhere; FrameError.
        """
        asked, end = comparison.position, comparison.end
        if offset == asked:
            if not comparison.is_quiet(self._clock(), self._settings.heartbeat_s / 2):
                return  # a master that stood still for a while sends one before it goes on
            bounds = (0, asked) if self._bounds is None else self._bounds()
            if bounds is None:
                raise ConnectionError(f"expected bytes from {asked} on, found none, and nobody tells where they end")
            first, offset = bounds
            if first > asked:
                offset = first
            elif offset > asked:
                raise ConnectionError(f"expected bytes from {asked} on, found none; the master has them up to {offset}")
        elif asked != comparison.start:
            raise FrameError(f"heartbeat: expected offset {asked}, found {offset}")
        if offset <= asked:
            self._master_end = offset
            raise Diverged(
                end, offset, f"the log of this slave ends at {end}, its master's at {offset}: the slave is ahead"
            )
        if offset > end:
            raise Diverged(
                end,
                offset,
                f"the log of this slave ends at {end}, its master's begins at {offset}: what is between is gone; a "
                "slave with an empty store begins anew",
            )
        self._master_first = offset
        raise ConnectionError(f"its log begins at {offset}: the next connection compares from there on")

    def _cut(self, error: Diverged, comparison: _Comparison) -> None:
        """Cut off what the master does not have, where that is allowed. Raises: the error, where it is not."""
        if not self._settings.truncate_diverged or error.master > error.end:
            raise error
        end = self._raw.last_boundary(error.master) if error.master >= comparison.lowest else 0
        if end <= comparison.start:
            if comparison.start <= comparison.lowest:
                raise Diverged(error.end, error.master, f"{error}; nothing is common to both, so nothing was cut")
            wanted = error.end - error.master + self._settings.compared_bytes
            self._compared_bytes = max(self._compared_bytes * 16, wanted)
            raise ConnectionError(f"{error}; more is compared with a new connection")
        kept = self._raw.keep_from(end)
        _log.warning(
            "%s; haTruncateDiverged is set: the log is cut from %d to %d, what is cut is kept in %s",
            error, error.end, end, kept,
        )  # fmt: skip
        self._raw.truncate_to(end)
        if self._on_cut is not None:
            self._on_cut(end)


class _Comparison:
    """The last bytes of a slave's log beside what its master sends for the same place.

    Args: first: where the master's log begins, 0 where nobody knows.
    Attributes: lowest: below it there is nothing to compare; start, position, end: physical offsets.
    """

    def __init__(self, raw: RawLog, compared_bytes: int, first: int) -> None:
        self._raw = raw
        self._quiet_s: float | None = None
        self.end = raw.end
        # A report of 0 means "nothing"; a master would begin with its last file.
        self.lowest = max(raw.min_offset, first, 1)
        self.start = min(self.end, max(self.lowest, self.end - compared_bytes))
        self.position = self.start
        if 0 < self.end == self.start:
            _log.warning("the master's log begins where this one ends, at %d: nothing can be compared", self.end)

    @property
    def is_done(self) -> bool:
        """Was everything compared?"""
        return self.position >= self.end

    def is_quiet(self, now_s: float, seconds: float) -> bool:
        """Called with each heartbeat: did nothing else come for so long?"""
        if self._quiet_s is None:
            self._quiet_s = now_s
        return now_s - self._quiet_s >= seconds

    def compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare the next bytes. Returns: what is behind the slave's end. Raises: Diverged, FrameError."""
        if offset != self.position:
            raise FrameError(f"frame: expected offset {self.position}, found {offset}")
        self._quiet_s = None
        mine = min(len(piece), self.end - self.position)
        done = 0
        while done < mine:
            for view in self._raw.read(self.position, mine - done, unflushed=True):
                other = piece[done : done + len(view)]
                if view != other:
                    at = next(i for i in range(len(view)) if view[i] != other[i])
                    self.position += at
                    raise Diverged(
                        self.end,
                        self.position,
                        f"the log of this slave, which ends at {self.end}, differs from its master's at "
                        f"{self.position}",
                    )
                done += len(view)
                self.position += len(view)
                view.release()
        return piece[mine:]
