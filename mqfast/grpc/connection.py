"""A connection with gRPC calls, in the event loop: events of HTTP/2 become calls of methods, their outcomes answers.

The meaning of methods is unknown here. One connection never makes others wait for longer than a slice of time, and an
exception of a method ends its call alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from mqfast.errors import FieldError, FrameError
from mqfast.grpc import http2
from mqfast.grpc.messages import Message, decode, encode
from mqfast.grpc.settings import GrpcSettings
from mqfast.remoting.channel import Channel
from mqfast.util.log_limit import LogLimit

__all__ = ["Call", "GrpcConnection", "GrpcError", "GrpcServer", "GrpcStatus", "Method", "Outcome"]

_TURN_S: Final = 0.004
_LOOKS_AT_THE_CLOCK: Final = 8
_WRITE_BYTES: Final = 256 * 1024
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_RESETS_MAX: Final = 2000  # calls that a client ends itself, in a second
_ENHANCE_YOUR_CALM: Final = 11
Outcome = Message | Awaitable[Message | None] | None
_NOT_GRPC: Final = "This port speaks RocketMQ's remoting protocol and gRPC.\n"


class GrpcStatus:
    """The statuses of gRPC that a server uses."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """Ends a call with a status of gRPC.

    Args: status: of GrpcStatus; text: for the client.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Call:
    """A call of a client.

    Attributes:
        headers: of the client, by lower-case name.
        channel: the connection; its ``peer`` is the client.
        deadline_s: by the clock of the loop; None: the client waits for any time.
        owner: an object of the method's handler.
        on_end: called once when the call has ended, however that was.
        on_lost: called once if the client, or the end of the connection, ends the call before its answer is written.
    Thread: that of the event loop.
    """

    __slots__ = (
        "_connection", "_request", "_stream", "_task", "_timer", "deadline_s", "has_ended", "method", "on_end",
        "on_lost", "owner",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: http2.Stream, method: Method) -> None:
        self._connection = connection
        self._stream = stream
        self._request: bytes | None = None
        self._task: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.method = method
        self.deadline_s: float | None = None
        self.has_ended = False
        self.owner: Any = None
        self.on_end: Callable[[], object] | None = None
        self.on_lost: Callable[[], object] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers."""
        return self._stream.headers

    @property
    def channel(self) -> Channel:
        """Return the connection."""
        return self._connection.channel

    @property
    def name(self) -> str:
        """Return the name of the method, without its service."""
        return self.headers.get(":path", "").rpartition("/")[2]

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of answers that the client has not read, of the whole connection."""
        return self._connection.unsent_bytes

    def serve(self, message: Message) -> Outcome:
        """Serve a message of the client. Returns: as ``Method.serve``."""
        outcome: Outcome = self.method.serve(self, message)
        return outcome

    def send(self, message: Message) -> None:
        """Send a message; of an ended call: nothing."""
        if not self.has_ended:
            self._connection.send(self._stream, encode(message))

    def finish(self, status: int = GrpcStatus.OK, text: str = "") -> None:
        """End the call. A second end has no effect."""
        if not self.has_ended:
            self._connection.finish(self._stream, status, text)
            self.release()

    def lose(self) -> None:
        """End the call: not all of its answer has been written."""
        self.release()
        if self.on_lost is not None:
            self.on_lost()

    def release(self) -> None:
        """Stop all work for the call: the answer is complete, or the client wants none."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stream.release()
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
        if self.on_end is not None:
            self.on_end()


class Method(NamedTuple):
    """A method of a service.

    Attributes: ``request``: class of its messages; ``response``: class of its answers; ``serve``: called with
        (call, message). The returned message, or that of a returned coroutine, is the answer; None: the handler has
        sent the messages itself, and of an ``is_stream`` method it ends the call itself; ``is_stream``: the client
        sends any number of messages; ``failed``: returns the answer for an exception of ``serve`` or its coroutine;
        None: the call ends with a status of gRPC.
    """

    request: type[Message]
    response: type[Message]
    serve: Callable[[Call, Any], Outcome]
    is_stream: bool = False
    failed: Callable[[Exception], Message] | None = None


class GrpcServer:
    """What all gRPC connections share: methods by path, limits, the log.

    Args: methods: by path, ``/package.Service/Method``; make_call: makes a call, with the arguments of ``Call``.
    Attributes: ``is_leaving``: further calls are answered UNAVAILABLE.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        settings: GrpcSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,
        logger: logging.Logger | None = None,
        make_call: Callable[..., Call] = Call,
    ) -> None:
        self.methods: Final = dict(methods)
        self.make_call: Final = make_call
        self.settings: Final = settings or GrpcSettings()
        self.clock: Final = clock or time.monotonic
        self.log: Final = LogLimit(logger or logging.getLogger("mqfast.grpc"), clock=self.clock)
        self.connections: Final[set[GrpcConnection]] = set()
        self.is_leaving = False

    def connect(self, channel: Channel) -> GrpcConnection:
        """Return the protocol of a connection that begins with FIRST_BYTE."""
        connection = GrpcConnection(self, channel)
        self.connections.add(connection)
        return connection

    def drain(self) -> None:
        """Send GOAWAY to all clients, and take no further call; running calls go on."""
        self.is_leaving = True
        for connection in list(self.connections):
            connection.send_go_away()

    def close(self) -> None:
        """Close all connections: what serves the calls has ended."""
        for connection in list(self.connections):
            connection.channel.close()


