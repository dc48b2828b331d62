"""A blocking socket that many callers use at once: the form of ``client/net/blocking_connection.pyx`` without compiled
code.

No threads are started, each wait has a deadline, and no request is sent twice. An exception of a signal handler may
come between any two steps of a call, unlike in compiled code: the connection is then closed, and other callers get
ConnectionLost. Source: NettyRemotingClient.invokeSync, for the guarantees to a caller.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import sys
from _thread import allocate_lock
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Final

from mqfast.client.net.guard import Guard
from mqfast.errors import CallTimeout, ConnectionLost, RemotingError
from mqfast.remoting.codec import FrameDecoder, RemotingCommand, encode
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.connection import frame_timed_out

IDLE_S = 60.0  # a socket that was not used for so long is replaced; a server closes it after 120 s
_SILENT_S: Final = 1.0  # the longest silence of a server once a request has expired in it
_LOOK_AFTER_S: Final = 0.1  # an idle socket is checked before use: its peer may have ended
_BUFFER_BYTES: Final = 64 * 1024
_OPAQUE_MASK: Final = 0x7FFFFFFF
_RESPONSE: Final = 1
_HAS_TIMEVAL: Final = sys.platform != "win32"  # SO_RCVTIMEO takes a timeval
_RECEIVES: Final = socket.SO_RCVTIMEO
_SENDS: Final = socket.SO_SNDTIMEO


class Gone(Exception):
    """The connection had ended before a byte of the request was written."""


class ResponseWaiter:
    """A waiting caller: the lock on which the thread sleeps, and the result."""

    __slots__ = ("answer", "code", "done", "error", "leads", "lock", "waits")

    def __init__(self, code: int) -> None:
        self.code = code
        self.lock = allocate_lock()
        self.lock.acquire()
        self.answer: RemotingCommand | None = None
        self.error: str | None = None
        self.done = self.leads = self.waits = False

    def wake(self) -> None:
        """Wake the caller, unless woken to read just now."""
        with contextlib.suppress(RuntimeError):
            self.lock.release()


class Socket:
    """A connected socket whose waits end at a deadline, without a system call for each deadline.

    The socket keeps its timeout; the timeout is set again only where it would end after the deadline, or far before.
    """

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address = address
        self.sock = sock
        tls = isinstance(sock, ssl.SSLSocket)
        self._limits: dict[int, float] | None = {_RECEIVES: 0.0, _SENDS: 0.0} if _HAS_TIMEVAL and not tls else None
        sock.settimeout(None)

    def _limit(self, which: int, deadline: float) -> None:
        """Set the timeout of the next call. Raises: TimeoutError behind the deadline."""
        remaining_s = deadline - monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        if self._limits is None:
            self.sock.settimeout(remaining_s)
            return
        now = self._limits[which]
        if not remaining_s / 8 <= now <= remaining_s:
            now = max(0.001, remaining_s * 0.9)
            self._limits[which] = now
            self.sock.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(now), int(now % 1 * 1e6)))

    def receive_into(self, buffer: bytearray, deadline: float) -> int:
        """Receive bytes. Returns: the number, 0 at the end of the connection. Raises: TimeoutError, OSError."""
        while True:
            self._limit(_RECEIVES, deadline)
            try:
                return self.sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantReadError):
                continue

    def send_all(self, data: bytes, deadline: float) -> None:
        """Send the data. Raises: TimeoutError (a part may be sent), OSError."""
        rest = memoryview(data)
        while True:
            self._limit(_SENDS, deadline)
            try:
                sent = self.sock.send(rest)
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantWriteError):
                continue
            if sent == len(rest):
                return
            rest = rest[sent:]

    def has_ended(self) -> bool:
        """Return whether the connection has ended or an unexpected byte has come."""
        if not hasattr(select, "poll"):
            return bool(select.select([self.sock], [], [], 0)[0])
        look = select.poll()
        look.register(self.sock, select.POLLIN)
        return bool(look.poll(0))

    def shut(self) -> None:
        """Shut the connection down: a thread that reads wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's copy."""
        with contextlib.suppress(OSError):
            self.sock.close()


