"""A connection without I/O: bytes in, events out; requests both ways, responses in any order, timeouts, back-pressure.

The clock is an argument, and request codes have no meaning here. Events depend only on the bytes received so far, not
on their pieces. Source: NettyRemotingAbstract.
"""

import heapq

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from mqfast.remoting.codec cimport RemotingCommand

from mqfast.errors import InternalError, TooManyCalls
from mqfast.remoting import codec as _codec
from mqfast.remoting.codec import FrameDecoder, encode

cdef int64_t OPAQUE_MASK = 0x7FFFFFFF
cdef int RESPONSE = 1
cdef int ONEWAY = 2
cdef Py_ssize_t FRAME_MAX = _codec.FRAME_BYTES_MAX
cdef Py_ssize_t HEADER_MAX = _codec.HEADER_BYTES_MAX
cdef int JSON_CODEC = _codec.JSON
cdef int OWN_VERSION = _codec.VERSION
cdef int JAVA = 0
cdef int SYSTEM_ERROR = 1
cdef Py_ssize_t DEADLINES_MIN = 1024
cdef double SILENT_S = 1.0   # the longest silence, also within a frame, once a call has expired in it
cdef double FRAME_S = 30.0   # the longest wait of a client's request, a pull
cdef object heappush = heapq.heappush
cdef object heappop = heapq.heappop
cdef object heapify = heapq.heapify


def frame_timed_out(double since_s, double heard_s, double begun_s, double now_s):
    """Return whether an incomplete frame must be treated as corrupt: a wrong length would block all later responses.

    A slow peer continues to send: its frame has FRAME_S, even if many short calls expire meanwhile.

    Args: since_s: begin of the frame, -1: no frame is incomplete. heard_s: time of its latest byte. begun_s: begin of
        an expired call. now_s: by the same clock, in seconds.
    """
    return 0 <= since_s <= begun_s and (now_s - heard_s >= SILENT_S or now_s - since_s >= FRAME_S)


@cython.freelist(64)
cdef class InFlightRequest:
    """A request of this side that waits for its response.

    Attributes: ``opaque``, ``code``, ``deadline_s`` (by the connection's clock), ``context`` (of the caller).
    """

    cdef readonly int opaque
    cdef readonly int code
    cdef readonly double deadline_s
    cdef readonly object context
    cdef double begun_s


cdef class ConnectionEvent:
    """The meaning of received bytes. Two events are equal if their contents are."""

    def _says(self):
        return ()

    def __eq__(self, other):
        return type(other) is type(self) and (<ConnectionEvent> other)._says() == self._says()

    __hash__ = None

    def __repr__(self):
        return f"{type(self).__name__}{self._says()!r}"


cdef class RequestReceived(ConnectionEvent):
    """A request of the peer."""

    cdef readonly RemotingCommand command

    def __init__(self, RemotingCommand command not None):
        self.command = command

    def _says(self):
        return (self.command,)


cdef class ResponseReceived(ConnectionEvent):
    """The response to a call of this side."""

    cdef readonly InFlightRequest call
    cdef readonly RemotingCommand command

    def __init__(self, InFlightRequest call not None, RemotingCommand command not None):
        self.call = call
        self.command = command

    def _says(self):
        return (self.call, self.command)

    def deliver(self):
        """Pass the response to the future that is the context of its call, unless the future is done."""
        future = self.call.context
        if not future.done():
            future.set_result(self.command)


cdef class UnmatchedResponse(ConnectionEvent):
    """A response without a call, since the call timed out or never existed."""

    cdef readonly RemotingCommand command

    def __init__(self, RemotingCommand command not None):
        self.command = command

    def _says(self):
        return (self.command,)


cdef class ProtocolError(ConnectionEvent):
    """The bytes are no frames from here on; no event follows, and the connection must be closed."""

    cdef readonly object error

    def __init__(self, error):
        self.error = error

    def _says(self):
        return (self.error,)


