"""A master: sends the bytes of its log to every connected slave and receives their acknowledged offsets.

Bytes are sent as views of the mapped log. A slave whose send buffer is full gets no further bytes until it is drained.
The event loop is not blocked and the log is not changed. Source: DefaultHAService, DefaultHAConnection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from mqfast.errors import MqfastError, OffsetError, StorageError, StoreClosed
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.protocol import MasterHistory, Reports, frame_head
from mqfast.ha.settings import HaSettings
from mqfast.ha.term_history import new_id
from mqfast.store.log.acks import AckTable
from mqfast.store.raw_log import RawLog
from mqfast.util.log_limit import LogLimit

__all__ = ["HaMaster", "SlaveProgress"]

_log = logging.getLogger("mqfast.ha")
_POLL_S: Final = 0.001
_POLLS_WITHOUT_DATA: Final = 20
_SLEEP_S: Final = 0.5
_WRITE_HIGH_BYTES: Final = 1 << 20
_PARTS_A_WRITE: Final = 32
_HANDSHAKE_S: Final = 10.0
_REFUSED_S: Final = 10.0
_EARLY_BYTES: Final = 4096
_END_S: Final = 1.0
_BYTES_A_TURN: Final = 1 << 20  # then the loop has other work


class SlaveProgress(NamedTuple):
    """One connected slave.

    Attributes: address: of its connection; sent, acknowledged: physical offsets; behind_bytes: from the last
        acknowledgement to the end of the log; behind_ms: the age of the first unacknowledged message, 0 if all are
        acknowledged; bytes_per_s: sent in the last second; silent_ms: since its last report.
    """

    address: str
    sent: int
    acknowledged: int
    behind_bytes: int
    behind_ms: int
    bytes_per_s: int
    silent_ms: int


class _Follower(asyncio.Protocol):
    """The connection of one slave."""

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._reports = Reports()
        self._knows_history = False
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._asking: asyncio.Task[None] | None = None
        self.address = ""
        self.is_admitted = False
        self._early: bytes | None = None  # bytes received before the peer was admitted
        self.identity: tuple[int, int] | None = None
        self.position = -1  # nothing is sent before the first report
        self.acknowledged = -1
        self.read_s = self.wrote_s = master.clock()
        self._stored_s = self.read_s  # when the first message that the slave lacks was stored, as last seen
        self.bytes_now = self.bytes_per_s = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a connection of a slave: admit or refuse the peer."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_HIGH_BYTES // 4)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.address = f"{peer[0]}:{peer[1]}"
        verdict = self._master.admits(str(peer[0]))
        if isinstance(verdict, bool):
            self._admit(verdict)
        else:
            self._early = b""
            self._asking = asyncio.ensure_future(self._await_admission(verdict))

    async def _await_admission(self, verdict: Awaitable[bool]) -> None:
        try:
            is_admitted = await verdict
        except Exception as error:  # an error admits no peer
            self._master.limit.warning("may it", "slave %s: may it follow? %s", self.address, error)
            is_admitted = False
        if self._transport is not None and not self._transport.is_closing():
            self._admit(is_admitted)
            early, self._early = self._early, None
            if is_admitted and early:
                self.data_received(early)

    def _admit(self, is_admitted: bool) -> None:
        assert self._transport is not None
        if not is_admitted:
            self._master.refused(self.address)
            self._end_orderly()
            return
        self.is_admitted = True
        self._master.connected(self)
        self._master.limit.info("connected", "slave %s: connected", self.address)

    def _end_orderly(self) -> None:
        """Close so that the peer reads an end of file, not a reset: unread bytes of a report may be buffered here."""
        assert self._transport is not None
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(_END_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Handle reports of the slave."""
        if not self.is_admitted:
            if self._early is not None:  # not every loop pauses a connection before its first bytes
                self._early = (self._early + data)[:_EARLY_BYTES]
            return
        self.read_s = self._master.clock()
        offset = self._reports.feed(data)
        self.identity = self._reports.identity
        if self._reports.asks_history and not self._knows_history:
            self._knows_history = True
            self.send_history()
        if offset is None:
            return
        first, end = max(self._master.raw.min_offset, 0), self._master.raw.end
        if self.position < 0 and offset and not first <= offset <= end:
            self._send_bound(offset, first, end)
            return
        if not 0 <= offset <= end:
            self.disconnect(
                f"expected a report of 0 to {end}, the end of this log, found {offset}: its log is another one"
            )
            return
        if self.position < 0:
            # The offset at which the slave resumes. Its log may have diverged, so the report acknowledges nothing yet.
            self.position = offset or self._master.start_of_empty_slave()
            self._master.limit.info("gets", "slave %s: gets the log from %d to %d", self.address, self.position, end)
            offset = 0
        self.acknowledged = offset
        self._master.acks.report(self, offset)
        self.send()

    def send_history(self) -> None:
        """Send the history of this log to a slave that requested it, before the first byte of a term."""
        if self._knows_history and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._master.history().frame())

    def _send_bound(self, offset: int, first: int, end: int) -> None:
        """Send the begin or end of this log to a slave that requested an offset outside of the log, and close.

        The heartbeat with that offset is a frame that RocketMQ's slave refuses, with both offsets in its log.
        """
        assert self._transport is not None
        bound = first if offset < first else end
        self._master.limit.warning(
            "asks", "slave %s: asks for %d, this log has %d to %d; it was told so", self.address, offset, first, end
        )
        self._transport.write(frame_head(bound, 0))
        self._transport.close()

    def send(self) -> bool:
        """Send available bytes until the send buffer is full. Returns: True if any byte was sent."""
        if self.position < 0 or self._paused or self._transport is None or self._transport.is_closing():
            return False
        remaining_bytes = min(_BYTES_A_TURN, self._master.allowance)
        batch = self._master.settings.batch_bytes
        sent = 0
        try:
            while remaining_bytes > 0 and not self._paused:
                frames: list[bytes | memoryview] = []  # one call of the kernel for several
                while remaining_bytes > 0 and len(frames) < _PARTS_A_WRITE:
                    views = self._master.raw.read(self.position, min(batch, remaining_bytes), unflushed=True)
                    if not views:
                        break
                    view = views[0]  # a frame ends where the file does
                    for other in views[1:]:
                        other.release()
                    frames += (frame_head(self.position, len(view)), view)
                    self.position += len(view)
                    remaining_bytes -= len(view)
                    sent += len(view)
                if not frames:
                    break
                self._transport.writelines(frames)
        except OffsetError as error:
            self.disconnect(f"its log ends before this one begins: {error}")
        except (StorageError, StoreClosed, MqfastError) as error:
            self.disconnect(str(error))
        if sent:
            self.wrote_s = self._master.clock()
            self.bytes_now += sent
            self._master.allowance -= sent
        return sent > 0

    def check_timeouts(self, now_s: float) -> None:
        """Send a due heartbeat, close a silent connection and update figures. Called once a second."""
        settings = self._master.settings
        self.bytes_per_s, self.bytes_now = self.bytes_now, 0
        if now_s - self.read_s > settings.housekeeping_s:
            self.disconnect(f"expected a report within {settings.housekeeping_s:g} s, found none")
            return
        is_quiet = self.position >= 0 and not self._paused and now_s - self.wrote_s > settings.heartbeat_s
        if is_quiet and self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame_head(self.position, 0))
            self.wrote_s = now_s

    def status(self, end: int, now_s: float) -> SlaveProgress:
        """Return the status of the slave for a log that ends at ``end``."""
        behind = max(0, end - self.acknowledged)
        age_ms = self._master.raw.age_ms(self.acknowledged) if behind else 0
        if age_ms is not None:
            self._stored_s = now_s - age_ms / 1000
        # A slave of RocketMQ may be within a record: then the message before it is older.
        behind_ms = round((now_s - self._stored_s) * 1000) if behind else 0
        silent_ms = round((now_s - self.read_s) * 1000)
        return SlaveProgress(
            self.address, self.position, self.acknowledged, behind, behind_ms, self.bytes_per_s, silent_ms
        )

    def pause_writing(self) -> None:
        """Stop sending: the send buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume sending: the send buffer is drained."""
        self._paused = False
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the slave."""
        if not self.is_admitted:
            return
        self._master.followers.pop(self, None)
        self._master.acks.remove(self)
        self._master.limit.info(
            "gone", "slave %s: gone at %d of %d", self.address, self.acknowledged, self._master.raw.end
        )

    def disconnect(self, why: str) -> None:
        """Close the connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._master.limit.warning("ended", "slave %s: connection ended: %s", self.address, why)
            self._transport.abort()


