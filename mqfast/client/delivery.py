"""One received message: Delivery, a lazy face of a record in the bytes of a pull's answer.

Room: client. It must never do I/O and never copy a record: many deliveries share the bytes of one answer. What becomes
of a message (acknowledged, retried, replied to) is decided by the source of the delivery. Record layout:
``mqfast/store/FORMAT.md``. Source: MessageDecoder, MessageExt, CompressionType.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from mqfast import properties as names
from mqfast.client.decompression import BODY_BYTES_MAX, decompressed
from mqfast.client.delivery_fields import Received
from mqfast.client.inner_batch import INNER, InnerRecord, inner_records
from mqfast.client.route.namespace import unwrap
from mqfast.client.values import Body, MessageQueue, SendResult
from mqfast.errors import ClientUsageError, ConfigError, CorruptFile, FieldError
from mqfast.store.record.record import StoredMessage, decode_record
from mqfast.util.log_limit import LogLimit

__all__ = ["Delivery", "DeliveryOwner", "Source", "decode_deliveries", "decode_pulled", "decompressed"]

_limit = LogLimit(logging.getLogger("mqfast.client.consumer"))
_SYS_FLAG_END: Final = 39  # of a record: its last byte


class DeliveryOwner(Protocol):
    """Who carries out what the application says about a delivery."""

    def ack(self, delivery: Delivery) -> None: ...
    def retry(self, delivery: Delivery, delay_level: int) -> None: ...
    async def reply(self, delivery: Delivery, body: Body) -> SendResult: ...
    def reply_sync(self, delivery: Delivery, body: Body) -> SendResult: ...


class Source:
    """Where deliveries come from; one for all messages of a queue.

    Args:
        broker_name: of the broker that answered.
        queue: that was read; None: each record's own queue, as for a query by key.
        retry_topic: retry topic of the group: a message of that topic shows the topic that it was sent to at first.
        namespace: of the client; a topic is shown without that prefix.
        owner: carries out ``ack``, ``retry`` and ``reply``; None: they are not possible.
        body_bytes_max: of a body that is decompressed.
    """

    __slots__ = ("body_bytes_max", "broker_name", "namespace", "owner", "queue", "retry_topic")

    def __init__(
        self,
        broker_name: str,
        queue: MessageQueue | None = None,
        *,
        retry_topic: str = "",
        namespace: str = "",
        owner: DeliveryOwner | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.broker_name = broker_name
        self.queue = queue
        self.retry_topic = retry_topic
        self.namespace = namespace
        self.owner = owner

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_source, (self.broker_name, self.queue, self.retry_topic, self.namespace, self.body_bytes_max)


def _plain_source(
    broker_name: str, queue: MessageQueue | None, retry_topic: str, namespace: str, body_bytes_max: int
) -> Source:
    return Source(broker_name, queue, retry_topic=retry_topic, namespace=namespace, body_bytes_max=body_bytes_max)


@final
class Delivery(Received):
    """One received message. Each field is decoded when it is read; the body is decompressed once.

    A pickled delivery is a plain copy: another process can read all fields, and cannot acknowledge it.

    Thread: any for the fields. Source: MessageExt, MessageClientExt.
    """

    __slots__ = ("__weakref__", "_body", "_properties")

    # --- what was sent ---

    @property
    def topic(self) -> str:
        """Topic that the message was sent to, also when it comes again from a retry topic; without the namespace."""
        source, topic = self._source, self._record.topic
        if source.retry_topic and topic == source.retry_topic:
            topic = self.properties.get(names.RETRY_TOPIC, topic)
        return unwrap(source.namespace, topic) if source.namespace else topic

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self._record.tags

    @property
    def keys(self) -> Sequence[str]:
        """Property KEYS, split at blanks."""
        return self._record.keys

    @property
    def properties(self) -> dict[str, str]:
        """All properties, also those that client and broker added."""
        try:
            return self._properties
        except AttributeError:
            self._properties: dict[str, str] = self._record.properties
            return self._properties

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the application gave the message, without those of clients and brokers; tags, keys and
        sharding key are attributes of their own. ``Message.from_delivery`` forwards a message with them.
        """
        return names.of_user(self.properties)

    @property
    def body(self) -> bytes:
        """The body as the producer gave it.

        Raises: FieldError when a compressed body is damaged or larger than ``max_body_bytes`` of the client,
        ConfigError when the library for its compression is not installed.
        """
        try:
            return self._body
        except AttributeError:
            self._body: bytes = decompressed(self._record.body, self._record.sys_flag, self._source.body_bytes_max)
            return self._body

    @property
    def view(self) -> memoryview:
        """The body as it came, zero-copy; compressed when ``sys_flag`` says so."""
        return self._record.body

    def text(self) -> str:
        """The body as UTF-8. Raises: UnicodeDecodeError, and what ``body`` raises."""
        return self.body.decode("utf-8")

    def json(self) -> Any:
        """The body as JSON. Raises: json.JSONDecodeError, and what ``body`` raises."""
        return json.loads(self.body)

    # --- which message it is ---

    @property
    def msg_id(self) -> str:
        """The id that the producer made (property UNIQ_KEY): equal for all copies of a message. Without one, the
        ``offset_msg_id``.
        """
        return self.properties.get(names.UNIQ_KEY) or self._record.message_id

    @property
    def offset_msg_id(self) -> str:
        """The id that the broker made: its address and the place in its log."""
        return self._record.message_id

    @property
    def transaction_id(self) -> str | None:
        """Id of the transaction that the message was sent in, else None."""
        pairs = self.properties
        return pairs.get(names.UNIQ_KEY) if pairs.get(names.TRAN_MSG) == "true" else None

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from; for a retried message that of the retry topic."""
        source, record = self._source, self._record
        return source.queue or MessageQueue(record.topic, source.broker_name, record.queue_id)

    @property
    def queue_id(self) -> int:
        """Id of that queue."""
        return self._record.queue_id

    @property
    def physical_offset(self) -> int:
        """Byte in the broker's log (RocketMQ: commitLogOffset)."""
        return self._record.physical_offset

    @property
    def reconsume_times(self) -> int:
        """How often the message was given back, or tried again where it is (orderly)."""
        return self._record.reconsume_times + self.again

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._record.reconsume_times + self.again + 1

    # --- who and when ---

    @property
    def born_timestamp(self) -> int:
        """When the producer made the message, ms since the epoch, by the producer's clock."""
        return self._record.born_timestamp

    @property
    def born_host(self) -> str:
        """``address:port`` of the producer."""
        return self._record.born_host

    @property
    def store_timestamp(self) -> int:
        """When the broker stored the message, ms since the epoch, by the broker's clock."""
        return self._record.store_timestamp

    @property
    def store_host(self) -> str:
        """``address:port`` of the broker."""
        return self._record.store_host

    @property
    def flag(self) -> int:
        """The producer's own flag."""
        return self._record.flag

    @property
    def sys_flag(self) -> int:
        """Bits of ``mqfast.message.SysFlag``."""
        return self._record.sys_flag

    # --- what becomes of it ---

    def ack(self) -> None:
        """The message is done. For iteration only: elsewhere the end of the handler decides.

        Raises: UsageError for a message of a handler, of a pull, or one that was settled before.
        """
        self._owner("ack").ack(self)

    def retry(self, delay_level: int = 0) -> None:
        """The message comes again. For iteration only; a handler raises ``Retry``.

        Args: delay_level: 0: by the broker's schedule; 1 to 18: that level; -1: to the dead letters now.
        Raises: UsageError, as ``ack``.
        """
        if type(delay_level) is not int or not -1 <= delay_level <= 18:
            raise ClientUsageError(
                f"delay_level: expected -1 (dead letters), 0 (schedule) or 1 to 18, found {delay_level!r}"
            )
        self._owner("retry").retry(self, delay_level)

    async def reply(self, body: Body) -> SendResult:
        """Answer a request of ``AsyncProducer.request``. Raises: UsageError when the message asks for no answer."""
        return await self._owner("reply").reply(self, body)

    def reply_sync(self, body: Body) -> SendResult:
        """Answer a request of ``Producer.request``. Raises: UsageError when the message asks for no answer."""
        return self._owner("reply_sync").reply_sync(self, body)

    def _owner(self, what: str) -> DeliveryOwner:
        owner = self._source.owner
        if owner is None:
            raise ClientUsageError(f"{what}: expected a message of a running consumer, found a copy or one only read")
        return owner

    # --- for the client itself ---

    @property
    def is_part(self) -> bool:
        """Is it one of several messages of a record?"""
        return type(self._record) is InnerRecord

    @property
    def source(self) -> Source:
        """Where the message comes from."""
        return self._source

    @property
    def record_topic(self) -> str:
        """The topic of the record, as it is on the wire."""
        return self._record.topic

    def record_bytes(self) -> bytes:
        """The whole record, as the broker sent it."""
        return self._record.to_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (self._record, self._source, self.again)

    def __repr__(self) -> str:
        record = self._record
        return (
            f"<Delivery {record.topic}/{self._source.broker_name}/{record.queue_id}@{record.queue_offset} "
            f"msg_id={self.msg_id} attempt={self.attempt}>"
        )


