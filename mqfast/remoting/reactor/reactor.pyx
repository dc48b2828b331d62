"""The reactors of a server, and the transport by which a channel of the event loop uses a connection of a reactor.

The channel sees an ordinary transport: the frames that no service has served come as received bytes. Code here runs in
the event loop with the GIL; nothing here waits for a reactor, except the end, and the exchange of the service.
"""

import os as _os
import socket as _socket
import threading as _threading
import time as _time

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from mqfast.errors import UsageError

cdef enum:
    PARTS_MAX = 64
    READY_MAX = 64              # connections that are served before the loop serves others


cdef int64_t conn_send(mq_conn *conn, const iovec *parts, int count) noexcept nogil:
    return mq_conn_send(conn, parts, count)


cdef void conn_close(mq_conn *conn, int at_once) noexcept nogil:
    mq_conn_close(conn, at_once)


cdef void conn_hold(mq_conn *conn) noexcept nogil:
    mq_conn_hold(conn)


cdef void conn_release(mq_conn *conn) noexcept nogil:
    mq_conn_release(conn)


cdef int conn_host(const mq_conn *conn, const uint8_t **host) noexcept nogil:
    return mq_conn_host(conn, host)


cdef void group_wake(mq_group *group, int index) noexcept nogil:
    mq_group_wake(group, index)


cdef void group_quiesce(mq_group *group) noexcept nogil:
    mq_group_quiesce(group)


cdef uint8_t *turn_room(mq_turn *turn, size_t size) noexcept nogil:
    return mq_turn_room(turn, size)


cdef void turn_add(mq_turn *turn, size_t size) noexcept nogil:
    mq_turn_add(turn, size)


cdef class ReactorService:
    """Serves frames inside of the reactors; the base class serves none."""


def parsed_host(str host, int port):
    """Return address and port in the form of stored records: 8 or 20 bytes; empty where the text is no address."""
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            return _socket.inet_pton(family, host) + port.to_bytes(4, "big")
        except OSError:
            continue
    return b""


