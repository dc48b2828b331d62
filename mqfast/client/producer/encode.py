"""Encoding of a message for a send: checks, unique id, property string, compressed body, header fields.

No I/O. The message of the caller does not change. Source: DefaultMQProducerImpl (sendKernelImpl, tryToCompressMessage),
Validators, MessageClientIDSetter.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from mqfast import properties as names
from mqfast.client.net.guard import Guard
from mqfast.client.producer.fast_encode import HeaderTemplate, PreparedMessage, encode_batch, plain
from mqfast.errors import ClientConfigError, MessageIllegal, MessageTooLarge
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX, Message, SysFlag, broker_accepts_topic
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import VERSION
from mqfast.remoting.unique_ids import UniqueIds

__all__ = [
    "Compressor",
    "PreparedMessage",
    "Wire",
    "batch_of",
    "check_several",
    "head_of",
    "local_address",
    "new_id",
    "new_ids",
    "prepared",
]

LANGUAGE: Final = "PYTHON"
SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
MSG_TYPE: Final = "MSG_TYPE"
"""Property of a reply: its value is ``reply``."""
_NO_SENDS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    }
)  # fmt: skip
_DELAYS: Final = (names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)


# -- unique ids --------------------------------------------------------------------------------------------------------


def local_address() -> str:
    """Return the address by which this machine reaches others; 127.0.0.1 without an address. Nothing is sent."""
    for family, far in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def new_ids(address: str | None = None, *, clock: Callable[[], float] | None = None) -> UniqueIds:
    """Return a generator of unique ids for this process. Args: address: of this machine."""
    address = local_address() if address is None else address
    host = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
    return UniqueIds(host, clock or time.time)


_ids: UniqueIds | None = None
_making = Guard()


def _own_ids() -> UniqueIds:
    global _ids
    with _making:
        if _ids is None:
            _ids = new_ids()
        return _ids


def new_id() -> str:
    """Return a new unique id of this process. Thread: any."""
    return (_ids or _own_ids()).next()


def forget_ids() -> None:
    """Reset the ids in a child of a fork: new ids begin with the child's process id."""
    global _ids, _making
    _ids, _making = None, Guard()


# -- compression -------------------------------------------------------------------------------------------------------


class Compressor:
    """Compresses bodies from a size on.

    Args: over_bytes: bodies of at least so many bytes; None: none. kind: zlib, lz4 or zstd. level: of zlib and zstd.
    Raises: ConfigError, also where the package of ``kind`` is missing.
    Source: CompressorFactory; a body that grew is sent uncompressed.
    """

    def __init__(self, over_bytes: int | None, kind: str = "zlib", level: int = 5) -> None:
        self.over_bytes = 1 << 62 if over_bytes is None else over_bytes
        self.kind = kind
        self._level = level
        self._compress: Callable[[bytes], bytes]
        if kind == "zlib":
            self._compress, self._flags = self._zlib, SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
        elif kind == "lz4":
            try:
                import lz4.frame  # type: ignore[import-untyped, unused-ignore]
            except ImportError:
                raise ClientConfigError('compression: lz4 needs the package "lz4": pip install lz4') from None
            self._lz4 = lz4.frame
            self._compress, self._flags = self._frame, SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4
        elif kind == "zstd":
            try:
                import zstandard
            except ImportError:
                raise ClientConfigError(
                    'compression: zstd needs the package "zstandard": pip install zstandard'
                ) from None
            self._new_zstd = zstandard.ZstdCompressor
            self._compress, self._flags = self._zstd, SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD
        else:
            raise ClientConfigError(f"compression: expected zlib, lz4 or zstd, found {kind!r}")

    def _zlib(self, body: bytes) -> bytes:
        return zlib.compress(body, self._level)

    def _frame(self, body: bytes) -> bytes:
        # Java's reader refuses frames with dependent blocks.
        return bytes(self._lz4.compress(body, block_linked=False))

    def _zstd(self, body: bytes) -> bytes:
        return self._new_zstd(level=self._level).compress(body)

    def __call__(self, body: bytes) -> tuple[bytes, int]:
        """Return the body to send, and the bits of the sysFlag."""
        if len(body) < self.over_bytes:
            return body, 0
        small = self._compress(body)
        return (small, self._flags) if len(small) < len(body) else (body, 0)


# -- one message -------------------------------------------------------------------------------------------------------


