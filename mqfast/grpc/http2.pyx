"""HTTP/2 with gRPC's messages, without I/O: bytes in, events out; answers in, bytes out. No other file knows nghttp2.

The meaning of calls is unknown here. The bytes that a peer can make this side hold are limited: header bytes and
messages of a stream, requests of a connection, streams. A peer that breaks HTTP/2 gets GOAWAY, and ``wants_to_end``.
"""

from collections import deque

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy


cdef extern from "nghttp2/nghttp2.h":
    ctypedef struct nghttp2_session:
        pass
    ctypedef struct nghttp2_session_callbacks:
        pass
    ctypedef struct nghttp2_option:
        pass
    ctypedef struct nghttp2_info:
        const char *version_str
    ctypedef struct nghttp2_nv:
        uint8_t *name
        uint8_t *value
        size_t namelen
        size_t valuelen
        uint8_t flags
    ctypedef struct nghttp2_settings_entry:
        int32_t settings_id
        uint32_t value
    ctypedef struct nghttp2_frame_hd:
        size_t length
        int32_t stream_id
        uint8_t type
        uint8_t flags
    ctypedef struct nghttp2_headers:
        int cat
    ctypedef union nghttp2_frame:
        nghttp2_frame_hd hd
        nghttp2_headers headers
    ctypedef union nghttp2_data_source:
        int fd
        void *ptr
    ctypedef ssize_t (*read_callback)(
        nghttp2_session *, int32_t, uint8_t *, size_t, uint32_t *, nghttp2_data_source *, void *
    ) noexcept
    ctypedef struct nghttp2_data_provider:
        nghttp2_data_source source
        read_callback read_callback
    int NGHTTP2_DATA, NGHTTP2_HEADERS, NGHTTP2_HCAT_REQUEST, NGHTTP2_HCAT_RESPONSE, NGHTTP2_HCAT_HEADERS
    int NGHTTP2_FLAG_NONE, NGHTTP2_FLAG_END_STREAM, NGHTTP2_NV_FLAG_NONE
    int NGHTTP2_DATA_FLAG_EOF, NGHTTP2_DATA_FLAG_NO_END_STREAM
    int NGHTTP2_ERR_DEFERRED, NGHTTP2_ERR_CALLBACK_FAILURE, NGHTTP2_NO_ERROR, NGHTTP2_PROTOCOL_ERROR
    int NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE
    int NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, NGHTTP2_SETTINGS_ENABLE_PUSH
    nghttp2_info *nghttp2_version(int least_version)
    int nghttp2_session_callbacks_new(nghttp2_session_callbacks **callbacks)
    void nghttp2_session_callbacks_del(nghttp2_session_callbacks *callbacks)
    void nghttp2_session_callbacks_set_on_begin_headers_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_begin_frame_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_header_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_frame_recv_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_frame_send_callback(nghttp2_session_callbacks *, void *)
    void nghttp2_session_callbacks_set_on_stream_close_callback(nghttp2_session_callbacks *, void *)
    int nghttp2_option_new(nghttp2_option **option)
    void nghttp2_option_del(nghttp2_option *option)
    int nghttp2_session_server_new2(
        nghttp2_session **session, const nghttp2_session_callbacks *, void *user_data, const nghttp2_option *
    )
    int nghttp2_session_client_new2(
        nghttp2_session **session, const nghttp2_session_callbacks *, void *user_data, const nghttp2_option *
    )
    void nghttp2_session_del(nghttp2_session *session)
    ssize_t nghttp2_session_mem_recv(nghttp2_session *session, const uint8_t *data, size_t size)
    ssize_t nghttp2_session_mem_send(nghttp2_session *session, const uint8_t **data)
    int nghttp2_session_want_read(nghttp2_session *session)
    int nghttp2_session_want_write(nghttp2_session *session)
    int nghttp2_session_resume_data(nghttp2_session *session, int32_t stream_id)
    int nghttp2_session_set_local_window_size(nghttp2_session *, uint8_t flags, int32_t stream_id, int32_t size)
    int32_t nghttp2_session_get_last_proc_stream_id(nghttp2_session *session)
    int nghttp2_submit_settings(nghttp2_session *, uint8_t flags, const nghttp2_settings_entry *, size_t count)
    int nghttp2_submit_response(
        nghttp2_session *, int32_t stream_id, const nghttp2_nv *, size_t count, const nghttp2_data_provider *
    )
    int nghttp2_submit_trailer(nghttp2_session *, int32_t stream_id, const nghttp2_nv *, size_t count)
    int32_t nghttp2_submit_request(
        nghttp2_session *, const void *priority, const nghttp2_nv *, size_t count, const nghttp2_data_provider *,
        void *stream_user_data
    )
    int nghttp2_submit_rst_stream(nghttp2_session *, uint8_t flags, int32_t stream_id, uint32_t error_code)
    int nghttp2_submit_goaway(
        nghttp2_session *, uint8_t flags, int32_t last_stream_id, uint32_t error_code, const uint8_t *, size_t
    )
    int nghttp2_session_terminate_session(nghttp2_session *session, uint32_t error_code)
    const char *nghttp2_strerror(int code)