cdef class Reactors:
    """Threads that own the plain connections of a server.

    Args: threads: their number; high, low: unsent bytes of a connection at which its peer is not read, and read again.
    Thread: that of the event loop. Raises: OSError if threads or descriptors are used up.
    """

    def __init__(
        self,
        loop,
        int threads,
        *,
        int64_t frame_bytes_max,
        int64_t header_bytes_max,
        int64_t buffered_bytes_max,
        int64_t high,
        int64_t low,
    ):
        cdef mq_reactor_limits limits
        if not 1 <= threads <= MQ_REACTORS_MAX:
            raise UsageError(f"threads: expected 1 to {MQ_REACTORS_MAX}, found {threads}")
        limits.threads = threads
        limits.frame_bytes_max = frame_bytes_max
        limits.header_bytes_max = header_bytes_max
        limits.buffered_bytes_max = buffered_bytes_max
        limits.high = self.high = high
        limits.low = self.low = low
        self.threads = threads
        self.transports = set()
        self.loop = loop
        self.group = mq_group_new(&limits, &self.signal)
        if self.group == NULL:
            raise OSError(errno, f"reactors: {_os.strerror(errno)}")
        self.running = [
            _threading.Thread(target=self._run, args=(index,), name=f"mqfast-reactor-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self.running:
            thread.start()
        loop.add_reader(self.signal, self._deliver)

    def __dealloc__(self):
        if self.group != NULL:      # a running thread keeps this object
            mq_group_free(self.group)

    def _run(self, int index):
        with nogil:
            mq_reactor_run(self.group, index)

    @property
    def buffered_bytes(self):
        """Return the bytes of buffers for incomplete frames."""
        return mq_group_buffered(self.group)

    def counts(self):
        """Return the counters of all reactors by name."""
        cdef mq_reactor_counts sums
        mq_group_counts(self.group, &sums)
        return {
            "served": sums.served, "handedOver": sums.handed_over, "waitedForLoop": sums.later,
            "handOverFull": sums.inbox_full, "waitedForPeer": sums.unread, "inPieces": sums.pieces,
        }

    def set_service(self, ReactorService service):
        """Let a service serve frames from now on; None: the event loop serves all. The former one is not used any more.
        """
        cdef mq_service *one = NULL if service is None else service.service
        if not self.stopped:
            with nogil:
                mq_group_set_service(self.group, one)
        self.kept_service = service

    def adopt(self, sock, protocol):
        """Give a connected socket to a reactor, which closes the socket. Returns: the transport, known to the protocol.

        Raises: OSError.
        """
        cdef ReactorTransport transport = ReactorTransport.__new__(ReactorTransport)
        cdef bytes host
        name = sock.getpeername()
        host = parsed_host(name[0], name[1]) if isinstance(name, tuple) else b""
        transport.reactors = self
        transport.protocol = protocol
        transport.peer = name
        transport.high = self.high
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        transport.conn = mq_conn_adopt(self.group, sock.fileno(), <void *> transport, host, <int> len(host))
        if transport.conn == NULL:
            raise OSError(errno, f"a reactor did not take a connection: {_os.strerror(errno)}")
        sock.detach()
        self.transports.add(transport)
        protocol.connection_made(transport)
        return transport

    def _deliver(self):
        cdef mq_conn *conn
        cdef ReactorTransport transport
        cdef int i
        mq_group_clear_signal(self.group)
        for i in range(READY_MAX):
            conn = mq_take_ready(self.group)
            if conn == NULL:
                return
            transport = <ReactorTransport> mq_conn_user(conn)
            transport.try_to_deliver()
        self.loop.call_soon(self._deliver)

    def stop(self):
        """End all connections and the threads."""
        if self.stopped:
            return
        self.stopped = True
        self.loop.remove_reader(self.signal)
        mq_group_stop(self.group)
        for thread in self.running:
            thread.join()
        while self.transports:
            self._deliver()


cdef class ReactorTransport:
    """A connection of a reactor as a transport of asyncio. Thread: that of the event loop."""

    cdef Reactors reactors
    cdef mq_conn *conn
    cdef object protocol
    cdef object peer
    cdef int64_t high
    cdef bint paused
    cdef bint blocked           # the protocol was told to stop writing
    cdef bint closing
    cdef bint ended
    cdef bint has_more          # something was not taken while reading was paused
    cdef bint at_eof            # the peer sends no more, which the protocol does not know yet

    def __dealloc__(self):
        if self.conn != NULL:
            mq_conn_release(self.conn)

    def try_to_deliver(self):
        """Pass on what the reactor has handed over; an error of the protocol ends the connection."""
        try:
            self.deliver()
        except Exception as error:
            self.reactors.loop.call_exception_handler(
                {"message": "a connection of a reactor failed", "exception": error, "protocol": self.protocol}
            )
            self.abort()

    cdef deliver(self):
        """Pass on what the reactor has handed over."""
        cdef uint8_t *data = NULL
        cdef size_t size
        cdef int got = 0
        if self.ended:
            return
        if self.paused and not self.closing and mq_conn_fd(self.conn) >= 0:
            self.has_more = True
            self._drained()
            return
        self.has_more = False
        size = mq_conn_take(self.conn, &data, &got)
        try:
            try:
                if size and not self.closing:
                    received = PyBytes_FromStringAndSize(<const char *> data, size)
                    self.protocol.data_received(received)
            finally:
                free(data)
                self.requests_begun()
            self._drained()
            if got & MQ_GOT_EOF:
                self.at_eof = True
            if self.at_eof and not self.paused and not self.closing:      # paused: requests are not served yet
                self.at_eof = False
                if not self.protocol.eof_received():
                    self.close()
        finally:
            if got & MQ_GOT_END:        # told once: an error of the protocol must not lose the end
                self.ended = self.closing = True
                self.reactors.transports.discard(self)
                self.protocol.connection_lost(None)

    def requests_begun(self):
        """Serve later sends in the reactor: the protocol has begun to serve all requests that came before."""
        if not self.paused and not getattr(self.protocol, "queued_requests", 0):
            mq_conn_ack(self.conn)

    cdef _drained(self):
        if self.blocked and mq_conn_unsent(self.conn) <= self.reactors.low:
            self.blocked = False
            self.protocol.resume_writing()

    def get_extra_info(self, name, default=None):
        """Return ``peername``, or this transport as the ``socket``, for its descriptor."""
        if name == "peername":
            return self.peer
        return self if name == "socket" else default

    def fileno(self):
        """Return the descriptor, -1 after the end."""
        return mq_conn_fd(self.conn)

    def idle_s(self):
        """Return the seconds since the reactor has received or sent anything."""
        return _time.monotonic() - mq_conn_active_ns(self.conn) / 1e9

    def set_write_buffer_limits(self, high=None, low=None):
        """Set the unsent bytes at which the protocol is told to stop writing."""
        if high is not None:
            self.high = high

    def get_write_buffer_size(self):
        """Return the bytes that the peer has not read."""
        return mq_conn_unsent(self.conn)

    def is_reading(self):
        """Return whether the protocol gets received bytes."""
        return not self.paused and not self.closing

    def pause_reading(self):
        """Deliver no bytes until ``resume_reading``; the peer is not read."""
        if not self.paused and not self.closing:
            self.paused = True
            mq_conn_pause(self.conn, 1)

    def resume_reading(self):
        """Deliver bytes again."""
        if self.paused and not self.closing:
            self.paused = False
            self.requests_begun()
            mq_conn_pause(self.conn, 0)
            if self.has_more or self.at_eof:
                self.reactors.loop.call_soon(self.try_to_deliver)

    def write(self, data):
        """Send bytes."""
        self._send([data])

    def writelines(self, parts):
        """Send buffers in order."""
        self._send(list(parts))

    cdef _send(self, list parts):
        cdef Py_buffer views[PARTS_MAX]
        cdef iovec vectors[PARTS_MAX]
        cdef int64_t unsent = 0
        cdef Py_ssize_t at = 0, size = len(parts)
        cdef int n, i
        if self.closing:
            return
        while at < size:
            n = 0
            try:
                while n < PARTS_MAX and at < size:
                    PyObject_GetBuffer(parts[at], &views[n], PyBUF_SIMPLE)
                    vectors[n].iov_base = views[n].buf
                    vectors[n].iov_len = views[n].len
                    n += 1
                    at += 1
                unsent = mq_conn_send(self.conn, vectors, n)
            finally:
                for i in range(n):
                    PyBuffer_Release(&views[i])
        if unsent > self.high and not self.blocked:
            self.blocked = True
            mq_conn_want_drained(self.conn)
            self.protocol.pause_writing()

    def is_closing(self):
        """Return whether the connection ends or has ended."""
        return self.closing

    def close(self):
        """Close the connection once all bytes are sent."""
        if not self.closing:
            self.closing = True
            mq_conn_close(self.conn, 0)

    def abort(self):
        """Close the connection at once."""
        self.closing = True
        if not self.ended:
            mq_conn_close(self.conn, 1)
