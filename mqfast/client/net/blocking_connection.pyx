"""A blocking socket that many callers use at once, each on a thread: the inner loop of ``connection_pool.py``.

A caller writes its frame. Without a reader, the caller reads for all callers until the own response or deadline, and
then passes the reading on. With a reader, the caller sleeps on a lock until the response, the reading or the
deadline comes.

No threads are started, each wait has a deadline, and no request is sent twice. Requests of brokers are not served:
heartbeats never go over these sockets, so brokers do not register these connections. Source:
NettyRemotingClient.invokeSync, for the guarantees to a caller.
"""

import contextlib
import select
import socket
import ssl
import struct
import sys
from _thread import allocate_lock
from itertools import count
from time import monotonic

cimport cython
from mqfast.remoting.codec cimport RemotingCommand

from mqfast.client.net.guard import Guard
from mqfast.errors import CallTimeout, ConnectionLost, RemotingError
from mqfast.remoting.codec import FrameDecoder, encode
from mqfast.remoting.connection import frame_timed_out
from mqfast.remoting.codes import ResponseCode

IDLE_S = 60.0  # a socket that was not used for so long is replaced; a server closes it after 120 s
cdef double SILENT_S = 1.0  # the longest silence of a server once a request has expired in it
cdef double LOOK_AFTER_S = 0.1  # an idle socket is checked before use: its peer may have ended
cdef int BUFFER_BYTES = 64 * 1024
cdef int OPAQUE_MASK = 0x7FFFFFFF
cdef int RESPONSE = 1
cdef bint HAS_TIMEVAL = sys.platform != "win32"  # SO_RCVTIMEO takes a timeval
cdef int RECEIVES = socket.SO_RCVTIMEO
cdef int SENDS = socket.SO_SNDTIMEO


class Gone(Exception):
    """The connection had ended before a byte of the request was written."""


@cython.freelist(16)
cdef class ResponseWaiter:
    """A waiting caller: the lock on which the thread sleeps, and the result."""

    cdef int code
    cdef object lock
    cdef RemotingCommand answer
    cdef str error
    cdef bint done
    cdef bint leads
    cdef bint waits

    def __init__(self, int code):
        self.code = code
        self.lock = allocate_lock()
        self.lock.acquire()


cdef int wake(ResponseWaiter waiter) except -1:
    try:
        waiter.lock.release()
    except RuntimeError:  # woken to read just now
        pass
    return 0


class Socket:
    """A connected socket whose waits end at a deadline, without a system call for each deadline.

    The socket keeps its timeout; the timeout is set again only where it would end after the deadline, or far before.
    """

    def __init__(self, address, sock):
        self.address = address
        self.sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._limits = {RECEIVES: 0.0, SENDS: 0.0} if HAS_TIMEVAL and not self._tls else None
        sock.settimeout(None)

    def _limit(self, which, remaining_s):
        if self._limits is None:
            self.sock.settimeout(remaining_s)
            return
        now = self._limits[which]
        if not remaining_s / 8 <= now <= remaining_s:
            now = max(0.001, remaining_s * 0.9)
            self._limits[which] = now
            self.sock.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(now), int(now % 1 * 1e6)))

    def receive_into(self, buffer, deadline):
        """Receive bytes. Returns: the number, 0 at the end of the connection. Raises: TimeoutError, OSError."""
        while True:
            remaining_s = deadline - monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._limit(RECEIVES, remaining_s)
            try:
                return self.sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantReadError):
                continue

    def send_all(self, data, deadline):
        """Send the data. Raises: TimeoutError (a part may be sent), OSError."""
        rest = data
        while True:
            remaining_s = deadline - monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._limit(SENDS, remaining_s)
            try:
                sent = self.sock.send(rest)
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantWriteError):
                continue
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]

    def has_ended(self):
        """Return whether the connection has ended or an unexpected byte has come."""
        if not hasattr(select, "poll"):
            return bool(select.select([self.sock], [], [], 0)[0])
        look = select.poll()
        look.register(self.sock, select.POLLIN)
        return bool(look.poll(0))

    def shut(self):
        """Shut the connection down: a thread that reads wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Close this process's copy."""
        with contextlib.suppress(OSError):
            self.sock.close()


