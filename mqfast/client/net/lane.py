"""Sync callers on their own threads: one blocking socket a broker, read by whichever caller waits (leader/follower).

    the caller writes its frame; nobody reads -> it reads, for all, until its own answer or deadline, and hands the
    reading on; somebody reads -> it sleeps on its own lock until its answer, the reading, or its deadline comes

Room: client. It must never start a thread, wait without a deadline, or send twice by itself. It serves no request of a
broker: a heartbeat never goes over a lane, so that brokers do not know it. With TLS a socket has one caller at a time.
Source: NettyRemotingClient.invokeSync, for what a caller may rely on.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

from mqfast.client.net import fork
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.steps import Ask, Pause, ReadyAsk, Steps, of_client
from mqfast.errors import CallTimeout, ConnectError, ConnectionLost, RemotingError
from mqfast.remoting.client import split_address
from mqfast.remoting.codes import LanguageCode, ResponseCode
from mqfast.remoting.command import ONEWAY, FrameDecoder, RemotingCommand, encode

__all__ = ["Lanes", "lanes_of"]

CONNECT_TIMEOUT_S: Final = 3.0
IDLE_S: Final = 60.0
"""A socket that was not used for so long is replaced; a server closes it after 120 s."""
TLS_SOCKETS: Final = 4
_LOOK_AFTER_S: Final = 0.1
"""A socket that rested for so long is looked at before it is used: its peer may have gone."""
_BUFFER_BYTES: Final = 64 * 1024
_OPAQUE_MASK: Final = 0x7FFFFFFF

T = TypeVar("T")
Sign = Callable[[int, dict[str, Any], Any], dict[str, Any]]
AnyAsk: TypeAlias = Ask | ReadyAsk


class _Gone(Exception):
    """The connection had ended before a byte of the request was written."""


class _Waiter:
    __slots__ = ("answer", "code", "done", "error", "leads", "lock", "waits")

    def __init__(self, code: int) -> None:
        self.code = code
        self.lock = threading.Lock()
        self.lock.acquire()
        self.answer: RemotingCommand | None = None
        self.error: str | None = None
        self.done = False
        self.leads = False
        self.waits = False


class _Socket:
    """A connected socket whose waits end at a deadline, without a system call for each deadline.

    A time-out stands in the socket itself; it is set anew only where it would end after the deadline, or far before.
    """

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address = address
        self.sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._limits = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0} if _HAS_TIMEVAL and not self._tls else None
        sock.settimeout(None)

    def _limit(self, which: int, left: float) -> None:
        if self._limits is None:
            self.sock.settimeout(left)
            return
        now = self._limits[which]
        if not left / 8 <= now <= left:
            now = max(0.001, left * 0.9)
            self._limits[which] = now
            self.sock.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(now), int(now % 1 * 1e6)))

    def receive_into(self, buffer: bytearray, deadline: float) -> int:
        """Bytes received, 0 at the end of the connection. Raises: TimeoutError, OSError."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(socket.SO_RCVTIMEO, left)
            try:
                return self.sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantReadError):
                continue

    def send_all(self, data: bytes, deadline: float) -> None:
        """Send it. Raises: TimeoutError (a part may be out), OSError."""
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(socket.SO_SNDTIMEO, left)
            try:
                view = view[self.sock.send(view) :]
            except (BlockingIOError, InterruptedError, TimeoutError, ssl.SSLWantWriteError):
                continue

    def has_ended(self) -> bool:
        """Is there an end or a byte that nobody asked for?"""
        if not hasattr(select, "poll"):
            return bool(select.select([self.sock], [], [], 0)[0])
        look = select.poll()
        look.register(self.sock, select.POLLIN)
        return bool(look.poll(0))

    def shut(self) -> None:
        """Wake whoever reads it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's copy."""
        with contextlib.suppress(OSError):
            self.sock.close()


_HAS_TIMEVAL: Final = sys.platform != "win32"  # SO_RCVTIMEO takes a timeval


