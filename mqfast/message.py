"""Input of users: the message, hosts, system flags, the rules for topics, and message ids.

The functions check and convert; the bytes of a record are written in ``mqfast/store/record/record.pyx``. No file, clock
or store is used. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias, TypedDict

from mqfast import properties as _properties
from mqfast.errors import MessageIllegal, OffsetError, PropertiesTooLong, TopicTooLong, UsageError
from mqfast.util.validate import is_whole

__all__ = [
    "Bodies",
    "Body",
    "Keys",
    "Message",
    "MessageId",
    "Properties",
    "PutOptions",
    "SYSTEM_TOPICS",
    "SysFlag",
    "broker_accepts_topic",
    "check_topic",
    "check_topic_name",
    "decode_message_id",
    "encode_message_id",
    "format_host",
    "is_topic_name",
    "join_keys",
    "needs_version_2",
    "not_a_message_id",
    "parse_host",
]

MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPICS: Final = (
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC", "RMQ_SYS_*", "rmq_sys_*",
)  # fmt: skip
"""Topics of a broker itself; ``x*`` means all topics that begin with x. Source: TopicValidator.isSystemTopic."""
# A topic becomes a directory name, and '@' separates topic and group in consumerOffset.json.
_BROKER_CHARACTERS: Final = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class _Buffer(Protocol):  # collections.abc.Buffer of Python 3.12
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


# A body: bytes, or any object with the buffer protocol. The caller encodes text, but for that of a Message.
Body: TypeAlias = _Buffer
# A moment: a datetime (without a zone: local time), or milliseconds since the epoch.
When: TypeAlias = datetime | int
# Many bodies: bytes-like objects, the rows of an array (buffer protocol), or an Arrow column of binary or text.
Bodies: TypeAlias = Iterable[_Buffer] | _Buffer | _ArrowArray | _ArrowStream
Keys: TypeAlias = str | Iterable[str]
# A mapping, or the ready property string of a record.
Properties: TypeAlias = Mapping[str, str | int | bool | None] | bytes


class PutOptions(TypedDict, total=False):
    """The rare fields of a message, the keywords of ``put``, ``put_nowait`` and ``aput``; see Message."""

    flag: int
    sys_flag: int
    born_timestamp: int | None
    born_host: str | bytes | None
    store_host: str | bytes | None
    reconsume_times: int
    prepared_transaction_offset: int
    wait_store_ok: bool


class SysFlag:
    """The bits of a record's sysFlag.

    Source: MessageSysFlag.
    """

    COMPRESSED: Final = 0x001
    MULTI_TAGS: Final = 0x002
    # Bits 2 and 3 are one two-bit number, not two flags.
    TRANSACTION_MASK: Final = 0x00C
    TRANSACTION_NONE: Final = 0x000
    TRANSACTION_PREPARED: Final = 0x004
    TRANSACTION_COMMIT: Final = 0x008
    TRANSACTION_ROLLBACK: Final = 0x00C
    BORN_HOST_V6: Final = 0x010
    STORE_HOST_V6: Final = 0x020
    NEED_UNWRAP: Final = 0x040
    INNER_BATCH: Final = 0x080
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300

    @staticmethod
    def transaction(sys_flag: int) -> int:
        """Return the transaction bits alone: one of the TRANSACTION constants."""
        return sys_flag & SysFlag.TRANSACTION_MASK

    @staticmethod
    def with_transaction(sys_flag: int, transaction: int) -> int:
        """Return ``sys_flag`` with its transaction bits replaced."""
        return (sys_flag & ~SysFlag.TRANSACTION_MASK) | (transaction & SysFlag.TRANSACTION_MASK)

    @staticmethod
    def is_queued(sys_flag: int) -> bool:
        """Return True if a record with these bits gets a ConsumeQueue unit (no transaction, or a committed one)."""
        return sys_flag & SysFlag.TRANSACTION_MASK in (SysFlag.TRANSACTION_NONE, SysFlag.TRANSACTION_COMMIT)

    @staticmethod
    def compression(sys_flag: int) -> str | None:
        """Return ``"zlib"``, ``"lz4"``, ``"zstd"``, ``"unknown"``, or None for a plain body."""
        if not sys_flag & SysFlag.COMPRESSED:
            return None
        # Clients wrote 0 before other compressions existed.
        names = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
        return names.get(sys_flag & SysFlag.COMPRESSION_MASK, "unknown")

    @staticmethod
    def with_hosts(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
        """Return ``sys_flag`` with both address bits set to match the encoded hosts (20 bytes = IPv6)."""
        sys_flag &= ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        if len(born_host) == 20:
            sys_flag |= SysFlag.BORN_HOST_V6
        if len(store_host) == 20:
            sys_flag |= SysFlag.STORE_HOST_V6
        return sys_flag


def _ipv4(text: str) -> bytes | None:
    parts = text.split(".")
    if len(parts) != 4:
        return None
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) <= 3 and int(part) <= 255):
            return None
    return bytes(map(int, parts))


def parse_host(host: str | bytes) -> bytes:
    """Return the 8 or 20 bytes that a record holds for ``"1.2.3.4:port"`` or ``"[v6]:port"``. Encoded bytes are
    returned unchanged.

    Host names are not resolved, so that the result does not depend on a network.

    Raises: MessageIllegal.
    """
    if isinstance(host, bytes):
        if len(host) not in (8, 20):
            raise MessageIllegal(f"host: expected 8 bytes (IPv4) or 20 bytes (IPv6), found {len(host)}")
        return host
    if not isinstance(host, str):
        raise MessageIllegal(f"host: expected str or bytes, found {type(host).__name__}")
    name, colon, port = host.rpartition(":")
    address: bytes | None = None
    if name.startswith("[") and name.endswith("]"):
        # Rare, and its import is slow against the time it takes to open a store.
        import ipaddress

        try:
            if "%" not in name:
                address = ipaddress.IPv6Address(name[1:-1]).packed
        except ValueError:
            address = None
    elif colon:
        address = _ipv4(name)
    if address is None or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise MessageIllegal(f"host: expected 'a.b.c.d:port' or '[v6 address]:port', found {host!r}")
    return address + struct.pack(">i", int(port))


def format_host(data: bytes | memoryview) -> str:
    """Return the text of an encoded host: ``"1.2.3.4:port"`` or ``"[v6]:port"``. The port is printed as the signed i32
    on disk.

    Raises: MessageIllegal unless there are 8 or 20 bytes.
    """
    data = bytes(data)
    if len(data) == 8:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}:{struct.unpack_from('>i', data, 4)[0]}"
    if len(data) == 20:
        import ipaddress

        return f"[{ipaddress.IPv6Address(data[:16])}]:{struct.unpack_from('>i', data, 16)[0]}"
    raise MessageIllegal(f"host: expected 8 bytes (IPv4) or 20 bytes (IPv6), found {len(data)}")


class MessageId(NamedTuple):
    """The parts of an offset message id."""

    store_host: str
    physical_offset: int


def encode_message_id(store_host: str | bytes, physical_offset: int) -> str:
    """Return the offset message id: upper-case hex of store host and physical offset; 32 digits for IPv4, 56 for IPv6.

    Raises: MessageIllegal for a bad host, OffsetError for an offset that is not in [0, 2^63).
    Source: MessageDecoder.createMessageId.
    """
    if not 0 <= physical_offset < 1 << 63:
        raise OffsetError(f"physical offset: expected 0 to 2^63-1, found {physical_offset}")
    return (parse_host(store_host) + physical_offset.to_bytes(8, "big")).hex().upper()


def decode_message_id(message_id: str) -> MessageId:
    """Return store host and physical offset of an offset message id (hex digits of either case).

    A client's unique key is 32 hex digits as well and has the same form.

    Raises: OffsetError when the text is no such id.
    Source: MessageDecoder.decodeMessageId.
    """
    expected = "32 hex digits (IPv4) or 56 hex digits (IPv6)"
    if not isinstance(message_id, str):
        raise OffsetError(f"message id: expected {expected}, found {type(message_id).__name__}")
    try:
        # fromhex skips blanks, so only the length tells whether every character was a digit.
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28) or len(data) * 2 != len(message_id):
        raise OffsetError(f"message id: expected {expected}, found {message_id!r}")
    physical_offset = struct.unpack(">q", data[-8:])[0]
    if physical_offset < 0:
        raise OffsetError(f"message id {message_id}: expected an offset of at least 0, found {physical_offset}")
    return MessageId(format_host(data[:-8]), physical_offset)


def _wrong_name(topic: object) -> str:
    """Return what is wrong with a name of a topic, apart from the length; "" for a good name."""
    if not isinstance(topic, str):
        return f"topic: expected str, found {type(topic).__name__}"
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return f"topic: expected a name without '/' and NUL, not '.' or '..', found {topic!r}"
    try:
        topic.encode("utf-8")
    except UnicodeEncodeError:
        return f"topic: expected text that has a UTF-8 form, found {topic!r}"
    return ""


def is_topic_name(topic: object) -> bool:
    """Return whether a store can have a topic of this name, of any length."""
    return not _wrong_name(topic)


def check_topic_name(topic: object) -> str:
    """Return the topic if a store may have the name; of any length, as other writers may have created the topic.

    Raises: UsageError.
    """
    wrong = _wrong_name(topic)
    if wrong:
        raise UsageError(wrong)
    return str(topic)


def not_a_message_id(text: str) -> str:
    """Return the error text for a well-formed message id that no message of the store has."""
    return (
        f"message id {text}: expected the offset message id of a message of this store, found none; "
        "a client's unique key has the same form and is found by query(topic, key)"
    )


def check_topic(topic: str) -> bytes:
    """Check a topic name. Returns: its UTF-8 bytes.

    A topic has at most 127 bytes, 255 with the prefix ``%RETRY%``. A topic is also a directory name, so ``/``, NUL and
    the names ``.`` and ``..`` are refused. Other names are accepted, as in RocketMQ's store; a broker is stricter (see
    broker_accepts_topic).

    Raises: TopicTooLong, MessageIllegal.
    Source: HookUtils.checkBeforePutMessage.
    """
    wrong = _wrong_name(topic)
    if wrong:
        raise MessageIllegal(wrong)
    data = topic.encode("utf-8")
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
    if len(data) > limit:
        raise TopicTooLong(f"topic: expected at most {limit} bytes, found {len(data)}: {topic[:40]!r}...")
    return data


def needs_version_2(topic: str) -> bool:
    """Return True if the record needs the two-byte topic length (more than 127 UTF-16 code units)."""
    return len(topic) > 63 and len(topic.encode("utf-16-le", "surrogatepass")) // 2 > MAX_TOPIC_BYTES


def broker_accepts_topic(topic: str) -> bool:
    """Return True if a RocketMQ broker would create this topic.

    A broker accepts letters, digits and ``% | - _``, at most 127 characters, or 255 for retry and dead letter topics.

    Source: TopicValidator.
    """
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_BYTES
    return 0 < len(topic) <= limit and _BROKER_CHARACTERS.issuperset(topic)


def join_keys(keys: str | Iterable[str]) -> str:
    """Return the KEYS text: a string unchanged, several keys joined by a blank.

    Raises: MessageIllegal for a key of a list that is empty, not a str, or contains a blank, which separates keys.
    """
    if isinstance(keys, str):
        return keys
    parts: list[str] = []
    given: object = keys
    if not isinstance(given, Iterable):
        raise MessageIllegal(f"keys: expected a str or several, found {type(keys).__name__}")
    for key in keys:
        if not isinstance(key, str):
            raise MessageIllegal(f"keys: expected str, found {type(key).__name__}")
        if not key or " " in key:
            raise MessageIllegal(f"keys: expected texts without blanks, found {key!r}")
        parts.append(key)
    return " ".join(parts)


_OLDEST_MOMENT_MS: Final = 946_684_800_000
"""The year 2000, before RocketMQ: an earlier delivery time is a number of seconds, or no time at all."""


def _moment_ms(when: When) -> int:
    moment: object = round(when.timestamp() * 1000) if isinstance(when, datetime) else when
    if not is_whole(moment, 0, (1 << 63) - 1):
        raise MessageIllegal(f"deliver_at: expected a datetime or milliseconds since the epoch, found {when!r}")
    if moment < _OLDEST_MOMENT_MS:
        hint = "; the number looks like seconds: multiply by 1000" if moment >= 10**9 else ""
        raise MessageIllegal(
            f"deliver_at: expected a time from the year 2000 on, found {when!r} ms, which is earlier{hint}"
        )
    return moment


class Delivered(Protocol):
    """A message that a consumer received, as ``Message.from_delivery`` needs the message."""

    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> Iterable[str]: ...
    @property
    def flag(self) -> int: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def user_properties(self) -> Mapping[str, str]: ...


@dataclass(slots=True)
class Message:
    """A message to put or to send.

    Args: body: bytes-like, or a text that is stored as UTF-8. properties: a mapping, or the encoded property string as
    bytes. Bytes are stored unchanged; tags, keys and ``wait_store_ok=False`` must then be part of these bytes.
    born_timestamp: ms since the epoch, None for the time of the put. born_host, store_host: ``"ip:port"``,
    ``"[v6]:port"`` or encoded bytes, None for the configured hosts. wait_store_ok: False skips the wait for a sync
    flush and is stored as WAIT=false. sharding_key: messages with equal keys go to one queue. At most one of the
    following, by which a broker delays the message; the store only stores the value. delay_level: RocketMQ's level,
    from 1. delay_s: seconds from now on. deliver_at: a datetime (without a zone: local time) or milliseconds since the
    epoch.
    """

    topic: str
    body: Body | str
    queue_id: int = 0
    tags: str | None = None
    keys: Keys | None = None
    properties: Properties | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: str | bytes | None = None
    store_host: str | bytes | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_ok: bool = True
    sharding_key: str | None = None
    delay_level: int | None = None
    delay_s: float | None = None
    deliver_at: When | None = None

    @classmethod
    def from_delivery(cls, delivery: Delivered, topic: str | None = None) -> Message:
        """Return a new message with the application's part of a received message: body, tags, keys, sharding key, flag
        and properties.

        Properties of clients and brokers are not copied: delay, transaction, retries and ids.
        Args: topic: of the new message; None for the topic of the received message.
        """
        return cls(
            delivery.topic if topic is None else topic,
            delivery.body,
            tags=delivery.tags,
            keys=tuple(delivery.keys) or None,
            properties=delivery.user_properties or None,
            flag=delivery.flag,
            sharding_key=delivery.properties.get(_properties.SHARDINGKEY) or None,
        )

    def encoded_body(self) -> Body:
        """Return the body as bytes: a text as UTF-8, anything else unchanged. Raises: MessageIllegal."""
        if not isinstance(self.body, str):
            return self.body
        try:
            return self.body.encode()
        except UnicodeEncodeError as error:
            bad = error.object[error.start]
            raise MessageIllegal(f"body: expected text that has a UTF-8 form, found {bad!r}") from None

    def encoded_properties(self) -> bytes:
        """Return the property string that is stored.

        Raises: MessageIllegal (also if tags or keys contradict the properties), PropertiesTooLong.
        """
        given = self.properties
        if isinstance(given, bytes):
            if self.tags is not None or self.keys is not None or self._has_more():
                raise MessageIllegal("properties: expected tags and keys inside the ready bytes, found them beside")
            if len(given) > _properties.MAX_PROPERTIES_BYTES:
                # encode() says it for mappings; the limit is the same.
                raise PropertiesTooLong(
                    f"properties: expected at most {_properties.MAX_PROPERTIES_BYTES} bytes, found {len(given)}"
                )
            return given
        if given is None:
            if self.tags is None and self.keys is None and self.wait_store_ok and not self._has_more():
                return b""
            given = {}
        elif not isinstance(given, Mapping):
            raise MessageIllegal(f"properties: expected a mapping or bytes, found {type(given).__name__}")
        return _properties.encode(self.merged_properties(given))

    def merged_properties(self, given: Mapping[str, str | int | bool | None]) -> dict[str, str | int | bool | None]:
        """Return the properties of a mapping, and those that the other fields mean.

        Raises: MessageIllegal, also where a field contradicts the mapping.
        """
        merged = dict(given)
        self._merge(merged, _properties.TAGS, self.tags)
        self._merge(merged, _properties.KEYS, join_keys(self.keys) if self.keys is not None else None)
        self._merge(merged, _properties.WAIT, None if self.wait_store_ok else "false")
        if self._has_more():
            self._merge(merged, _properties.SHARDINGKEY, self.sharding_key)
            self._merge(merged, *self._delay())
        return merged

    def _has_more(self) -> bool:
        return not (
            self.sharding_key is None and self.delay_level is None and self.delay_s is None and self.deliver_at is None
        )

    def _delay(self) -> tuple[str, str | None]:
        given = [name for name in ("delay_level", "delay_s", "deliver_at") if getattr(self, name) is not None]
        if len(given) > 1:
            raise MessageIllegal(f"{given[1]}: expected one delay, found it beside {given[0]}")
        if self.delay_level is not None:
            level: object = self.delay_level
            if not is_whole(level, 0, 0x7FFFFFFF):
                raise MessageIllegal(f"delay_level: expected a level of 0 (no delay) or more, found {level!r}")
            return _properties.DELAY, str(level) if level else None
        if self.delay_s is not None:
            seconds: object = self.delay_s
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e12:
                raise MessageIllegal(f"delay_s: expected seconds, 0 (no delay) or more, found {seconds!r}")
            return _properties.TIMER_DELAY_MS, str(round(seconds * 1000)) if seconds else None
        if self.deliver_at is not None:
            return _properties.TIMER_DELIVER_MS, str(_moment_ms(self.deliver_at))
        return _properties.DELAY, None

    @staticmethod
    def _merge(into: dict[str, str | int | bool | None], name: str, value: str | None) -> None:
        # An empty tag or key means none, as in Java, where the broker drops the empty pair.
        if not value:
            return
        if not isinstance(value, str):
            raise MessageIllegal(f"{name}: expected str, found {type(value).__name__}")
        if into.get(name, value) not in (value, None):
            raise MessageIllegal(f"{name}: expected one value, found {value!r} and, in the properties, {into[name]!r}")
        into[name] = value
