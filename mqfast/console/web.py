"""The console as an ASGI application: routes, login, forms, and each page as HTML or JSON.

Must never serve a page without a login, run a change without the secret of the session's form, or send a script or a
style inside a page.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqfast.console import changes
from mqfast.console.message_rows import message_row
from mqfast.console.page import Console, Page
from mqfast.console.pages import brokers, clients, flow, groups, letters, messages, now, topics
from mqfast.console.rendering import STATIC, Renderer
from mqfast.console.sessions import Session, Sessions
from mqfast.console.values import json_value
from mqfast.errors import ClientError, MqfastError, NoRoute, Refused, RemotingError, UnknownName, UsageError

__all__ = ["application"]

_log = logging.getLogger("mqfast.console")
_COOKIE: Final = "mqfast_console"
_FORM_BYTES_MAX: Final = 1 << 20
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
)
View = Callable[..., Awaitable[Page]]
_VIEWS: Final[Mapping[str, View]] = {
    "/": now.now,
    "/groups": groups.groups,
    "/groups/{name}": groups.group,
    "/groups/{name}/reset": groups.reset_plan,
    "/topics": topics.topics,
    "/topics/{name}": topics.topic,
    "/messages": messages.find,
    "/messages/{topic}/{msg_id}": messages.message,
    "/dlq": letters.letter_groups,
    "/dlq/{name}": letters.dead_letters,
    "/brokers": brokers.brokers,
    "/brokers/{name}": brokers.broker,
    "/clients": clients.clients,
    "/flow": flow.flows,
    "/delayed": flow.delayed,
}


class _SafeHeaders:
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


def application(console: Console, token: str) -> Starlette:
    """Return the application. Args: token: for the login."""
    web = _Web(console, Sessions(token))
    routes: list[BaseRoute] = [Route(path, partial(web.view, view)) for path, view in _VIEWS.items()]
    routes += [
        Route("/login", web.login, methods=["GET", "POST"]),
        Route("/logout", web.logout, methods=["POST"]),
        Route("/groups/{name}/reset", partial(web.change, _reset), methods=["POST"]),
        Route("/dlq/{name}/resend", partial(web.change, _resend), methods=["POST"]),
        Route("/dlq/{name}/export", web.export),
        Route("/topics/{name}/send", partial(web.change, _send), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_SafeHeaders)])


Form = Mapping[str, list[str]]


async def _reset(console: Console, form: Form, name: str) -> Page:
    return await changes.reset(console, _first(form), name)


async def _resend(console: Console, form: Form, name: str) -> Page:
    return await changes.resend(console, _first(form), name, form.get("letter", []))


async def _send(console: Console, form: Form, name: str) -> Page:
    return await changes.send_test(console, _first(form), name)


def _first(form: Form) -> dict[str, str]:
    return {name: values[0] for name, values in form.items()}


class _Web:
    """The handlers. Thread: that of the event loop."""

    def __init__(self, console: Console, sessions: Sessions) -> None:
        self._console = console
        self._sessions = sessions
        self._renderer = Renderer(console)

    # --- pages ---

    async def view(self, view: View, request: Request) -> Response:
        """Serve a page."""
        session = self._session(request)
        if session is None:
            return self._to_login(request)
        try:
            page = await view(self._console, dict(request.query_params), **request.path_params)
        except MqfastError as error:
            return self._failed(request, session, error)
        return self._answer(request, session, page)

    def _answer(self, request: Request, session: Session, page: Page) -> Response:
        if _wants_json(request):
            data = {"title": page.title, "command": page.command, "data": page.data}
            return _json(data, page.status)
        return HTMLResponse(self._renderer.page(page, request.url.path, session), page.status)

    def _failed(self, request: Request, session: Session | None, error: MqfastError) -> Response:
        status = 404 if isinstance(error, (NoRoute, UnknownName)) else 403 if isinstance(error, Refused) else 500
        if status == 500 and isinstance(error, UsageError):
            status = 400
        elif status == 500 and isinstance(error, (ClientError, RemotingError)):
            status = 502
        if _wants_json(request) or session is None:
            return _json({"error": str(error)}, status)
        page = Page("error.html", "Error", {"error": str(error), "status": status}, status=status)
        return self._answer(request, session, page)

    # --- changes ---

    async def change(self, change: View, request: Request) -> Response:
        """Serve a form that changes something."""
        session = self._session(request)
        if session is None:
            return self._to_login(request)
        form = await _form(request)
        if form is None:
            return PlainTextResponse(f"expected a form of at most {_FORM_BYTES_MAX} bytes", 413)
        has_secret = self._sessions.is_form_of(session, form.get("form_secret", [""])[0])
        if not self._is_bearer(request) and not (has_secret and _is_same_origin(request)):
            return self._failed(request, session, Refused("form: expected the secret of this session; load it again"))
        try:
            page = await change(self._console, form, **request.path_params)
        except MqfastError as error:
            return self._failed(request, session, error)
        peer = request.client.host if request.client else "unknown"
        _log.warning("change by %s: %s %s", peer, request.url.path, page.command)
        return self._answer(request, session, page)

    async def export(self, request: Request) -> Response:
        """Serve the dead letters of a group as lines of JSON."""
        session = self._session(request)
        if session is None:
            return self._to_login(request)
        name = request.path_params["name"]
        try:
            read = await letters.read_letters(self._console, dict(request.query_params), name, letters.LETTERS_MAX)
        except MqfastError as error:
            return self._failed(request, session, error)
        lines = b"".join(msgspec.json.encode(message_row(letter, whole=True)) + b"\n" for letter in read)
        headers = {"content-disposition": f"attachment; filename*=UTF-8''dead-letters-{quote(name, safe='')}.jsonl"}
        return Response(lines, media_type="application/jsonl", headers=headers)

    # --- login ---

    async def login(self, request: Request) -> Response:
        """Serve the login form, and its answer."""
        after = _own_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return HTMLResponse(self._renderer.login(after, ""))
        if self._sessions.is_blocked:
            return HTMLResponse(self._renderer.login(after, "too many failed logins; wait a minute"), 429)
        form = await _form(request) or {}
        if not self._sessions.is_token(form.get("token", [""])[0].strip()):
            return HTMLResponse(self._renderer.login(after, "wrong token; the console printed it at its start"), 403)
        response = RedirectResponse(_own_path(form.get("next", ["/"])[0]), 303)
        response.set_cookie(
            _COOKIE, self._sessions.begin(), httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        form = await _form(request) or {}
        session = self._session(request)
        if session is not None and self._sessions.is_form_of(session, form.get("form_secret", [""])[0]):
            self._sessions.end(request.cookies.get(_COOKIE))
        return RedirectResponse("/login", 303)

    def _session(self, request: Request) -> Session | None:
        if self._is_bearer(request):
            return Session("", 0.0)
        return self._sessions.find(request.cookies.get(_COOKIE))

    def _is_bearer(self, request: Request) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and not self._sessions.is_blocked and self._sessions.is_token(token.strip())

    def _to_login(self, request: Request) -> Response:
        if _wants_json(request):
            return _json({"error": "expected the header Authorization: Bearer TOKEN, or a session"}, 401)
        path = request.url.path if request.method == "GET" else "/"
        query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
        return RedirectResponse(f"/login?next={quote(path + query, safe='')}", 303)


def _wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "") or request.query_params.get("format") == "json"


def _json(data: Any, status: int) -> Response:
    return Response(msgspec.json.encode(json_value(data)), status, media_type="application/json")


def _own_path(path: str) -> str:
    """Return a path of the console; another address becomes the first page."""
    parts = urlsplit(path)
    if parts.scheme or parts.netloc or not path.startswith("/") or path.startswith(("//", "/\\")):
        return "/"
    return path


def _is_same_origin(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


async def _form(request: Request) -> Form | None:
    """Return the fields of a form; None for a form that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES_MAX:
            return None
    try:
        return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=2000)
    except ValueError:
        return None