class _Lane:
    """The socket of one address, used by many callers at once.

    ``_reading`` is held by the one caller that reads; it goes from caller to caller under ``_hand``.
    """

    def __init__(self, connected: _Socket) -> None:
        self.socket = connected
        self.address = connected.address
        self.last_used = time.monotonic()
        self.dead: str | None = None
        self._waiters: dict[int, _Waiter] = {}
        self._opaque = count()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._hand = threading.Lock()
        self._decoder = FrameDecoder()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def is_busy(self) -> bool:
        """Does anybody wait for an answer?"""
        return bool(self._waiters)

    def is_usable(self) -> bool:
        """May a request go over it? One that rested is looked at first."""
        if self.dead is not None:
            return False
        rested = time.monotonic() - self.last_used
        if rested < _LOOK_AFTER_S or self._waiters:
            return True
        if rested < IDLE_S and not self.socket.has_ended():
            return True
        self.end("it was idle")
        return False

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """One request. Raises: ConnectionLost, CallTimeout."""
        opaque = next(self._opaque) & _OPAQUE_MASK
        data = frame(opaque)
        if oneway:
            self._write(data, deadline)
            return None
        waiter = self._waiters[opaque] = _Waiter(code)
        try:
            self._write(data, deadline)
            if self._begins_to_lead(waiter) or self._wait(waiter, deadline):
                self._lead(waiter, deadline)
        finally:
            self._waiters.pop(opaque, None)
        if waiter.answer is not None:
            return waiter.answer
        if waiter.error is not None:
            raise ConnectionLost(f"{self.address}: {waiter.error}")
        raise CallTimeout(f"{self.address}: no answer to request {code} in time")

    def _write(self, data: bytes, deadline: float) -> None:
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise CallTimeout(f"{self.address}: other requests were not written in time; nothing of this one was sent")
        try:
            if self.dead is not None:
                raise _Gone(self.dead)
            self.socket.send_all(data, deadline)
            self.last_used = time.monotonic()
        except TimeoutError:
            self.end("a request was not taken in time")
            raise CallTimeout(f"{self.address}: the request was not taken in time") from None
        except OSError as error:
            self.end(f"the connection ended: {error}")
            raise ConnectionLost(f"{self.address}: the connection ended: {error}") from None
        except BaseException:
            if self.dead is None:
                self.end("a request was interrupted")  # a part of its frame may be out
            raise
        finally:
            self._writing.release()

    def _begins_to_lead(self, waiter: _Waiter) -> bool:
        """Become the one who reads, if nobody is; the caller is then to ``_lead``."""
        if self._reading.acquire(False):
            return True
        with self._hand:  # the reader hands over under it: it cannot miss this waiter
            if self._reading.acquire(False):
                return True
            waiter.waits = True
        return False

    def _wait(self, waiter: _Waiter, deadline: float) -> bool:
        """Sleep until the answer, the end or the deadline. Returns: has the caller to read now?"""
        try:
            waiter.lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except BaseException:
            self._give_up(waiter)
            raise
        with self._hand:
            waiter.waits = False
            return waiter.leads

    def _give_up(self, waiter: _Waiter) -> None:
        with self._hand:
            waiter.waits = False
            if waiter.leads:
                self._hand_over()

    def _lead(self, waiter: _Waiter, deadline: float) -> None:
        try:
            while not waiter.done and self.dead is None:
                size = self.socket.receive_into(self._buffer, deadline)
                if not size:
                    self.end("the connection ended before the answer came")
                    break
                for command in self._decoder.feed(self._view[:size]):
                    self._deliver(command)
                if self._decoder.error is not None:
                    self.end(f"the connection is given up: {self._decoder.error}")
        except TimeoutError:
            pass
        except OSError as error:
            self.end(f"the connection ended before the answer came: {error}")
        finally:
            with self._hand:
                self._hand_over()

    def _hand_over(self) -> None:
        """Give the reading to a caller that sleeps, or to nobody. Under ``_hand``, by the one who reads."""
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
        if not command.is_response:
            self._refuse(command)
            return
        waiter = self._waiters.pop(command.opaque, None)
        if waiter is None:
            return  # its caller has gone at its deadline
        waiter.answer = command
        waiter.done = True
        _wake(waiter)

    def _refuse(self, request: RemotingCommand) -> None:
        if request.is_oneway:
            return
        answer = request.response(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
        )
        with contextlib.suppress(RemotingError):
            self._write(encode(answer), time.monotonic() + 1.0)

    def end(self, why: str) -> None:
        """The connection is no more: every caller that waits hears of it."""
        with self._hand:
            if self.dead is not None:
                return
            self.dead = why
            self.socket.shut()
            for waiter in list(self._waiters.values()):
                waiter.error = why
                waiter.done = True
                _wake(waiter)
            if self._reading.acquire(False):  # nobody reads: who does closes it when it hands over
                self.socket.close()
                self._reading.release()


