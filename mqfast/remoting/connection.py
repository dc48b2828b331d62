"""One connection without I/O: bytes in, events out; requests both ways, answers in any order, time-outs, back-pressure.

Room: remoting. It must never touch a socket, read a clock that it was not given, or know a request code. What it hands
out depends on the bytes received so far alone, never on how they were cut. Source: NettyRemotingAbstract.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mqfast.errors import FrameError, InternalError, TooManyCalls
from mqfast.remoting.codes import LanguageCode
from mqfast.remoting.command import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JSON,
    ONEWAY,
    VERSION,
    Buffer,
    FrameDecoder,
    RemotingCommand,
    encode,
)

__all__ = ["Answered", "Broken", "Call", "Connection", "Event", "Request", "Unmatched"]

_OPAQUE_MASK = 0x7FFFFFFF
_DEADLINES_MIN = 1024


class Call:
    """A request of this end that waits for its answer.

    Attributes: ``opaque``, ``code``, ``deadline_s`` (by the connection's clock), ``context`` (the caller's own).
    """

    __slots__ = ("code", "context", "deadline_s", "opaque")

    def __init__(self, opaque: int, code: int, deadline_s: float, context: Any) -> None:
        self.opaque = opaque
        self.code = code
        self.deadline_s = deadline_s
        self.context = context


class Request(NamedTuple):
    """The peer asks for something."""

    command: RemotingCommand


class Answered(NamedTuple):
    """The peer answered a call of this end."""

    call: Call
    command: RemotingCommand


class Unmatched(NamedTuple):
    """An answer that nobody waits for, since its call timed out or never was."""

    command: RemotingCommand


class Broken(NamedTuple):
    """The bytes are no frames from here on; nothing more comes, and the connection is to be closed."""

    error: FrameError


Event = Request | Answered | Unmatched | Broken


class Connection:
    """The protocol of one connection, the same for both ends.

    Args:
        clock: seconds that only grow.
        frame_bytes_max, header_bytes_max: what the peer may send in one frame and one header.
        calls_max: requests of this end that may wait for answers at once.
        requests_max: requests of the peer that may be open at once; beyond that nothing is to be read.
        language: what requests of this end say that it is written in.
    Attributes:
        blocked: the peer does not read what was sent; the owner sets it.
        open_requests: requests of the peer that are not answered yet.
        serialize: header codec of the peer's latest request, for requests of this end.
    Thread: one at a time.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        calls_max: int = 65_535,
        requests_max: int = 10_000,
        language: int = LanguageCode.JAVA,
    ) -> None:
        self._clock = clock
        self._language = language
        self._decoder = FrameDecoder(frame_bytes_max, header_bytes_max)
        self._calls_max = calls_max
        self._requests_max = requests_max
        self._calls: dict[int, Call] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._next_opaque = 0
        self._out: list[Any] = []
        self.out_bytes = 0
        self.blocked = False
        self.open_requests = 0
        self.serialize = JSON
        self.last_active_s = clock()
        self.closed = False
        self._broken = False

    # -- what comes in -------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._decoder.buffered

    @property
    def wants_to_read(self) -> bool:
        """Is the peer to be read now? Not while it does not read, nor while too many of its requests are open."""
        return not self.blocked and self.open_requests < self._requests_max

    def receive(self, data: Buffer) -> list[Event]:
        """Take bytes of the peer. Returns: what they complete, in order; ``Broken`` is the last that ever comes."""
        if self.closed or self._broken:
            return []
        self.last_active_s = self._clock()
        events: list[Event] = []
        for command in self._decoder.feed(data):
            if command.is_response:
                call = self._calls.pop(command.opaque, None)
                events.append(Unmatched(command) if call is None else Answered(call, command))
            else:
                self.serialize = command.serialize
                if not command.is_oneway:
                    self.open_requests += 1
                events.append(Request(command))
        if self._decoder.error is not None:
            self._broken = True
            events.append(Broken(self._decoder.error))
        return events

    # -- what goes out -------------------------------------------------------------------------------------------------

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Answer a request of the peer; None: it gets no answer. A one-way request never gets one."""
        if request.is_oneway:
            return
        if self.open_requests < 1:
            raise InternalError("a request was answered twice")
        self.open_requests -= 1
        if answer is not None:
            self._send(answer)

    def call(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        timeout_ms: int,
        context: Any = None,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> Call:
        """Ask the peer for something. Raises: TooManyCalls."""
        if len(self._calls) >= self._calls_max:
            raise TooManyCalls(f"expected at most {self._calls_max} requests without an answer, found one more")
        while self._next_opaque in self._calls:
            self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        opaque = self._next_opaque
        self._send(self._command(code, ext_fields, body, 0, serialize, version))
        call = Call(opaque, code, self._clock() + timeout_ms / 1000, context)
        self._wait_for(call)
        return call

    def call_ready(self, frame: Callable[[int], bytes], code: int, timeout_s: float, context: Any) -> float:
        """Ask the peer for something with a frame that the caller makes for an opaque.

        Returns: the deadline, by the connection's clock. Raises: TooManyCalls.
        """
        calls = self._calls
        if len(calls) >= self._calls_max:
            raise TooManyCalls(f"expected at most {self._calls_max} requests without an answer, found one more")
        opaque = self._next_opaque
        while opaque in calls:
            opaque = opaque + 1 & _OPAQUE_MASK
        self._next_opaque = opaque + 1 & _OPAQUE_MASK
        self._send_ready(frame(opaque))
        return self._wait_for(Call(opaque, code, self._clock() + timeout_s, context))

    def _wait_for(self, call: Call) -> float:
        self._calls[call.opaque] = call
        deadlines = self._deadlines
        if len(deadlines) >= _DEADLINES_MIN and len(deadlines) > 4 * len(self._calls):  # most were answered in time
            deadlines[:] = [(one.deadline_s, one.opaque) for one in self._calls.values()]
            heapq.heapify(deadlines)
        else:
            heapq.heappush(deadlines, (call.deadline_s, call.opaque))
        return call.deadline_s

    def oneway_ready(self, frame: Callable[[int], bytes]) -> None:
        """Tell the peer something with a frame that the caller makes for an opaque."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _OPAQUE_MASK
        self._send_ready(frame(opaque))

    def _send_ready(self, frame: bytes) -> None:
        if not self.closed:
            self._out.append(frame)
            self.out_bytes += len(frame)

    def oneway(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Tell the peer something that it does not answer."""
        self._send(self._command(code, ext_fields, body, ONEWAY, serialize, VERSION))

    def _command(
        self,
        code: int,
        ext_fields: dict[str, Any] | None,
        body: bytes | Sequence[Buffer],
        flag: int,
        serialize: int | None,
        version: int,
    ) -> RemotingCommand:
        codec = self.serialize if serialize is None else serialize
        if code > 32767:
            codec = JSON  # the other codec has 16 bits for it
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _OPAQUE_MASK
        return RemotingCommand(
            code,
            ext_fields,
            body,
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
            frame = encode(command)
            self._out.append(frame)
            self.out_bytes += len(frame)
        else:
            head = encode(command, with_body=False)
            self._out.append(head)
            self._out.extend(body)
            self.out_bytes += int.from_bytes(head[:4], "big") + 4

    def data_to_send(self) -> list[Any]:
        """What is to be sent now, as buffers; they are the caller's from here on."""
        if self._out:
            self.last_active_s = self._clock()
        out, self._out, self.out_bytes = self._out, [], 0
        return out

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """When the next call times out; None while nothing waits."""
        while self._deadlines:
            deadline, opaque = self._deadlines[0]
            call = self._calls.get(opaque)
            if call is not None and call.deadline_s == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def expired(self) -> list[Call]:
        """The calls whose time is over, in that order; their answers will be ``Unmatched``."""
        found: list[Call] = []
        now = self._clock()
        while (deadline := self.next_deadline_s()) is not None and deadline <= now:
            found.append(self._calls.pop(heapq.heappop(self._deadlines)[1]))
        return found

    def idle_s(self) -> float:
        """Seconds since anything was received or sent."""
        return self._clock() - self.last_active_s

    def close(self) -> list[Call]:
        """The connection is gone. Returns: the calls that get no answer any more."""
        self.closed = True
        calls = list(self._calls.values())
        self._calls.clear()
        self._deadlines.clear()
        self._out.clear()
        self.out_bytes = 0
        return calls
