"""Values of pages: as JSON, and as text for people. Unknown numbers stay unknown in both forms.

Must never format an unknown number as zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from mqfast.console.state import Unknown

__all__ = ["age_text", "clock_text", "count_text", "json_value", "moment_text", "rate_text", "size_text"]

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_MS_END: Final = 253_402_300_800_000  # the year 10000
_THOUSANDS: Final = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def json_value(value: Any) -> Any:
    """Return a value with plain parts; an unknown number becomes ``{"unknown": cause}``."""
    if isinstance(value, Unknown):
        return {"unknown": value.cause}
    if isinstance(value, Mapping):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [json_value(part) for part in value]
    return value


def count_text(number: Any) -> str:
    """Return a count: 7 310, 1.2 M."""
    if isinstance(number, Unknown):
        return "unknown"
    for unit, letter in _THOUSANDS:
        if abs(number) >= 10 * unit or (letter != "k" and abs(number) >= unit):
            return f"{number / (1000 if letter == 'k' else unit):,.1f} {letter}".replace(",", "\u202f")
    return f"{number:,.0f}".replace(",", "\u202f")


def rate_text(number: Any) -> str:
    """Return a rate per second."""
    if isinstance(number, Unknown):
        return "unknown"
    return f"{number:.1f}/s" if 0 < number < 10 else f"{count_text(number)}/s"


def age_text(seconds: Any) -> str:
    """Return a duration: 0 s, 42 s, 3 min 50 s, 2 h 5 min."""
    if isinstance(seconds, Unknown):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    for (unit, word), (less, smaller) in zip(_UNITS, (*_UNITS[1:], (1, "s")), strict=True):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), unit)
            return f"{whole} {word} {rest // less} {smaller}" if rest >= less else f"{whole} {word}"
    return f"{seconds:.0f} s"


def size_text(number: Any) -> str:
    """Return a number of bytes."""
    if isinstance(number, Unknown):
        return "unknown"
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def moment_text(ms: Any) -> str:
    """Return a time since the epoch in UTC, to the millisecond; the number itself outside of the calendar."""
    if isinstance(ms, Unknown):
        return "unknown"
    if not ms:
        return "never"
    if not 0 < ms < _MS_END:
        return f"{ms} ms"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{int(ms) % 1000:03d}"


def clock_text(seconds: float) -> str:
    """Return the time of day in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds))
