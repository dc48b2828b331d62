"""What bodies and the rarer headers carry, as types: from the bytes of any client version, and back.

Room: remoting. It must never keep a table or decide anything. JSON by msgspec, fastjson's own forms by ``fastjson.py``.
Source: the classes of the same names in RocketMQ's remoting.protocol.
"""

from __future__ import annotations

import sys
import zlib
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mqfast.errors import FieldError
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.fastjson import standard

__all__ = [
    "BrokerData",
    "DataVersion",
    "Int32",
    "QueueData",
    "RegisterBody",
    "TopicConfig",
    "TopicTable",
    "TopicRoute",
    "build_tables",
    "decode_body",
    "decode_registration",
    "encode_body",
    "header_of",
    "inflate",
]

T = TypeVar("T")
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
_REPAIRED_BYTES_MAX: Final = 4 * 1024 * 1024  # the loop stands still meanwhile: some 2 s for so much
READ, WRITE = 4, 2
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""A number of 32 bits, as Java's int: no Java broker could read a table with another one."""


class DataVersion(Struct, rename="camel", frozen=True):
    """Which state of a table; two are equal when all three numbers are."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(Struct, rename="camel"):
    """A topic of a broker."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: Int32 = READ | WRITE
    read_queue_nums: Int32 = 16
    topic_filter_type: str | int | None = "SINGLE_TAG"
    topic_name: str | None = None
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16


class TopicTable(Struct, rename="camel"):
    """All topics of a broker, or the changed one."""

    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_info_map: dict[str, Raw] = {}


class RegisterBody(Struct, rename="camel"):
    """Body of a broker's registration."""

    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTable | None = None


class QueueData(Struct, rename="camel"):
    """The queues of one topic on the brokers of one name."""

    broker_name: str
    perm: int = READ | WRITE
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Struct, rename="camel"):
    """The addresses of one broker name; ``broker_addrs`` is the JSON of id -> address."""

    broker_addrs: Raw
    broker_name: str
    cluster: str
    enable_acting_master: bool = False
    zone_name: str | UnsetType = UNSET


class TopicRoute(Struct, rename="camel"):
    """Where a topic is: answer of 105, body of 217."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]]
    order_topic_conf: str | UnsetType = UNSET
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: dict[str, Raw] | UnsetType = UNSET


def build_tables(module: str) -> None:
    """Build msgspec's table of each Struct of a module; the module calls it at its end.

    msgspec builds the table of a Struct at the first decode, and publishes the table before it is whole: a second
    thread, or a signal handler, that decodes the same Struct meanwhile ends the process with SIGSEGV.
    """
    for one in list(vars(sys.modules[module]).values()):
        if isinstance(one, type) and issubclass(one, Struct) and one.__module__ == module:
            msgspec.json.Decoder(one)


def encode_body(value: Any) -> bytes:
    """JSON as fastjson writes it: names sorted, no blanks."""
    return msgspec.json.encode(value)


def decode_body(data: bytes, kind: type[T], what: str) -> T:
    """A body, in standard JSON or in fastjson's. Raises: FieldError, that names ``what`` and the place in it."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _field_error(what, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > _REPAIRED_BYTES_MAX:
            raise FieldError(what, f"JSON ({str(error)[:100]})", f"{len(data)} bytes") from None
    try:
        return msgspec.json.decode(standard(data), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _field_error(what, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(what, f"JSON ({str(error)[:100]})", repr(bytes(data[:60]))) from None


def _field_error(what: str, error: msgspec.ValidationError) -> FieldError:
    text, _, place = str(error).partition(" - at ")
    return FieldError(what + place.strip("`").removeprefix("$"), *_expected_found(text))


def _expected_found(text: str) -> tuple[str, str]:
    text = text.replace("`", "")
    if text.startswith("Object missing required field"):
        return "the field " + text.removeprefix("Object missing required field "), "none"
    expected, _, found = text.removeprefix("Expected ").partition(", got ")
    return expected, found or "another value"


def header_of(command: RemotingCommand, kind: type[T]) -> T:
    """The fields of a header as a type; what it does not know is left out. Raises: FieldError."""
    try:
        return msgspec.convert(command.ext_fields, type=kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        expected, found = _expected_found(text)
        if found == "none":
            raise FieldError(expected.removeprefix("the field "), "a value", "none") from None
        name = place.strip("`").removeprefix("$.")
        raise FieldError(name, expected, repr(command.ext_fields.get(name, found))[:60]) from None


# --- registrations ----------------------------------------------------------------------------------------------------


def decode_registration(body: bytes, *, compressed: bool, version: int) -> RegisterBody:
    """The body of 103 in any of its forms; none at all is an empty table. Raises: FieldError."""
    if not body:
        return RegisterBody(topic_config_serialize_wrapper=TopicTable(data_version=DataVersion()))
    if compressed:
        return _unpacked(inflate(body))
    if version < 37:  # before V3_0_11 the table stood alone
        table = decode_body(body, TopicTable, "body")
        return RegisterBody(topic_config_serialize_wrapper=table)
    found = decode_body(body, RegisterBody, "body")
    if found.topic_config_serialize_wrapper is None:
        raise FieldError("body.topicConfigSerializeWrapper", "a table of topics", "none")
    return found


def inflate(data: bytes) -> bytes:
    """zlib, but no more than 64 MiB. Raises: FieldError."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise FieldError("body", f"zlib ({error})", repr(bytes(data[:20]))) from None
    if not stream.eof:
        raise FieldError("body", f"zlib of at most {INFLATED_BYTES_MAX} bytes, to its end", f"{len(found)} bytes")
    return found


class _Pieces:
    """Texts behind their lengths."""

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


def _unpacked(data: bytes) -> RegisterBody:
    pieces = _Pieces(data)
    table = TopicTable(data_version=decode_body(pieces.text("dataVersion"), DataVersion, "body.dataVersion"))
    for _ in range(pieces.number("count")):
        topic = _topic_line(pieces.text("topic").decode("utf-8", "replace"))
        table.topic_config_table[str(topic.topic_name)] = topic
    filters = decode_body(pieces.text("filterServerList"), list[str] | None, "body.filterServerList")  # type: ignore[arg-type]
    if pieces.left:  # since 5.0
        for _ in range(pieces.number("mappings")):
            raw = pieces.text("mapping")
            named = decode_body(raw, dict[str, Any], "body.mapping")
            table.topic_queue_mapping_info_map[str(named.get("topic", ""))] = Raw(standard(raw))
    return RegisterBody(filter_server_list=filters, topic_config_serialize_wrapper=table)


def _topic_line(line: str) -> TopicConfig:
    """``name readQueues writeQueues perm filterType {attributes}``."""
    words = line.split(" ", 5)
    try:
        name, reads, writes, perm = words[0], *map(int, words[1:4])
    except ValueError:
        raise FieldError("body.topic", "a name and three whole numbers", repr(line[:80])) from None
    return TopicConfig(topic_name=name, read_queue_nums=reads, write_queue_nums=writes, perm=perm)


build_tables(__name__)