class GrpcConnection:
    """A connection with gRPC calls. Thread: that of the event loop."""

    def __init__(self, server: GrpcServer, channel: Channel) -> None:
        settings = server.settings
        self._server = server
        self.channel: Final = channel
        self._loop = asyncio.get_running_loop()
        self._session = http2.Http2Session(
            streams_max=settings.streams_max,
            header_bytes_max=settings.header_bytes_max,
            message_bytes_max=settings.message_bytes_max,
            held_bytes_max=settings.held_bytes_max,
        )
        self._events: deque[tuple[int, http2.Stream, Any]] = deque()
        self._calls: set[Call] = set()
        self._can_write = True
        self._working = False
        self._resting = False
        self._flushing = False
        self._has_ended = False
        self._is_closing = False
        self._active_s = server.clock()
        self._resets = 0
        self._resets_since_s = 0.0

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of answers that the client has not read."""
        return self._session.unsent

    # --- of the channel ---

    def receive(self, data: bytes) -> None:
        """Handle plain bytes of the peer."""
        if not data or self._has_ended:
            return
        self._active_s = self._server.clock()
        self._events.extend(self._session.receive(data))
        self._work()

    def set_writing(self, is_possible: bool) -> None:
        """Stop to write, or go on."""
        self._can_write = is_possible
        if is_possible:
            self._flush()

    def close(self) -> None:
        """End all calls with UNAVAILABLE, and write GOAWAY."""
        if self._is_closing:
            return
        self._is_closing = True
        for call in list(self._calls):
            call.finish(GrpcStatus.UNAVAILABLE, "the broker ends this connection")
        self._session.go_away()
        self._flush()

    def ended(self) -> None:
        """Drop everything: the connection has ended."""
        self._has_ended = True
        self._events.clear()
        for call in list(self._calls):
            call.lose()
        self._calls.clear()
        self._server.connections.discard(self)

    def check_timeouts(self) -> None:
        """Close the connection without a byte for long."""
        if self._server.clock() - self._active_s > self._server.settings.idle_timeout_s:
            self._server.log.info("idle", "%s:%d: gRPC: closed, idle", *self.channel.peer)
            self.channel.close()

    def send_go_away(self) -> None:
        """Send GOAWAY."""
        if not self._has_ended:
            self._session.go_away()
            self._flush_soon()

    # --- input ---

    def _work(self) -> None:
        if self._working:
            return
        self._working = True
        events, clock = self._events, self._server.clock
        until_s, served = clock() + _TURN_S, 0
        try:
            while events:
                served += 1
                if not served % _LOOKS_AT_THE_CLOCK and clock() > until_s:
                    self._rest()
                    break
                kind, stream, value = events.popleft()
                self._handle(kind, stream, value)
        finally:
            self._working = False
        self._flush()
        self.channel.read_bytes(not self._resting)

    def _rest(self) -> None:
        """Let the loop serve the other connections before this one is served or read again."""
        if not self._resting:
            self._resting = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._resting = False
        if not self._has_ended:
            self._work()

    def _handle(self, kind: int, stream: http2.Stream, value: Any) -> None:
        call: Call | None = stream.owner
        if kind == http2.OPENED:
            self._open(stream)
        elif call is None:
            if kind == http2.ENDED and not stream.has_started and not stream.is_closed:
                self._session.answer_http(stream, 415, _NOT_GRPC)
        elif kind == http2.MESSAGE:
            self._message(call, value)
        elif kind == http2.ENDED:
            self._run(call)
        elif kind == http2.REFUSED:
            call.finish(*value)
        elif kind == http2.CLOSED:
            self._closed(call, value)

    def _open(self, stream: http2.Stream) -> None:
        headers, session, server = stream.headers, self._session, self._server
        if not headers.get("content-type", "").startswith("application/grpc") or headers.get(":method") != "POST":
            return  # answered once the request is complete
        path = headers.get(":path", "")
        method = server.methods.get(path)
        if method is None:
            session.finish(stream, GrpcStatus.UNIMPLEMENTED, f"expected a method of RocketMQ's API, found {path[:200]}")
            return
        if server.is_leaving:
            session.finish(stream, GrpcStatus.UNAVAILABLE, "the broker ends")
            return
        if (refusal := self._refusal_of_unsent()) is not None:
            session.finish(stream, GrpcStatus.RESOURCE_EXHAUSTED, refusal)
            return
        call = server.make_call(self, stream, method)
        if (text := headers.get("grpc-timeout")) is not None:
            parts = _TIMEOUT.fullmatch(text)
            if parts is None:
                session.finish(
                    stream, GrpcStatus.INVALID_ARGUMENT,
                    f"grpc-timeout: expected digits and a unit of H M S m u n, found {text[:20]!r}",
                )  # fmt: skip
                return
            call.deadline_s = self._loop.time() + int(parts[1]) * _UNITS[parts[2]]
        stream.owner = call
        self._calls.add(call)

    def _refusal_of_unsent(self) -> str | None:
        """Return the reason to answer nothing more before the client reads; None while the answers fit."""
        largest, unsent = self._server.settings.unsent_bytes_max, self._session.unsent
        if unsent <= largest:
            return None
        return f"expected at most {largest} bytes of answers that wait for this client, found {unsent}"

    def _message(self, call: Call, data: bytes) -> None:
        if call.has_ended:
            return
        if call.method.is_stream:
            call._stream.release()
            if (refusal := self._refusal_of_unsent()) is not None:
                call.finish(GrpcStatus.RESOURCE_EXHAUSTED, refusal)
                return
            self._serve(call, data)
        elif call._request is not None:
            call.finish(GrpcStatus.INTERNAL, "expected one message, found more")
        else:
            call._request = data

    def _run(self, call: Call) -> None:
        """Serve a call whose request is complete."""
        if call.has_ended:
            return
        if call.method.is_stream:
            call.finish()  # the client sends no more
        elif call._request is None:
            call.finish(GrpcStatus.INTERNAL, "expected one message, found none")
        else:
            data, call._request = call._request, None
            self._serve(call, data)

    def _serve(self, call: Call, data: bytes) -> None:
        try:
            message = decode(call.method.request, data)
        except FieldError as error:
            call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
            return
        try:
            outcome = call.serve(message)
        except Exception as error:
            self._failed(call, error)
            return
        if isinstance(outcome, Message):
            call.send(outcome)
            call.finish()
        elif outcome is not None:
            self._await(call, outcome)
        elif not call.method.is_stream:
            call.finish()

    def _await(self, call: Call, outcome: Awaitable[Message | None]) -> None:
        task = asyncio.ensure_future(outcome)
        if not call.method.is_stream:
            call._task = task
        if call.deadline_s is not None and call._timer is None:
            call._timer = self._loop.call_at(call.deadline_s, self._expire, call)
        task.add_done_callback(lambda done: self._done(call, done))

    def _expire(self, call: Call) -> None:
        call._timer = None
        if call._task is None or not call._task.done():  # else the call ends next, with its answer
            call.finish(GrpcStatus.DEADLINE_EXCEEDED, "the time of the call is over")

    def _done(self, call: Call, task: asyncio.Future[Message | None]) -> None:
        call._task = None
        if task.cancelled():
            call.finish(GrpcStatus.CANCELLED, "the call was cancelled")
            return
        error = task.exception()
        if error is not None:
            self._failed(call, error)
            return
        answer = task.result()
        if answer is not None:
            call.send(answer)
        if not call.method.is_stream:
            call.finish()

    def _failed(self, call: Call, error: BaseException) -> None:
        if isinstance(error, GrpcError):
            call.finish(error.status, error.text)
            return
        if call.method.failed is not None and isinstance(error, Exception):
            call.send(call.method.failed(error))
            call.finish()
            return
        name = call.headers.get(":path", "")
        self._server.log.warning(f"failed {name}", "%s failed: %r", name, error, exc_info=error)
        call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")

    def _closed(self, call: Call, error_code: int) -> None:
        self._calls.discard(call)
        call._stream.owner = None
        if not call.has_ended:
            self._count_resets()
            call.lose()
        elif error_code:
            call.lose()

    def _count_resets(self) -> None:
        """Count calls that the client has ended itself; a client that opens and ends them in a loop is sent away."""
        now_s = self._server.clock()
        if now_s - self._resets_since_s > 1:
            self._resets, self._resets_since_s = 0, now_s
        self._resets += 1
        if self._resets == _RESETS_MAX:
            self._server.log.warning("resets", "%s:%d: gRPC: too many calls are reset", *self.channel.peer)
            self._session.go_away(_ENHANCE_YOUR_CALM)
            self.channel.close()

    # --- output ---

    def send(self, stream: http2.Stream, message: bytes) -> None:
        """Send a message of an answer."""
        if not stream.has_started:
            self._session.start(stream)
        self._session.write(stream, message)
        self._flush_soon()

    def finish(self, stream: http2.Stream, status: int, text: str) -> None:
        """Send the end of an answer."""
        self._session.finish(stream, status, text)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing and not self._working:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        if not self._has_ended:
            self._work()

    def _flush(self) -> None:
        """Write what nghttp2 gives, until the peer does not read."""
        session = self._session
        while self._can_write and not self._has_ended:
            parts = session.data_to_send(_WRITE_BYTES)
            if not parts:
                break
            self._active_s = self._server.clock()
            self.channel.write(parts)
        ended = session.take_events()
        if self._events:  # the begin of a call that ended here may wait for its turn
            self._events.extend(ended)
        else:
            for kind, stream, value in ended:
                self._handle(kind, stream, value)
        if session.wants_to_end and not self._is_closing:
            self._is_closing = True
            if session.error:
                self.channel.break_off(FrameError(f"gRPC: {session.error}"))
            else:
                self.channel.close()
