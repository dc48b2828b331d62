"""Frames of RocketMQ's remoting protocol in Python: the form of ``remoting/codec.pyx`` without compiled code.

No I/O and no clock. Invalid bytes of a peer are a FrameError, and no half-decoded command remains. Bytes, fields and
messages of errors equal those of the compiled codec. Source: NettyDecoder, RemotingCommand, RocketMQSerializable.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Final, TypeAlias

from mqfast.errors import FieldError, FrameError, FrameTooLarge, HeaderIllegal

_Buffer: TypeAlias = bytes | bytearray | memoryview

JSON = 0
ROCKETMQ = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024  # RocketMQ: com.rocketmq.remoting.frameMaxLength
HEADER_BYTES_MAX = 1024 * 1024
VERSION = 479  # MQVersion.V5_3_3

_RESPONSE: Final = 1
_ONEWAY: Final = 2
_DEPTH_MAX: Final = 32
_I32_MIN: Final = -(1 << 31)
_I32_MAX: Final = (1 << 31) - 1

LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST"),
    "NODE_JS",
)
_LANGUAGE_CODES: Final = {name.encode(): code for code, name in enumerate(LANGUAGES)}
_OTHER: Final = 7


# --- the command ------------------------------------------------------------------------------------------------------


def _int32(value: Any) -> int:
    number = index(value)
    if not _I32_MIN <= number <= _I32_MAX:
        raise OverflowError("value too large to convert to int")
    return number


class RemotingCommand:
    """A frame: a request or a response. Arguments, attributes and thread: as in ``codec.pyx``."""

    __slots__ = (
        "_fields",
        "_from",
        "_has_fields",
        "_header",
        "_to",
        "body",
        "code",
        "flag",
        "language",
        "opaque",
        "received_s",
        "remark",
        "serialize",
        "version",
        "was_held",
    )

    def __init__(
        self,
        code: int,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = 0,
        version: int = VERSION,
        serialize: int = 0,
    ) -> None:
        if serialize not in (JSON, ROCKETMQ):
            raise ValueError(f"serialize is 0 (JSON) or 1 (ROCKETMQ), not {serialize}")
        if not 0 <= language < len(LANGUAGES):
            raise ValueError(f"language is 0 to {len(LANGUAGES) - 1}, not {language}")
        self.code = _int32(code)
        self.opaque = _int32(opaque)
        self.flag = _int32(flag)
        self.language = language
        self.version = _int32(version)
        self.serialize = serialize
        self.remark = remark
        self.body: Any = body
        self.received_s = 0.0
        self.was_held = False
        self._fields: dict[str, Any] | None = {} if ext_fields is None else ext_fields
        self._has_fields = ext_fields is not None
        self._header: bytes | None = None
        self._from = self._to = 0

    @property
    def is_response(self) -> bool:
        """Return whether this is the response to a request."""
        return self.flag & _RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Return whether the sender of this request wants no response."""
        return self.flag & _ONEWAY != 0

    @property
    def ext_fields(self) -> dict[str, Any]:
        """Return the header's fields by RocketMQ's names, all as text. A received command decodes them at first use."""
        fields = self._fields
        if fields is None:
            fields = self._fields = _all_pairs(self)
        return fields

    def response(
        self,
        code: int = 0,
        ext_fields: dict[str, Any] | None = None,
        body: bytes | Sequence[_Buffer] = b"",
        *,
        remark: str | None = None,
    ) -> RemotingCommand:
        """Return the response to this request, in the codec of its sender."""
        return RemotingCommand(
            code, ext_fields, body, opaque=self.opaque, flag=_RESPONSE, remark=remark, serialize=self.serialize
        )

    def _state(self) -> tuple[Any, ...]:
        body = self.body if isinstance(self.body, bytes) else b"".join(self.body)
        return (
            *(self.code, self.ext_fields, body, self.opaque, self.flag, self.remark, self.language, self.version),
            self.serialize,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, self._state()

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "one-way request" if self.is_oneway else "request"
        remark = "" if self.remark is None else f", remark {self.remark[:200]!r}"
        size = len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))
        return f"<{kind} {self.code}, opaque {self.opaque}, fields {self.ext_fields}{remark}, {size} bytes>"


def _rebuilt(
    code: int,
    ext_fields: dict[str, Any],
    body: bytes,
    opaque: int,
    flag: int,
    remark: str | None,
    language: int,
    version: int,
    serialize: int,
) -> RemotingCommand:
    return RemotingCommand(
        *(code, ext_fields, body),
        opaque=opaque,
        flag=flag,
        remark=remark,
        language=language,
        version=version,
        serialize=serialize,
    )


