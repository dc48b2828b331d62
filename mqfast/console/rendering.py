"""Pages as HTML by Jinja2, with the formats of numbers, and a file for a ticket.

Must never render a text without escapes, or an unknown number as zero.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from mqfast.console.history import SLOTS, SPARK_SLOTS
from mqfast.console.page import Console, Page
from mqfast.console.state import Unknown
from mqfast.console.values import age_text, clock_text, count_text, moment_text, rate_text, size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqfast.console.sessions import Session

__all__ = ["FETCHED", "STATIC", "Renderer"]

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
FETCHED: Final = ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css")
_NAV: Final = (
    ("/", "Now"), ("/groups", "Groups"), ("/topics", "Topics"), ("/messages", "Messages"), ("/dlq", "Dead letters"),
    ("/brokers", "Brokers"), ("/clients", "Clients"), ("/flow", "Flow"), ("/delayed", "Delayed"),
)  # fmt: skip


def _number(form: Callable[[Any], str]) -> Callable[[Any], Markup]:
    """Return a filter that shows an unknown number as a word with its cause."""

    def shown(number: Any) -> Markup:
        if isinstance(number, Unknown):
            return Markup('<span class="unknown" title="{}">unknown</span>').format(number.cause)
        return escape(form(number))

    return shown


def _percent(part: float) -> str:
    return f"{part:.0%}"


class Renderer:
    """Renders pages. Thread: any."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._jinja = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {
            "n": _number(count_text),
            "rate": _number(rate_text),
            "age": _number(age_text),
            "size": _number(size_text),
            "percent": _number(_percent),
            "ms": _number(lambda number: f"{number:.1f} ms"),
            "moment": moment_text,
            "path": lambda text: quote(str(text), safe=""),
            "json": lambda value: json.dumps(value, separators=(",", ":")),
        }
        self._jinja.tests["unknown"] = lambda value: isinstance(value, Unknown)
        self._fetched = [name for name in FETCHED if (STATIC / name).is_file()]

    def page(self, page: Page, path: str, session: Session) -> str:
        """Return a page as HTML."""
        return self._jinja.get_template(page.template).render(
            **self._common(),
            page=page,
            d=page.data,
            p=page.pictures,
            path=path,
            form_secret=session.form_secret,
            once=secrets.token_urlsafe(12),
        )

    def login(self, after: str, error: str) -> str:
        """Return the login form."""
        return self._jinja.get_template("login.html").render(after=after, error=error)

    def snapshot(self, pages: list[Page]) -> str:
        """Return several pages as a file without scripts."""
        style = (STATIC / "console.css").read_text(encoding="utf-8")
        parts = [
            Markup(self._jinja.get_template(page.template).render(
                **self._common() | {"layout": "part.html", "is_snapshot": True, "allow_changes": False},
                page=page, d=page.data, p=page.pictures, path="", form_secret="", once="",
            ))
            for page in pages
        ]  # fmt: skip
        return self._jinja.get_template("snapshot.html").render(**self._common(), style=Markup(style), parts=parts)

    def _common(self) -> dict[str, Any]:
        state, history = self._console.collector.state, self._console.collector.history
        return {
            "layout": "base.html",
            "is_snapshot": False,
            "nav": _NAV,
            "namesrv": self._console.namesrv,
            "allow_changes": self._console.allow_changes,
            "fetched": self._fetched,
            "missing": [name for name in FETCHED if name not in self._fetched],
            "state": state,
            "span": age_text(SLOTS * history.slot_s),
            "short_span": age_text(SPARK_SLOTS * history.slot_s),
            "measured": clock_text(state.at_s) if state.at_s else "not yet",
            "measured_ago_s": max(0.0, time.time() - state.at_s) if state.at_s else None,
        }