class HaMaster:
    """The replication port of a master in the running event loop.

    Args: file_bytes: size of a log file; acks: gets the acknowledged offsets; epochs: of the store; admits: whether a
        peer of this address may follow; tls: slaves show a certificate, and the log is encrypted.
    Attributes: ``followers``: the connections; ``session``: random id of this start.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        raw: RawLog,
        acks: AckTable,
        settings: HaSettings,
        *,
        file_bytes: int,
        epochs: EpochFile | None = None,
        clock: Callable[[], float] | None = None,
        admits: Callable[[str], bool | Awaitable[bool]] = lambda _: True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.admits: Final = admits
        self._tls: Final = tls
        self._refused_s = float("-inf")
        self.raw: Final = raw
        self.session: Final = new_id()
        self._epochs: Final = epochs
        self.acks: Final = acks
        self.settings: Final = settings
        self.clock: Final = clock or time.monotonic
        self.limit = LogLimit(_log, burst=20)
        self.followers: dict[_Follower, None] = {}  # in order of arrival
        self.allowance = settings.flow_bytes_per_s or 1 << 62
        self._file_bytes = file_bytes
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises: OSError if the address is not available."""
        loop = asyncio.get_running_loop()
        grace_s = None if self._tls is None else _HANDSHAKE_S
        self._server = await loop.create_server(
            lambda: _Follower(self), host, port, ssl=self._tls, ssl_handshake_timeout=grace_s
        )

    def refused(self, address: str) -> None:
        """Log that a peer may not follow, at a limited rate."""
        if self.clock() - self._refused_s >= _REFUSED_S:
            self._refused_s = self.clock()
            _log.warning(
                "%s may not follow: expected a slave that haAllowedAddresses, a certificate or the name servers name",
                address,
            )

    def connected(self, follower: _Follower) -> None:
        """Add a slave; starts the send loop and the timer for the first slave."""
        self.followers[follower] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._send_loop())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._each_second)

    @property
    def port(self) -> int:
        """Return the port of the listening socket."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def start_of_empty_slave(self) -> int:
        """Return the offset at which a slave without a log begins."""
        end, first = self.raw.end, max(self.raw.min_offset, 0)
        return first if self.settings.whole_log else max(end - end % self._file_bytes, first)

    def history(self) -> MasterHistory:
        """Return the session, bounds and terms of this log."""
        terms = () if self._epochs is None else self._epochs.terms
        return MasterHistory(self.session, max(self.raw.min_offset, 0), self.raw.end, self.raw.file_bytes, terms)

    def send_history(self) -> None:
        """Send the history to all slaves, at the begin of a term."""
        for follower in tuple(self.followers):
            follower.send_history()

    def wake(self) -> None:
        """Send available bytes at once: a thread waits for acknowledgements."""
        for follower in tuple(self.followers):
            follower.send()

    async def _send_loop(self) -> None:
        """Poll while slaves get bytes; else wait for new bytes in a thread."""
        without = 0
        while self.followers:
            active = [follower.send() for follower in tuple(self.followers)]
            without = 0 if any(active) else without + 1
            if without < _POLLS_WITHOUT_DATA:
                await asyncio.sleep(_POLL_S)
                continue
            ready = [follower for follower in self.followers if follower.position >= 0]
            if not ready or any(follower.position < self.raw.end for follower in ready):
                await asyncio.sleep(_SLEEP_S / 10)  # no slave has reported yet, or a send buffer is full
                continue
            try:
                at = self.raw.end
                if await asyncio.to_thread(self.raw.wait_for, at, _SLEEP_S, unflushed=True):
                    without = 0
            except MqfastError as error:
                for follower in tuple(self.followers):
                    follower.disconnect(str(error))
                return

    def _each_second(self) -> None:
        self._timer = None
        if self.followers:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._each_second)
        self.allowance = self.settings.flow_bytes_per_s or 1 << 62
        now_s = self.clock()
        with contextlib.suppress(StoreClosed):
            for follower in tuple(self.followers):
                follower.check_timeouts(now_s)

    def statuses(self) -> list[SlaveProgress]:
        """Return the status of every slave that has reported."""
        end, now_s = self.raw.end, self.clock()
        return sorted(follower.status(end, now_s) for follower in self.followers if follower.position >= 0)

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for follower in tuple(self.followers):
            follower.disconnect("the master ends")
        await asyncio.sleep(0)
