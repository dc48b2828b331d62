"""A small HTTP server for scrapers and probes: GET of a few fixed paths, one request per connection.

No body is read, no connection is kept, and the wait for a peer is limited to a few seconds. Source: RFC 9112, limited
to GET.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from mqfast.util.log_limit import LogLimit

__all__ = ["HttpServer", "HttpResponse"]

_HEAD_BYTES_MAX: Final = 8192
_CONNECTIONS_MAX: Final = 64
_TIMEOUT_S: Final = 5.0  # for a request
_ANSWER_TIMEOUT_S: Final = 30.0  # for a peer that reads the response
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


class HttpResponse(NamedTuple):
    """The response of a path."""

    status: int
    content_type: str
    body: bytes


class HttpServer:
    """Serves fixed paths.

    Args: routes: path -> handler that returns the response. An exception of a handler is logged and answered with 500.
    Thread: that of the event loop.
    """

    def __init__(
        self, routes: Mapping[str, Callable[[], Awaitable[HttpResponse]]], *, logger: logging.Logger | None = None
    ) -> None:
        self._routes = routes
        self._log = LogLimit(logger or logging.getLogger("mqfast.broker"))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 selects a free port. Raises: OSError if the address is not available."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_HEAD_BYTES_MAX)

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port) of the listening socket."""
        assert self._server is not None, "the server was not started"
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _CONNECTIONS_MAX:
            self._log.warning("http connections", "HTTP: %d connections, one more is closed", len(self._tasks))
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                method, path = await self._request(reader)
            reply = await self._reply(method, path)
            body = b"" if method == "HEAD" else reply.body
            head = (
                f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\nContent-Type: {reply.content_type}\r\n"
                f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n"
            ) + ("Allow: GET, HEAD\r\n" if reply.status == 405 else "")
            writer.write(head.encode() + b"\r\n" + body)
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):
            pass  # a disconnected or slow peer gets no response
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        """Return method and path; ("", "") for an invalid request of HTTP/1."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "", ""
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", ""
        return words[0], words[1].partition("?")[0]

    async def _reply(self, method: str, path: str) -> HttpResponse:
        if not method:
            return _plain(400, "expected GET, a path and HTTP/1.1, and at most 8 KiB of head")
        if method not in ("GET", "HEAD"):
            return _plain(405, "expected GET or HEAD")
        route = self._routes.get(path)
        if route is None:
            return _plain(404, f"expected one of {' '.join(self._routes)}")
        try:
            return await route()
        except Exception as error:
            self._log.warning(f"http {path}", "HTTP: %s failed: %r", path, error, exc_info=True)
            return _plain(500, "failed; see the log")


def _plain(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", text.encode() + b"\n")