# --- text of a header -------------------------------------------------------------------------------------------------

_BLANKS: Final = re.compile(rb"[ \t\n\r]*")
_STRING: Final = re.compile(rb'"([^"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*)*)"')
_HEX: Final = re.compile(rb"[0-9a-fA-F]{4}")
_COLON: Final = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*")
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+\-]*")
_WORDS: Final = {0x74: b"true", 0x66: b"false", 0x6E: b"null"}
_WHOLE: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_ESCAPE: Final = re.compile(
    rb"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)"
)
_LETTERS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _illegal(data: bytes, at: int, end: int, expected: str) -> HeaderIllegal:
    text = data[at : min(end, at + 20)]
    return HeaderIllegal(
        f"header, offset {at}: expected {expected}, found {text!r}"
        if text
        else f"header, offset {at}: expected {expected}, found its end"
    )


def _bad_string(data: bytes, at: int, end: int) -> HeaderIllegal:
    """Return the error of a text that is no string."""
    if at >= end or data[at] != 0x22:
        return _illegal(data, at, end, "a string")
    at += 1
    while (escape := data.find(b"\\", at, end)) >= 0 and escape + 1 < end:
        kind = data[escape + 1]
        if kind == 0x75:
            if end - escape - 1 < 5:
                break
            if not _HEX.match(data, escape + 2, end):
                return _illegal(data, escape, end, "four hex digits behind \\u")
            at = escape + 6
        elif kind in b'"\\/bfnrt':
            at = escape + 2
        else:
            return _illegal(data, escape, end, "an escape of JSON")
    return _illegal(data, end, end, "the end of a string")


def _after_blanks(data: bytes, at: int, end: int) -> int:
    blanks = _BLANKS.match(data, at, end)
    return blanks.end() if blanks else at


def _take_string(data: bytes, at: int, end: int) -> tuple[int, bytes]:
    """Step over a string. Returns: the position behind the string, and the text between the quotes."""
    string = _STRING.match(data, at, end)
    if string is None:
        raise _bad_string(data, at, end)
    return string.end(), string[1]


def _take_key(data: bytes, at: int, end: int) -> tuple[int, bytes]:
    """Step over blanks, a name, blanks, the colon and blanks."""
    at, name = _take_string(data, _after_blanks(data, at, end), end)
    colon = _COLON.match(data, at, end)
    if colon is None:
        raise _illegal(data, _after_blanks(data, at, end), end, "a colon")
    return colon.end(), name


def _take_value(data: bytes, at: int, end: int, depth: int) -> int:
    """Step over any JSON value, at most ``_DEPTH_MAX`` deep. Returns: the position behind the value."""
    if at >= end:
        raise _illegal(data, at, end, "a JSON value")
    first = data[at]
    if first == 0x22:
        return _take_string(data, at, end)[0]
    word = _WORDS.get(first)
    if word is not None:
        if not data.startswith(word, at, end):
            raise _illegal(data, at, end, "a JSON value")
        return at + len(word)
    if first not in b"{[":
        number = _NUMBER.match(data, at, end)
        if number is None:
            raise _illegal(data, at + (first == 0x2D), end, "a JSON value")
        return number.end()
    if depth >= _DEPTH_MAX:
        raise _illegal(data, at, end, "JSON at most 32 deep")
    close = first + 2  # the codes of brackets and of braces differ by two
    at = _after_blanks(data, at + 1, end)
    if at < end and data[at] == close:
        return at + 1
    while True:
        at = _take_key(data, at, end)[0] if close == 0x7D else _after_blanks(data, at, end)
        at = _after_blanks(data, _take_value(data, at, end, depth + 1), end)
        if at < end and data[at] == close:
            return at + 1
        if at >= end or data[at] != 0x2C:
            raise _illegal(data, at, end, "a comma or the end of an object or array")
        at += 1


def whole_number(raw: bytes) -> int | None:
    """Parse as Java's Long.parseLong; None for other text."""
    if not _WHOLE.fullmatch(raw):
        return None
    number = int(raw)
    return number if -(1 << 63) <= number < 1 << 63 else None


def _character(escape: re.Match[bytes]) -> bytes:
    high, low, single, letter = escape.groups()
    if letter is not None:
        return _LETTERS.get(letter, letter)
    if high is not None:
        return chr(0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00).encode()
    code = int(single, 16)
    return b"?" if 0xD800 <= code <= 0xDFFF else chr(code).encode()


