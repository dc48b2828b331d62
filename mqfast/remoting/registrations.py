"""The body of a broker's registration (103) in each of its forms: JSON, the table alone (before V3_0_11), compressed
lines.

The body is decoded in steps of some ms at most, so that a server can serve others between two steps. Source:
RegisterBrokerBody.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from mqfast.errors import FieldError
from mqfast.remoting.bodies import (
    DataVersion,
    RegisterBody,
    TopicConfigBody,
    TopicTableBody,
    build_tables,
    decode_request,
)
from mqfast.util.fastjson import standard

__all__ = ["RegistrationLimits", "Steps", "at_once", "registration_steps"]

Steps = Generator[None, None, RegisterBody]
_BEFORE_BODIES: Final = 37  # V3_0_11: before, the body was the table alone
_PIECE_BYTES: Final = 512 * 1024
_TOPICS_A_STEP: Final = 1000
_FILTERS_MAX: Final = 1000
_FASTJSON_BYTES_MAX: Final = 1 << 30  # a longer body is refused by the parser
_NAME_MAX: Final = 255
# A topic has a name, eight fields, two quoted values, and perhaps an attribute.
_QUOTES_OF_A_TOPIC: Final = 28
_BRACES_OF_A_TOPIC: Final = 4
_ROOM: Final = 10_000  # quotes and braces of everything else


class RegistrationLimits(NamedTuple):
    """Limits of a registration: topics, and bytes after decompression."""

    topics: int = 40_000
    bytes: int = 32 << 20


class _RawTable(Struct, rename="camel"):
    data_version: DataVersion | None = None
    topic_config_table: dict[str, Raw] = {}
    topic_queue_mapping_info_map: dict[str, Raw] = {}


class _RawBody(Struct, rename="camel"):
    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: Raw = Raw(b"null")


def at_once(steps: Steps) -> RegisterBody:
    """Run all steps in a row. Raises: FieldError."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: RegisterBody = end.value
            return body


