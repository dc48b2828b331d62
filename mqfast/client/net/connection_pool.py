"""Blocking connections of sync callers: a socket per broker, read by a waiting caller (leader/follower).

``blocking_connection.pyx`` shares a socket among callers. Here: connections, the socket of a request, steps on the
caller's thread.

No threads are started, each wait has a deadline, and no request is sent twice except after GO_AWAY. Requests of brokers
are not served: heartbeats never go over these sockets, so brokers do not register these connections. With TLS a socket
has one caller at a time. Source: NettyRemotingClient.invokeSync, for the guarantees to a caller.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Generator
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from mqfast.client.net import fork
from mqfast.client.net.blocking_connection import IDLE_S, BlockingConnection, Gone, Socket
from mqfast.client.net.connect import connect
from mqfast.client.net.guard import ASKING
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import Blocking, EncodedRequest, Request, RequestSteps, Sleep, of_client
from mqfast.errors import CallTimeout, ConnectError, ConnectionLost
from mqfast.remoting.client import split_address
from mqfast.remoting.codes import LanguageCode, ResponseCode
from mqfast.remoting.command import ONEWAY, RemotingCommand, encode

__all__ = ["BlockingConnectionPool", "connection_pool_of"]

CONNECT_TIMEOUT_S: Final = 3.0
TLS_SOCKETS: Final = 4

T = TypeVar("T")
Sign = Callable[[int, dict[str, Any], Any], dict[str, Any]]
AnyRequest: TypeAlias = Request | EncodedRequest


class _Single:
    """The sockets of one address with TLS: each serves a single caller at a time; at most TLS_SOCKETS."""

    def __init__(self, connect: Callable[[float], Socket], address: str) -> None:
        self._connect = connect
        self._address = address
        self._free: list[BlockingConnection] = []
        self._slots: SimpleQueue[None] = SimpleQueue()  # a semaphore that signal handlers may use
        for _ in range(TLS_SOCKETS):
            self._slots.put(None)
        self._closed = False
        self._generation = 0  # of connections: those of an older generation are closed after use

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """Send a request. Raises: ConnectError, ConnectionLost, CallTimeout."""
        try:
            self._slots.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            text = f"{self._address}: all {TLS_SOCKETS} connections were in use until the deadline"
            raise ConnectError(text) from None
        connection: BlockingConnection | None = None
        generation = self._generation
        try:
            while self._free and connection is None:
                connection = self._free.pop()
                if not connection.is_usable():
                    connection = None
            connection = connection or BlockingConnection(self._connect(deadline))
            return connection.call(frame, code, oneway, deadline)
        except Gone as gone:
            raise ConnectError(f"{self._address}: {gone}") from None
        except Exception:
            raise
        except BaseException:  # Ctrl-C may have come between a read of the socket and the use of its bytes
            if connection is not None:
                connection.close("its caller was interrupted")
            raise
        finally:
            if connection is not None and connection.dead is None:
                if self._closed or generation != self._generation:
                    connection.close("the client is closed, or the broker is leaving")
                else:
                    self._free.append(connection)
            self._slots.put(None)

    def drain(self) -> None:
        """Make the next request open a new connection; responses to pending requests come over the old connections."""
        self._generation += 1
        while self._free:
            self._free.pop().close("the broker is leaving")

    def close(self, why: str) -> None:
        """Close the unused connections; a used connection is closed by the caller."""
        self._closed = True
        while self._free:
            self._free.pop().close(why)

    def close_idle(self) -> None:
        """Close the connections that were idle too long; those used last stay."""
        for connection in list(self._free):
            if time.monotonic() - connection.last_used >= IDLE_S:
                connection.close("it was idle")

    def abandon(self) -> list[Socket]:
        """Return the sockets, for a child of a fork."""
        return [connection.socket for connection in self._free]


class _Shared:
    """The single socket of an address without TLS."""

    def __init__(self, connect: Callable[[float], Socket], address: str) -> None:
        self._connect = connect
        self._address = address
        self._connection: BlockingConnection | None = None
        self._connecting = threading.Lock()
        self._closed = False

    def call(self, frame: Callable[[int], bytes], code: int, oneway: bool, deadline: float) -> RemotingCommand | None:
        """Send a request. Raises: ConnectError, ConnectionLost, CallTimeout."""
        while True:
            connection = self._connection
            if connection is None or not connection.is_usable():
                connection = self._connected(deadline)
            try:
                return connection.call(frame, code, oneway, deadline)
            except Gone as gone:  # nothing was written: a new connection is tried, each attempt has the same deadline
                if time.monotonic() >= deadline:
                    raise ConnectError(f"{self._address}: {gone}") from None
            finally:
                if self._closed:  # before this request connected
                    connection.drain("the client is closed")

    def _connected(self, deadline: float) -> BlockingConnection:
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise ConnectError(f"{self._address}: no connection in time")
        try:
            if self._connection is None or not self._connection.is_usable():
                self._connection = BlockingConnection(self._connect(deadline))
            return self._connection
        finally:
            self._connecting.release()

    def drain(self) -> None:
        """Make the next request open a new connection; responses to pending requests come over the old connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drain()

    def close(self, why: str) -> None:
        """Close the connection; a later connection is closed by its callers."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(why)

    def close_idle(self) -> None:
        """Close the connection after a long idle time."""
        connection = self._connection
        if connection is not None and time.monotonic() - connection.last_used >= IDLE_S and not connection.is_busy:
            connection.close("it was idle")

    def abandon(self) -> list[Socket]:
        """Return the sockets, for a child of a fork."""
        return [] if self._connection is None else [self._connection.socket]


class BlockingConnectionPool:
    """The sockets of sync callers, by address.

    Args: context: for TLS. sign: signs requests; None: nothing is signed. reached_at: (host, port) to connect to for an
        address. explain: returns a hint about an unreachable address, appended to the error.
    Thread: any. Fork: a child begins without sockets.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        sign: Sign | None = None,
        reached_at: Callable[[str], tuple[str, int]] = split_address,
        explain: Callable[[str], str] | None = None,
    ) -> None:
        self._context = context
        self._sign = sign
        self._reached_at = reached_at
        self._explain = explain
        self._places: dict[str, _Shared | _Single] = {}
        self._closed = False
        fork.watch(self)

    def run(self, steps: RequestSteps[T]) -> T:
        """Run the steps on the caller's thread. Returns: the result of the steps; raises exceptions of the steps."""
        return self._run(steps, None, None)

    def go_on(self, steps: RequestSteps[T], answer: RemotingCommand | None, error: Exception | None) -> T:
        """Run the steps as ``run``; the first step was requested already, with this outcome."""
        next(steps)
        return self._run(steps, answer, error)

    def _run(self, steps: RequestSteps[T], answer: RemotingCommand | None, error: Exception | None) -> T:
        generator: Generator[Any, Any, T] = steps
        try:
            while True:
                try:
                    step = generator.send(answer) if error is None else generator.throw(error)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = error = None
                if type(step) is Sleep:
                    time.sleep(step.seconds)
                    continue
                if type(step) is Blocking:
                    try:
                        answer = step.function()
                    except Exception as failure:
                        error = failure
                    continue
                try:
                    answer = self.request(step)
                except (ConnectError, ConnectionLost, CallTimeout) as failure:
                    error = of_client(failure)
        finally:
            generator.close()

    def request(self, request: AnyRequest) -> RemotingCommand | None:
        """Send a request. Raises: ConnectError (nothing was sent), ConnectionLost, CallTimeout."""
        deadline = time.monotonic() + request.timeout_s
        if self._sign is None and type(request) is not Request:
            frame = request.frame  # type: ignore[union-attr]
        else:
            frame = self._framed(request)
        with ASKING as inside:
            if inside:  # the interrupted request may be writing to its socket, or reading for all callers
                connect = self._connection(request.address)
                return _once(connect, request.address, frame, request.code, request.oneway, deadline)
            place = self._places.get(request.address) or self._place(request.address)
            answer = place.call(frame, request.code, request.oneway, deadline)
            if answer is not None and answer.code == ResponseCode.GO_AWAY:
                place.drain()  # one more attempt, over a new connection
                answer = place.call(frame, request.code, request.oneway, deadline)
            return answer

    def _framed(self, request: AnyRequest) -> Callable[[int], bytes]:
        fields = request.ext_fields
        if self._sign is not None:
            fields = self._sign(request.code, fields or {}, request.body)

        def frame(opaque: int) -> bytes:
            head = RemotingCommand(
                request.code,
                fields,
                request.body,
                opaque=opaque,
                flag=ONEWAY if request.oneway else 0,
                language=LanguageCode.PYTHON,
            )
            if isinstance(request.body, bytes):
                return encode(head)
            return b"".join([encode(head, with_body=False), *request.body])

        return frame

    def _place(self, address: str) -> _Shared | _Single:
        connect = self._connection(address)
        place = _Shared(connect, address) if self._context is None else _Single(connect, address)
        place = self._places.setdefault(address, place)
        if self._closed:
            place.close("the client is closed")
        return place

    def _connection(self, address: str) -> Callable[[float], Socket]:
        """Return a function that connects to an address by a deadline. Raises: ConnectError for an invalid address."""
        try:
            host, port = self._reached_at(address)
        except ValueError as error:
            raise ConnectError(str(error)) from None

        def connect(deadline: float) -> Socket:
            # Half of the time, so that another broker can be tried when a connection is not made.
            remaining_s = deadline - time.monotonic()
            try:
                return _connected(address, host, port, self._context, min(CONNECT_TIMEOUT_S, remaining_s / 2))
            except ConnectError as error:
                more = self._explain(address) if self._explain is not None else ""
                raise (ConnectError(f"{error}{more}") if more else error) from None

        return connect

    def close(self) -> None:
        """Close every socket; waiting callers get ConnectionLost. A request that begins later closes its own socket."""
        self._closed = True
        places, self._places = self._places, {}
        for place in places.values():
            place.close("the client is closed")

    def close_idle(self) -> None:
        """Close the sockets that were idle for IDLE_S."""
        for place in list(self._places.values()):
            place.close_idle()

    def after_fork(self) -> None:
        """Close the copies of the parent's sockets in a child process, without a message to the broker."""
        places, self._places = self._places, {}
        for place in places.values():
            for inherited in place.abandon():
                inherited.close()


