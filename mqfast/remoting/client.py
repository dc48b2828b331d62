"""The client side: a connection for each address, opened at the first use, for requests of both sides.

The caller chooses the address, and repeats failed requests. Source: NettyRemotingClient.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from mqfast.errors import ConnectionLost
from mqfast.remoting.channel import Channel, Endpoint
from mqfast.remoting.command import VERSION, Buffer, RemotingCommand
from mqfast.remoting.processors import Processors
from mqfast.remoting.settings import RemotingSettings

__all__ = ["RemotingClient", "split_address"]


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host may have brackets. Raises: ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"expected host:port, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class RemotingClient:
    """Sends requests to servers, and serves requests of servers.

    Args:
        processors: handlers of the requests of servers; by default none.
        context: for TLS; see ``tls.client_context``.
        connect_timeout_ms: RocketMQ: connectTimeoutMillis.
        reached_at: (host, port) to connect to for an address; by default those of the address.
    Attributes: on_closed: functions that are called with the address of a connection that has closed, or whose server
        leaves.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        processors: Processors | None = None,
        settings: RemotingSettings | None = None,
        *,
        context: ssl.SSLContext | None = None,
        connect_timeout_ms: int = 3000,
        clock: Callable[[], float] | None = None,
        logger: logging.Logger | None = None,
        reached_at: Callable[[str], tuple[str, int]] | None = None,
    ) -> None:
        self._context = context
        self._reached_at = reached_at or split_address
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._channels: dict[str, asyncio.Task[Channel]] = {}
        self._ready: dict[str, Channel] = {}
        self._addresses: dict[Channel, str] = {}
        self.on_closed: list[Callable[[str], object]] = []
        self._endpoint = Endpoint(
            processors or Processors(clock=clock),
            settings or RemotingSettings(),
            clock=clock,
            logger=logger,
            on_closed=self._closed,
        )

    async def channel(self, address: str) -> Channel:
        """Return the connection to an address, opened where there is none. Raises: ConnectionLost, ValueError."""
        task = self._channels.get(address)
        if task is not None and task.done() and (task.cancelled() or task.exception() or not task.result().is_usable):
            task = None
        if task is None:
            host, port = self._reached_at(address)
            task = self._channels[address] = asyncio.ensure_future(self._connect(address, host, port))
        return await asyncio.shield(task)

    async def _connect(self, address: str, host: str, port: int) -> Channel:
        loop = asyncio.get_running_loop()
        self._endpoint.start_sweep()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, channel = await loop.create_connection(
                    lambda: Channel(self._endpoint, server_side=False, context=self._context, host=host), host, port
                )
                try:
                    await channel.encrypted()
                except BaseException:
                    channel.abort()
                    raise
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{host}:{port}: no connection: {str(error) or 'it took too long'}") from None
        if not channel.is_closed:
            self._addresses[channel] = address
        if self._channels.get(address) is asyncio.current_task():  # else the connection was dropped meanwhile
            self._ready[address] = channel
        return channel

    async def call(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        timeout_ms: int = 3000,
        serialize: int | None = None,
        version: int = VERSION,
    ) -> RemotingCommand:
        """Send a request and await the response, with any code. Raises: CallTimeout, ConnectionLost, TooManyCalls."""
        channel = await self.channel(address)
        return await channel.call(code, ext_fields, body, timeout_ms=timeout_ms, serialize=serialize, version=version)

    async def oneway(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[Buffer] = b"",
        *,
        serialize: int | None = None,
    ) -> None:
        """Send a oneway request. Raises: ConnectionLost."""
        (await self.channel(address)).oneway(code, ext_fields, body, serialize=serialize)

    def ready(self, address: str) -> Channel | None:
        """Return the connection to an address, if it can be used at once."""
        channel = self._ready.get(address)
        return channel if channel is not None and channel.is_usable else None

    def filenos(self) -> list[int]:
        """Return the file descriptors of all connections."""
        descriptors = [channel.fileno() for channel in self._endpoint.channels]
        return [descriptor for descriptor in descriptors if descriptor >= 0]

    def renew(self, address: str) -> None:
        """Make the next request open a new connection; the old one closes after its pending responses."""
        if (channel := self._given_up(address)) is not None:
            channel.drain()
            self._notify_closed(address)

    def drain(self, address: str) -> None:
        """Close the connection to an address, if there is one; the next request opens a new connection."""
        if (channel := self._given_up(address)) is not None:
            channel.close()

    def _given_up(self, address: str) -> Channel | None:
        task = self._channels.get(address)
        if task is None or not task.done():
            return None  # a new connection is being opened: not the one that the caller has used
        self._ready.pop(address, None)
        del self._channels[address]
        return None if task.cancelled() or task.exception() is not None else task.result()

    def _closed(self, channel: Channel) -> None:
        if (address := self._addresses.pop(channel, None)) is not None:
            self._notify_closed(address)

    def _notify_closed(self, address: str) -> None:
        for told in list(self.on_closed):
            told(address)

    async def close(self) -> None:
        """Close all connections; pending calls end with ConnectionLost."""
        self._endpoint.stop_sweep()
        for task in self._channels.values():
            task.cancel()
        try:  # a cancelled caller leaves no connection open
            await asyncio.sleep(0)
            for channel in list(self._endpoint.channels):
                channel.close()
            deadline = time.monotonic() + 1.0
            while self._endpoint.channels and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
        finally:
            for channel in list(self._endpoint.channels):
                channel.abort()
            self._channels.clear()
            self._ready.clear()