def unescaped(raw: bytes) -> bytes:
    """Return the UTF-8 of a JSON string's inside; a lone surrogate becomes a question mark, as in Java."""
    return _ESCAPE.sub(_character, raw)


def text_of(raw: bytes, escaped: bool) -> str:
    """Return the text of a name or a value. Args: escaped: the bytes are the inside of a JSON string with escapes."""
    return (unescaped(raw) if escaped else raw).decode("utf-8", "replace")


Pair: TypeAlias = tuple[bytes, bytes | None, bool, bool]
"""Name and value as on the wire, and whether each has escapes of JSON. A value that Java reads as null is None."""


def _json_pairs(data: bytes, at: int, end: int) -> Iterator[Pair]:
    """Yield the fields of ``extFields``, which was checked when the frame came in."""
    while True:
        at = _after_blanks(data, at, end)
        if at < end and data[at] == 0x2C:
            at = _after_blanks(data, at + 1, end)
        if at >= end:
            return
        at, name = _take_key(data, at, end)
        begin = at
        if data[at] == 0x22:
            at, value = _take_string(data, at, end)
            yield name, value, b"\\" in name, b"\\" in value
            continue
        at = _take_value(data, at, end, 1)
        value = data[begin:at]
        yield name, None if value == b"null" else value, b"\\" in name, False


def _binary_pairs(data: bytes, at: int, end: int) -> Iterator[Pair]:
    """Yield the fields of the binary codec. Raises: HeaderIllegal for a truncated field."""
    while at < end:
        if end - at < 2:
            raise _illegal(data, at, end, "the length of a name")
        size = int.from_bytes(data[at : at + 2], "big", signed=True)
        if not 0 <= size <= end - at - 2:
            raise _illegal(data, at, end, "the length of a name within the fields")
        name = data[at + 2 : at + 2 + size]
        at += 2 + size
        if end - at < 4:
            raise _illegal(data, at, end, "the length of a value")
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if not 0 <= size <= end - at - 4:
            raise _illegal(data, at, end, "the length of a value within the fields")
        value = data[at + 4 : at + 4 + size]
        at += 4 + size
        yield name, value or None, False, False  # Java decodes an empty value to null


def wire_pairs(command: RemotingCommand) -> Iterator[Pair]:
    """Yield the fields of a received command, in their order on the wire."""
    if command._header is None:
        return iter(())
    take = _json_pairs if command.serialize == JSON else _binary_pairs
    return take(command._header, command._from, command._to)


def has_header(command: RemotingCommand) -> bool:
    """Return whether the command was received with fields."""
    return command._header is not None


# --- frame -> command -------------------------------------------------------------------------------------------------


def _take_int32(data: bytes, at: int, end: int, otherwise: int) -> tuple[int, int]:
    """Read an int32 as a JSON number or as text; null leaves the value."""
    if at < end and data[at] == 0x22:
        after, raw = _take_string(data, at, end)
    else:
        after = _take_value(data, at, end, 1)
        raw = data[at:after]
        if raw == b"null":
            return after, otherwise
    number = whole_number(raw)
    if number is None or not _I32_MIN <= number <= _I32_MAX:
        raise _illegal(data, at, end, "a whole number of 32 bits")
    return after, number


def _decode_json(command: RemotingCommand, data: bytes) -> None:
    end = len(data)
    at = _after_blanks(data, 0, end)
    if at >= end or data[at] != 0x7B:
        raise _illegal(data, at, end, "a JSON object")
    at = _after_blanks(data, at + 1, end)
    if at < end and data[at] == 0x7D:
        at += 1
    else:
        while True:
            at, key = _take_key(data, at, end)
            if key in (b"code", b"flag", b"opaque", b"version"):
                name = key.decode()
                at, number = _take_int32(data, at, end, getattr(command, name))
                setattr(command, name, number)
            elif key == b"extFields":
                at = _take_fields(data, at, end, command)
            elif key == b"language" and data[at : at + 1] == b'"':
                at, raw = _take_string(data, at, end)
                command.language = _LANGUAGE_CODES.get(unescaped(raw), _OTHER)
            elif key == b"remark" and data[at : at + 1] == b'"':
                at, raw = _take_string(data, at, end)
                command.remark = text_of(raw, b"\\" in raw)
            else:
                at = _take_value(data, at, end, 1)
            at = _after_blanks(data, at, end)
            if at < end and data[at] == 0x2C:
                at += 1
                continue
            if at < end and data[at] == 0x7D:
                at += 1
                break
            raise _illegal(data, at, end, "a comma or the end of the object")
    at = _after_blanks(data, at, end)
    if at != end:
        raise _illegal(data, at, end, "the end of the header")