OPENED = 0
MESSAGE = 1
ENDED = 2
CLOSED = 3
REFUSED = 4

SKIPPED_MAX = 64
UNIMPLEMENTED = 12
RESOURCE_EXHAUSTED = 8
INTERNAL = 13

cdef dict NAMES = {}


cdef str text_of(const uint8_t *data, size_t size):
    """Return a header's name; names are few, so that one object of each exists."""
    cdef bytes key = PyBytes_FromStringAndSize(<const char *> data, size)
    found = NAMES.get(key)
    if found is None:
        found = key.decode("latin-1")
        if len(NAMES) < 256:
            NAMES[key] = found
    return found


cdef class Stream:
    """A call: the headers and messages of the peer, and the answer that waits to be sent.

    Attributes: ``headers``: with the pseudo headers; ``is_closed``: nothing more can be sent; ``has_started``: the
    answer's headers are submitted; ``has_ended``: the peer sends no more messages; ``owner``: an object of the user;
    ``trailers``: of the peer (client side).
    """

    cdef Http2Session session
    cdef readonly int id
    cdef readonly dict headers
    cdef readonly dict trailers
    cdef public object owner
    cdef readonly bint is_closed
    cdef readonly bint has_started
    cdef readonly bint has_ended
    cdef bint is_finished
    cdef bint is_refused
    cdef bint is_deferred
    cdef object out
    cdef Py_ssize_t out_at
    cdef Py_ssize_t unsent
    cdef list trailer
    cdef Py_ssize_t header_bytes
    cdef Py_ssize_t held
    cdef bytearray partial
    cdef uint8_t[5] prefix
    cdef int prefix_size
    cdef uint32_t message_size

    def __init__(self):
        self.headers = {}
        self.trailers = {}
        self.out = deque()
        self.partial = bytearray()

    def release(self):
        """Count whole messages as served: only an incomplete message still counts against the connection's limit."""
        cdef Py_ssize_t incomplete = min(self.held, <Py_ssize_t> len(self.partial))
        self.session.held -= self.held - incomplete
        self.held = incomplete