class Wire(NamedTuple):
    """The settings of a producer that apply to every message. Args: see the producer; ``topic``: adds the namespace."""

    group: str
    compress: Compressor
    max_message_bytes: int = 4 << 20
    topic_queues: int = 4
    create_topic_key: str = "TBW102"
    unit_mode: bool = False
    topic: Callable[[str], str] = str


_checked: set[object] = set()
_CHECKED_MAX: Final = 10_000


def checked_topic(topic: object) -> str:
    """Return the topic, if a producer may send to the topic. Raises: MessageIllegal."""
    if topic.__class__ is str and topic in _checked:
        return topic
    if not isinstance(topic, str):
        raise MessageIllegal(f"topic: expected str, found {type(topic).__name__}")
    if not broker_accepts_topic(topic):
        limit = 255 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else 127
        raise MessageIllegal(
            f"topic: expected 1 to {limit} of the characters a-z, A-Z, 0-9, % | - _, "
            f"found {len(topic)}: {topic[:140]!r}"
        )
    if topic in _NO_SENDS:
        raise MessageIllegal(
            f"topic: expected one that clients may send to, found {topic!r}, which is the broker's own"
        )
    if len(_checked) >= _CHECKED_MAX:
        _checked.clear()
    _checked.add(topic)
    return topic


def _checked_body(message: Message, max_bytes: int) -> bytes:
    body: Any = message.body
    if isinstance(body, str):
        body = message.encoded_body()
    if type(body) is not bytes:
        try:
            body = bytes(memoryview(body))  # a copy: the bytes may not change until the last attempt
        except (TypeError, ValueError):
            raise MessageIllegal(
                f"body: expected bytes, a contiguous bytes-like object or str, found {type(message.body).__name__}"
            ) from None
    if len(body) > max_bytes:
        raise MessageTooLarge(f"body: expected at most {max_bytes} bytes (max_message_bytes), found {len(body)}")
    if not body:
        raise MessageIllegal("body: expected at least one byte, as RocketMQ's brokers and clients do, found none")
    return bytes(body)


def _check_rest(message: Message) -> None:
    for name in ("queue_id", "sys_flag", "prepared_transaction_offset", "born_host", "store_host"):
        if getattr(message, name):
            raise MessageIllegal(
                f"{name}: expected none in a message to send, found {getattr(message, name)!r}"
                + ("; choose a queue by queue= of send" if name == "queue_id" else "; the store alone takes it")
            )
    for name, limit in (("flag", 1 << 31), ("reconsume_times", 1 << 31)):
        value = getattr(message, name)
        if type(value) is not int or not -limit <= value < limit:
            raise MessageIllegal(f"{name}: expected a whole number of 32 bits, found {value!r}")
    if message.born_timestamp is not None and type(message.born_timestamp) is not int:
        raise MessageIllegal(f"born_timestamp: expected milliseconds since the epoch, found {message.born_timestamp!r}")


_IN_READY_BYTES: Final = (names.TAGS, names.KEYS, names.WAIT, names.SHARDINGKEY)
"""Properties that an already encoded message may not have."""


class OwnMessage(Message):
    """A message of the client itself, for example a reply, with properties of RocketMQ's names."""

    __slots__ = ()


def prepared(message: Message, wire: Wire, more: Mapping[str, str] | None = None) -> PreparedMessage:
    """Check and encode a message.

    Args: more: properties of the client itself, which take precedence.
    Raises: MessageIllegal or a subclass, before anything is sent.
    """
    if not isinstance(message, Message):
        raise MessageIllegal(f"message: expected a Message, found {type(message).__name__}")
    topic = checked_topic(message.topic)
    compress = wire.compress
    if more is None:
        short = plain(message, _ids or _own_ids(), wire.topic(topic), wire.max_message_bytes)
        if short is not None:
            if len(short.body) >= compress.over_bytes:
                short.body, short.sys_flag = compress(short.body)
            return short
    body = _checked_body(message, wire.max_message_bytes)
    if message.flag or message.reconsume_times or not _is_default(message):
        _check_rest(message)
    pairs = _pairs(message)
    pairs.update(more or {})
    given = pairs.setdefault(names.UNIQ_KEY, "") or new_id()
    pairs[names.UNIQ_KEY] = given
    out = PreparedMessage(message, wire.topic(topic), body, names.encode(pairs), str(given))
    out.delayed = any(pairs.get(name) for name in _DELAYS)
    if str(pairs.get(names.TRAN_MSG)).lower() == "true":
        out.sys_flag |= SysFlag.TRANSACTION_PREPARED
    if pairs.get(MSG_TYPE) == "reply":
        out.code = int(RequestCode.SEND_REPLY_MESSAGE_V2)
    out.body, bits = compress(body)
    out.sys_flag |= bits
    return out


