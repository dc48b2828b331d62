"""Java property files: their pairs, and their text with some values changed.

A change keeps every other line, byte for byte, and Java reads each new line with the given value. Source:
java.util.Properties.load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mqfast.errors import ConfigError

__all__ = ["decode_conf", "escaped", "parse_properties", "with_settings"]

# Java's line ends. str.splitlines knows more, and some of those are letters of a file in ISO-8859-1.
_END: Final = re.compile(r"\r\n|\r|\n")
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


# --- reading ---


def decode_conf(data: bytes) -> tuple[str, list[str]]:
    """Return the text of a file, which Java reads as ISO-8859-1, and warnings."""
    text = data.decode("latin-1")
    if text.startswith("\xef\xbb\xbf"):
        return text, ["the file begins with a byte order mark, which Java takes for a part of its first name"]
    return text, []


def _joined_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANK)
        if pending is None and (not line or line[0] in "#!"):
            continue
        tail = len(line) - len(line.rstrip("\\"))
        if tail % 2:
            pending = (pending or "") + line[:-1]
        else:
            lines.append((pending or "") + line)
            pending = None
    if pending is not None:
        lines.append(pending)
    return lines


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        i += 1
        if c != "\\" or i == len(text):
            out.append(c)
            continue
        c = text[i]
        i += 1
        if c != "u":
            out.append(_ESCAPES.get(c, c))
            continue
        digits = text[i : i + 4]
        if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            raise ConfigError(f"property file: expected four hex digits behind \\u, found {digits!r} in {line!r}")
        out.append(chr(int(digits, 16)))
        i += 4
    # Two escapes may make one character beyond U+FFFF.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_properties(text: str) -> dict[str, str]:
    """Return the pairs of a Java property file; a later duplicate wins. Trailing blanks belong to a value.

    Raises: ConfigError for a broken Unicode escape.
    Source: java.util.Properties.load.
    """
    result: dict[str, str] = {}
    for line in _joined_lines(text):
        i = 0
        while i < len(line) and line[i] not in _BLANK and line[i] not in "=:":
            i += 2 if line[i] == "\\" else 1
        key, rest = line[:i], line[i:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        result[_unescape(key, line)] = _unescape(rest, line)
    return result


# --- changing ---


def with_settings(text: str, pairs: Mapping[str, str]) -> str:
    """Return the text of a property file with other values.

    The last line of a name gets the new value, earlier lines of this name go, and a new name stands at the end.
    """
    kept: list[str] = []
    places: dict[str, int] = {}
    line_end = _END.search(text)
    end_of_line = line_end[0] if line_end else "\n"
    for lines in _logical_lines(text):
        name = next(iter(parse_properties(lines)), None)
        if name is not None and name in pairs:
            if name in places:
                kept[places[name]] = ""
            places[name] = len(kept)
        kept.append(lines)
    for name, at in places.items():
        kept[at] = _line(name, pairs[name], end_of_line)
    if kept and kept[-1] and not kept[-1].endswith(("\r", "\n")):
        kept[-1] += end_of_line
    if kept and _is_open(kept[-1]):
        # Else the first new line would continue the last old one. A lone \n behind \r would be one line end with it.
        kept.append("\r" if kept[-1].endswith("\r") else end_of_line)
    return "".join([*kept, *(_line(name, pairs[name], end_of_line) for name in sorted(pairs.keys() - places.keys()))])


def _logical_lines(text: str) -> list[str]:
    """Return natural lines, each with its continuation lines."""
    logical: list[str] = []
    continues = False
    for line in _LINE.findall(text):
        if continues:
            logical[-1] += line
        else:
            logical.append(line)
        continues = _continues(line, is_first=not continues)
    return logical


def _continues(line: str, *, is_first: bool) -> bool:
    content = line.rstrip("\r\n")
    if is_first and content.lstrip(" \t\f")[:1] in ("", "#", "!"):
        return False
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def _is_open(lines: str) -> bool:
    """Return whether the next line of the file would continue this line."""
    continues = False
    for line in _LINE.findall(lines):
        continues = _continues(line, is_first=not continues)
    return continues


def _line(name: str, value: str, end_of_line: str) -> str:
    return f"{escaped(name, is_name=True)}={escaped(value)}{end_of_line}"


def escaped(text: str, *, is_name: bool = False) -> str:
    """Return a name or a value in the form of a property file in ISO-8859-1, so that Java reads the same text."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if is_name:
        text = re.sub(r"([=: #!])", r"\\\1", text)
    elif text.startswith(" "):
        text = "\\" + text
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in numbers)