cdef class Http2Session:
    """One connection.

    Args: is_server: False at the side that connected; streams_max: calls at once that the peer may open;
    header_bytes_max: names and values of a call, 32 bytes more for each; message_bytes_max: of one message;
    held_bytes_max: received messages of all open calls; window_bytes: of each stream; connection_window_bytes.
    Raises: MemoryError.
    """

    cdef nghttp2_session *session
    cdef dict streams
    cdef list events
    cdef bint is_server
    cdef bint is_leaving
    cdef bint is_broken
    cdef int last_id
    cdef list skipped
    cdef Py_ssize_t header_bytes_max
    cdef Py_ssize_t message_bytes_max
    cdef Py_ssize_t held_bytes_max
    cdef readonly Py_ssize_t held
    cdef readonly Py_ssize_t unsent
    cdef readonly str error

    def __init__(
        self, *, bint is_server=True, Py_ssize_t streams_max=1000, Py_ssize_t header_bytes_max=16384,
        Py_ssize_t message_bytes_max=4 << 20, Py_ssize_t held_bytes_max=64 << 20, int window_bytes=1 << 20,
        int connection_window_bytes=8 << 20,
    ):
        cdef nghttp2_session_callbacks *callbacks
        cdef nghttp2_option *option
        cdef nghttp2_settings_entry settings[4]
        cdef int failed
        self.error = ""
        self.streams = {}
        self.events = []
        self.skipped = []
        self.is_server = is_server
        self.header_bytes_max = header_bytes_max
        self.message_bytes_max = message_bytes_max
        self.held_bytes_max = held_bytes_max
        if nghttp2_session_callbacks_new(&callbacks) != 0:
            raise MemoryError
        if nghttp2_option_new(&option) != 0:
            nghttp2_session_callbacks_del(callbacks)
            raise MemoryError
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, <void *> on_begin_headers)
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, <void *> on_begin_frame)
        nghttp2_session_callbacks_set_on_header_callback(callbacks, <void *> on_header)
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, <void *> on_data_chunk)
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, <void *> on_frame)
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, <void *> on_frame_sent)
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, <void *> on_stream_close)
        if is_server:
            failed = nghttp2_session_server_new2(&self.session, callbacks, <void *> self, option)
        else:
            failed = nghttp2_session_client_new2(&self.session, callbacks, <void *> self, option)
        nghttp2_session_callbacks_del(callbacks)
        nghttp2_option_del(option)
        if failed != 0:
            raise MemoryError
        settings[0].settings_id, settings[0].value = NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, streams_max
        settings[1].settings_id, settings[1].value = NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window_bytes
        settings[2].settings_id, settings[2].value = NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, header_bytes_max
        settings[3].settings_id, settings[3].value = NGHTTP2_SETTINGS_ENABLE_PUSH, 0
        nghttp2_submit_settings(self.session, NGHTTP2_FLAG_NONE, settings, 3 if is_server else 4)
        nghttp2_session_set_local_window_size(self.session, NGHTTP2_FLAG_NONE, 0, connection_window_bytes)

    def __dealloc__(self):
        if self.session != NULL:
            nghttp2_session_del(self.session)

    # --- input ---

    def receive(self, const uint8_t[::1] data):
        """Take bytes of the peer. Returns: events, each (kind, stream, value): OPENED; MESSAGE with the bytes; ENDED:
        the peer sends no more; CLOSED with HTTP/2's error code; REFUSED with gRPC's status and a text.
        """
        cdef ssize_t done
        if data.shape[0] and not self.is_broken:
            done = nghttp2_session_mem_recv(self.session, &data[0], data.shape[0])
            if done < 0:
                self.is_broken = True
                self.error = nghttp2_strerror(<int> done).decode()
        events = self.events
        self.events = []
        return events

    @property
    def wants_to_end(self):
        """Return whether the connection is to be closed once all bytes are sent."""
        return self.is_broken or (
            not nghttp2_session_want_read(self.session) and not nghttp2_session_want_write(self.session)
        )

    @property
    def open_streams(self):
        """Return the open calls."""
        return list(self.streams.values())

    # --- output ---

    def data_to_send(self, Py_ssize_t limit):
        """Return bytes to send now, somewhat more than the limit at most; an empty list: nothing waits, or the peer's
        window is full.
        """
        cdef const uint8_t *data
        cdef ssize_t size
        cdef Py_ssize_t total = 0
        parts = []
        while total < limit:
            size = nghttp2_session_mem_send(self.session, &data)
            if size <= 0:
                if size < 0:
                    self.is_broken = True
                    self.error = nghttp2_strerror(<int> size).decode()
                break
            parts.append(PyBytes_FromStringAndSize(<const char *> data, size))
            total += size
        return parts

    def start(self, Stream stream not None):
        """Send the headers of a gRPC answer; messages follow."""
        self.respond(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])

    cdef respond(self, Stream stream, list headers):
        cdef nghttp2_nv fields[16]
        cdef nghttp2_data_provider provider
        if stream.is_closed or stream.has_started:
            return
        stream.has_started = True
        provider.source.ptr = <void *> stream
        provider.read_callback = read_out
        nghttp2_submit_response(self.session, stream.id, fields, fill(fields, headers), &provider)

    def write(self, Stream stream not None, bytes message not None):
        """Send a message, with its prefix."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
        cdef bytes framed
        cdef char *at
        if stream.is_closed or stream.is_finished:
            return
        framed = PyBytes_FromStringAndSize(NULL, size + 5)
        at = PyBytes_AS_STRING(framed)
        at[0] = 0
        at[1], at[2], at[3], at[4] = size >> 24 & 255, size >> 16 & 255, size >> 8 & 255, size & 255
        memcpy(at + 5, PyBytes_AS_STRING(message), size)
        self.queue(stream, framed)

    cdef queue(self, Stream stream, bytes data):
        stream.out.append(data)
        stream.unsent += PyBytes_GET_SIZE(data)
        self.unsent += PyBytes_GET_SIZE(data)
        if stream.is_deferred:
            stream.is_deferred = False
            nghttp2_session_resume_data(self.session, stream.id)

    def finish(self, Stream stream not None, int status=0, str text=""):
        """End a gRPC answer with its status, after the messages that are queued."""
        cdef nghttp2_nv fields[16]
        if stream.is_closed or stream.is_finished:
            return
        stream.is_finished = True
        stream.trailer = [(b"grpc-status", b"%d" % status)]
        if text:
            stream.trailer.append((b"grpc-message", percent(text)))
        if not stream.has_started:
            stream.has_started = True
            headers = [(b":status", b"200"), (b"content-type", b"application/grpc"), *stream.trailer]
            nghttp2_submit_response(self.session, stream.id, fields, fill(fields, headers), NULL)
        elif stream.is_deferred:
            stream.is_deferred = False
            nghttp2_session_resume_data(self.session, stream.id)

    def answer_http(self, Stream stream not None, int status, str text not None):
        """Answer a request that is no gRPC call."""
        if stream.is_closed or stream.has_started:
            return
        body = text.encode()
        self.respond(
            stream,
            [(b":status", b"%d" % status), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))],
        )
        stream.is_finished = True
        self.queue(stream, body)

    def reset(self, Stream stream not None, int error_code):
        """End a call at once, with HTTP/2's error code."""
        if not stream.is_closed:
            nghttp2_submit_rst_stream(self.session, NGHTTP2_FLAG_NONE, stream.id, error_code)

    def go_away(self, int error_code=0):
        """Send GOAWAY: the peer opens no further call; open calls end as usual."""
        if not self.is_leaving:
            self.is_leaving = True
            nghttp2_submit_goaway(
                self.session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(self.session), error_code,
                NULL, 0,
            )

    # --- the side that connected ---

    def request(self, list headers not None):
        """Open a call with these (name, value) pairs of bytes. Returns: the stream. Raises: RuntimeError."""
        cdef nghttp2_nv fields[16]
        cdef nghttp2_data_provider provider
        cdef Stream stream = Stream()
        stream.session = self
        stream.has_started = True
        provider.source.ptr = <void *> stream
        provider.read_callback = read_out
        stream.id = nghttp2_submit_request(self.session, NULL, fields, fill(fields, headers), &provider, NULL)
        if stream.id < 0:
            raise RuntimeError(f"a call cannot be opened: {nghttp2_strerror(stream.id).decode()}")
        self.streams[stream.id] = stream
        return stream

    def write_raw(self, Stream stream not None, bytes data not None):
        """Send bytes of a body as they are, without a prefix: for tests of the other side."""
        self.queue(stream, data)

    def end_request(self, Stream stream not None):
        """End the messages of a call."""
        stream.is_finished = True
        if stream.is_deferred:
            stream.is_deferred = False
            nghttp2_session_resume_data(self.session, stream.id)

    # --- what the callbacks do ---

    cdef int opened(self, int stream_id) except -1:
        cdef Stream stream = Stream()
        stream.id = stream_id
        stream.session = self
        self.streams[stream_id] = stream
        if stream_id > self.last_id + 2 and len(self.skipped) < SKIPPED_MAX:
            self.skipped.append((self.last_id, stream_id))
        self.last_id = stream_id
        return 0

    cdef int begun(self, const nghttp2_frame_hd *header) except -1:
        """End the connection for a call with a number below an earlier one, which nghttp2 ignores."""
        if header.type == NGHTTP2_HEADERS and header.stream_id < self.last_id:
            for below, above in self.skipped:
                if below < header.stream_id < above:
                    nghttp2_session_terminate_session(self.session, NGHTTP2_PROTOCOL_ERROR)
        return 0

    cdef int header(self, Stream stream, bint is_trailer, const uint8_t *name, size_t name_size,
                    const uint8_t *value, size_t value_size) except -1:
        stream.header_bytes += name_size + value_size + 32
        if stream.header_bytes > self.header_bytes_max:
            return 0
        key = text_of(name, name_size)
        text = PyBytes_FromStringAndSize(<const char *> value, value_size).decode("latin-1")
        headers = stream.trailers if is_trailer else stream.headers
        if key in headers:
            text = f"{headers[key]},{text}"
        headers[key] = text
        return 0

    cdef int data(self, Stream stream, const uint8_t *data, size_t size) except -1:
        """Take bytes of a call's body: cut messages."""
        cdef size_t part
        cdef Py_ssize_t held
        while size and not stream.is_refused:
            if stream.prefix_size < 5:
                part = min(size, <size_t> (5 - stream.prefix_size))
                memcpy(stream.prefix + stream.prefix_size, data, part)
                stream.prefix_size += <int> part
                data += part
                size -= part
                if stream.prefix_size < 5:
                    break
                stream.message_size = (
                    <uint32_t> stream.prefix[1] << 24 | <uint32_t> stream.prefix[2] << 16
                    | <uint32_t> stream.prefix[3] << 8 | stream.prefix[4]
                )
                if stream.prefix[0]:
                    self.refuse(stream, UNIMPLEMENTED, "expected a message without compression, found a compressed one")
                elif stream.message_size > self.message_bytes_max:
                    self.refuse(
                        stream, RESOURCE_EXHAUSTED,
                        f"expected a message of at most {self.message_bytes_max} bytes, found {stream.message_size}",
                    )
                elif stream.message_size == 0:
                    stream.prefix_size = 0
                    self.events.append((MESSAGE, stream, b""))
                continue
            held = len(stream.partial)
            part = min(size, <size_t> (stream.message_size - held))
            self.held += part
            stream.held += part
            if self.held > self.held_bytes_max:
                self.refuse(
                    stream, RESOURCE_EXHAUSTED,
                    f"expected at most {self.held_bytes_max} bytes of unanswered requests of a connection, found more",
                )
                break
            if held == 0 and part == stream.message_size:
                self.events.append((MESSAGE, stream, PyBytes_FromStringAndSize(<const char *> data, part)))
                stream.prefix_size = 0
            else:
                PyByteArray_Resize(stream.partial, held + part)
                memcpy(PyByteArray_AS_STRING(stream.partial) + held, data, part)
                if held + <Py_ssize_t> part == stream.message_size:
                    self.events.append((MESSAGE, stream, bytes(stream.partial)))
                    stream.partial = bytearray()
                    stream.prefix_size = 0
            data += part
            size -= part
        return 0

    cdef int refuse(self, Stream stream, int status, str text) except -1:
        stream.is_refused = True
        stream.partial = bytearray()
        self.events.append((REFUSED, stream, (status, text)))
        return 0

    cdef int frame(self, const nghttp2_frame *frame) except -1:
        stream = self.streams.get(frame.hd.stream_id)
        if stream is None:
            return 0
        return self.stream_frame(<Stream> stream, frame)

    cdef int stream_frame(self, Stream stream, const nghttp2_frame *frame) except -1:
        if frame.hd.type == NGHTTP2_HEADERS and frame.headers.cat in (NGHTTP2_HCAT_REQUEST, NGHTTP2_HCAT_RESPONSE):
            self.events.append((OPENED, stream, None))
            if stream.header_bytes > self.header_bytes_max:
                self.refuse(
                    stream, RESOURCE_EXHAUSTED,
                    f"expected at most {self.header_bytes_max} bytes of headers, found {stream.header_bytes}",
                )
        if frame.hd.type in (NGHTTP2_HEADERS, NGHTTP2_DATA) and frame.hd.flags & NGHTTP2_FLAG_END_STREAM:
            if stream.prefix_size and not stream.is_refused:
                self.refuse(stream, INTERNAL, "expected a whole message, found the end of the call in it")
            stream.has_ended = True
            self.events.append((ENDED, stream, None))
        return 0

    cdef int sent(self, const nghttp2_frame *frame) except -1:
        """Close a call whose answer is sent while the peer still sends."""
        if not self.is_server or not frame.hd.flags & NGHTTP2_FLAG_END_STREAM:
            return 0
        stream = self.streams.get(frame.hd.stream_id)
        if stream is not None and frame.hd.type in (NGHTTP2_HEADERS, NGHTTP2_DATA) and not stream.has_ended:
            nghttp2_submit_rst_stream(self.session, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR)
        return 0

    cdef int closed(self, int stream_id, uint32_t error_code) except -1:
        found = self.streams.pop(stream_id, None)
        if found is None:
            return 0
        stream = <Stream> found
        stream.is_closed = True
        self.held -= stream.held
        self.unsent -= stream.unsent
        stream.held = stream.unsent = 0
        stream.out.clear()
        self.events.append((CLOSED, stream, error_code))
        return 0

    def take_events(self):
        """Return events that arose since ``receive``: calls end while bytes are sent."""
        events = self.events
        self.events = []
        return events

    cdef ssize_t read(self, Stream stream, uint8_t *to, size_t room, uint32_t *flags) except? -1:
        """Copy queued bytes of an answer."""
        cdef size_t copied = 0, part
        cdef bytes data
        cdef nghttp2_nv fields[16]
        out = stream.out
        while copied < room and out:
            data = <bytes> out[0]
            part = min(room - copied, <size_t> (PyBytes_GET_SIZE(data) - stream.out_at))
            memcpy(to + copied, PyBytes_AS_STRING(data) + stream.out_at, part)
            copied += part
            stream.out_at += part
            if stream.out_at == PyBytes_GET_SIZE(data):
                out.popleft()
                stream.out_at = 0
        stream.unsent -= copied
        self.unsent -= copied
        if out:
            return copied
        if stream.is_finished:
            flags[0] |= NGHTTP2_DATA_FLAG_EOF
            if stream.trailer is not None:
                flags[0] |= NGHTTP2_DATA_FLAG_NO_END_STREAM
                nghttp2_submit_trailer(self.session, stream.id, fields, fill(fields, stream.trailer))
            return copied
        if copied == 0:
            stream.is_deferred = True
            return NGHTTP2_ERR_DEFERRED
        return copied


