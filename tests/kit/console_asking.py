"""Requests to a console for tests: as a program with a token, and as a browser with a cookie.

Room: tests.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from console_cluster import TOKEN, Console


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def ask(url: str, *, form: dict[str, Any] | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    """One request. Returns: status, text, headers."""
    data = None if form is None else urllib.parse.urlencode(form, doseq=True).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with _OPENER.open(urllib.request.Request(url, data, named), timeout=30) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers.items())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers.items())


BEARER = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}


def data(served: Console, path: str) -> Any:
    status, text, _ = ask(served.url + path, **BEARER)
    assert status == 200, text
    return json.loads(text)["data"]


def cookie_of(served: Console) -> str:
    status, _, headers = ask(f"{served.url}/login", form={"token": TOKEN, "next": "/groups"})
    assert (status, headers["location"]) == (303, "/groups")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    return headers["set-cookie"].partition(";")[0]


def form_of(served: Console, cookie: str, path: str) -> dict[str, str]:
    """The secret and the number of the form of a page."""
    text = ask(served.url + path, Cookie=cookie)[1]
    hidden = re.search(r'name="form_secret" value="([^"]+)"><input type="hidden" name="once" value="([^"]+)"', text)
    assert hidden, text
    return {"form_secret": hidden[1], "once": hidden[2]}


def confirmed(served: Console, group: str, **wish: str) -> dict[str, str]:
    """The form of a reset with the plan of now."""
    plan = data(served, f"/groups/{group}/reset?{urllib.parse.urlencode(wish)}")
    return {"confirm": group, **wish, "plan": plan["confirmed"]}
