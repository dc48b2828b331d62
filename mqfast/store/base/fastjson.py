"""The JSON dialect of the files under ``config/``: what RocketMQ's JSON library writes in its pretty mode, and reads.

It is JSON with one twist: keys that are numbers have no quotes. Since 5.5 (fastjson 2) every entry has a line of its
own; before (fastjson 1) a map with such keys stood on one line, ``{0:22,1:23``, and so did sets. Both are read. This
module never touches a file; who loads and keeps the files is ``metadata.py``. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from mqfast.errors import CorruptFile, InternalError

__all__ = ["MAX_DEPTH", "MAX_FILE_BYTES", "dumps", "entry", "loads"]

# The deepest file of a broker has five levels.
MAX_DEPTH: Final = 64
# A million topics make some 250 MB; a larger file is damage.
MAX_FILE_BYTES: Final = 1 << 29

# Whatever can hold a brace or a colon that is none: strings first.
_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"'
    r"|(?P<open>[\[{])"
    r"|(?P<close>[\]}])"
    r"|(?P<comma>,)(?=\s*[\]},])"
    r"|(?P<key>-?[0-9]+|[A-Za-z_$][A-Za-z0-9_$]*)(?=\s*:)",
    re.DOTALL,
)
_I64: Final = range(-(2**63), 2**63)
_ESCAPE: Final = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def _integer(text: str) -> int:
    if len(text) > 20 or int(text) not in _I64:
        raise ValueError(f"number {text[:24]} is outside of 64 bits")
    return int(text)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON value")


def _unused_mark(text: str, path: str) -> str:
    # A character that stands in front of every key that was not quoted: any that no key can begin with, escaped or not.
    for code in range(0xE000, 0xF900):
        if chr(code) not in text and not re.search(rf"\\u{code:04x}", text, re.IGNORECASE):
            return chr(code)
    raise CorruptFile("JSON is damaged", path=path, expected="text", found="every private-use character")


def _object_reader(mark: str) -> Callable[[list[tuple[str, Any]]], dict[str | int, Any]]:
    def read(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
        result: dict[str | int, Any] = {}
        for key, value in pairs:
            if key.startswith(mark):
                bare = key[1:]
                result[_integer(bare) if bare[0] in "-0123456789" else bare] = value
            else:
                result[key] = value
        return result

    return read


def loads(data: bytes, path: str = "") -> dict[str | int, Any]:
    """The object in a file: keys in quotes are str, bare numbers are int; bare names and a comma too many are taken
    as well.

    Raises: CorruptFile with the byte offset: not UTF-8, not an object, nested deeper than 64, numbers beyond 64
        bits, text behind the end.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = hex(data[error.start])
        raise CorruptFile("JSON is damaged", path=path, offset=error.start, expected="UTF-8", found=found) from None
    if text.count("{") + text.count("[") <= MAX_DEPTH:  # cannot be nested deeper
        try:
            plain = json.loads(text, parse_int=_integer, parse_constant=_no_constant, strict=False)
        except ValueError:
            pass  # what else is taken, or which error it is, is found out below
        else:
            if isinstance(plain, dict):
                return plain
    mark = _unused_mark(text, path)
    depth = 0
    # Where the standard form is longer than the file: (place in it, characters put in before that place).
    shifts: list[tuple[int, int]] = []
    grown = 0

    def standard(match: re.Match[str]) -> str:
        nonlocal depth, grown
        kind = match.lastgroup
        if kind is None:
            return match.group()
        if kind == "open":
            depth += 1
            if depth > MAX_DEPTH:
                raise _damaged(text, match.start(), path, f"at most {MAX_DEPTH} levels", "one more")
            return match.group()
        if kind == "close":
            depth -= 1
            return match.group()
        out = "" if kind == "comma" else f'"{mark}{match.group()}"'
        grown += len(out) - len(match.group())
        shifts.append((match.end() + grown, grown))
        return out

    normal = _TOKEN.sub(standard, text)
    try:
        value = json.loads(
            normal,
            object_pairs_hook=_object_reader(mark),
            parse_int=_integer,
            parse_constant=_no_constant,
            strict=False,
        )
    except json.JSONDecodeError as error:
        place = error.pos
        before = max((more for at, more in shifts if at <= place), key=lambda more: more, default=0)
        raise _damaged(text, max(0, min(place - before, len(text))), path, error.msg, None) from None
    except ValueError as error:
        raise CorruptFile("JSON is damaged", path=path, expected="64-bit numbers", found=str(error)) from None
    if not isinstance(value, dict):
        raise CorruptFile("JSON is damaged", path=path, offset=0, expected="an object", found=type(value).__name__)
    return value


def _damaged(text: str, at: int, path: str, expected: str, found: str | None) -> CorruptFile:
    offset = len(text[:at].encode("utf-8", "surrogatepass"))
    found = found or repr(text[at : at + 16])
    return CorruptFile("JSON is damaged", path=path, offset=offset, expected=expected, found=found)


@lru_cache(1024)  # names come again and again
def _string(text: str) -> str:
    return '"' + _ESCAPE.sub(lambda m: _SHORT.get(m.group()) or f"\\u{ord(m.group()):04X}", text) + '"'


def _key(key: str | int) -> str:
    return _string(key) if isinstance(key, str) else str(int(key))


def _write(value: object, depth: int, out: list[str]) -> None:
    if depth > MAX_DEPTH:
        raise InternalError(f"JSON value: expected at most {MAX_DEPTH} levels, found more")
    if isinstance(value, str):
        out.append(_string(value))
    elif value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, int):
        out.append(int.__repr__(value))  # an enum is its number
    elif isinstance(value, float):
        out.append(float.__repr__(value))
    elif isinstance(value, dict):
        out.append("{")
        line = "\n" + "\t" * (depth + 1)
        for i, (key, item) in enumerate(value.items()):
            if i:
                out.append(",")
            out.append(f"{line}{_key(key)}:")
            _write(item, depth + 1, out)
        out.append("\n" + "\t" * depth + "}" if value else "}")
    elif isinstance(value, (list, tuple)):
        out.append("[")
        for i, item in enumerate(value):
            out.append(("," if i else "") + "\n" + "\t" * (depth + 1))
            _write(item, depth + 1, out)
        out.append("\n" + "\t" * depth + "]" if value else "]")
    else:
        raise InternalError(f"JSON value: expected str, number, bool, None, dict or list, found {type(value).__name__}")


def dumps(value: dict[str, Any] | dict[str | int, Any]) -> bytes:
    """The UTF-8 text that RocketMQ 5.5 writes for ``value``, without a line end behind it.

    Keys of type int are written bare. Maps keep the order they have.

    Raises: InternalError for a value that has no JSON form.
    """
    out: list[str] = []
    _write(value, 0, out)
    return "".join(out).encode("utf-8", "surrogatepass")


def entry(key: str | int, value: object, depth: int) -> bytes:
    """One entry of a map that is ``depth`` levels deep, as ``dumps`` writes it, with the line end before it.

    Raises: InternalError for a value that has no JSON form.
    """
    out = ["\n" + "\t" * depth + _key(key) + ":"]
    _write(value, depth, out)
    return "".join(out).encode("utf-8", "surrogatepass")