def _take_fields(data: bytes, at: int, end: int, command: RemotingCommand) -> int:
    """Store the position of the fields; they are decoded at the first use."""
    after = _take_value(data, at, end, 1)
    if data[at] == 0x7B:
        command._from, command._to = at + 1, after - 1
        command._fields = None
        command._has_fields = True
    elif data[at] == 0x6E:
        command._fields = {}
    else:
        raise _illegal(data, at, end, "an object of fields")
    return after


_FIXED: Final = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, bytes of the remark


def _decode_binary(command: RemotingCommand, data: bytes) -> None:
    end = len(data)
    if end < 21:
        raise _illegal(data, 0, end, "at least 21 bytes")
    command.code, language, command.version, command.opaque, command.flag, size = _FIXED.unpack_from(data)
    command.language = language if language < len(LANGUAGES) else _OTHER
    at = 13
    if not 0 <= size <= end - at - 8:
        raise _illegal(data, at, end, "the length of a remark within the header")
    if size:
        command.remark = data[at + 4 : at + 4 + size].decode("utf-8", "replace")
    at += 4 + size
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    if not 0 <= size <= end - at - 4:
        raise _illegal(data, at, end, "the length of the fields within the header")
    at += 4
    if size:
        command._from, command._to = at, at + size
        command._fields = None
        command._has_fields = True
        for _ in _binary_pairs(data, at, at + size):
            pass


def _decoded(serialize: int, header: bytes) -> RemotingCommand:
    command = RemotingCommand(0, serialize=serialize, version=0)
    if serialize == JSON:
        _decode_json(command, header)
    else:
        _decode_binary(command, header)
    if command._fields is None:
        command._header = header
    return command


def _all_pairs(command: RemotingCommand) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for raw_name, value, name_escaped, value_escaped in wire_pairs(command):
        name = text_of(raw_name, name_escaped)
        if value is not None:
            fields[name] = text_of(value, value_escaped)
        elif command.serialize == JSON:
            fields.pop(name, None)
    return fields


def repeated_name(command: RemotingCommand) -> str | None:
    """Return the name of a repeated field of a received header; else None."""
    if not isinstance(command, RemotingCommand):
        raise TypeError(f"expected a command, found {command!r}")
    seen: set[str] = set()
    if command._has_fields:
        for raw, _, escaped, _ in wire_pairs(command):
            name = text_of(raw, escaped)
            if name in seen:
                return name
            seen.add(name)
    return None


def signed_parts(command: RemotingCommand) -> tuple[str | None, str | None, bytes] | None:
    """Return None: every header is left to readers of ``ext_fields``."""
    return None


class FrameDecoder:
    """Decodes a stream of bytes, in pieces of any size, into commands.

    Args: frame_bytes_max: longest frame with its length word. header_bytes_max: longest header.
    Attributes: ``error``: the FrameError at which the stream became unreadable, or None; later bytes are not decoded.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        self.error: FrameError | None = None
        self._frame_max = frame_bytes_max
        self._header_max = header_bytes_max
        self._bytes = bytearray()
        self._total = 0  # of the frame at the begin of the bytes, without its length word; 0: not known
        self._header_size = -1
        self._command: RemotingCommand | None = None

    @property
    def buffered(self) -> int:
        """Return the bytes of the incomplete frame."""
        return len(self._bytes)

    def feed(self, data: _Buffer) -> list[RemotingCommand]:
        """Add the next bytes. Returns: the completed commands, in order; check ``error`` afterwards."""
        commands: list[RemotingCommand] = []
        if self.error is None:
            self._bytes += data
            try:
                while self._take(commands):
                    pass
            except (FrameTooLarge, HeaderIllegal) as error:
                self.error = error
                self._bytes.clear()
                self._command = None
        return commands

    def _take(self, commands: list[RemotingCommand]) -> bool:
        """Decode as much of a frame as is there. Returns: whether the frame is complete, and more bytes follow."""
        have = self._bytes
        if self._header_size < 0:
            if len(have) < 4:
                return False
            self._check_total(int.from_bytes(have[:4], "big"))
            if len(have) < 8:
                return False
            self._check_header_size(have[4], int.from_bytes(have[5:8], "big"))
        body_at = 8 + self._header_size
        if self._command is None:
            if len(have) < body_at:
                return False
            self._command = _decoded(have[4], bytes(have[8:body_at]))
        end = 4 + self._total
        if len(have) < end:
            return False
        if end > body_at:
            self._command.body = bytes(memoryview(have)[body_at:end])
        commands.append(self._command)
        self._command = None
        self._header_size = -1
        del have[:end]
        return bool(have)

    def _check_total(self, total: int) -> None:
        if not 4 <= total <= _I32_MAX:
            signed = total - (1 << 32) if total > _I32_MAX else total
            raise HeaderIllegal(
                f"frame: expected a length of at least 4, found {signed} (bytes {bytes(self._bytes[:4])!r})"
            )
        if total + 4 > self._frame_max:
            raise FrameTooLarge(
                f"frame: expected at most {self._frame_max} bytes, found {total + 4} (bytes {bytes(self._bytes[:4])!r})"
            )
        self._total = total

    def _check_header_size(self, serialize: int, size: int) -> None:
        if serialize > 1:
            raise HeaderIllegal(f"frame: expected codec 0 (JSON) or 1 (ROCKETMQ), found {serialize}")
        if size > self._total - 4:
            raise HeaderIllegal(f"frame: expected a header of at most {self._total - 4} bytes, found {size}")
        if size > self._header_max:
            raise FrameTooLarge(f"header: expected at most {self._header_max} bytes, found {size}")
        self._header_size = size


# --- command -> frame -------------------------------------------------------------------------------------------------

# fastjson's choice of escapes
_ESCAPED: Final = {
    **{code: f"\\u00{code:02X}" for code in range(0x20)},
    **{8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 0x22: '\\"', 0x5C: "\\\\"},
}
_TO_ESCAPE: Final = re.compile(r'[\x00-\x1f"\\]')


def _as_text(value: Any) -> str:
    """Return the text of Java's toString."""
    if type(value) is str:
        return value
    return "true" if value is True else "false" if value is False else str(value)


