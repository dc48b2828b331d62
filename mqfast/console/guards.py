"""Guards before every request: names under which the console may be reached, headers of safety, and impatience.

A page of another site must not reach the console by a name of its own (DNS rebinding), and a slow client must not take
the place of others. Must never wait for a client without a limit.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["CONNECTIONS_MAX", "ImpatientProtocol", "KnownNames", "SafeHeaders"]

CONNECTIONS_MAX: Final = 200
_OF_ADDRESS_MAX: Final = CONNECTIONS_MAX // 2
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class SafeHeaders:
    """Adds the headers of safety to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_HEADERS]
                if not scope["path"].startswith("/static/"):
                    headers.append((b"cache-control", b"no-store"))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, with_headers)


class KnownNames:
    """Refuses requests to a host name that is not the console's. Args: names: further ones, of a proxy.

    An address as a number is always right: only a name can be rebound by its owner.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Request(scope).headers.get("host") if scope["type"] == "http" else None
        if host is None or self._is_known(host):
            await self._app(scope, receive, send)
            return
        text = f"host: expected {', '.join(sorted(self._names))} or a number, found {host[:80]!r}; --public-name NAME"
        await PlainTextResponse(f"{text} adds a name", 421)(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._names or _is_number(name)


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class ImpatientProtocol(H11Protocol):
    """HTTP of uvicorn that ends connections without a request, and those that do not take their answer.

    An address has at most half of all connections. Attributes: patience_s: time in which something has to move. Thread:
    that of the event loop.
    """

    patience_s: ClassVar[float] = 10.0

    _of_address: ClassVar[Counter[str]] = Counter()
    _address = ""
    _watch: asyncio.TimerHandle | None = None
    _seen: tuple[Any, int] = (None, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, or end it where the address has too many."""
        super().connection_made(transport)
        self._address = str((transport.get_extra_info("peername") or ("",))[0])
        self._of_address[self._address] += 1
        if self._of_address[self._address] > _OF_ADDRESS_MAX:
            transport.abort()
            return
        self._watch = self.loop.call_later(self.patience_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._watch is not None:
            self._watch.cancel()
        self._of_address[self._address] -= 1
        if self._of_address[self._address] <= 0:
            del self._of_address[self._address]
        super().connection_lost(exc)

    def _look(self) -> None:
        """End the connection where nothing has moved since the last look."""
        cycle: Any = self.cycle
        unsent = self.transport.get_write_buffer_size()
        before, unsent_before = self._seen
        is_waiting = (cycle is None or cycle.response_complete) and not unsent and cycle is before
        if is_waiting or (unsent and unsent == unsent_before) or (self.transport.is_closing() and not unsent):
            self.transport.abort()
            return
        self._seen = (cycle, unsent)
        self._watch = self.loop.call_later(self.patience_s, self._look)