def _wake(waiter: _Waiter) -> None:
    try:
        waiter.lock.release()
    except RuntimeError:  # it was woken to read just now
        pass


class _Single:
    """The sockets of one address with TLS: each serves one caller at a time, up to TLS_SOCKETS of them."""

    def __init__(self, connect: Callable[[float], _Socket], address: str) -> None:
        self._connect = connect
        self._address = address
        self._free: list[_Lane] = []
        self._slots = threading.BoundedSemaphore(TLS_SOCKETS)
        self._closed = False

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """One request. Raises: ConnectError, ConnectionLost, CallTimeout."""
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectError(f"{self._address}: all {TLS_SOCKETS} connections were in use until the deadline")
        lane: _Lane | None = None
        try:
            while self._free and lane is None:
                lane = self._free.pop()
                if not lane.is_usable():
                    lane = None
            lane = lane or _Lane(self._connect(deadline))
            return lane.call(frame, code, oneway, deadline)
        except _Gone as gone:
            raise ConnectError(f"{self._address}: {gone}") from None
        finally:
            if lane is not None and lane.dead is None:
                if self._closed:
                    lane.end("the client is closed")
                else:
                    self._free.append(lane)
            self._slots.release()

    def end(self, why: str) -> None:
        """Close what is not in use; what is, is closed by its caller."""
        self._closed = True
        while self._free:
            self._free.pop().end(why)

    def close_idle(self) -> None:
        """Close what has rested too long; the connections that were used last stay."""
        for lane in list(self._free):
            if time.monotonic() - lane.last_used >= IDLE_S:
                lane.end("it was idle")

    def abandon(self) -> list[_Socket]:
        """The sockets, for a child of a fork."""
        return [lane.socket for lane in self._free]


