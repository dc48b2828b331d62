"""Output of the command line: tables and facts, JSON lines, bodies as text or hex, progress bars.

Colour needs ``rich`` and a terminal; other output is plain text. Control characters of messages are escaped.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

__all__ = ["Output", "body_text", "time_text", "visible"]

_BAR_CELLS: Final = 30
_BAR_PAUSE_S: Final = 0.1
_BAR_DELAY_S: Final = 0.3
_MAX_SHOWN_BYTES: Final = 4096


def visible(text: str) -> str:
    """Return the text on one line, with escapes for control characters and other unprintable characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def time_text(timestamp_ms: int) -> str:
    """Return local date and time of a timestamp in ms with the zone, in the form of --begin; the number itself outside
    of the calendar.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def body_text(body: bytes, style: str = "auto", limit: int = _MAX_SHOWN_BYTES) -> str:
    """Return a readable body.

    Args: style: ``text`` (escapes for other bytes), ``hex``, or ``auto``: text where all bytes are text, else hex;
        limit: bytes shown at most.
    """
    shown, rest = body[:limit], len(body) - limit
    tail = f" ... {rest} more bytes" if rest > 0 else ""
    if style == "hex":
        return shown.hex(" ") + tail
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError as error:
        # A limit may cut a character in two; the body is text all the same.
        if rest > 0 and 0 < error.start >= len(shown) - 3:
            return body_text(body[: error.start], style, limit) + f" ... {len(body) - error.start} more bytes"
        if style == "auto":
            return shown.hex(" ") + tail
        text = shown.decode("utf-8", "backslashreplace")
    if style == "auto" and not text.replace("\n", "").replace("\t", "").replace("\r", "").isprintable():
        return shown.hex(" ") + tail
    return visible(text) + tail


class Output:
    """The output of a command.

    Args: as_json: one JSON object a line instead of text.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._rich: Any = None
        if not as_json and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._rich = Console(highlight=False, soft_wrap=True, emoji=False)

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line of text, control characters escaped; ``style`` is a rich style."""
        text = visible(text)
        if self._rich is not None:
            self._rich.print(text, style=style, markup=False)
        else:
            print(text)

    def text(self, text: str) -> None:
        """Print ready lines, each escaped."""
        for line in text.splitlines():
            self.line(line)

    def json(self, row: dict[str, Any]) -> None:
        """Print a JSON object on a line; ASCII, for any terminal and any locale."""
        sys.stdout.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows under heads; numbers to the right."""
        texts = [[visible(str(cell)) for cell in row] for row in rows]
        right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(heads))]
        if self._rich is not None:
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, header_style="bold", pad_edge=False)
            for i, head in enumerate(heads):
                table.add_column(head, justify="right" if right[i] else "left", style="cyan" if i == 0 else None)
            for row in texts:
                table.add_row(*(Text(cell) for cell in row))
            self._rich.print(table, soft_wrap=False)
            return
        widths = [max([len(head), *(len(row[i]) for row in texts)]) for i, head in enumerate(heads)]
        for line in ([*heads], *texts):
            cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
            print("  ".join(cells).rstrip())

    def facts(self, title: str, pairs: Sequence[tuple[str, object]]) -> None:
        """Print a title and named values below."""
        self.line(title, "bold")
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"  {name.ljust(width)}  {value}")

    def note(self, text: str) -> None:
        """Print a line on stderr, for users."""
        print(f"mqfast: {visible(' '.join(text.split()))}", file=sys.stderr)

    @contextlib.contextmanager
    def progress(self, what: str, *, printing: bool = False) -> Iterator[Callable[[int, int], None] | None]:
        """Show a bar on stderr: the block gets a function of (done, to do), or None when stderr is no terminal.

        Args: printing: rows are printed meanwhile, so there is no bar if rows go to a terminal as well.
        """
        if not sys.stderr.isatty() or (printing and sys.stdout.isatty()):
            yield None
            return
        bar = _Bar(what)
        try:
            yield bar.update
        finally:
            bar.clear()


class _Bar:
    """A progress bar in a line of stderr; drawn at most ten times a second."""

    def __init__(self, what: str) -> None:
        self._what = what
        # Short work shows no bar at all.
        self._drawn = time.monotonic() + _BAR_DELAY_S
        self._width = 0

    def update(self, done: int, whole: int) -> None:
        now = time.monotonic()
        if now - self._drawn < _BAR_PAUSE_S:
            return
        self._drawn = now
        part = min(1.0, done / whole) if whole > 0 else 0.0
        cells = round(part * _BAR_CELLS)
        text = f"{self._what} [{'#' * cells}{'.' * (_BAR_CELLS - cells)}] {part:4.0%}"
        self._width = max(self._width, len(text))
        sys.stderr.write("\r" + text)
        sys.stderr.flush()

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