def _quoted(value: Any) -> str:
    text = _as_text(value)
    return f'"{text.translate(_ESCAPED) if _TO_ESCAPE.search(text) else text}"'


def _utf8(value: Any) -> bytes:
    """Return the UTF-8 of a text; a lone surrogate becomes a question mark, as in Java."""
    return _as_text(value).encode("utf-8", "replace")


def _json_header(command: RemotingCommand) -> bytes:
    fields = ""
    if command._has_fields:
        pairs = [f"{_quoted(name)}:{_quoted(value)}" for name, value in command.ext_fields.items() if value is not None]
        fields = f',"extFields":{{{",".join(pairs)}}}'
    remark = "" if command.remark is None else f',"remark":{_quoted(command.remark)}'
    return (
        f'{{"code":{command.code}{fields},"flag":{command.flag},"language":"{LANGUAGES[command.language]}",'
        f'"opaque":{command.opaque}{remark},"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    ).encode("utf-8", "replace")


def _binary_header(command: RemotingCommand) -> bytes:
    if not -32768 <= command.code <= 32767 or not -32768 <= command.version <= 32767:
        raise FieldError("code", "a number of 16 bits in the ROCKETMQ codec", str(command.code))
    remark = b"" if command.remark is None else _utf8(command.remark)
    fields = bytearray()
    for key, value in command.ext_fields.items():
        if value is None:
            continue
        name, text = _utf8(key), _utf8(value)
        if len(name) > 32767:
            raise FieldError(key[:40], "a name of at most 32,767 bytes", f"{len(name)} bytes")
        fields += len(name).to_bytes(2, "big") + name + len(text).to_bytes(4, "big") + text
    fixed = _FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag, len(remark))
    return b"".join([fixed, remark, len(fields).to_bytes(4, "big"), fields])


def encode(command: RemotingCommand, with_body: bool = True) -> bytes:
    """Return the frame of a command. Arguments and errors: as in ``codec.pyx``."""
    if not isinstance(command, RemotingCommand):
        raise TypeError(f"expected a command, found {command!r}")
    body = command.body
    body_size = len(body) if type(body) is bytes else sum(memoryview(part).nbytes for part in body)
    header = _json_header(command) if command.serialize == JSON else _binary_header(command)
    total = 4 + len(header) + body_size
    if len(header) > 0xFFFFFF or total > _I32_MAX:
        raise FrameTooLarge(
            f"frame: expected a header below 16 MiB and a frame below 2 GiB, found {len(header)} and {total} bytes"
        )
    head = total.to_bytes(4, "big") + bytes((command.serialize,)) + len(header).to_bytes(3, "big") + header
    if not with_body or not body_size:
        return head
    return head + body if type(body) is bytes else b"".join([head, *body])
