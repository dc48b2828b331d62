"""A slave: appends the log bytes of its master at the same offsets, after a check of each record.

A plain master sends the bytes after any reported offset, also to a slave whose log has diverged. So the slave first
compares both logs (``log_comparison.py``). A slave whose log has diverged leaves a mark in its store. The mark is
removed when the slave follows again or its log was truncated.

Invariants: the log is truncated only if the settings allow that, nothing is appended behind bytes that differ from the
master's, and a term is on the disk before its first byte is appended. Source: DefaultHAClient, AutoSwitchHAClient.
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

from mqfast.errors import ConfigError, CorruptFile, FrameError, StoreClosed, StoreFailed
from mqfast.ha.divergence import Divergence, forget_divergence, load_divergence, note_divergence
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.file_size import other_file_size, other_size
from mqfast.ha.log_comparison import Diverged, LogComparison, Search, ahead, begins_behind
from mqfast.ha.protocol import ASKS_HISTORY, HISTORY, Frames, MasterHistory, identity_report, report
from mqfast.ha.settings import HaSettings
from mqfast.store.raw_log import RawLog

__all__ = ["Diverged", "FollowState", "FollowStatus", "Followed", "HaSlave"]

_log = logging.getLogger("mqfast.ha")
_BUFFER_BYTES: Final = 1 << 20
_TURN_S: Final = 1.0
_AGAIN_S: Final = 0.01
_NO_TERM: Final = 2**63 - 1
_REFUSED: Final = (
    " before it sent a byte: where this goes on, the master's haAllowedAddresses does not name this host, or only one "
    "of them has haTlsCertFile"
)


class FollowState(StrEnum):
    """The state of a slave. The first three are RocketMQ's."""

    READY = "READY"
    """No connection."""
    TRANSFER = "TRANSFER"
    """Following."""
    SHUTDOWN = "SHUTDOWN"
    """Stopped, or the store failed."""
    DIVERGED = "DIVERGED"
    """The log has diverged from the master's log: an operator decides."""


class FollowStatus(NamedTuple):
    """The status of a slave.

    Attributes: end: physical offset up to which the slave has the log; master_end: the last known end of the master's
        log; behind_ms: time since the slave lacks a byte of that, 0 if none is missing; bytes_per_s: received in the
        last second; silent_ms: since the last byte of the master, None before the first; unreported_ms: since the last
        report; error: reason for not following.
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
        """Return the number of bytes that the slave lacks of the known part of the master's log."""
        return max(0, self.master_end - self.end)


class Followed(NamedTuple):
    """The connection whose log is appended. ``number``: of the connection; ``session``: of the master, empty if the
    master sends none.
    """

    number: int
    session: str


class _Again(ConnectionError):
    """A reason to connect again at once."""