cdef size_t fill(nghttp2_nv *fields, list headers) except 0:
    """Point to the names and values, which nghttp2 copies."""
    cdef size_t count = 0
    cdef bytes name, value
    for name, value in headers[:16]:
        fields[count].name = <uint8_t *> PyBytes_AS_STRING(name)
        fields[count].namelen = PyBytes_GET_SIZE(name)
        fields[count].value = <uint8_t *> PyBytes_AS_STRING(value)
        fields[count].valuelen = PyBytes_GET_SIZE(value)
        fields[count].flags = NGHTTP2_NV_FLAG_NONE
        count += 1
    return count


def percent(str text):
    """Return a text as the value of ``grpc-message``: printable ASCII, other bytes and ``%`` as hexadecimal numbers."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")[:1024]
    )


cdef int on_begin_headers(nghttp2_session *_, const nghttp2_frame *frame, void *user) noexcept:
    session = <Http2Session> user
    if frame.hd.type != NGHTTP2_HEADERS or frame.headers.cat != NGHTTP2_HCAT_REQUEST:
        return 0
    try:
        return session.opened(frame.hd.stream_id)
    except BaseException as error:
        return failed(session, error)


cdef int on_begin_frame(nghttp2_session *_, const nghttp2_frame_hd *header, void *user) noexcept:
    session = <Http2Session> user
    try:
        return session.begun(header)
    except BaseException as error:
        return failed(session, error)


cdef int on_header(
    nghttp2_session *_, const nghttp2_frame *frame, const uint8_t *name, size_t name_size, const uint8_t *value,
    size_t value_size, uint8_t flags, void *user,
) noexcept:
    session = <Http2Session> user
    try:
        stream = session.streams.get(frame.hd.stream_id)
        if stream is None:
            return 0
        return session.header(
            <Stream> stream, frame.headers.cat == NGHTTP2_HCAT_HEADERS, name, name_size, value, value_size
        )
    except BaseException as error:
        return failed(session, error)


cdef int on_data_chunk(
    nghttp2_session *_, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t size, void *user
) noexcept:
    session = <Http2Session> user
    try:
        stream = session.streams.get(stream_id)
        return 0 if stream is None else session.data(<Stream> stream, data, size)
    except BaseException as error:
        return failed(session, error)


cdef int on_frame(nghttp2_session *_, const nghttp2_frame *frame, void *user) noexcept:
    session = <Http2Session> user
    try:
        return session.frame(frame)
    except BaseException as error:
        return failed(session, error)


cdef int on_frame_sent(nghttp2_session *_, const nghttp2_frame *frame, void *user) noexcept:
    session = <Http2Session> user
    try:
        return session.sent(frame)
    except BaseException as error:
        return failed(session, error)


cdef int on_stream_close(nghttp2_session *_, int32_t stream_id, uint32_t error_code, void *user) noexcept:
    session = <Http2Session> user
    try:
        return session.closed(stream_id, error_code)
    except BaseException as error:
        return failed(session, error)


cdef ssize_t read_out(
    nghttp2_session *_, int32_t stream_id, uint8_t *to, size_t room, uint32_t *flags, nghttp2_data_source *source,
    void *user,
) noexcept:
    session = <Http2Session> user
    try:
        return session.read(<Stream> source.ptr, to, room, flags)
    except BaseException as error:
        return failed(session, error)


cdef int failed(Http2Session session, error) noexcept:
    """End the connection after an exception in a callback, which may be a lack of memory."""
    session.is_broken = True
    session.error = repr(error)
    return NGHTTP2_ERR_CALLBACK_FAILURE


def library_version():
    """Return the version of nghttp2 in this process."""
    return nghttp2_version(0).version_str.decode()
