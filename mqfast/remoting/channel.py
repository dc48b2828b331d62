"""A TCP connection in the event loop: the sans-I/O connection with TLS, PROXY header and writes.

The meaning of request codes is unknown here. Source: NettyRemotingAbstract, NettyRemotingServer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from mqfast.errors import CallTimeout, ConnectionLost, FrameError, FrameTooLarge
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import VERSION, Buffer, FrameDecoder, RemotingCommand, encode
from mqfast.remoting.connection import Connection, ConnectionEvent, ProtocolError, RequestReceived, ResponseReceived
from mqfast.remoting.latency import Latencies
from mqfast.remoting.proxy_protocol import ProxyHeader
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import CLIENT_HELLO, WANTS_TLS, TlsMode, TlsStream
from mqfast.util.log_limit import LogLimit

__all__ = ["Channel", "Endpoint", "OtherProtocol", "RequestDispatcher"]

_PLAIN_BYTES = 64 * 1024
_NO_TLS = "TLS: the connection ended in the handshake; a port that takes no TLS does so"
_FLUSH_BYTES = 256 * 1024
# Limits of time and of bytes for one connection, until the loop serves the others.
_TURN_S = 0.004
_TURN_BYTES = 64 * 1024
_LOOKS_AT_THE_CLOCK = 8  # requests between two readings of the clock; a power of 2


class RequestDispatcher(Protocol):
    """The table of request codes of a server or client; see ``Processors``."""

    def dispatch(self, channel: Channel, request: RemotingCommand) -> None:
        """Serve a request; the response goes to ``channel.answer``."""


class OtherProtocol(Protocol):
    """Another protocol on the connection of a channel, chosen by the first byte of the peer.

    The channel does TLS, counts the connection and closes the connection.
    """

    def receive(self, data: bytes) -> None:
        """Handle plain bytes of the peer."""

    def set_writing(self, is_possible: bool) -> None:
        """Stop to write, or go on: the peer does not read, or reads again."""

    def close(self) -> None:
        """Write what ends the connection; the channel closes afterwards."""

    def ended(self) -> None:
        """Drop everything: the connection has ended."""

    def check_timeouts(self) -> None:
        """Close the connection if idle. Called once a second."""


class Endpoint:
    """State shared by the channels of a server or a client: limits, processors, the check of timeouts.

    Thread: that of the event loop.
    """

    def __init__(
        self,
        processors: RequestDispatcher,
        settings: RemotingSettings,
        *,
        clock: Callable[[], float] | None = None,
        logger: logging.Logger | None = None,
        on_closed: Callable[[Channel], None] | None = None,
        latencies: Latencies | None = None,
        others: Mapping[int, Callable[[Channel], OtherProtocol]] | None = None,
    ) -> None:
        self.latencies = latencies
        self.others: Final = dict(others or {})
        self.processors = processors
        self.settings = settings
        self.clock = clock or time.monotonic
        self.log = LogLimit(logger or logging.getLogger("mqfast.remoting"), clock=clock)
        self.channels: dict[Channel, None] = {}  # in order of their connection
        self.buffered_bytes = 0
        self._on_closed = on_closed
        self._sweeper: asyncio.TimerHandle | None = None

    def new_connection(self) -> Connection:
        """Return a connection with the limits of this endpoint."""
        settings = self.settings
        return Connection(
            self.clock,
            frame_bytes_max=settings.frame_bytes_max,
            header_bytes_max=settings.header_bytes_max,
            calls_max=settings.calls_max,
            requests_max=settings.requests_max,
            request_bytes_max=settings.request_bytes_max,
            language=settings.language,
        )

    def closed(self, channel: Channel) -> None:
        """Remove a closed channel."""
        self.channels.pop(channel, None)
        if self._on_closed is not None:
            self._on_closed(channel)

    def start_sweep(self) -> None:
        """Check the timeouts of all channels once a second."""
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)

    def stop_sweep(self) -> None:
        """Stop the checks."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(1.0, self._sweep)
        for channel in list(self.channels):
            channel.check_timeouts()


