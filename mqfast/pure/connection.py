"""A connection without I/O: bytes in, events out; the form of ``remoting/connection.pyx`` without compiled code.

The clock is an argument, and request codes have no meaning here. Events depend only on the bytes received so far, not
on their pieces. Source: NettyRemotingAbstract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

from mqfast.errors import FrameError, InternalError, TooManyCalls
from mqfast.remoting.codec import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON,
    VERSION,
    FrameDecoder,
    RemotingCommand,
    encode,
)

_Buffer: TypeAlias = bytes | bytearray | memoryview

_OPAQUE_MASK: Final = 0x7FFFFFFF
_RESPONSE: Final = 1
_ONEWAY: Final = 2
_JAVA: Final = 0
_SYSTEM_ERROR: Final = 1
_DEADLINES_MIN: Final = 1024
_SILENT_S: Final = 1.0  # the longest silence, also within a frame, once a call has expired in it
_FRAME_S: Final = 30.0  # the longest wait of a client's request, a pull


def frame_timed_out(since_s: float, heard_s: float, begun_s: float, now_s: float) -> bool:
    """Return whether an incomplete frame must be treated as corrupt. Arguments: as in ``connection.pyx``."""
    return 0 <= since_s <= begun_s and (now_s - heard_s >= _SILENT_S or now_s - since_s >= _FRAME_S)


class InFlightRequest:
    """A request of this side that waits for its response.

    Attributes: ``opaque``, ``code``, ``deadline_s`` (by the connection's clock), ``context`` (of the caller).
    """

    __slots__ = ("begun_s", "code", "context", "deadline_s", "opaque")

    def __init__(self, opaque: int, code: int, begun_s: float, timeout_s: float, context: Any) -> None:
        self.opaque = opaque
        self.code = code
        self.begun_s = begun_s
        self.deadline_s = begun_s + timeout_s
        self.context = context


class ConnectionEvent:
    """The meaning of received bytes. Two events are equal if their contents are."""

    __slots__: tuple[str, ...] = ()

    def _says(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._says() == self._says()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._says()!r}"


class RequestReceived(ConnectionEvent):
    """A request of the peer."""

    __slots__ = ("command",)

    def __init__(self, command: RemotingCommand) -> None:
        self.command = command


class ResponseReceived(ConnectionEvent):
    """The response to a call of this side."""

    __slots__ = ("call", "command")

    def __init__(self, call: InFlightRequest, command: RemotingCommand) -> None:
        self.call = call
        self.command = command

    def deliver(self) -> None:
        """Pass the response to the future that is the context of its call, unless the future is done."""
        future = self.call.context
        if not future.done():
            future.set_result(self.command)


class UnmatchedResponse(ConnectionEvent):
    """A response without a call, since the call timed out or never existed."""

    __slots__ = ("command",)

    def __init__(self, command: RemotingCommand) -> None:
        self.command = command


class ProtocolError(ConnectionEvent):
    """The bytes are no frames from here on; no event follows, and the connection must be closed."""

    __slots__ = ("error",)

    def __init__(self, error: FrameError) -> None:
        self.error = error


class Connection:
    """The protocol of a connection, the same for both sides. Arguments and attributes: as in ``connection.pyx``."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        calls_max: int = 65_535,
        requests_max: int = 10_000,
        request_bytes_max: int = 64 << 20,
        language: int = _JAVA,
    ) -> None:
        self._clock = clock
        self._language = language
        self._frame_bytes_max = frame_bytes_max
        self._decoder = FrameDecoder(frame_bytes_max, header_bytes_max)
        self._calls_max = calls_max
        self._requests_max = requests_max
        self._request_bytes_max = request_bytes_max
        self._calls: dict[int, InFlightRequest] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._out: list[Any] = []
        self._broken = False
        self._next_opaque = 0
        self.out_bytes = 0
        self.blocked = False
        self.open_requests = self.open_bytes = 0
        self.serialize = JSON
        self.closed = False
        self.last_active_s = self._received_s = clock()
        self._heard_s = 0.0  # time of the latest byte of an incomplete frame
        self._partial_s = -1.0  # since when the last frame is incomplete, -1: there is none
        self._mute_s = -1.0  # begin of the first call that has expired without a byte since, -1: there is none

    # --- what comes in ------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Return the bytes of an incomplete frame."""
        return self._decoder.buffered

    @property
    def waits(self) -> bool:
        """Return whether a call of this side waits for its response."""
        return bool(self._calls)

    @property
    def wants_to_read(self) -> bool:
        """Return whether to read the peer now: not while the peer does not read, nor with too many open requests."""
        return (
            not self.blocked and self.open_requests < self._requests_max and self.open_bytes < self._request_bytes_max
        )

    def receive(self, data: _Buffer) -> list[ConnectionEvent]:
        """Add bytes of the peer. Returns: the completed events, in order; ``ProtocolError`` is the last one ever."""
        events: list[ConnectionEvent] = []
        if self.closed or self._broken:
            return events
        self.last_active_s = self._received_s = self._clock()
        self._mute_s = -1.0
        commands = self._decoder.feed(data)
        if not self._decoder.buffered:
            self._partial_s = -1.0
        else:
            self._heard_s = self.last_active_s
            if commands or self._partial_s < 0:
                self._partial_s = self._heard_s
        for command in commands:
            if command.flag & _RESPONSE:
                call = self._calls.pop(command.opaque, None)
                events.append(UnmatchedResponse(command) if call is None else ResponseReceived(call, command))
                continue
            self.serialize = command.serialize
            if not command.flag & _ONEWAY:
                self.open_requests += 1
                self.open_bytes += len(command.body)
            events.append(RequestReceived(command))
        error = self._decoder.error
        if error is not None:
            self._broken = True
            events.append(ProtocolError(error))
        return events

    # --- what goes out ------------------------------------------------------------------------------------------------

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Send the response to a request of the peer; None: no response. A oneway request never gets a response.

        A response longer than a frame may be becomes SYSTEM_ERROR: a peer with the same limit would cut the connection.
        """
        if request.flag & _ONEWAY:
            return
        if self.open_requests < 1:
            raise InternalError("a request was answered twice")
        self.open_requests -= 1
        self.open_bytes -= len(request.body)
        if answer is None:
            return
        before, parts = self.out_bytes, len(self._out)
        self._send(answer)
        size = self.out_bytes - before
        if size > self._frame_bytes_max:
            del self._out[parts:]
            self.out_bytes = before
            remark = (
                f"the answer would have {size} bytes, more than the {self._frame_bytes_max} of a frame; ask for "
                "less, or raise frameMaxLength here and com.rocketmq.remoting.frameMaxLength at the client"
            )
            self._send(request.response(_SYSTEM_ERROR, remark=remark))

    def call(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        timeout_ms: int,
        context: Any = None,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> InFlightRequest:
        """Send a request to the peer. Returns: the InFlightRequest. Raises: TooManyCalls."""
        opaque = self._free_opaque()
        self._send(self._command(opaque, code, ext_fields, body, 0, serialize, version))
        return self._wait_for(opaque, code, timeout_ms / 1000, context)

    def send_encoded(self, frame: Callable[[int], bytes], code: int, timeout_s: float, context: Any) -> float:
        """Send a request with a frame that the caller encodes for an opaque.

        Returns: the deadline, by the connection's clock. Raises: TooManyCalls.
        """
        opaque = self._free_opaque()
        self._send_ready(frame(opaque))
        return self._wait_for(opaque, code, timeout_s, context).deadline_s

    def _free_opaque(self) -> int:
        """Return the number of a new call."""
        if len(self._calls) >= self._calls_max:
            raise TooManyCalls(f"expected at most {self._calls_max} requests without an answer, found one more")
        while self._next_opaque in self._calls:
            self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        return self._take_opaque()

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _OPAQUE_MASK
        return opaque

    def _wait_for(self, opaque: int, code: int, timeout_s: float, context: Any) -> InFlightRequest:
        call = InFlightRequest(opaque, code, self._clock(), timeout_s, context)
        deadlines = self._deadlines
        self._calls[opaque] = call
        heappush(deadlines, (call.deadline_s, opaque))
        if len(deadlines) > _DEADLINES_MIN and len(deadlines) > 4 * len(
            self._calls
        ):  # most calls were answered in time
            deadlines[:] = [(pending.deadline_s, pending.opaque) for pending in self._calls.values()]
            heapify(deadlines)
        return call

    def _send_ready(self, frame: bytes) -> None:
        if not self.closed:
            self._out.append(frame)
            self.out_bytes += len(frame)

    def oneway_ready(self, frame: Callable[[int], bytes]) -> None:
        """Send a oneway request with a frame that the caller encodes for an opaque."""
        self._send_ready(frame(self._take_opaque()))

    def oneway(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Send a oneway request."""
        self._send(self._command(self._take_opaque(), code, ext_fields, body, _ONEWAY, serialize, VERSION))

    def _command(
        self,
        opaque: int,
        code: int,
        ext_fields: dict[str, Any] | None,
        body: bytes | Sequence[_Buffer],
        flag: int,
        serialize: int | None,
        version: int,
    ) -> RemotingCommand:
        codec = self.serialize if serialize is None else serialize
        if code > 32767:
            codec = JSON  # the other codec has 16 bits for it
        return RemotingCommand(
            *(code, ext_fields, body),
            opaque=opaque,
            flag=flag,
            language=self._language,
            version=version,
            serialize=codec,
        )

    def _send(self, command: RemotingCommand) -> None:
        if self.closed:
            return
        body = command.body
        if type(body) is bytes:
            self._send_ready(encode(command))
            return
        frame = encode(command, with_body=False)
        self._out.append(frame)
        self._out.extend(body)
        self.out_bytes += int.from_bytes(frame[:4], "big") + 4

    def data_to_send(self) -> list[Any]:
        """Return the bytes to send now, as buffers; the caller owns them."""
        out = self._out
        if out:
            self.last_active_s = self._clock()
            self._out = []
            self.out_bytes = 0
        return out or []

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """Return the deadline of the next call; None without calls."""
        deadlines = self._deadlines
        while deadlines:
            deadline, opaque = deadlines[0]
            call = self._calls.get(opaque)
            if call is not None and call.deadline_s == deadline:
                return deadline
            heappop(deadlines)
        return None

    def expired(self) -> list[InFlightRequest]:
        """Return the expired calls, in order; their responses will be ``UnmatchedResponse``."""
        expired_calls: list[InFlightRequest] = []
        now = self._clock()
        while (deadline := self.next_deadline_s()) is not None and deadline <= now:
            call = self._calls.pop(heappop(self._deadlines)[1])
            if self._mute_s < 0 and self._received_s <= call.begun_s:
                self._mute_s = call.begun_s
            expired_calls.append(call)
        return expired_calls

    @property
    def is_unresponsive(self) -> bool:
        """Return whether calls have expired without any byte of the peer meanwhile: the peer may have ended without
        closing.
        """
        return self._mute_s >= 0 and self._clock() - self._mute_s >= _SILENT_S

    def is_stuck(self, call: InFlightRequest) -> bool:
        """Return whether the connection must be closed: this call expired behind a frame that does not complete."""
        return frame_timed_out(self._partial_s, self._heard_s, call.begun_s, self._clock())

    def idle_s(self) -> float:
        """Return the seconds since anything was received or sent."""
        return self._clock() - self.last_active_s

    def close(self) -> list[InFlightRequest]:
        """Close the connection. Returns: the calls without a response."""
        self.closed = True
        calls = list(self._calls.values())
        self._calls.clear()
        self._deadlines.clear()
        self._out.clear()
        self.out_bytes = 0
        return calls
