"""What all pages share: the console's parts, a page as data, the arguments of a request, and rows in pages.

Must never know HTTP or HTML: a page is data, which becomes HTML or JSON elsewhere.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mqfast.console.broker_wide import BrokerWideClient
from mqfast.console.collector import Collector
from mqfast.console.members import Members
from mqfast.errors import ClientConfigError

__all__ = ["PAGE_ROWS", "Console", "Page", "Rows", "command", "number_of", "rows_of"]

T = TypeVar("T")
PAGE_ROWS: Final = 50


@dataclass
class Console:
    """The parts of a running console. Attributes: namesrv: addresses of the name servers, as text;
    connection: arguments of further clients, as TLS and credentials.
    """

    admin: BrokerWideClient
    collector: Collector
    members: Members
    namesrv: str
    allow_changes: bool = False
    connection: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Page:
    """A page as data. Attributes: template: its name; data: for HTML and JSON; pictures: for HTML only; command: the
    same as a command line; status: of HTTP.
    """

    template: str
    title: str
    data: dict[str, Any]
    command: str = ""
    pictures: dict[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass
class Rows:
    """A part of a list. Attributes: page: from 1; pages: number of pages; total: rows of the whole list."""

    rows: Sequence[Any]
    page: int
    pages: int
    total: int


def rows_of(rows: Sequence[T], wanted: Mapping[str, str]) -> Rows:
    """Return the rows of the wanted page."""
    pages = max(1, math.ceil(len(rows) / PAGE_ROWS))
    page = min(max(1, number_of(wanted, "page", 1)), pages)
    return Rows(rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS], page, pages, len(rows))


def number_of(wanted: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number of the request. Raises: ConfigError for another text."""
    text = wanted.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ClientConfigError(f"{name}: expected a whole number, found {text[:40]!r}")
    return int(text)


def command(*words: str) -> str:
    """Return a line of ``mqfast admin`` for a shell."""
    return " ".join(["mqfast", "admin", *(shlex.quote(word) if word.isprintable() else _ansi(word) for word in words)])


def _ansi(word: str) -> str:
    """Return a word for bash and zsh without a control character, which a terminal would act on when pasted."""
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{''.join(c if c.isprintable() else _hex(c) for c in plain)}'"


def _hex(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "replace"))
