"""The JSON dialect of Java's fastjson, in which RocketMQ writes the files under ``config/`` and bodies of requests.

The dialect has keys without quotes: numbers ``{0:"a"}``, and whole objects ``{{"brokerName":"b","queueId":0}:5}``. In
pretty mode fastjson 2 (RocketMQ 5.5) writes each entry on a line of its own; fastjson 1 wrote a map with such keys on
one line.

``loads``, ``dumps`` and ``entry`` are for files: keys that are numbers become int, and damage is an error with its byte
offset. ``standard`` is for bodies: bare keys get quotes, and invalid text stays for the JSON parser to refuse. Source:
SerializerFeature of fastjson 1.2 and 2. Format of the files: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from mqfast.errors import CorruptFile, InternalError

__all__ = ["DEPTH_MAX", "MAX_FILE_BYTES", "bare_keys", "dumps", "entry", "loads", "object_keys", "quoted", "standard"]

# The deepest file of a broker has five levels.
DEPTH_MAX: Final = 64
# A million topics make some 250 MB; a larger file is damage.
MAX_FILE_BYTES: Final = 1 << 29

# Strings come first: a string may contain braces and colons.
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

# --- files ---


def _integer(text: str) -> int:
    if len(text) > 20 or int(text) not in _I64:
        raise ValueError(f"number {text[:24]} is outside of 64 bits")
    return int(text)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON value")


def _unused_mark(text: str, path: str) -> str:
    # A character in front of every bare key: one that no key can begin with, escaped or not.
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
    """Return the object in a file: keys in quotes are str, bare numbers are int; bare names and a surplus comma are
    accepted.

    Raises: CorruptFile with the byte offset: not UTF-8, not an object, nested deeper than 64, numbers beyond 64
        bits, text behind the end.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = hex(data[error.start])
        raise CorruptFile("JSON is damaged", path=path, offset=error.start, expected="UTF-8", found=byte) from None
    if text.count("{") + text.count("[") <= DEPTH_MAX:  # cannot be nested deeper
        try:
            plain = json.loads(text, parse_int=_integer, parse_constant=_no_constant, strict=False)
        except ValueError:
            pass  # the code below accepts the dialect, or determines the error
        else:
            if isinstance(plain, dict):
                return plain
    mark = _unused_mark(text, path)
    depth = 0
    # Where the standard form is longer than the file: (position in it, characters inserted before that position).
    shifts: list[tuple[int, int]] = []
    grown = 0

    def standard(match: re.Match[str]) -> str:
        nonlocal depth, grown
        kind = match.lastgroup
        if kind is None:
            return match.group()
        if kind == "open":
            depth += 1
            if depth > DEPTH_MAX:
                raise _damaged(text, match.start(), path, f"at most {DEPTH_MAX} levels", "one more")
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


def _damaged(text: str, at: int, path: str, expected: str, actual: str | None) -> CorruptFile:
    offset = len(text[:at].encode("utf-8", "surrogatepass"))
    actual = actual or repr(text[at : at + 16])
    return CorruptFile("JSON is damaged", path=path, offset=offset, expected=expected, found=actual)


@lru_cache(1024)  # names repeat
def _string(text: str) -> str:
    return '"' + _ESCAPE.sub(lambda m: _SHORT.get(m.group()) or f"\\u{ord(m.group()):04X}", text) + '"'


def _key(key: str | int) -> str:
    return _string(key) if isinstance(key, str) else str(int(key))