class Channel(asyncio.Protocol):
    """A connection of an endpoint, as handlers see their peer.

    Attributes:
        peer: (host, port) of the client, from the PROXY header where there is one.
        socket_peer: (host, port) of the other end of the TCP connection.
        owner: an object of the user of the channel.
        queued_requests: requests that wait for their turn, see ``Processors``.
        is_tls, is_closed.
    Thread: that of the event loop.
    """

    queued_requests = 0
    _transport: asyncio.Transport | None = None

    def __init__(
        self, endpoint: Endpoint, *, server_side: bool, context: ssl.SSLContext | None, host: str | None = None
    ) -> None:
        self._endpoint = endpoint
        self._dispatch: Callable[[Channel, RemotingCommand], None] = endpoint.processors.dispatch
        self._server_side = server_side
        self._context = context
        self._host = host
        self._connection = endpoint.new_connection()
        self._loop = asyncio.get_running_loop()
        self._preamble: ProxyHeader | None = ProxyHeader() if server_side and endpoint.settings.proxy_protocol else None
        self._undecided = True  # nothing was read yet: at a server, TLS is undecided
        self._tls: TlsStream | None = None
        self._events: deque[ConnectionEvent] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # end of the timer, by the clock of the endpoint
        self._flushing = False
        self._working = False
        self._resting = False  # other connections are served first
        self._leaving = False
        self._ending = False
        self._buffered = 0
        self._opened_s = endpoint.clock()
        self.peer: tuple[str, int] = ("", 0)
        self.socket_peer: tuple[str, int] = ("", 0)
        self.owner: Any = None
        self.is_closed = False
        self._broken = ""  # the reason why this endpoint closed the connection
        self._handshake: asyncio.Future[None] | None = None
        self._chooses = server_side and bool(endpoint.others)  # no plain byte was read yet
        self._other: OtherProtocol | None = None

    def __repr__(self) -> str:
        return f"<channel {self.peer[0]}:{self.peer[1]}{' tls' if self.is_tls else ''}>"

    @property
    def is_tls(self) -> bool:
        """Return whether the connection is encrypted."""
        return self._tls is not None

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 without a socket."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of responses that the peer has not read."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._connection.out_bytes + waiting

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the checked certificate of the peer."""
        return None if self._tls is None else self._tls.peer_certificate()

    # -- transport callbacks -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the channel: the TCP connection is open."""
        tcp = self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        name = transport.get_extra_info("peername") or ("", 0)
        self.peer = self.socket_peer = (str(name[0]), int(name[1])) if len(name) > 1 else (str(name), 0)
        settings = self._endpoint.settings
        if len(self._endpoint.channels) >= settings.connections_max:
            self._endpoint.log.warning(
                "connections", "%s:%d: closed, there are %d connections already", *self.peer, settings.connections_max
            )
            self.is_closed = True
            tcp.abort()
            return
        self._endpoint.channels[self] = None
        tcp.set_write_buffer_limits(settings.write_high_bytes, settings.write_low_bytes)
        if not self._server_side and self._context is not None:
            self._tls = TlsStream(self._context, server_side=False, host=self._host)
            self._write_records()

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self.is_closed or self._ending:
            return
        try:
            if self._undecided:
                rest = self._decide(data)
                if rest is None:
                    return
                data = rest
            if self._tls is not None:
                data = self._tls.receive(data)
                self._write_records()
                if self._handshake is not None and self._tls.established and not self._handshake.done():
                    self._handshake.set_result(None)
                if self._tls.ended:
                    self.close()
        except FrameError as error:
            self._break(error)
            return
        if self._other is not None:
            self._other.receive(data)
        elif data:
            if self._chooses:
                self._chooses = False
                if (make := self._endpoint.others.get(data[0])) is not None:
                    self._begin_other(make, data)
                    return
            self._events.extend(self._connection.receive(data))
            self._count_buffered()
            if len(data) >= _TURN_BYTES:  # uvloop would read on at once, 8 MB in all
                self._rest()
            self._work()

    def eof_received(self) -> bool:
        """Close the connection: the peer sends no more."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls: the TCP connection is closed."""
        self.is_closed = True
        answers = [event for event in self._events if type(event) is ResponseReceived]
        self._events.clear()
        self._endpoint.buffered_bytes -= self._buffered
        self._buffered = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for answer in answers:
            answer.deliver()
        why = f": {self._broken}" if self._broken else ""
        if not (why or self._server_side) and self._undecided and self._context is None:
            why = ": it ended before a byte came; a port that wants TLS does so"
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(ConnectionLost(self._broken or _NO_TLS))
        if self._other is not None:
            self._other.ended()
        lost = ConnectionLost(f"{self.peer[0]}:{self.peer[1]}: the connection ended before the answer came{why}")
        for call in self._connection.close():
            if not call.context.done():
                call.context.set_exception(lost)
        if self in self._endpoint.channels:
            self._endpoint.closed(self)

    def pause_writing(self) -> None:
        """Stop reading: the peer does not read responses."""
        if self._other is not None:
            self._other.set_writing(False)
            return
        self._connection.blocked = True
        self._set_reading()

    def resume_writing(self) -> None:
        """Read again: the peer has read its responses."""
        if self._other is not None:
            self._other.set_writing(True)
            return
        self._connection.blocked = False
        self._work()

    # -- input ---------------------------------------------------------------------------------------------------------

    def _decide(self, data: bytes) -> bytes | None:
        """Read the PROXY header, then the byte that begins TLS. Returns: None: more bytes are needed."""
        if not self._server_side:
            self._undecided = False
            return data
        if self._preamble is not None:
            rest = self._preamble.feed(data)
            if rest is None:
                return None
            if self._preamble.peer is not None:
                self.peer = self._preamble.peer
            self._preamble = None
            data = rest
        if not data:
            return None
        self._undecided = False
        mode = self._endpoint.settings.tls_mode
        if data[0] == CLIENT_HELLO:
            if mode is TlsMode.DISABLED or self._context is None:
                why = "TLS is disabled" if mode is TlsMode.DISABLED else "there is no certificate"
                raise FrameError(f"expected a plain connection, since {why}, found TLS")
            self._tls = TlsStream(self._context, server_side=True)
        elif mode is TlsMode.ENFORCING:
            self._answer_plain(data)
            raise FrameError(f"expected TLS, which is enforced, found {data[:8]!r}")
        return data

    def _begin_other(self, make: Callable[[Channel], OtherProtocol], data: bytes) -> None:
        try:
            self._other = make(self)
        except FrameError as error:
            self._break(error)
        else:
            self._other.receive(data)

    def _answer_plain(self, data: bytes) -> None:
        """Send the reason of the refusal to a plain client, if its first request is complete."""
        decoder = FrameDecoder()
        for request in decoder.feed(data[:_PLAIN_BYTES])[:1]:
            if self._transport is not None:
                answer = request.response(ResponseCode.SYSTEM_ERROR, remark=WANTS_TLS)
                self._transport.write(encode(answer))

    def _count_buffered(self) -> None:
        buffered = self._connection.buffered
        self._endpoint.buffered_bytes += buffered - self._buffered
        self._buffered = buffered
        settings = self._endpoint.settings
        if self._endpoint.buffered_bytes > settings.buffered_bytes_max:
            # The channel with the most bytes, not the last to receive: that may be of a well-behaved client.
            largest = max(self._endpoint.channels, key=lambda channel: channel._buffered)
            if not largest._ending:
                largest._break(
                    FrameTooLarge(
                        f"expected at most {settings.buffered_bytes_max} bytes of incomplete frames of all "
                        f"connections, found {self._endpoint.buffered_bytes}, of which this one has {largest._buffered}"
                    )
                )

    def _work(self) -> None:
        """Serve the received requests, unless the peer does not read its responses."""
        if self._working:
            return  # a response made the transport call back
        self._working = True
        try:
            connection, events = self._connection, self._events
            served, clock = 0, self._endpoint.clock
            until_s = clock() + _TURN_S
            while events and not connection.blocked and not self.is_closed:
                served += 1
                if not served % _LOOKS_AT_THE_CLOCK and clock() > until_s:
                    self._rest()
                    break
                event = events.popleft()
                if type(event) is RequestReceived:
                    if self._endpoint.latencies is not None:
                        event.command.received_s = self._endpoint.clock()
                    self._dispatch(self, event.command)
                    if connection.out_bytes > _FLUSH_BYTES:
                        self._flush()
                elif type(event) is ResponseReceived:
                    event.deliver()
                elif type(event) is ProtocolError:
                    self._break(event.error)
        finally:
            self._working = False
        self._flush()
        self._set_reading()
        if self._leaving:
            self._drain()

    def leave_queue(self) -> None:
        """Count a request that has had its turn; a reactor serves no later send before a queued one."""
        self.queued_requests -= 1
        if self.queued_requests == 0:
            requests_begun = getattr(self._transport, "requests_begun", None)
            if requests_begun is not None:
                requests_begun()

    def _rest(self) -> None:
        """Let the loop serve the other connections before this one is served or read again."""
        if not self._resting:
            self._resting = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._resting = False
        self._work()

    def _break(self, error: FrameError) -> None:
        self._broken = self._broken or str(error)
        self._endpoint.log.warning("broken", "%s:%d: closed: %s", *self.peer, error)
        self._flush()
        self.close()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or self.is_closed or transport.is_closing():
            return
        wanted = self._connection.wants_to_read and not self._events and not self._resting
        if wanted != transport.is_reading():
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    async def encrypted(self) -> None:
        """Await the end of the TLS handshake, where there is one. Raises: ConnectionLost with the reason."""
        if self._tls is None or self._tls.established:
            return
        if self.is_closed:
            raise ConnectionLost(self._broken or _NO_TLS)
        self._handshake = asyncio.get_running_loop().create_future()
        await self._handshake

    # -- output --------------------------------------------------------------------------------------------------------

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Send the response to a request, at any time; None: there is no response. On a closed connection: nothing."""
        latencies = self._endpoint.latencies
        if latencies is not None and answer is not None:
            latencies.note(request, answer.code, self._endpoint.clock(), not self.is_closed)
        if self.is_closed:
            return
        self._connection.answer(request, answer)
        if not self._working:
            self._flush_soon()

    async def call(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        timeout_ms: int = 3000,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> RemotingCommand:
        """Send a request and await the response, with any code. Raises: CallTimeout, ConnectionLost, TooManyCalls."""
        if self.is_closed:
            raise ConnectionLost(f"{self.peer[0]}:{self.peer[1]}: the connection is closed")
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        call = self._connection.call(
            code, ext_fields, body, timeout_ms=timeout_ms, context=future, serialize=serialize, version=version
        )
        self._flush_soon()
        self._set_timer(call.deadline_s)
        return await future

    def begin(self, frame: Callable[[int], bytes], code: int, context: Any, timeout_s: float) -> None:
        """Send a request with a frame that the caller encodes for an opaque.

        Args: context: gets the end by ``set_result`` (the response) or ``set_exception`` (CallTimeout, ConnectionLost)
            unless ``done()`` is true: a future, or an object with its methods.
        Raises: ConnectionLost, TooManyCalls.
        """
        if self.is_closed:
            raise ConnectionLost(f"{self.peer[0]}:{self.peer[1]}: the connection is closed")
        deadline_s = self._connection.send_encoded(frame, code, timeout_s, context)
        if not self._flushing:
            self._flush_soon()
        if deadline_s < self._timer_s:
            self._set_timer(deadline_s)

    def oneway_ready(self, frame: Callable[[int], bytes]) -> None:
        """Send a oneway request with an encoded frame; on a closed connection: nothing."""
        if not self.is_closed:
            self._connection.oneway_ready(frame)
            self._flush_soon()

    def oneway(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Send a oneway request; on a closed connection: nothing."""
        if not self.is_closed:
            self._connection.oneway(code, ext_fields, body, serialize=serialize)
            self._flush_soon()

    @property
    def is_usable(self) -> bool:
        """Return whether requests can be sent: the connection has neither ended nor begun to end."""
        return not (self.is_closed or self._ending or self._leaving)

    def drain(self) -> None:
        """Take no further request; close the connection once all responses are sent."""
        self._leaving = True
        if not self._working:
            self._drain()

    def _drain(self) -> None:
        if not self._connection.waits and not self._events:
            self._flush()
            self.close()

    def close(self) -> None:
        """Close the connection once all written bytes are sent. Received responses are delivered."""
        if self._transport is None or self._ending:
            return
        if self._other is not None:
            self._other.close()
        self._ending = True
        answers = [event for event in self._events if type(event) is ResponseReceived]
        self._events.clear()
        self._events.extend(answers)
        if self._tls is not None:
            self._tls.close()
            self._write_records()
        if self._connection.blocked:
            self._transport.abort()  # a peer that does not read would keep the connection open
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush()
        self._set_reading()

    def _flush(self) -> None:
        self._flushing = False
        out = self._connection.data_to_send()
        if not out or self._transport is None or self.is_closed or self._transport.is_closing():
            return
        if self._tls is not None:
            for part in out:
                self._tls.send(bytes(part))
            self._write_records()
        elif len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def write(self, parts: list[bytes]) -> None:
        """Send the bytes of another protocol; on a closed connection: nothing."""
        if self._transport is None or self.is_closed or self._transport.is_closing():
            return
        if self._tls is not None:
            for part in parts:
                self._tls.send(part)
            self._write_records()
        else:
            self._transport.writelines(parts)

    def read_bytes(self, is_wanted: bool) -> None:
        """Read the bytes of another protocol, or let the peer wait."""
        if self._transport is None or self.is_closed or self._transport.is_closing():
            return
        if is_wanted != self._transport.is_reading():
            if is_wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def break_off(self, error: FrameError) -> None:
        """Close the connection, with the reason in the log: the peer broke the rules of another protocol."""
        self._break(error)

    def _write_records(self) -> None:
        assert self._tls is not None
        assert self._transport is not None
        records = self._tls.records()
        if records and not self._transport.is_closing():
            self._transport.write(records)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _set_timer(self, deadline_s: float) -> None:
        if deadline_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = deadline_s
            self._timer = self._loop.call_later(max(0.0, deadline_s - self._endpoint.clock()), self._time_out)

    def _time_out(self) -> None:
        self._timer, self._timer_s = None, math.inf
        expired = self._connection.expired()
        if any(self._connection.is_stuck(call) for call in expired):  # first: a caller may repeat a request at once
            self._break(FrameError("expected the rest of a frame, found none before an answer was due"))
        if not self._server_side and self._connection.is_unresponsive:
            self._leaving = True  # the server ended without closing: the next request opens a new connection
        for call in expired:
            if not call.context.done():
                call.context.set_exception(
                    CallTimeout(f"{self.peer[0]}:{self.peer[1]}: no answer to request {call.code} in time")
                )
        deadline = self._connection.next_deadline_s()
        if deadline is not None:
            self._set_timer(deadline)
        elif self._leaving:
            self._drain()

    def check_timeouts(self) -> None:
        """Close an idle connection, and a connection without the end of its handshake."""
        settings = self._endpoint.settings
        has_begun = self._preamble is not None and self._preamble.has_begun
        if self._ending:
            if self._transport is not None and self._connection.idle_s() > settings.handshake_timeout_s:
                self._transport.abort()
        elif has_begun or (self._tls is not None and not self._tls.established):
            if self._endpoint.clock() - self._opened_s > settings.handshake_timeout_s:
                self._break(FrameError(f"expected a handshake within {settings.handshake_timeout_s:g} s, found none"))
        elif self._other is not None:
            self._other.check_timeouts()
        elif self._idle_s() > settings.idle_timeout_s:
            self._endpoint.log.info("idle", "%s:%d: closed, idle for %g s", *self.peer, settings.idle_timeout_s)
            self.close()

    def _idle_s(self) -> float:
        """Return the seconds since any byte; a reactor receives and sends bytes that this connection does not see."""
        idle_s = self._connection.idle_s()
        reactor_idle_s = getattr(self._transport, "idle_s", None)
        return idle_s if reactor_idle_s is None else min(idle_s, reactor_idle_s())
