"""Bodies and the rarer headers as types: decoded from the bytes of any client version, and encoded.

JSON by msgspec, fastjson's own forms by ``util/fastjson.py``. Source: the classes of the same names in RocketMQ's
remoting.protocol.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from mqfast.errors import FieldError
from mqfast.remoting.command import RemotingCommand
from mqfast.util.fastjson import standard

__all__ = [
    "BrokerAddresses",
    "BrokerData",
    "ClusterBody",
    "DataVersion",
    "Int32",
    "QueueData",
    "RegisterBody",
    "TopicConfigBody",
    "TopicListBody",
    "TopicTableBody",
    "TopicRouteData",
    "build_tables",
    "decode_body",
    "decode_request",
    "encode_body",
    "header_of",
]

T = TypeVar("T")
_REPAIRED_BYTES_MAX: Final = 4 * 1024 * 1024  # the loop is blocked meanwhile: some 2 s for so many bytes
REQUEST_BYTES_MAX: Final = 1 << 20
LIST_BYTES_MAX: Final = 8 << 20
"""Bytes of a request that is a list of topics or groups."""
_OBJECTS_MAX: Final = 50_000  # of a request; a few bytes may become an object of hundreds
_STRINGS_MAX: Final = 700_000
_REQUEST_REPAIRED_BYTES_MAX: Final = 64 * 1024
READ, WRITE = 4, 2
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""A number of 32 bits, as Java's int: Java brokers cannot read a table with other numbers."""


class DataVersion(Struct, rename="camel", frozen=True):
    """The version of a table; two are equal when all three numbers are."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfigBody(Struct, rename="camel"):
    """A topic of a broker."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: Int32 = READ | WRITE
    read_queue_nums: Int32 = 16
    topic_filter_type: str | int | None = "SINGLE_TAG"
    topic_name: str | None = None
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16


class TopicTableBody(Struct, rename="camel"):
    """All topics of a broker, or the changed one."""

    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfigBody] = {}
    topic_queue_mapping_info_map: dict[str, Raw] = {}


class RegisterBody(Struct, rename="camel"):
    """Body of a broker's registration."""

    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: TopicTableBody | None = None


class QueueData(Struct, rename="camel"):
    """The queues of a topic on the brokers of a name."""

    broker_name: str
    perm: int = READ | WRITE
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Struct, rename="camel"):
    """The addresses of a broker name; ``broker_addrs`` is the JSON of id -> address."""

    broker_addrs: Raw
    broker_name: str
    cluster: str
    enable_acting_master: bool = False
    zone_name: str | UnsetType = UNSET


class TopicRouteData(Struct, rename="camel"):
    """The route of a topic: answer of 105, body of 217."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]]
    order_topic_conf: str | UnsetType = UNSET
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: dict[str, Raw] | UnsetType = UNSET


class BrokerAddresses(Struct, rename="camel"):
    """The addresses of a broker name by broker id, as clients read them."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""


class ClusterBody(Struct, rename="camel"):
    """Answer of 106: all brokers by name, and the broker names of each cluster. Source: ClusterInfo."""

    broker_addr_table: dict[str, BrokerAddresses] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicListBody(Struct, rename="camel"):
    """Answer of 206, 224, 304, 305 and 343. Source: TopicList."""

    topic_list: list[str] = []
    broker_addr: str | None = None


def build_tables(module: str) -> None:
    """Build msgspec's table of each Struct of a module; called at the end of the module.

    msgspec builds the table of a Struct at the first decode, and publishes the table before it is complete: a second
    thread, or a signal handler, that decodes the same Struct meanwhile ends the process with SIGSEGV.
    """
    for struct in list(vars(sys.modules[module]).values()):
        if isinstance(struct, type) and issubclass(struct, Struct) and struct.__module__ == module:
            msgspec.json.Decoder(struct)


def encode_body(value: Any) -> bytes:
    """Return JSON as fastjson writes it: names sorted, no blanks."""
    return msgspec.json.encode(value)


def decode_request(data: bytes, kind: type[T], what: str, *, bytes_max: int = REQUEST_BYTES_MAX) -> T:
    """Decode the body of a request as ``decode_body``, with limits so that no peer can block the loop. Raises:
    FieldError.
    """
    if len(data) > bytes_max:
        raise FieldError(what, f"at most {bytes_max} bytes", str(len(data)))
    if data.count(b"{") > _OBJECTS_MAX or data.count(b'"') > 2 * _STRINGS_MAX:
        raise FieldError(what, f"at most {_OBJECTS_MAX} objects and {_STRINGS_MAX} texts", "more")
    return decode_body(data, kind, what, repaired_bytes_max=_REQUEST_REPAIRED_BYTES_MAX)


def decode_body(data: bytes, kind: type[T], what: str, *, repaired_bytes_max: int = _REPAIRED_BYTES_MAX) -> T:
    """Decode a body, in standard JSON or in fastjson's. Raises: FieldError, with ``what`` and the path of the field."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _field_error(what, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > repaired_bytes_max:
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
    expected, _, actual = text.removeprefix("Expected ").partition(", got ")
    return expected, actual or "another value"


def header_of(command: RemotingCommand, kind: type[T]) -> T:
    """Convert the fields of a header to a type; unknown fields are left out. Raises: FieldError."""
    try:
        return msgspec.convert(command.ext_fields, type=kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        expected, actual = _expected_found(text)
        if actual == "none":
            raise FieldError(expected.removeprefix("the field "), "a value", "none") from None
        name = place.strip("`").removeprefix("$.")
        raise FieldError(name, expected, repr(command.ext_fields.get(name, actual))[:60]) from None


build_tables(__name__)