def _write(value: object, depth: int, out: list[str]) -> None:
    if depth > DEPTH_MAX:
        raise InternalError(f"JSON value: expected at most {DEPTH_MAX} levels, found more")
    if isinstance(value, str):
        out.append(_string(value))
    elif value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, int):
        out.append(int.__repr__(value))  # an enum is written as its number
    elif isinstance(value, float):
        out.append(float.__repr__(value))
    elif isinstance(value, dict):
        out.append("{")
        line = "\n" + "\t" * (depth + 1)
        for i, key in enumerate(value):  # items() of CPython 3.11 crashes where memory for its pair is missing
            if i:
                out.append(",")
            out.append(f"{line}{_key(key)}:")
            _write(value[key], depth + 1, out)
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
    """Return the UTF-8 text that RocketMQ 5.5 writes for ``value``, without a final line end.

    Keys of type int are written bare. Maps keep their order.

    Raises: InternalError for a value that has no JSON form.
    """
    out: list[str] = []
    _write(value, 0, out)
    return "".join(out).encode("utf-8", "surrogatepass")


def entry(key: str | int, value: object, depth: int) -> bytes:
    """Return an entry of a map that is ``depth`` levels deep, as ``dumps`` writes the entry, with the line end before.

    Raises: InternalError for a value that has no JSON form.
    """
    out = ["\n" + "\t" * depth + _key(key) + ":"]
    _write(value, depth, out)
    return "".join(out).encode("utf-8", "surrogatepass")


# --- bodies ---

_KEYS_IN_KEYS_MAX: Final = 2  # each level doubles the escapes of the level within
_QUOTED: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BARE: Final = re.compile(rb"[-\w.$]+")
_BLANK: Final = b" \t\r\n"


def standard(text: bytes) -> bytes:
    """Quote every bare key: a number or name unchanged, an object as JSON text."""
    out = bytearray()
    end = _quote_value(text, 0, out, 0)
    return bytes(out) + text[end:]


def bare_keys(table: Mapping[int, str]) -> bytes:
    """Return an object with whole numbers as bare keys, in ascending order."""
    return b"{" + b",".join(b"%d:%s" % (key, quoted(table[key])) for key in sorted(table)) + b"}"


def object_keys(table: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return an object whose keys are whole objects. Args: table: the JSON of each key and value."""
    return b"{" + b",".join(key + b":" + value for key, value in table) + b"}"


def quoted(text: str) -> bytes:
    """Return a JSON string in UTF-8; a lone surrogate becomes a question mark, as in Java."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    if not out.isprintable():
        out = re.sub("[\0-\x1f]", lambda match: f"\\u{ord(match[0]):04x}", out)
    return b'"' + out.encode("utf-8", "replace") + b'"'


def _blanks(text: bytes, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _quote_value(text: bytes, at: int, out: bytearray, depth: int, in_keys: int = 0) -> int:
    """Copy a value with quoted keys. Returns: the end of the value, or the position of the first invalid byte."""
    at = _blanks(text, at)
    first = text[at : at + 1]
    if first == b'"':
        return _copy_match(text, at, _QUOTED, out)
    if first not in (b"{", b"["):
        return _copy_match(text, at, _BARE, out)
    if depth >= DEPTH_MAX or in_keys > _KEYS_IN_KEYS_MAX:
        return at
    close = b"}" if first == b"{" else b"]"
    out += first
    at = _blanks(text, at + 1)
    while text[at : at + 1] != close:
        if first == b"{":
            at = _quote_key(text, at, out, depth, in_keys)
            if text[at : at + 1] != b":":
                return at
            out += b":"
            at += 1
        before = at
        at = _blanks(text, _quote_value(text, at, out, depth + 1, in_keys))
        if text[at : at + 1] == b",":
            out += b","
            at = _blanks(text, at + 1)
        elif at == before or text[at : at + 1] != close:
            return at
    out += close
    return at + 1


def _quote_key(text: bytes, at: int, out: bytearray, depth: int, in_keys: int) -> int:
    if text[at : at + 1] == b'"':
        return _blanks(text, _copy_match(text, at, _QUOTED, out))
    key = bytearray()
    at = _blanks(text, _quote_value(text, at, key, depth + 1, in_keys + 1))
    out += quoted(key.decode("utf-8", "replace"))
    return at


def _copy_match(text: bytes, at: int, what: re.Pattern[bytes], out: bytearray) -> int:
    match = what.match(text, at)
    if match is None:
        return at
    out += match[0]
    return match.end()