class _Shared:
    """The one socket of an address without TLS."""

    def __init__(self, connect: Callable[[float], _Socket], address: str) -> None:
        self._connect = connect
        self._address = address
        self._lane: _Lane | None = None
        self._connecting = threading.Lock()

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """One request. Raises: ConnectError, ConnectionLost, CallTimeout."""
        while True:
            lane = self._lane
            if lane is None or not lane.is_usable():
                lane = self._connected(deadline)
            try:
                return lane.call(frame, code, oneway, deadline)
            except _Gone as gone:  # nothing was written: a new connection is tried, each attempt has the same deadline
                if time.monotonic() >= deadline:
                    raise ConnectError(f"{self._address}: {gone}") from None

    def _connected(self, deadline: float) -> _Lane:
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectError(f"{self._address}: no connection in time")
        try:
            if self._lane is None or not self._lane.is_usable():
                self._lane = _Lane(self._connect(deadline))
            return self._lane
        finally:
            self._connecting.release()

    def end(self, why: str) -> None:
        """Close it."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.end(why)

    def close_idle(self) -> None:
        """Close it if it has rested too long."""
        lane = self._lane
        if lane is not None and time.monotonic() - lane.last_used >= IDLE_S and not lane.is_busy:
            lane.end("it was idle")

    def abandon(self) -> list[_Socket]:
        """The sockets, for a child of a fork."""
        return [] if self._lane is None else [self._lane.socket]


class Lanes:
    """The sockets of sync callers, by address.

    Args: context: for TLS. sign: what signs requests; None: nothing is signed.
    Thread: any. Fork: a child begins without sockets.
    """

    def __init__(self, context: ssl.SSLContext | None = None, sign: Sign | None = None) -> None:
        self._context = context
        self._sign = sign
        self._places: dict[str, _Shared | _Single] = {}
        fork.watch(self)

    def run(self, steps: Steps[T]) -> T:
        """Run to the end on the caller's thread. Returns: what the steps return; raises what they raise."""
        return self._run(steps, None, None)

    def go_on(self, steps: Steps[T], answer: RemotingCommand | None, error: Exception | None) -> T:
        """Run to the end, as ``run``; the first step was asked already, with this outcome."""
        next(steps)
        return self._run(steps, answer, error)

    def _run(self, steps: Steps[T], answer: RemotingCommand | None, error: Exception | None) -> T:
        generator: Generator[Any, Any, T] = steps
        try:
            while True:
                try:
                    step = generator.send(answer) if error is None else generator.throw(error)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = error = None
                if type(step) is Pause:
                    time.sleep(step.seconds)
                    continue
                try:
                    answer = self.ask(step)
                except (ConnectError, ConnectionLost, CallTimeout) as failure:
                    error = of_client(failure)
        finally:
            generator.close()

    def ask(self, ask: AnyAsk) -> RemotingCommand | None:
        """One question. Raises: ConnectError (nothing was sent), ConnectionLost, CallTimeout."""
        deadline = time.monotonic() + ask.timeout_s
        if self._sign is None and type(ask) is not Ask:
            frame = ask.frame  # type: ignore[union-attr]
        else:
            frame = self._framed(ask)
        place = self._places.get(ask.address) or self._place(ask.address)
        answer = place.call(frame, ask.code, ask.oneway, deadline)
        if answer is not None and answer.code == ResponseCode.GO_AWAY:
            place.end("the broker is leaving")  # whoever listens there now is asked once more
            if isinstance(place, _Single):
                self._places.pop(ask.address, None)
                place = self._place(ask.address)
            answer = place.call(frame, ask.code, ask.oneway, deadline)
        return answer

    def _framed(self, ask: AnyAsk) -> Callable[[int], bytes]:
        fields = ask.ext_fields
        if self._sign is not None:
            fields = self._sign(ask.code, fields or {}, ask.body)

        def frame(opaque: int) -> bytes:
            head = RemotingCommand(
                ask.code,
                fields,
                ask.body,
                opaque=opaque,
                flag=ONEWAY if ask.oneway else 0,
                language=LanguageCode.PYTHON,
            )
            if isinstance(ask.body, bytes):
                return encode(head)
            return b"".join([encode(head, with_body=False), *ask.body])

        return frame

    def _place(self, address: str) -> _Shared | _Single:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise ConnectError(str(error)) from None

        def connect(deadline: float) -> _Socket:
            # Half of the time, so that another broker can be tried when a connection is not made.
            left = deadline - time.monotonic()
            return _connected(address, host, port, self._context, min(CONNECT_TIMEOUT_S, left / 2))

        place = _Shared(connect, address) if self._context is None else _Single(connect, address)
        return self._places.setdefault(address, place)

    def close(self) -> None:
        """Close every socket; callers that wait hear ConnectionLost."""
        places, self._places = self._places, {}
        for place in places.values():
            place.end("the client is closed")

    def close_idle(self) -> None:
        """Close the sockets that nobody has used for IDLE_S."""
        for place in list(self._places.values()):
            place.close_idle()

    def after_fork(self) -> None:
        """In a child: the sockets are the parent's, so close the copies without a word to the broker."""
        places, self._places = self._places, {}
        for place in places.values():
            for one in place.abandon():
                one.close()


_by_instance: weakref.WeakKeyDictionary[ClientInstance, Lanes] = weakref.WeakKeyDictionary()


def lanes_of(instance: ClientInstance) -> Lanes:
    """The sockets of the sync callers of one instance. Thread: that of the instance's loop.

    They are closed with the instance; one that rests is closed after IDLE_S.
    """
    lanes = _by_instance.get(instance)
    if lanes is None:
        lanes = _by_instance[instance] = Lanes(instance.tls_context, instance.sign_with)
        instance.spawn(_rest(instance, lanes), "mqfast lanes")
    return lanes


async def _rest(instance: ClientInstance, lanes: Lanes) -> None:
    try:
        while True:
            await asyncio.sleep(IDLE_S / 2)
            lanes.close_idle()
    finally:
        _by_instance.pop(instance, None)
        lanes.close()


def _connected(address: str, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> _Socket:
    if timeout_s <= 0:
        raise ConnectError(f"{address}: the time was over before a connection was tried")
    begin = time.monotonic()
    try:
        sock = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        took = time.monotonic() - begin
        raise ConnectError(f"{address}: no connection in {took:.2f} s: {error}") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock.settimeout(max(0.001, timeout_s - (time.monotonic() - begin)))
            sock = context.wrap_socket(sock, server_hostname=host if context.check_hostname else None)
        return _Socket(address, sock)
    except OSError as error:  # ssl.SSLError is one
        sock.close()
        raise ConnectError(f"{address}: no TLS: {error}") from None
    except BaseException:
        sock.close()
        raise