def _is_default(message: Message) -> bool:
    return not (
        message.queue_id
        or message.sys_flag
        or message.prepared_transaction_offset
        or message.born_host
        or message.store_host
        or message.born_timestamp is not None
    )


def _pairs(message: Message) -> dict[str, Any]:
    given = message.properties
    if isinstance(given, bytes):
        message.encoded_properties()  # checks the properties beside ready bytes
        pairs = dict(names.decode(given))
        names.refuse_reserved(pairs, _IN_READY_BYTES)
        return pairs
    if given is not None and not isinstance(given, Mapping):
        raise MessageIllegal(f"properties: expected a mapping or bytes, found {type(given).__name__}")
    if given and not isinstance(message, OwnMessage):
        names.refuse_reserved(given)
    return dict(message.merged_properties(given or {}))


# -- a batch -----------------------------------------------------------------------------------------------------------


def check_several(messages: object) -> None:
    """Check that several messages are given, not a single object. Raises: MessageIllegal."""
    if not isinstance(messages, Iterable):
        raise MessageIllegal(f"messages: expected several, found {type(messages).__name__}")


def batch_of(messages: Iterable[Message], wire: Wire) -> PreparedMessage:
    """Return a request of several messages, which become neighbours in one queue.

    Raises: MessageIllegal for different topics, waits or sharding keys, a delay, or a retry topic;
        MessageTooLarge. Source: MessageBatch.generateFromList, MessageDecoder.encodeMessages.
    """
    plain = wire._replace(compress=_NO_COMPRESSION)
    return joined([prepared(message, plain) for message in messages], wire)


def joined(many: list[PreparedMessage], wire: Wire, *, any_keys: bool = False) -> PreparedMessage:
    """Return a request of several encoded messages that are not compressed.

    Args: any_keys: the sharding keys may differ, since the caller chose the queue. Raises: as batch_of.
    """
    if not many:
        raise MessageIllegal("messages: expected at least one, found none")
    first = many[0]
    for part in many:
        if part.topic != first.topic:
            raise MessageIllegal(f"messages: expected one topic, found {first.topic!r} and {part.topic!r}")
        if part.message.wait_store_ok != first.message.wait_store_ok:
            raise MessageIllegal("messages: expected one wait_store_ok, found both")
        if part.delayed or part.sys_flag or part.code != SEND:
            raise MessageIllegal(
                "messages: expected no delay, transaction or reply in a batch, found one; send it alone"
            )
        if part.sharding_key != first.sharding_key and not any_keys:
            raise MessageIllegal(
                f"messages: expected one sharding_key, found {first.sharding_key!r} and {part.sharding_key!r}; "
                "use send_many, which sends each to its queue"
            )
    if first.message.topic.startswith(RETRY_PREFIX):
        raise MessageIllegal(f"messages: expected no retry topic in a batch, found {first.topic!r}")
    body = encode_batch(many)
    if len(body) > wire.max_message_bytes:
        raise MessageTooLarge(
            f"messages: expected at most {wire.max_message_bytes} bytes together (max_message_bytes), found {len(body)}"
        )
    # The header's properties go to every message of the batch: a UNIQ_KEY there would replace their own.
    out = PreparedMessage(first.message, first.topic, body, b"", ",".join(part.msg_id for part in many))
    if not first.message.wait_store_ok:
        out.properties = b"WAIT\x01false\x02"
    out.msg_ids = tuple(part.msg_id for part in many)
    out.code, out.batch, out.flag, out.born_ms = int(RequestCode.SEND_BATCH_MESSAGE), True, 0, None
    return out


_NO_COMPRESSION: Final = Compressor(None)


# -- the header --------------------------------------------------------------------------------------------------------


def head_of(out: PreparedMessage, wire: Wire, broker_name: str, queue_id: int) -> HeaderTemplate:
    """Return the header of sends of this kind to a queue, without the fields that change from message to message."""
    fields = {
        "a": wire.group,
        "b": out.topic,
        "c": wire.create_topic_key,
        "d": wire.topic_queues,
        "e": queue_id,
        "j": out.reconsume_times,
        "k": "true" if wire.unit_mode else "false",
        "m": "true" if out.batch else "false",
        "n": broker_name,
    }
    return HeaderTemplate(out.code, fields, VERSION, LANGUAGE)
