"""The console as an ASGI application: routes, login, forms, and each page as HTML or JSON.

Must never serve a page without a login, run a change without the secret of the session's form, or send a script or a
style inside a page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from mqfast.console import changes
from mqfast.console.guards import KnownNames, SafeHeaders
from mqfast.console.message_rows import export_row
from mqfast.console.page import Console, Page
from mqfast.console.pages import brokers, clients, flow, groups, letters, messages, now, resets, topics
from mqfast.console.rendering import STATIC, Renderer
from mqfast.console.sessions import Session, Sessions
from mqfast.console.values import json_value
from mqfast.errors import (
    ClientConfigError,
    ClientError,
    MqfastError,
    NoRoute,
    Refused,
    RemotingError,
    UnknownName,
    UsageError,
)

__all__ = ["application"]

_log = logging.getLogger("mqfast.console")
_FORM_BYTES_MAX: Final = 1 << 20
_LOGIN_BYTES_MAX: Final = 8192
_FORM_S: Final = 30.0
View = Callable[..., Awaitable[Page]]
_VIEWS: Final[Mapping[str, View]] = {
    "/": now.now,
    "/groups": groups.groups,
    "/groups/{name}": groups.group,
    "/groups/{name}/reset": resets.reset_plan,
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


def application(console: Console, token: str, public_names: Collection[str] = ()) -> Starlette:
    """Return the application. Args: token: for the login; public_names: host names that a proxy has for the console."""
    web = _Web(console, Sessions(token), {name.lower() for name in public_names})
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
    return Starlette(routes=routes, middleware=[Middleware(SafeHeaders), Middleware(KnownNames, public_names)])


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

    def __init__(self, console: Console, sessions: Sessions, public_names: Collection[str]) -> None:
        self._console = console
        self._sessions = sessions
        self._public_names = public_names
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
        form = await _form(request, _FORM_BYTES_MAX)
        if form is None:
            return PlainTextResponse(f"expected a form of at most {_FORM_BYTES_MAX} bytes in {_FORM_S:g} s", 413)
        number = form.get("once", [""])[0]
        if session.form_secret:  # else a program: its token is in a header, which no other site can send
            if not (session.is_form_of(form.get("form_secret", [""])[0]) and self._is_same_origin(request)):
                error = Refused("form: expected the secret of this session; load it again")
                return self._failed(request, session, error)
            if not session.use(number):
                error = Refused("form: expected one that was not sent before; nothing was done again: load it again")
                return self._failed(request, session, error)
        try:
            page = await change(self._console, form, **request.path_params)
        except MqfastError as failure:
            if isinstance(failure, (ClientConfigError, Refused)):
                session.give_back(number)
            return self._failed(request, session, failure)
        _log.warning("change by %s: %s %s", _peer(request), quote(request.url.path), page.command)
        return self._answer(request, session, page)

    async def export(self, request: Request) -> Response:
        """Serve all dead letters of a group as lines of JSON, one letter in memory at a time."""
        session = self._session(request)
        if session is None:
            return self._to_login(request)
        name = request.path_params["name"]
        try:
            read = letters.letters_of(self._console, dict(request.query_params), name)
            first = await anext(read, None)
        except MqfastError as error:
            return self._failed(request, session, error)

        async def lines() -> AsyncIterator[bytes]:
            # An error ends the connection within the answer: a program and a browser see a download that failed.
            letter = first
            while letter is not None:
                yield msgspec.json.encode(export_row(letter)) + b"\n"
                letter = await anext(read, None)

        headers = {"content-disposition": f"attachment; filename*=UTF-8''dead-letters-{quote(name, safe='')}.jsonl"}
        return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)

    # --- login ---

    async def login(self, request: Request) -> Response:
        """Serve the login form, and its answer."""
        after = _own_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return HTMLResponse(self._renderer.login(after, ""))
        if not self._is_same_origin(request):
            return HTMLResponse(self._renderer.login(after, "the form came from another site"), 403)
        if self._sessions.is_blocked(_peer(request)):
            return HTMLResponse(self._renderer.login(after, "too many failed logins; wait a minute"), 429)
        form = await _form(request, _LOGIN_BYTES_MAX) or {}
        if not self._sessions.is_token(form.get("token", [""])[0].strip(), _peer(request)):
            return HTMLResponse(self._renderer.login(after, "wrong token; the console printed it at its start"), 403)
        response = RedirectResponse(_own_path(form.get("next", ["/"])[0]), 303)
        response.set_cookie(
            _cookie(request), self._sessions.begin(), httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        form = await _form(request, _LOGIN_BYTES_MAX) or {}
        session = self._session(request)
        if session is not None and session.is_form_of(form.get("form_secret", [""])[0]):
            self._sessions.remove(request.cookies.get(_cookie(request)))
        return RedirectResponse("/login", 303)

    def _session(self, request: Request) -> Session | None:
        if self._is_bearer(request):
            return Session("", 0.0)
        return self._sessions.find(request.cookies.get(_cookie(request)))

    def _is_bearer(self, request: Request) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or self._sessions.is_blocked(_peer(request)):
            return False
        return self._sessions.is_token(token.strip(), _peer(request))

    def _is_same_origin(self, request: Request) -> bool:
        """Return whether no other site has sent the request, as far as the browser says so."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        if origin is None:
            return True
        with contextlib.suppress(ValueError):
            parts = urlsplit(origin)
            return parts.netloc == request.headers.get("host") or parts.hostname in self._public_names
        return False

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


def _cookie(request: Request) -> str:
    """Return the name of the cookie: a browser shares cookies between all ports of a host."""
    return f"mqfast_console_{(request.scope.get('server') or ('', 0))[1]}"


def _peer(request: Request) -> str:
    return request.client.host if request.client else "unknown"


async def _form(request: Request, bytes_max: int) -> Form | None:
    """Return the fields of a form; None for a form that is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(_FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    return None
        return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=2000)
    except (ValueError, TimeoutError):
        return None
