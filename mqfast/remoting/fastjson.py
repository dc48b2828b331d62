"""JSON as Java's fastjson writes it, into JSON as the standard has it; and the one bare form that old clients want.

fastjson writes numbers and whole objects as keys without quotes: ``{0:"a"}``, ``{{"brokerName":"b","queueId":0}:5}``.

Room: remoting. It must never take anything for valid: what it cannot read stays as it is, for the parser to refuse.
Source: SerializerFeature of fastjson 1.2 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["DEPTH_MAX", "bare_keys", "object_keys", "standard"]

DEPTH_MAX: Final = 64
_KEYS_IN_KEYS_MAX: Final = 2  # each level doubles the escapes of the one in it
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BARE: Final = re.compile(rb"[-\w.$]+")
_BLANK: Final = b" \t\r\n"


def standard(text: bytes) -> bytes:
    """Quote every key that has no quotes: a number or name as it is, an object as the text of its JSON."""
    out = bytearray()
    end = _value(text, 0, out, 0)
    return bytes(out) + text[end:]


def bare_keys(table: Mapping[int, str]) -> bytes:
    """An object with whole numbers as bare keys, in their order."""
    return b"{" + b",".join(b"%d:%s" % (key, quoted(table[key])) for key in sorted(table)) + b"}"


def object_keys(table: Iterable[tuple[bytes, bytes]]) -> bytes:
    """An object whose keys are whole objects. Args: table: the JSON of each key and of its value."""
    return b"{" + b",".join(key + b":" + value for key, value in table) + b"}"


def quoted(text: str) -> bytes:
    """A JSON string in UTF-8; a lone surrogate becomes a question mark, as in Java."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    if not out.isprintable():
        out = re.sub("[\0-\x1f]", lambda found: f"\\u{ord(found[0]):04x}", out)
    return b'"' + out.encode("utf-8", "replace") + b'"'


def _blanks(text: bytes, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _value(text: bytes, at: int, out: bytearray, depth: int, in_keys: int = 0) -> int:
    """Copy one value, its keys quoted. Returns: where it ends, or where it stops to be JSON."""
    at = _blanks(text, at)
    first = text[at : at + 1]
    if first == b'"':
        return _copy(text, at, _STRING, out)
    if first not in (b"{", b"["):
        return _copy(text, at, _BARE, out)
    if depth >= DEPTH_MAX or in_keys > _KEYS_IN_KEYS_MAX:
        return at
    close = b"}" if first == b"{" else b"]"
    out += first
    at = _blanks(text, at + 1)
    while text[at : at + 1] != close:
        if first == b"{":
            at = _key(text, at, out, depth, in_keys)
            if text[at : at + 1] != b":":
                return at
            out += b":"
            at += 1
        before = at
        at = _blanks(text, _value(text, at, out, depth + 1, in_keys))
        if text[at : at + 1] == b",":
            out += b","
            at = _blanks(text, at + 1)
        elif at == before or text[at : at + 1] != close:
            return at
    out += close
    return at + 1


def _key(text: bytes, at: int, out: bytearray, depth: int, in_keys: int) -> int:
    if text[at : at + 1] == b'"':
        return _blanks(text, _copy(text, at, _STRING, out))
    key = bytearray()
    at = _blanks(text, _value(text, at, key, depth + 1, in_keys + 1))
    out += quoted(key.decode("utf-8", "replace"))
    return at


def _copy(text: bytes, at: int, what: re.Pattern[bytes], out: bytearray) -> int:
    found = what.match(text, at)
    if found is None:
        return at
    out += found[0]
    return found.end()