class HaSlave:
    """Follows a master in a thread of its own, which moves bytes without the GIL.

    Args: raw: of a store with broker_role SLAVE; master: returns ``(host, port)`` before each connection, None while
        the master is unknown; on_append: called in the thread after bytes were appended; before_cut, on_cut: called
        before and after a truncation, with the new end of the log; on_follow: called when a comparison has found both
        logs equal; epochs: of the store, whose root gets the mark; tells_history: called after ``master``, returns True
        for a master of mqfast; identity: broker id and newest epoch of the store, sent to a fail-over master; bounds:
        first byte and end of the master's log from a source other than this connection, None while unknown. A Java
        master sends nothing for bytes that it does not have, and a master may pause; without ``bounds`` silence means
        the end of the log. tls: creates the TLS context of each connection; None for plain connections.
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
        before_cut: Callable[[int], object] | None = None,
        on_cut: Callable[[int], object] | None = None,
        on_follow: Callable[[], object] | None = None,
        epochs: EpochFile | None = None,
        tells_history: Callable[[], bool] = lambda: False,
        identity: Callable[[], tuple[int, int] | None] = lambda: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._raw: Final = raw
        self._settings: Final = settings
        self._master = master
        self._bounds = bounds
        self._on_append = on_append
        self._before_cut = before_cut
        self._on_cut = on_cut
        self._on_follow = on_follow
        self._epochs = epochs
        self._has_history = tells_history
        self._identity = identity
        self._tls = tls
        self._clock = clock or time.monotonic
        self._search = Search()
        self._history: MasterHistory | None = None  # of the master of this connection
        self._next_term = _NO_TERM  # begin of the first term of the master that this store lacks
        self._number = 0
        self._reconnects = 0
        self._followed: Followed | None = None
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
        self._whole_s = self._clock()  # when the slave last had all known bytes of the master's log
        self._rate = (0.0, 0, 0)  # begin of the second, bytes received before, rate of the previous second
        self._mark: Divergence | None = None  # the mark in the store
        self._load_mark()
        self._thread = threading.Thread(target=self._main, name="mqfast-ha-slave", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread; completely received records are in the log."""
        self._stopping.set()
        self.reconnect()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._state = FollowState.SHUTDOWN

    def reconnect(self) -> None:
        """Close the current connection or the connection attempt, for example after a change of the master."""
        self._reconnects += 1
        with contextlib.suppress(OSError):
            if (current := self._socket) is not None:
                current.shutdown(socket.SHUT_RDWR)

    def _load_mark(self) -> None:
        if self._epochs is None:
            return
        try:
            self._mark = load_divergence(self._epochs.os_api, self._epochs.root)
        except CorruptFile as error:
            _log.warning("%s", error)
        if self._mark is not None:
            self._state, self._error = FollowState.DIVERGED, str(self._mark)

    @property
    def followed(self) -> Followed | None:
        """Return the connection whose log is appended now; None during a comparison, or if the logs diverged."""
        return self._followed

    @property
    def status(self) -> FollowStatus:
        """Return the current status."""
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
            reconnects = self._reconnects
            address = self._master()
            if address is None:
                self._stopping.wait(min(_TURN_S, self._settings.reconnect_s))
                continue
            if self._address != (text := f"{address[0]}:{address[1]}"):
                self._address, self._search, self._master_first = text, Search(), 0
            try:
                self._follow(address, reconnects)
            except _Again as error:
                _log.info("master %s: %s", self._address, error)
                self._stopping.wait(_AGAIN_S)
                continue
            except Diverged as error:
                self._search = Search()
                self._set_state(FollowState.DIVERGED, error)
            except (StoreFailed, StoreClosed) as error:
                self._set_state(FollowState.SHUTDOWN, error)
                return
            except (
                Exception
            ) as error:  # also an invalid address: without this thread the slave would not follow any master
                self._set_state(FollowState.READY, error)
            self._stopping.wait(self._settings.reconnect_s)

    def _set_state(self, state: FollowState, error: Exception) -> None:
        if self._stopping.is_set():
            return
        text = str(error) or type(error).__name__
        if (
            state is FollowState.READY and self._mark is not None
        ):  # a master that is not reachable does not remove the mark
            state, text = FollowState.DIVERGED, f"{self._mark}; now: {text}"
        is_new, self._error = text != self._error, text
        self._state = state  # after the error: a reader of the state finds the reason
        if is_new:  # once, not for every attempt
            level = logging.ERROR if state in (FollowState.DIVERGED, FollowState.SHUTDOWN) else logging.WARNING
            _log.log(level, "master %s: %s", self._address, text)

    def _follow(self, address: tuple[str, int], reconnects: int) -> None:
        with self._connection(address) as connection:
            connection.settimeout(min(_TURN_S, self._settings.heartbeat_s))
            self._socket = connection
            if self._reconnects != reconnects:
                raise _Again("the master is another one")
            self._connected_s = self._clock()
            try:
                self._transfer(connection)
            finally:
                self._socket = self._followed = None
                self._raw.forget_part()
                if self._state is FollowState.TRANSFER:
                    self._state = FollowState.READY

    def _connection(self, address: tuple[str, int]) -> socket.socket:
        """Return a new connection, encrypted if the settings require TLS."""
        connection = socket.create_connection(address, self._settings.connect_timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return connection
            return self._tls().wrap_socket(connection)
        except ssl.SSLError as error:
            connection.close()
            raise ConnectionError(f"expected TLS and a certificate of the same CA at the master: {error}") from None
        except BaseException:
            connection.close()
            raise

    def _transfer(self, connection: socket.socket) -> None:
        raw, settings, clock = self._raw, self._settings, self._clock
        asks = self._has_history()
        frames, buffer = Frames(with_history=asks), memoryview(bytearray(_BUFFER_BYTES))
        self._number, self._history = self._number + 1, None
        comparison: LogComparison | None = None
        wrote_s = read_s = clock()
        if asks:
            connection.sendall(report(ASKS_HISTORY))
            self._wrote_s = wrote_s
        else:
            comparison = self._begin_comparison(connection)
        reported = -1
        sent_identity: tuple[int, int] | None = None
        at_first = self._received
        while not self._stopping.is_set():
            try:
                size = connection.recv_into(buffer)
            except TimeoutError:
                size = -1
            now_s = clock()
            if size == 0:
                raise ConnectionError(
                    f"the master ended the connection{_REFUSED if self._received == at_first else ''}"
                )
            if size > 0:
                self._read_s = read_s = now_s
                self._received += size
                comparison = self._receive(connection, frames, buffer[:size], comparison)
            elif now_s - read_s > settings.housekeeping_s:
                raise ConnectionError(f"expected a frame within {settings.housekeeping_s:g} s, found none")
            if comparison is None:
                continue
            if reported < 0:
                reported, wrote_s = comparison.start, self._wrote_s or now_s
            if comparison.is_done and (identity := self._identity()) != sent_identity and identity is not None:
                connection.sendall(identity_report(*identity))
                sent_identity = identity
            if comparison.is_done and (raw.end > reported or now_s - wrote_s >= settings.heartbeat_s):
                reported = raw.safe_end()
                connection.sendall(report(reported))
                self._wrote_s = wrote_s = now_s
            if raw.end >= self._master_end:
                self._whole_s = now_s
            since_s, before, _ = self._rate
            if now_s - since_s >= _TURN_S:
                self._rate = (now_s, self._received, round((self._received - before) / (now_s - since_s)))

    def _begin_comparison(self, connection: socket.socket) -> LogComparison:
        """Begin a comparison and report its start offset to the master. Raises: Diverged, _Again."""
        mine = () if self._epochs is None else self._epochs.terms
        try:
            comparison = LogComparison(self._raw, self._search, self._master_first, mine, self._history)
        except Diverged as error:
            self._write_mark(error, error.end)
            raise
        self._master_first = 0
        if comparison.is_at_limit:
            self._decide(comparison.ends_at_limit(), comparison)
        connection.sendall(report(comparison.start))
        self._wrote_s = self._clock()
        if comparison.is_done and self._history is not None:
            self._begin_to_follow()
        return comparison

    def _on_history(self, connection: socket.socket, data: bytes, comparison: LogComparison | None) -> LogComparison:
        """Process the history of the master's log. Raises: ConfigError, ConnectionError, Diverged, FrameError."""
        history = MasterHistory.parsed(data)
        if history.file_bytes != self._raw.file_bytes:
            raise ConfigError(other_size(self._raw.file_bytes, f"its master {history.file_bytes}"))
        own = -1 if self._epochs is None else self._epochs.last_epoch
        newest = history.terms[-1].epoch if history.terms else -1
        if newest < own:
            raise ConnectionError(f"epoch of the master, which was replaced: expected at least {own}, found {newest}")
        self._history = history
        if comparison is None:
            self._master_end = history.end
            return self._begin_comparison(connection)
        if self._followed is not None:
            self._take_terms(self._raw.end)
        return comparison

    def _receive(
        self, connection: socket.socket, frames: Frames, data: memoryview, comparison: LogComparison | None
    ) -> LogComparison | None:
        for start, piece in frames.feed(data):
            if start == HISTORY:
                comparison = self._on_history(connection, bytes(piece), comparison)
                continue
            if comparison is None:
                raise FrameError(f"frame: expected the history of the master, found offset {start}")
            offset = start
            if piece or comparison.is_done:
                self._master_end = max(self._master_end, offset + len(piece))
            if not comparison.is_done:
                try:
                    if not piece:
                        self._on_early_heartbeat(offset, comparison)
                        continue
                    piece = comparison.compare(offset, piece)
                except Diverged as error:
                    self._decide(error, comparison)
                offset = comparison.position
                if not comparison.is_done:
                    continue
            if self._followed is None:
                self._begin_to_follow()
            if not piece:
                if offset != self._raw.next_offset:
                    raise FrameError(f"heartbeat: expected offset {self._raw.next_offset}, found {offset}")
                continue
            self._append(offset, piece)
            if self._on_append is not None:
                self._on_append()
        return comparison

    def _begin_to_follow(self) -> None:
        """Begin to append: both logs are equal up to the end of this log. Raises: StorageError."""
        history, end = self._history, self._raw.end
        if self._epochs is not None:
            self._remove_mark(self._epochs)
            if history is None:
                self._epochs.begin_unknown(end)
        self._take_terms(end)
        self._state, self._error, self._search = FollowState.TRANSFER, None, Search()
        self._followed = Followed(self._number, "" if history is None else history.session)
        _log.info("master %s: followed from %d on", self._address, end)
        if self._on_follow is not None:
            self._on_follow()

    def _append(self, offset: int, piece: memoryview) -> None:
        """Append; a term is on the disk before its first byte is appended."""
        raw = self._raw
        if not raw.next_offset and raw.min_offset < 0 and offset % raw.file_bytes:
            raise ConfigError(other_size(raw.file_bytes, f"a log file of its master begins at {offset}"))
        while piece:
            before = piece[: max(0, self._next_term - offset)]
            if before:
                self._append_record_bytes(offset, before)
            offset, piece = offset + len(before), piece[len(before) :]
            if offset >= self._next_term:
                self._take_terms(offset)

    def _take_terms(self, end: int) -> None:
        """Store the master's terms up to the end of this log. Raises: StorageError."""
        terms = () if self._history is None else self._history.terms
        if self._epochs is not None and terms:
            self._epochs.follow(terms, end)
        self._next_term = min((term.start for term in terms if term.start > end), default=_NO_TERM)

    def _append_record_bytes(self, offset: int, piece: memoryview) -> None:
        try:
            self._raw.append(offset, piece)
        except CorruptFile as error:
            at = offset if error.offset is None else error.offset
            if offset <= at and (why := other_file_size(bytes(piece[at - offset :][:64]), at, self._raw.file_bytes)):
                raise ConfigError(why) from error
            raise

    def _on_early_heartbeat(self, offset: int, comparison: LogComparison) -> None:
        """Process a heartbeat during the comparison: the master may lack the requested bytes.

        Raises: Diverged; ConnectionError if the comparison restarts elsewhere; FrameError.
        """
        asked, end = comparison.position, comparison.end
        if offset == asked:
            if self._history is not None or not comparison.is_quiet(self._clock(), self._settings.heartbeat_s / 2):
                return  # a master that paused sends a heartbeat before it resumes
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
            raise ahead(end, offset)
        if offset > end:
            raise begins_behind(end, offset)
        self._master_first = offset
        raise _Again(f"its log begins at {offset}: the next connection compares from there on")

    def _decide(self, error: Diverged, comparison: LogComparison) -> None:
        """Handle diverged logs: write the mark, and truncate what the master does not have if the settings allow that.

        Raises: always: Diverged, if the log stays unchanged; _Again, if the next connection continues.
        """
        if error.master > error.end:
            self._write_mark(error, error.end)
            raise error
        common = comparison.common_below(error.master)
        if common is None:
            if not comparison.is_lowest:
                self._search.go_back(comparison.start, error.master)
                raise _Again(f"{error}; an earlier record is compared")
            self._write_mark(error, comparison.lowest)
            text = "nothing is common to both"
            raise Diverged(
                error.end,
                error.master,
                f"{error}; {text}, so nothing was cut" if self._settings.truncate_diverged else f"{error}; {text}",
            )
        self._write_mark(error, common)
        if not self._settings.truncate_diverged:
            raise error
        kept = self._raw.keep_from(common)
        _log.warning(
            "%s; haTruncateDiverged is set: the log is cut from %d to %d, what is cut is kept in %s",
            error, error.end, common, kept,
        )  # fmt: skip
        if self._before_cut is not None:
            self._before_cut(common)
        self._raw.truncate_to(common)
        self._search = Search()
        if self._epochs is not None:
            self._epochs.cut(common)
            self._remove_mark(self._epochs)
        if self._on_cut is not None:
            self._on_cut(common)
        raise _Again("the log was cut; it goes on with a new connection")

    def _write_mark(self, error: Diverged, common: int) -> None:
        """Write the mark into the store, which survives the process."""
        if self._epochs is None:
            return
        mark = Divergence(common, error.end, max(self._master_end, error.master), str(self._address))
        if self._mark is None or self._mark._replace(found_ms=0) != mark:
            self._mark = mark._replace(found_ms=round(time.time() * 1000))
            note_divergence(self._epochs.os_api, self._epochs.root, self._mark)

    def _remove_mark(self, epochs: EpochFile) -> None:
        self._mark = None
        forget_divergence(epochs.os_api, epochs.root)