cdef class Connection:
    """The protocol of a connection, the same for both sides.

    Args:
        clock: seconds that only grow.
        frame_bytes_max, header_bytes_max: limits of a frame and a header of the peer; also of responses to the peer.
        calls_max: requests of this side that may wait for responses at once.
        requests_max: requests of the peer that may be open at once; beyond that nothing should be read.
        language: the language field of the requests of this side.
    Attributes:
        blocked: the peer does not read the sent bytes; set by the owner.
        open_requests: requests of the peer without a response; open_bytes: of their bodies.
        serialize: header codec of the peer's latest request, for requests of this side.
    Thread: one at a time.
    """

    cdef object _clock
    cdef int _language
    cdef object _decoder
    cdef Py_ssize_t _calls_max
    cdef Py_ssize_t _requests_max
    cdef dict _calls
    cdef list _deadlines
    cdef public int64_t _next_opaque
    cdef Py_ssize_t _frame_bytes_max
    cdef list _out
    cdef bint _broken
    cdef readonly Py_ssize_t out_bytes
    cdef public bint blocked
    cdef readonly Py_ssize_t open_requests
    cdef readonly Py_ssize_t open_bytes
    cdef Py_ssize_t _request_bytes_max
    cdef readonly int serialize
    cdef readonly double last_active_s
    cdef double _partial_s      # since when the last frame is incomplete, -1: there is none
    cdef double _heard_s        # time of the latest byte of that frame
    cdef double _received_s     # time of the latest byte of all
    cdef double _mute_s         # begin of the first call that has expired since then, -1: there is none
    cdef readonly bint closed

    def __init__(
        self,
        clock,
        *,
        Py_ssize_t frame_bytes_max=FRAME_MAX,
        Py_ssize_t header_bytes_max=HEADER_MAX,
        Py_ssize_t calls_max=65_535,
        Py_ssize_t requests_max=10_000,
        Py_ssize_t request_bytes_max=64 << 20,
        int language=JAVA,
    ):
        self._clock = clock
        self._language = language
        self._frame_bytes_max = frame_bytes_max
        self._decoder = FrameDecoder(frame_bytes_max, header_bytes_max)
        self._calls_max = calls_max
        self._requests_max = requests_max
        self._request_bytes_max = request_bytes_max
        self._calls = {}
        self._deadlines = []
        self._out = []
        self.serialize = JSON_CODEC
        self.last_active_s = self._received_s = clock()
        self._partial_s = self._mute_s = -1

    # --- what comes in ------------------------------------------------------------------------------------------------

    @property
    def buffered(self):
        """Return the bytes of an incomplete frame."""
        return self._decoder.buffered

    @property
    def waits(self):
        """Return whether a call of this side waits for its response."""
        return bool(self._calls)

    @property
    def wants_to_read(self):
        """Return whether to read the peer now: not while the peer does not read, nor with too many open requests."""
        return (
            not self.blocked
            and self.open_requests < self._requests_max
            and self.open_bytes < self._request_bytes_max
        )

    def receive(self, data):
        """Add bytes of the peer. Returns: the completed events, in order; ``ProtocolError`` is the last one ever."""
        cdef RemotingCommand command
        cdef ResponseReceived answered
        cdef RequestReceived request
        cdef list events = []
        if self.closed or self._broken:
            return events
        self.last_active_s = self._received_s = self._clock()
        self._mute_s = -1
        commands = self._decoder.feed(data)
        if not self._decoder.buffered:
            self._partial_s = -1
        else:
            self._heard_s = self.last_active_s
            if commands or self._partial_s < 0:
                self._partial_s = self._heard_s
        for command in commands:
            if command.flag & RESPONSE:
                call = self._calls.pop(command.opaque, None)
                if call is None:
                    events.append(UnmatchedResponse(command))
                else:
                    answered = ResponseReceived.__new__(ResponseReceived)
                    answered.call = <InFlightRequest> call
                    answered.command = command
                    events.append(answered)
            else:
                self.serialize = command.serialize
                if not command.flag & ONEWAY:
                    self.open_requests += 1
                    self.open_bytes += len(command.body)
                request = RequestReceived.__new__(RequestReceived)
                request.command = command
                events.append(request)
        error = self._decoder.error
        if error is not None:
            self._broken = True
            events.append(ProtocolError(error))
        return events

    # --- what goes out ------------------------------------------------------------------------------------------------

    def answer(self, RemotingCommand request not None, answer):
        """Send the response to a request of the peer; None: no response. A oneway request never gets a response.

        A response longer than a frame may be becomes SYSTEM_ERROR: a peer with the same limit would cut the connection.
        """
        cdef Py_ssize_t before = self.out_bytes
        cdef Py_ssize_t parts
        cdef Py_ssize_t size
        if request.flag & ONEWAY:
            return
        if self.open_requests < 1:
            raise InternalError("a request was answered twice")
        self.open_requests -= 1
        self.open_bytes -= len(request.body)
        if answer is None:
            return
        parts = len(self._out)
        self._send(answer)
        size = self.out_bytes - before
        if size > self._frame_bytes_max:
            del self._out[parts:]
            self.out_bytes = before
            self._send(request.response(
                SYSTEM_ERROR,
                remark=f"the answer would have {size} bytes, more than the {self._frame_bytes_max} of a frame; ask for "
                "less, or raise frameMaxLength here and com.rocketmq.remoting.frameMaxLength at the client",
            ))

    def call(
        self, int code, dict ext_fields=None, body=b"", *, timeout_ms, context=None, serialize=None,
        int version=OWN_VERSION
    ):
        """Send a request to the peer. Returns: the InFlightRequest. Raises: TooManyCalls."""
        cdef int opaque = self._free_opaque()
        self._send(self._command(opaque, code, ext_fields, body, 0, serialize, version))
        return self._wait_for(opaque, code, <double> timeout_ms / 1000, context)

    def send_encoded(self, frame, int code, double timeout_s, context):
        """Send a request with a frame that the caller encodes for an opaque.

        Returns: the deadline, by the connection's clock. Raises: TooManyCalls.
        """
        cdef int opaque = self._free_opaque()
        self._send_ready(frame(opaque))
        return self._wait_for(opaque, code, timeout_s, context).deadline_s

    cdef int _free_opaque(self) except -1:
        """Return the number of a new call."""
        cdef int64_t opaque
        if len(self._calls) >= self._calls_max:
            raise TooManyCalls(f"expected at most {self._calls_max} requests without an answer, found one more")
        while self._next_opaque in self._calls:
            self._next_opaque = self._next_opaque + 1 & OPAQUE_MASK
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & OPAQUE_MASK
        return <int> opaque

    cdef InFlightRequest _wait_for(self, int opaque, int code, double timeout_s, context):
        cdef InFlightRequest call = InFlightRequest.__new__(InFlightRequest)
        cdef InFlightRequest pending
        cdef list deadlines = self._deadlines
        call.opaque = opaque
        call.code = code
        call.begun_s = self._clock()
        call.deadline_s = call.begun_s + timeout_s
        call.context = context
        self._calls[opaque] = call
        heappush(deadlines, (call.deadline_s, opaque))
        if len(deadlines) > DEADLINES_MIN and len(deadlines) > 4 * len(self._calls):  # most calls were answered in time
            deadlines[:] = [(pending.deadline_s, pending.opaque) for pending in self._calls.values()]
            heapify(deadlines)
        return call

    cdef int _send_ready(self, bytes frame) except -1:
        if not self.closed:
            self._out.append(frame)
            self.out_bytes += PyBytes_GET_SIZE(frame)
        return 0

    def oneway_ready(self, frame):
        """Send a oneway request with a frame that the caller encodes for an opaque."""
        cdef int64_t opaque = self._next_opaque
        self._next_opaque = opaque + 1 & OPAQUE_MASK
        self._send_ready(frame(opaque))

    def oneway(self, int code, dict ext_fields=None, body=b"", *, serialize=None):
        """Send a oneway request."""
        cdef int64_t opaque = self._next_opaque
        self._next_opaque = opaque + 1 & OPAQUE_MASK
        self._send(self._command(<int> opaque, code, ext_fields, body, ONEWAY, serialize, OWN_VERSION))

    cdef RemotingCommand _command(self, int opaque, int code, dict ext_fields, body, int flag, serialize, int version):
        cdef int codec = self.serialize if serialize is None else serialize
        if code > 32767:
            codec = JSON_CODEC  # the other codec has 16 bits for it
        return RemotingCommand(
            code, ext_fields, body, opaque=opaque, flag=flag, language=self._language, version=version,
            serialize=codec,
        )

    cdef int _send(self, RemotingCommand command) except -1:
        cdef bytes frame
        if self.closed:
            return 0
        body = command.body
        if type(body) is bytes:
            frame = encode(command)
            self._out.append(frame)
            self.out_bytes += PyBytes_GET_SIZE(frame)
        else:
            frame = encode(command, with_body=False)
            self._out.append(frame)
            self._out.extend(body)
            self.out_bytes += <Py_ssize_t> int.from_bytes(frame[:4], "big") + 4
        return 0

    def data_to_send(self):
        """Return the bytes to send now, as buffers; the caller owns them."""
        cdef list out = self._out
        if out:
            self.last_active_s = self._clock()
            self._out = []
            self.out_bytes = 0
            return out
        return []

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline_s(self):
        """Return the deadline of the next call; None without calls."""
        cdef list deadlines = self._deadlines
        while deadlines:
            deadline, opaque = deadlines[0]
            call = self._calls.get(opaque)
            if call is not None and (<InFlightRequest> call).deadline_s == <double> deadline:
                return deadline
            heappop(deadlines)
        return None

    def expired(self):
        """Return the expired calls, in order; their responses will be ``UnmatchedResponse``."""
        cdef InFlightRequest call
        cdef list expired_calls = []
        now = self._clock()
        while (deadline := self.next_deadline_s()) is not None and deadline <= now:
            call = self._calls.pop(heappop(self._deadlines)[1])
            if self._mute_s < 0 and self._received_s <= call.begun_s:
                self._mute_s = call.begun_s
            expired_calls.append(call)
        return expired_calls

    @property
    def is_unresponsive(self):
        """Return whether calls have expired without any byte of the peer meanwhile: the peer may have ended without
        closing.
        """
        return self._mute_s >= 0 and self._clock() - self._mute_s >= SILENT_S

    def is_stuck(self, InFlightRequest call not None):
        """Return whether the connection must be closed, since this call expired behind a frame that does not complete.
        """
        return frame_timed_out(self._partial_s, self._heard_s, call.begun_s, self._clock())

    def idle_s(self):
        """Return the seconds since anything was received or sent."""
        return self._clock() - self.last_active_s

    def close(self):
        """Close the connection. Returns: the calls without a response."""
        self.closed = True
        calls = list(self._calls.values())
        self._calls.clear()
        self._deadlines.clear()
        self._out.clear()
        self.out_bytes = 0
        return calls