def _copy(record: StoredMessage, source: Source, again: int) -> Delivery:
    found = Delivery(record, source)
    found.again = again
    return found


def decode_deliveries(body: bytes | bytearray | memoryview, source: Source, *, unwrap: bool = False) -> list[Delivery]:
    """The messages of an answer to a pull or a query: whole records, one behind the other.

    Args: unwrap: take records apart that hold several messages.
    Raises: CorruptFile when the bytes are no records, or a checksum differs.
    """
    return _decoded(body, source, unwrap, None)[0]


def decode_pulled(body: bytes | bytearray | memoryview, source: Source) -> tuple[list[Delivery], int | None]:
    """The messages of an answer to a pull; records that hold several messages are taken apart.

    Returns: the messages, and the queue offset of the first record that was left: records of an answer are taken apart
        up to ``body_bytes_max`` together, and the next pull brings the others. None: none was left.
    Raises: as ``decode_deliveries``.
    """
    return _decoded(body, source, True, source.body_bytes_max)


def _decoded(
    body: bytes | bytearray | memoryview, source: Source, unwrap: bool, bytes_max: int | None
) -> tuple[list[Delivery], int | None]:
    data = bytes(body)  # of bytes no copy
    found: list[Delivery] = []
    at, end, unpacked = 0, len(data), 0
    while at < end:
        record = decode_record(data, at)
        size = record.size
        if size <= 0:
            raise CorruptFile("no record", offset=at, expected="a positive size", found=size)
        if unwrap and data[at + _SYS_FLAG_END] & INNER == INNER:
            parts = _taken_apart(record, source)
            unpacked += sum(one.store_size for one in parts)
            if bytes_max is not None and found and unpacked > bytes_max:
                return found, record.queue_offset
            found += parts
        else:
            found.append(Delivery(record, source))
        at += size
    return found, None


def _taken_apart(record: StoredMessage, source: Source) -> list[Delivery]:
    try:
        body = decompressed(record.body, record.sys_flag, source.body_bytes_max)
        return [Delivery(one, source) for one in inner_records(record, body)]
    except (FieldError, ConfigError) as error:  # as RocketMQ's clients: the record is handed out as it is
        _limit.warning("inner batch", "queue %s, offset %d: %s", source.queue, record.queue_offset, error)
        return [Delivery(record, source)]