def _once(
    connect: Callable[[float], Socket],
    address: str,
    frame: Callable[[int], bytes],
    code: int,
    oneway: bool,
    deadline: float,
) -> RemotingCommand | None:
    """Send a request over a new connection. Raises: ConnectError, ConnectionLost, CallTimeout."""
    connection = BlockingConnection(connect(deadline))
    try:
        return connection.call(frame, code, oneway, deadline)
    except Gone as gone:
        raise ConnectError(f"{address}: {gone}") from None
    finally:
        connection.close("its request is done")


_by_instance: weakref.WeakKeyDictionary[ClientInstance, BlockingConnectionPool] = weakref.WeakKeyDictionary()


def connection_pool_of(instance: ClientInstance) -> BlockingConnectionPool:
    """Return the sockets of the sync callers of an instance. Thread: that of the instance's loop.

    The sockets are closed with the instance; an idle socket is closed after IDLE_S.
    """
    connection_pool = _by_instance.get(instance)
    if connection_pool is None:
        connection_pool = _by_instance[instance] = BlockingConnectionPool(
            instance.tls_context, instance.sign_with, instance.reached_at, instance.explain
        )
        instance.spawn(_rest(instance, connection_pool), "mqfast lanes")
    return connection_pool


async def _rest(instance: ClientInstance, connection_pool: BlockingConnectionPool) -> None:
    try:
        while True:
            await asyncio.sleep(IDLE_S / 2)
            connection_pool.close_idle()
    finally:
        _by_instance.pop(instance, None)
        connection_pool.close()


def _connected(address: str, host: str, port: int, context: ssl.SSLContext | None, timeout_s: float) -> Socket:
    if timeout_s <= 0:
        raise ConnectError(f"{address}: the time was over before a connection was tried")
    begin = time.monotonic()
    try:
        sock = connect(host, port, timeout_s)
    except (OSError, ValueError) as error:  # ValueError: a text that is no host name
        took = time.monotonic() - begin
        raise ConnectError(f"{address}: no connection in {took:.2f} s: {error}") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock.settimeout(max(0.001, timeout_s - (time.monotonic() - begin)))
            sock = context.wrap_socket(sock, server_hostname=host if context.check_hostname else None)
        return Socket(address, sock)
    except OSError as error:  # ssl.SSLError is one
        sock.close()
        raise ConnectError(f"{address}: {_why_no_tls(error)}") from None
    except BaseException:
        sock.close()
        raise


def _why_no_tls(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"no TLS: the certificate is not trusted: {error}"
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)) or getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
        return f"no TLS: the port seems to take none: {error}"
    return f"no TLS: {error}"
