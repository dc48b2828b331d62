"""Delivery, a received message: a lazy view of a record in the bytes of a pull's answer.

No I/O, and no copy of a record: many deliveries share the bytes of an answer. The owner in the source of the delivery
processes acknowledgements, retries and replies. Record layout: ``mqfast/store/FORMAT.md``.
Source: MessageDecoder, MessageExt, CompressionType.
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
_SYS_FLAG_END: Final = 39  # the last byte of the field in a record


class DeliveryOwner(Protocol):
    """The object that acknowledges, retries and answers deliveries for the application."""

    def ack(self, delivery: Delivery) -> None: ...
    def retry(self, delivery: Delivery, delay_level: int) -> None: ...
    async def reply(self, delivery: Delivery, body: Body) -> SendResult: ...
    def reply_sync(self, delivery: Delivery, body: Body) -> SendResult: ...


class Source:
    """The origin of deliveries, shared by all messages of a queue.

    Args:
        broker_name: of the broker that answered.
        queue: the pulled queue; None: the queue of each record, as for a query by key.
        retry_topic: retry topic of the group: a message of that topic has the topic of the first send.
        namespace: of the client; topics are shown without that prefix.
        owner: processes ``ack``, ``retry`` and ``reply``; None: these calls raise.
        body_bytes_max: limit of a decompressed body.
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
    """A received message. Each field is decoded on access; the body is decompressed once.

    A pickled delivery is a plain copy: another process can read all fields, and cannot acknowledge the message.

    Thread: any for the fields. Source: MessageExt, MessageClientExt.
    """

    __slots__ = ("__weakref__", "_body", "_properties")

    # --- message ---

    @property
    def topic(self) -> str:
        """Return the topic of the send, without namespace, also for a delivery from a retry topic."""
        source, topic = self._source, self._record.topic
        if source.retry_topic and topic == source.retry_topic:
            topic = self.properties.get(names.RETRY_TOPIC, topic)
        return unwrap(source.namespace, topic) if source.namespace else topic

    @property
    def tags(self) -> str | None:
        """Return property TAGS."""
        return self._record.tags

    @property
    def keys(self) -> Sequence[str]:
        """Return property KEYS, split at blanks."""
        return self._record.keys

    @property
    def properties(self) -> dict[str, str]:
        """Return all properties, also those that client and broker added."""
        try:
            return self._properties
        except AttributeError:
            self._properties: dict[str, str] = self._record.properties
            return self._properties

    @property
    def user_properties(self) -> dict[str, str]:
        """Return the properties of the application, without those of clients and brokers, tags, keys and sharding key.

        ``Message.from_delivery`` forwards a message with these properties.
        """
        return names.of_user(self.properties)

    @property
    def body(self) -> bytes:
        """Return the body of the producer.

        Raises: FieldError when a compressed body is damaged or larger than ``max_body_bytes`` of the client,
        ConfigError when the library for the compression is not installed.
        """
        try:
            return self._body
        except AttributeError:
            self._body: bytes = decompressed(self._record.body, self._record.sys_flag, self._source.body_bytes_max)
            return self._body

    @property
    def view(self) -> memoryview:
        """Return the stored body, zero-copy; compressed if ``sys_flag`` has a compression."""
        return self._record.body

    def text(self) -> str:
        """Decode the body as UTF-8. Raises: UnicodeDecodeError, and the errors of ``body``."""
        return self.body.decode("utf-8")

    def json(self) -> Any:
        """Decode the body as JSON. Raises: json.JSONDecodeError, and the errors of ``body``."""
        return json.loads(self.body)

    # --- identity and position ---

    @property
    def msg_id(self) -> str:
        """Return the id of the producer (property UNIQ_KEY), equal for all copies of a message; else the
        ``offset_msg_id``.
        """
        return self.properties.get(names.UNIQ_KEY) or self._record.message_id

    @property
    def offset_msg_id(self) -> str:
        """Return the id of the broker: broker address and physical offset."""
        return self._record.message_id

    @property
    def transaction_id(self) -> str | None:
        """Return the transaction id of a transactional message, else None."""
        pairs = self.properties
        return pairs.get(names.UNIQ_KEY) if pairs.get(names.TRAN_MSG) == "true" else None

    @property
    def queue(self) -> MessageQueue:
        """Return the queue of the pull; for a retried message the queue of the retry topic."""
        source, record = self._source, self._record
        return source.queue or MessageQueue(record.topic, source.broker_name, record.queue_id)

    @property
    def queue_id(self) -> int:
        """Return the id of that queue."""
        return self._record.queue_id

    @property
    def physical_offset(self) -> int:
        """Return the byte offset in the broker's log (RocketMQ: commitLogOffset)."""
        return self._record.physical_offset

    @property
    def reconsume_times(self) -> int:
        """Return how often the message was sent back, or retried in place (orderly)."""
        return self._record.reconsume_times + self.again

    @property
    def attempt(self) -> int:
        """Return the number of this delivery, from 1."""
        return self._record.reconsume_times + self.again + 1

    # --- hosts, times, flags ---

    @property
    def born_timestamp(self) -> int:
        """Return the time of creation, ms since the epoch, by the producer's clock."""
        return self._record.born_timestamp

    @property
    def born_host(self) -> str:
        """Return ``address:port`` of the producer."""
        return self._record.born_host

    @property
    def store_timestamp(self) -> int:
        """Return the time of storage, ms since the epoch, by the broker's clock."""
        return self._record.store_timestamp

    @property
    def store_host(self) -> str:
        """Return ``address:port`` of the broker."""
        return self._record.store_host

    @property
    def flag(self) -> int:
        """Return the flag of the application."""
        return self._record.flag

    @property
    def sys_flag(self) -> int:
        """Return the bits of ``mqfast.message.SysFlag``."""
        return self._record.sys_flag

    # --- acknowledgement ---

    def ack(self) -> None:
        """Acknowledge the message. For iteration only: a handler acknowledges by the return value.

        Raises: UsageError for a message of a handler or a pull, or after an earlier ``ack`` or ``retry``.
        """
        self._owner("ack").ack(self)

    def retry(self, delay_level: int = 0) -> None:
        """Request another delivery. For iteration only; a handler raises ``Retry``.

        Args: delay_level: 0: by the broker's schedule; 1 to 18: that level; -1: to the dead-letter queue now.
        Raises: UsageError, as ``ack``.
        """
        if type(delay_level) is not int or not -1 <= delay_level <= 18:
            raise ClientUsageError(
                f"delay_level: expected -1 (dead letters), 0 (schedule) or 1 to 18, found {delay_level!r}"
            )
        self._owner("retry").retry(self, delay_level)

    async def reply(self, body: Body) -> SendResult:
        """Answer a request of ``AsyncProducer.request``. Raises: UsageError for a message that is no request."""
        return await self._owner("reply").reply(self, body)

    def reply_sync(self, body: Body) -> SendResult:
        """Answer a request of ``Producer.request``. Raises: UsageError for a message that is no request."""
        return self._owner("reply_sync").reply_sync(self, body)

    def _owner(self, what: str) -> DeliveryOwner:
        owner = self._source.owner
        if owner is None:
            raise ClientUsageError(f"{what}: expected a message of a running consumer, found a copy or one only read")
        return owner

    # --- for the client ---

    @property
    def is_part(self) -> bool:
        """Return whether the message is part of a record that holds several messages."""
        return type(self._record) is InnerRecord

    @property
    def source(self) -> Source:
        """Return the origin of the message."""
        return self._source

    @property
    def record_topic(self) -> str:
        """Return the topic of the record, on the wire."""
        return self._record.topic

    def record_bytes(self) -> bytes:
        """Return the encoded record."""
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
    delivery = Delivery(record, source)
    delivery.again = again
    return delivery