class BlockingConnection:
    """The socket of an address, used by many callers at once. Attributes: as in ``blocking_connection.pyx``.

    ``_reading`` is held by the caller that reads; it passes from caller to caller under ``_hand``.
    """

    def __init__(self, connected: Socket) -> None:
        self.socket = connected
        self.address = connected.address
        self.last_used = self._received_s = monotonic()
        self._heard_s = 0.0
        self._partial_s = self._mute_s = -1.0
        self.dead: str | None = None
        self._leaving = False
        self._waiters: dict[int, ResponseWaiter] = {}
        self._opaque = count()
        self._writing = allocate_lock()
        self._reading = allocate_lock()
        self._hand = Guard()
        self._decoder = FrameDecoder()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def is_busy(self) -> bool:
        """Return whether a caller waits for a response."""
        return bool(self._waiters)

    def is_usable(self) -> bool:
        """Return whether a request may use the connection. An idle connection is checked first."""
        if self.dead is not None or self._leaving:
            return False
        rested = monotonic() - self.last_used
        if rested < _LOOK_AFTER_S or self._waiters:
            return True
        if rested < IDLE_S and not self.socket.has_ended():
            return True
        self.close("it was idle")
        return False

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """Send a request. Raises: ConnectionLost, CallTimeout."""
        begun = monotonic()
        opaque = next(self._opaque) & _OPAQUE_MASK
        data = frame(opaque)
        if oneway:
            self._write(data, deadline)
            return None
        waiter = self._waiters[opaque] = ResponseWaiter(code)
        try:
            self._write(data, deadline)
            if self._begins_to_lead(waiter) or self._wait(waiter, deadline):
                self._lead(waiter, deadline)
        except (RemotingError, Gone):
            raise
        except BaseException:
            self.close("a request was interrupted")
            raise
        finally:
            self._waiters.pop(opaque, None)
            if self._leaving:
                self.drain()
        if waiter.answer is not None:
            return waiter.answer
        if waiter.error is not None:
            raise ConnectionLost(f"{self.address}: {waiter.error}")
        self._judge_silence(begun)
        raise CallTimeout(f"{self.address}: no answer to request {code} in time")

    def _judge_silence(self, begun: float) -> None:
        """Close or leave a connection that no answer can come from. Args: begun: of a request that has expired."""
        now = monotonic()
        if frame_timed_out(self._partial_s, self._heard_s, begun, now):
            self.close("an answer stayed incomplete")
        elif self._received_s <= begun:
            if self._mute_s < 0:
                self._mute_s = begun
            if now - self._mute_s >= _SILENT_S:  # a server that ended without closing: a new connection may reach it
                self.drain("nothing came for some time")

    def _write(self, data: bytes, deadline: float) -> None:
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

    def _begins_to_lead(self, waiter: ResponseWaiter) -> bool:
        """Become the reader, if there is none; the caller then calls ``_lead``."""
        if self._reading.acquire(False):
            return True
        with self._hand:  # the reader passes the reading under it: it cannot miss this waiter
            if self._reading.acquire(False):
                return True
            waiter.waits = True
        return False

    def _wait(self, waiter: ResponseWaiter, deadline: float) -> bool:
        """Sleep until the response, the end or the deadline. Returns: whether the caller has to read now."""
        waiter.lock.acquire(True, max(0.0, deadline - monotonic()))
        with self._hand:
            waiter.waits = False
            return waiter.leads

    def _lead(self, waiter: ResponseWaiter, deadline: float) -> None:
        try:
            while not waiter.done and self.dead is None:
                size = self.socket.receive_into(self._buffer, deadline)
                if not size:
                    self.close("the connection ended before the answer came")
                    break
                self._received(size)
        except TimeoutError:
            pass
        except OSError as error:
            self.close(f"the connection ended before the answer came: {error}")
        with self._hand:
            self._hand_over()

    def _received(self, size: int) -> None:
        self._received_s = monotonic()
        self._mute_s = -1.0
        commands = self._decoder.feed(self._view[:size])
        if not self._decoder.buffered:
            self._partial_s = -1.0
        else:
            self._heard_s = self._received_s
            if commands or self._partial_s < 0:
                self._partial_s = self._heard_s
        for command in commands:
            self._deliver(command)
        if self._decoder.error is not None:
            self.close(f"the connection is given up: {self._decoder.error}")

    def _hand_over(self) -> None:
        """Pass the reading to a sleeping caller, or to none. Under ``_hand``, by the reader."""
        if self.dead is None:
            for waiter in list(self._waiters.values()):
                if waiter.waits and not waiter.done:
                    waiter.waits = False
                    waiter.leads = True
                    waiter.lock.release()
                    return
        else:
            self.socket.close()
        self._reading.release()

    def _deliver(self, command: RemotingCommand) -> None:
        if not command.flag & _RESPONSE:
            self._refuse(command)
            return
        waiter = self._waiters.pop(command.opaque, None)
        if waiter is not None:  # else its caller returned at its deadline
            waiter.answer = command
            waiter.done = True
            waiter.wake()

    def _refuse(self, request: RemotingCommand) -> None:
        if request.is_oneway:
            return
        answer = request.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
        )
        with contextlib.suppress(RemotingError):
            self._write(encode(answer), monotonic() + 1.0)

    def drain(self, why: str = "the broker is leaving") -> None:
        """Take no more requests, and close once no caller waits for a response."""
        self._leaving = True
        if not self._waiters:
            self.close(why)

    def close(self, why: str) -> None:
        """Close the connection: every waiting caller gets an error."""
        with self._hand:
            if self.dead is not None:
                return
            self.dead = why
            self.socket.shut()
            for waiter in list(self._waiters.values()):
                waiter.error = why
                waiter.done = True
                waiter.wake()
            if self._reading.acquire(False):  # no reader: the reader closes it when passing the reading
                self.socket.close()
                self._reading.release()