cdef class BlockingConnection:
    """The socket of an address, used by many callers at once.

    ``_reading`` is held by the caller that reads; it passes from caller to caller under ``_hand``.

    Attributes: ``dead``: the reason of the end, None while open; ``last_used``: time of the last use, by
        ``time.monotonic``.
    """

    cdef readonly object socket
    cdef readonly str address
    cdef readonly double last_used
    cdef double _partial_s      # since when the last frame is incomplete, -1: there is none
    cdef double _heard_s        # time of the latest byte of that frame
    cdef double _received_s     # time of the latest byte of all
    cdef double _mute_s         # begin of the first request that has expired since then, -1: there is none
    cdef readonly str dead
    cdef bint _leaving
    cdef dict _waiters
    cdef object _opaque
    cdef object _writing
    cdef object _reading
    cdef object _hand
    cdef object _decoder
    cdef bytearray _buffer
    cdef object _view

    def __init__(self, connected):
        self.socket = connected
        self.address = connected.address
        self.last_used = self._received_s = monotonic()
        self._partial_s = self._mute_s = -1
        self.dead = None
        self._leaving = False
        self._waiters = {}
        self._opaque = count()
        self._writing = allocate_lock()
        self._reading = allocate_lock()
        self._hand = Guard()
        self._decoder = FrameDecoder()
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def is_busy(self):
        """Return whether a caller waits for a response."""
        return bool(self._waiters)

    def is_usable(self):
        """Return whether a request may use the connection. An idle connection is checked first."""
        if self.dead is not None or self._leaving:
            return False
        rested = monotonic() - self.last_used
        if rested < LOOK_AFTER_S or self._waiters:
            return True
        if rested < IDLE_S and not self.socket.has_ended():
            return True
        self.close("it was idle")
        return False

    def call(self, frame, int code, bint oneway, double deadline):
        """Send a request. Raises: ConnectionLost, CallTimeout."""
        cdef ResponseWaiter waiter
        cdef double begun = monotonic()
        opaque = next(self._opaque) & OPAQUE_MASK
        data = frame(opaque)
        if oneway:
            self._write(data, deadline)
            return None
        waiter = self._waiters[opaque] = ResponseWaiter(code)
        try:
            self._write(data, deadline)
            if self._begins_to_lead(waiter) or self._wait(waiter, deadline):
                self._lead(waiter, deadline)
        finally:
            self._waiters.pop(opaque, None)
            if self._leaving:
                self.drain()
        if waiter.answer is not None:
            return waiter.answer
        if waiter.error is not None:
            raise ConnectionLost(f"{self.address}: {waiter.error}")
        now = monotonic()
        if frame_timed_out(self._partial_s, self._heard_s, begun, now):
            self.close("an answer stayed incomplete")
        elif self._received_s <= begun:
            if self._mute_s < 0:
                self._mute_s = begun
            if now - self._mute_s >= SILENT_S:  # a server that ended without closing: a new connection may reach it
                self.drain("nothing came for some time")
        raise CallTimeout(f"{self.address}: no answer to request {code} in time")

    cdef int _write(self, bytes data, double deadline) except -1:
        if not self._writing.acquire(False) and not self._writing.acquire(True, max(0.0, deadline - monotonic())):
            raise CallTimeout(f"{self.address}: other requests were not written in time; nothing of this one was sent")
        try:
            if self.dead is not None:
                raise Gone(self.dead)
            self.socket.send_all(data, deadline)
            self.last_used = monotonic()
        except TimeoutError:
            self.close("a request was not taken in time")
            raise CallTimeout(f"{self.address}: the request was not taken in time") from None
        except OSError as error:
            self.close(f"the connection ended: {error}")
            raise ConnectionLost(f"{self.address}: the connection ended: {error}") from None
        except BaseException:
            if self.dead is None:
                self.close("a request was interrupted")  # a part of its frame may be sent
            raise
        finally:
            self._writing.release()
        return 0

    cdef bint _begins_to_lead(self, ResponseWaiter waiter) except -1:
        """Become the reader, if there is none; the caller then calls ``_lead``."""
        if self._reading.acquire(False):
            return True
        with self._hand:  # the reader passes the reading under it: it cannot miss this waiter
            if self._reading.acquire(False):
                return True
            waiter.waits = True
        return False

    cdef bint _wait(self, ResponseWaiter waiter, double deadline) except -1:
        """Sleep until the response, the end or the deadline. Returns: whether the caller has to read now."""
        try:
            waiter.lock.acquire(True, max(0.0, deadline - monotonic()))
        except BaseException:
            self._give_up(waiter)
            raise
        with self._hand:
            waiter.waits = False
            return waiter.leads

    cdef int _give_up(self, ResponseWaiter waiter) except -1:
        with self._hand:
            waiter.waits = False
            if waiter.leads:
                self._hand_over()
        return 0

    cdef int _lead(self, ResponseWaiter waiter, double deadline) except -1:
        try:
            while not waiter.done and self.dead is None:
                size = self.socket.receive_into(self._buffer, deadline)
                if not size:
                    self.close("the connection ended before the answer came")
                    break
                self._received_s = monotonic()
                self._mute_s = -1
                commands = self._decoder.feed(self._view[:size])
                if not self._decoder.buffered:
                    self._partial_s = -1
                else:
                    self._heard_s = self._received_s
                    if commands or self._partial_s < 0:
                        self._partial_s = self._heard_s
                for command in commands:
                    self._deliver(command)
                if self._decoder.error is not None:
                    self.close(f"the connection is given up: {self._decoder.error}")
        except TimeoutError:
            pass
        except OSError as error:
            self.close(f"the connection ended before the answer came: {error}")
        finally:
            with self._hand:
                self._hand_over()
        return 0

    cdef int _hand_over(self) except -1:
        """Pass the reading to a sleeping caller, or to none. Under ``_hand``, by the reader."""
        cdef ResponseWaiter waiter
        if self.dead is None:
            for waiter in list(self._waiters.values()):
                if waiter.waits and not waiter.done:
                    waiter.waits = False
                    waiter.leads = True
                    waiter.lock.release()
                    return 0
        else:
            self.socket.close()
        self._reading.release()
        return 0

    cdef int _deliver(self, RemotingCommand command) except -1:
        cdef ResponseWaiter waiter
        if not command.flag & RESPONSE:
            self._refuse(command)
            return 0
        waiting = self._waiters.pop(command.opaque, None)
        if waiting is None:
            return 0  # its caller returned at its deadline
        waiter = waiting
        waiter.answer = command
        waiter.done = True
        wake(waiter)
        return 0

    def _refuse(self, request):
        if request.is_oneway:
            return
        answer = request.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
        )
        with contextlib.suppress(RemotingError):
            self._write(encode(answer), monotonic() + 1.0)

    def drain(self, str why="the broker is leaving"):
        """Take no more requests, and close once no caller waits for a response."""
        self._leaving = True
        if not self._waiters:
            self.close(why)

    def close(self, str why):
        """Close the connection: every waiting caller gets an error."""
        cdef ResponseWaiter waiter
        with self._hand:
            if self.dead is not None:
                return
            self.dead = why
            self.socket.shut()
            for waiter in list(self._waiters.values()):
                waiter.error = why
                waiter.done = True
                wake(waiter)
            if self._reading.acquire(False):  # no reader: the reader closes it when passing the reading
                self.socket.close()
                self._reading.release()
