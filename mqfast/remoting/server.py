"""A port that serves requests: the listening socket, and the state that all connections share.

The processors serve the requests. Source: NettyRemotingServer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping

from mqfast.remoting.channel import Channel, Endpoint, OtherProtocol
from mqfast.remoting.latency import Latencies
from mqfast.remoting.processors import Processors
from mqfast.remoting.settings import RemotingSettings

__all__ = ["RemotingServer"]

_BACKLOG = 1024


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
    ) -> None:
        self.processors = processors
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
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free port. Raises: OSError where the address is not available."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._make_channel(self._endpoint, server_side=True, context=self.context),
            host,
            port,
            backlog=_BACKLOG,
            reuse_address=True,
        )
        self._endpoint.start_sweep()

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
        return self._endpoint.buffered_bytes

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