def decode_deliveries(body: bytes | bytearray | memoryview, source: Source, *, unwrap: bool = False) -> list[Delivery]:
    """Decode the messages of an answer to a pull or a query: consecutive whole records.

    Args: unwrap: split records that hold several messages.
    Raises: CorruptFile when the bytes are no records, or a checksum differs.
    """
    return _decoded(body, source, unwrap, None)[0]


def decode_pulled(body: bytes | bytearray | memoryview, source: Source) -> tuple[list[Delivery], int | None]:
    """Decode the messages of an answer to a pull; records that hold several messages are split.

    Returns: the messages, and the queue offset of the first record that was not decoded, or None. The records of an
        answer are split up to ``body_bytes_max`` bytes together; the next pull returns the remaining records.
    Raises: as ``decode_deliveries``.
    """
    return _decoded(body, source, True, source.body_bytes_max)


def _decoded(
    body: bytes | bytearray | memoryview, source: Source, unwrap: bool, bytes_max: int | None
) -> tuple[list[Delivery], int | None]:
    data = bytes(body)  # no copy of a bytes object
    deliveries: list[Delivery] = []
    at, end, unpacked = 0, len(data), 0
    while at < end:
        record = decode_record(data, at)
        size = record.size
        if size <= 0:
            raise CorruptFile("no record", offset=at, expected="a positive size", found=size)
        if unwrap and data[at + _SYS_FLAG_END] & INNER == INNER:
            parts = _split_record(record, source)
            unpacked += sum(part.store_size for part in parts)
            if bytes_max is not None and deliveries and unpacked > bytes_max:
                return deliveries, record.queue_offset
            deliveries += parts
        else:
            deliveries.append(Delivery(record, source))
        at += size
    return deliveries, None


def _split_record(record: StoredMessage, source: Source) -> list[Delivery]:
    try:
        body = decompressed(record.body, record.sys_flag, source.body_bytes_max)
        return [Delivery(part, source) for part in inner_records(record, body)]
    except (FieldError, ConfigError) as error:  # as RocketMQ's clients: the record is delivered whole
        _limit.warning("inner batch", "queue %s, offset %d: %s", source.queue, record.queue_offset, error)
        return [Delivery(record, source)]
