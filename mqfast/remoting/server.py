"""A port that serves requests: the listening socket, and the state that all connections share.

The processors serve the requests. Source: NettyRemotingServer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mqfast.remoting.channel import Channel, Endpoint, OtherProtocol
from mqfast.remoting.latency import Latencies
from mqfast.remoting.processors import Processors
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import TlsMode

if TYPE_CHECKING:
    from mqfast.remoting.reactor.reactor import Reactors

__all__ = ["RemotingServer"]

_BACKLOG = 1024
_ACCEPTS = 64  # of one turn of the loop
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 1.0
# Bytes of incomplete frames in reactors; above, the event loop gets the pieces and applies buffered_bytes_max.
_REACTOR_BYTES_MAX = 64 << 20


def reactors_of(settings: RemotingSettings) -> Reactors | None:
    """Start the reactors that the settings ask for; None: the event loop serves all connections.

    The event loop serves TLS, so there are no reactors where TLS is enforced. Raises: OSError.
    """
    if settings.selector_threads == 0 or sys.platform != "linux" or settings.tls_mode is TlsMode.ENFORCING:
        return None
    from mqfast.remoting.reactor.reactor import Reactors

    return Reactors(
        asyncio.get_running_loop(),
        settings.selector_threads,
        frame_bytes_max=settings.frame_bytes_max,
        header_bytes_max=settings.header_bytes_max,
        buffered_bytes_max=min(settings.buffered_bytes_max, _REACTOR_BYTES_MAX),
        high=settings.write_high_bytes,
        low=settings.write_low_bytes,
    )


class RemotingServer:
    """Serves the requests of any number of connections on one port.

    Args:
        processors: the handlers of request codes.
        context: with the certificate, for TLS on the same port; see ``tls.server_context``.
        on_closed: called with every closed connection.
        make_channel: makes the protocol of a connection, with the arguments of ``Channel``.
        clock: seconds that only grow.
        latencies: counts the latencies of requests; None: not counted.
        others: other protocols on the same port, by the first byte of a connection.
        reactors: own the connections; None: the event loop does. The caller stops the reactors after the server.
    Attributes: ``context`` may be replaced, for later connections.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        processors: Processors,
        settings: RemotingSettings | None = None,
        *,
        context: ssl.SSLContext | None = None,
        on_closed: Callable[[Channel], None] | None = None,
        make_channel: Callable[..., Channel] = Channel,
        clock: Callable[[], float] | None = None,
        logger: logging.Logger | None = None,
        latencies: Latencies | None = None,
        others: Mapping[int, Callable[[Channel], OtherProtocol]] | None = None,
        reactors: Reactors | None = None,
    ) -> None:
        self.processors = processors
        self._reactors = reactors
        self.context = context
        self._make_channel = make_channel
        self._endpoint = Endpoint(
            processors,
            settings or RemotingSettings(),
            clock=clock,
            logger=logger,
            on_closed=on_closed,
            latencies=latencies,
            others=others,
        )
        self._server: asyncio.Server | _Acceptor | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free port. Raises: OSError where the address is not available."""
        loop = asyncio.get_running_loop()
        if self._reactors is None:
            self._server = await loop.create_server(self._new_channel, host, port, backlog=_BACKLOG, reuse_address=True)
        else:
            self._server = _Acceptor(loop, self._reactors, self._new_channel)
            await self._server.listen(host, port)
        self._endpoint.start_sweep()

    def _new_channel(self) -> Channel:
        return self._make_channel(self._endpoint, server_side=True, context=self.context)

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port) of the listening socket."""
        assert self._server is not None, "the server was not started"
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def channels(self) -> frozenset[Channel]:
        """Return the current connections."""
        return frozenset(self._endpoint.channels)

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of incomplete frames of all connections."""
        in_reactors = 0 if self._reactors is None else self._reactors.buffered_bytes
        return self._endpoint.buffered_bytes + in_reactors

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop listening, let running requests end within the grace time, send all responses, close all connections."""
        if self._server is None:
            return
        self._server.close()
        self._endpoint.stop_sweep()
        await self.processors.stop(grace_s)
        await asyncio.sleep(0)  # responses of this iteration of the loop are sent
        for channel in list(self._endpoint.channels):
            channel.close()
        deadline = time.monotonic() + grace_s
        while self._endpoint.channels and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self.abort()

    def abort(self) -> None:
        """Stop listening and cut all connections, as the end of the process does. No response is sent."""
        if self._server is not None:
            self._server.close()
        self._endpoint.stop_sweep()
        for channel in list(self._endpoint.channels):
            channel.abort()
        self._server = None


class _Acceptor:
    """Listening sockets whose connections are given to reactors.

    Attributes: ``sockets``: the listening sockets.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, reactors: Reactors, new_channel: Callable[[], Channel]) -> None:
        self._loop = loop
        self._reactors = reactors
        self._new_channel = new_channel
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int) -> None:
        """Listen at all addresses of a host. Raises: OSError."""
        resolved = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((row[0], row[4]) for row in resolved):
                self.sockets.append(_listening(family, address))
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                connected, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._loop.remove_reader(listening)
                self._loop.call_later(_RETRY_S, self._accept_again, listening)
                return
            try:
                self._reactors.adopt(connected, self._new_channel())
            except OSError:  # the client has gone meanwhile
                connected.close()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop listening."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = []


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        try:
            listening.bind(address)
        except OSError as error:
            raise OSError(
                error.errno, f"error while attempting to bind on address {address!r}: {error.strerror}"
            ) from None
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
