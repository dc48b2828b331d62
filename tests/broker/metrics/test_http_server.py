"""The HTTP server for scrapers: what it answers, and what it does not let a peer do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from mqfast.broker.metrics import http_server as http
from mqfast.broker.metrics.http_server import HttpResponse, HttpServer


async def live() -> HttpResponse:
    return HttpResponse(200, "text/plain", b"yes\n")


async def broken() -> HttpResponse:
    raise RuntimeError("secret")


def serve(test: Callable[[HttpServer], Awaitable[None]]) -> None:
    async def run() -> None:
        server = HttpServer({"/live": live, "/broken": broken})
        await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(300):
                await test(server)
        finally:
            await server.stop()

    asyncio.run(run())


async def ask(server: HttpServer, request: bytes) -> tuple[str, bytes]:
    """The head and the body of the answer; both empty where the connection just ended."""
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(request)
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /live HTTP/1.1", 200, b"yes\n"),
        ("GET /live?x=1 HTTP/1.0", 200, b"yes\n"),
        ("HEAD /live HTTP/1.1", 200, b""),
        ("GET /nothing HTTP/1.1", 404, b"expected one of /live /broken\n"),
        ("GET /../live HTTP/1.1", 404, None),
        ("POST /live HTTP/1.1", 405, b"expected GET or HEAD\n"),
        ("GET /broken HTTP/1.1", 500, b"failed; see the log\n"),
        ("GET /live", 400, None),
        ("GET /live HTTP/2.0", 400, None),
        ("\x16\x03\x01", 400, None),
    ],
)
def test_answers(request_line: str, status: int, body: bytes | None) -> None:
    async def test(server: HttpServer) -> None:
        head, found = await ask(server, request_line.encode("latin-1") + b"\r\nHost: x\r\n\r\n")
        assert head.split(" ")[1] == str(status)
        assert "Connection: close" in head
        assert "secret" not in head
        if body is not None:
            assert found == body
        if request_line.startswith("HEAD"):
            assert "Content-Length: 4" in head

    serve(test)


def test_a_head_that_is_too_long_is_refused() -> None:
    async def test(server: HttpServer) -> None:
        head, _ = await ask(server, b"GET /live HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n")
        assert head == "" or head.split(" ")[1] == "400"

    serve(test)


def test_a_slow_peer_is_cut_off_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TIMEOUT_S", 0.2)

    async def test(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /live HTTP/1.1\r\n")
        head, _ = await ask(server, b"GET /live HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    serve(test)


def test_more_connections_than_allowed_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 2)

    async def test(server: HttpServer) -> None:
        held = [await asyncio.open_connection(*server.address) for _ in range(2)]
        while len(server._tasks) < 2:
            await asyncio.sleep(0.001)
        assert await ask(server, b"GET /live HTTP/1.1\r\n\r\n") == ("", b"")
        for _, writer in held:
            writer.close()
        while server._tasks:
            await asyncio.sleep(0.001)
        head, _ = await ask(server, b"GET /live HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")

    serve(test)