def registration_steps(body: bytes, *, compressed: bool, version: int, limits: RegistrationLimits) -> Steps:
    """Decode the body of 103; an empty body is an empty table. Raises: FieldError."""
    if not body:
        return RegisterBody(topic_config_serialize_wrapper=TopicTableBody(data_version=DataVersion()))
    if compressed:
        return (yield from _unpacked((yield from _inflated(body, limits.bytes)), limits))
    if len(body) > limits.bytes:
        raise FieldError("body", f"at most {limits.bytes} bytes (registrationBytesMax)", str(len(body)))
    _check_count(body, limits)
    try:
        if version < _BEFORE_BODIES:
            raw = RegisterBody()
            table = msgspec.json.decode(body, type=_RawTable, strict=False)
        else:
            outer = msgspec.json.decode(body, type=_RawBody, strict=False)
            raw = RegisterBody(filter_server_list=outer.filter_server_list)
            yield
            if bytes(outer.topic_config_serialize_wrapper) == b"null":
                raise FieldError("body.topicConfigSerializeWrapper", "a table of topics", "none")
            table = msgspec.json.decode(outer.topic_config_serialize_wrapper, type=_RawTable, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _as_fastjson(body, version, limits)  # fastjson's own form, or an error with the path of the field
    _check_topics(len(table.topic_config_table), limits)
    yield
    whole = raw.topic_config_serialize_wrapper = TopicTableBody(
        table.data_version, {}, table.topic_queue_mapping_info_map
    )
    for number, (name, config) in enumerate(table.topic_config_table.items()):
        if not number % _TOPICS_A_STEP:
            yield
        _check_name(name)
        whole.topic_config_table[name] = decode_request(
            bytes(config), TopicConfigBody, f"body.topicConfigTable[{name!r}]", bytes_max=limits.bytes
        )
    return _checked(raw, limits)


def _as_fastjson(body: bytes, version: int, limits: RegistrationLimits) -> RegisterBody:
    if version < _BEFORE_BODIES:
        table = decode_request(body, TopicTableBody, "body", bytes_max=_FASTJSON_BYTES_MAX)
        return _checked(RegisterBody(topic_config_serialize_wrapper=table), limits)
    decoded = decode_request(body, RegisterBody, "body", bytes_max=_FASTJSON_BYTES_MAX)
    if decoded.topic_config_serialize_wrapper is None:
        raise FieldError("body.topicConfigSerializeWrapper", "a table of topics", "none")
    return _checked(decoded, limits)


def _checked(decoded: RegisterBody, limits: RegistrationLimits) -> RegisterBody:
    if len(decoded.filter_server_list or ()) > _FILTERS_MAX:
        raise FieldError("body.filterServerList", f"at most {_FILTERS_MAX} names", "more")
    table = decoded.topic_config_serialize_wrapper
    assert table is not None
    _check_topics(len(table.topic_config_table), limits)
    _check_topics(len(table.topic_queue_mapping_info_map), limits)
    return decoded


def _check_count(body: bytes, limits: RegistrationLimits) -> None:
    """Refuse bodies of too many objects before decoding: a few bytes may become an object of hundreds."""
    quotes, braces = body.count(b'"'), body.count(b"{")
    if quotes > _QUOTES_OF_A_TOPIC * limits.topics + _ROOM or braces > _BRACES_OF_A_TOPIC * limits.topics + _ROOM:
        _check_topics(limits.topics + 1, limits)


def _check_topics(count: int, limits: RegistrationLimits) -> None:
    if count > limits.topics:
        raise FieldError("body.topicConfigTable", f"at most {limits.topics} topics (registrationTopicsMax)", "more")


def _check_name(name: str) -> None:
    if len(name) > _NAME_MAX:
        raise FieldError("body.topicConfigTable", f"names of at most {_NAME_MAX} characters", repr(name[:40]))


def _inflated(data: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    """Return the bytes of a zlib stream, in pieces. Raises: FieldError."""
    stream = zlib.decompressobj()
    parts: list[bytes] = []
    size = 0
    while not stream.eof:
        try:
            piece = stream.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise FieldError("body", f"zlib ({error})", repr(bytes(data[:20]))) from None
        data = stream.unconsumed_tail
        size += len(piece)
        if size > bytes_max:
            raise FieldError("body", f"at most {bytes_max} bytes when unpacked (registrationBytesMax)", "more")
        if not piece and not data and not stream.eof:
            raise FieldError("body", "zlib, to its end", f"{size} bytes")
        parts.append(piece)
        yield
    return b"".join(parts)


class _Pieces:
    """Texts with length prefixes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def number(self, what: str) -> int:
        raw = self._data[self._at : self._at + 4]
        if len(raw) < 4:
            raise FieldError(f"body.{what}", "four bytes", f"{len(raw)}")
        self._at += 4
        return int.from_bytes(raw, "big", signed=True)

    def text(self, what: str) -> bytes:
        size = self.number(what)
        if not 0 <= size <= len(self._data) - self._at:
            raise FieldError(f"body.{what}", f"a length of at most {len(self._data) - self._at}", str(size))
        self._at += size
        return self._data[self._at - size : self._at]


def _unpacked(data: bytes, limits: RegistrationLimits) -> Steps:
    pieces = _Pieces(data)
    table = TopicTableBody(data_version=decode_request(pieces.text("dataVersion"), DataVersion, "body.dataVersion"))
    for number in range(_count(pieces, "count", limits)):
        if not number % _TOPICS_A_STEP:
            yield
        topic = _topic_line(pieces.text("topic").decode("utf-8", "replace"))
        _check_name(str(topic.topic_name))
        table.topic_config_table[str(topic.topic_name)] = topic
    filters = decode_request(pieces.text("filterServerList"), list[str] | None, "body.filterServerList")  # type: ignore[arg-type]
    if pieces.left:  # since 5.0
        for number in range(_count(pieces, "mappings", limits)):
            if not number % _TOPICS_A_STEP:
                yield
            raw = pieces.text("mapping")
            named = decode_request(raw, dict[str, Any], "body.mapping")
            table.topic_queue_mapping_info_map[str(named.get("topic", ""))] = Raw(standard(raw))
    return _checked(RegisterBody(filter_server_list=filters, topic_config_serialize_wrapper=table), limits)


def _count(pieces: _Pieces, what: str, limits: RegistrationLimits) -> int:
    count = pieces.number(what)
    _check_topics(count, limits)
    return count


def _topic_line(line: str) -> TopicConfigBody:
    """Decode ``name readQueues writeQueues perm filterType {attributes}``."""
    words = line.split(" ", 5)
    try:
        name, reads, writes, perm = words[0], *map(int, words[1:4])
    except ValueError:
        raise FieldError("body.topic", "a name and three whole numbers", repr(line[:80])) from None
    return TopicConfigBody(topic_name=name, read_queue_nums=reads, write_queue_nums=writes, perm=perm)


build_tables(__name__)
