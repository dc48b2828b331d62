"""Messages by id, key and time; dead letters and their resend; trace records of a message.

Stored messages do not change: a dead letter that is sent again stays in its topic. A resend to an unknown topic is
refused, so that no topic is created by chance. The index is searched first for an id: its form does not distinguish a
producer's id from a broker's. Source: MQAdminImpl, QueryMessageByKey, MessageDecoder, MsgTraceDecodeUtil.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mqfast import properties as names
from mqfast.client.admin.admin_base import AdminBase, BrokerInfo, read_field
from mqfast.client.admin.browse import TOOLS_GROUP, BrowseRange, pages_of
from mqfast.client.admin.call import call, paged
from mqfast.client.admin.checks import (
    checked_group,
    checked_number,
    checked_queue,
    checked_topic,
    known_name,
    milliseconds,
)
from mqfast.client.admin.groups import known_group
from mqfast.client.admin.trace_data import TRACE_TOPIC, trace_rows
from mqfast.client.consumer.pull_request import pull
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery, Source, decode_deliveries
from mqfast.client.net.request_steps import RequestSteps, read_answer
from mqfast.client.values import MessageQueue, SendResult, SendStatus, When
from mqfast.errors import (
    CallTimeout,
    ClientConfigError,
    ClientUsageError,
    ConnectionLost,
    FieldError,
    NoRoute,
    OffsetError,
    SendTimeout,
)
from mqfast.message import DLQ_PREFIX, RETRY_PREFIX, SysFlag, decode_message_id
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["MessageCalls", "by_id", "by_key_at", "by_place", "checked_word", "trace_of"]

_log = logging.getLogger("mqfast.client.admin")
_I64_MAX: Final = 2**63 - 1
_COUNT_MAX: Final = 1 << 20
_SENDER: Final = "CLIENT_INNER_PRODUCER"
_STATUS: Final = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class MessageCalls(AdminBase):
    """The calls about messages."""

    @call
    def find(
        self,
        topic: str,
        *,
        msg_id: str | None = None,
        key: str | None = None,
        begin: When | None = None,
        end: When | None = None,
        max_count: int = 64,
    ) -> RequestSteps[Sequence[Delivery]]:
        """Return messages of a topic by id, by key or by time; empty when there are none.

        Args:
            msg_id: the producer's unique id, or the broker's offset id.
            key: one of a message's keys; a broker returns 64 at most (its setting ``maxMsgsNumBatch``).
            begin, end: of the store time, both included; with ``msg_id`` or ``key`` of those only.
        """
        checked_topic(topic)
        if msg_id is not None and key is not None:
            raise ClientConfigError("find: expected one of msg_id and key, found both")
        if (msg_id, key, begin, end) == (None, None, None, None):
            raise ClientConfigError("find: expected msg_id, key, or a time by begin and end, found none")
        span = _span(begin, end)
        checked_number("max_count", max_count, 1, _COUNT_MAX)
        if msg_id is not None:
            messages = yield from by_id(self, topic, checked_word("msg_id", msg_id))
        elif key is not None:
            messages = yield from _by_key(self, topic, checked_word("key", key), span, max_count)
        else:
            messages = []
            for page in pages_of(self, topic, self._brokers_of(topic), span, "*", max_count):
                messages += yield from page
        return sorted(
            filter(span.holds, messages),
            key=lambda message: (message.store_timestamp, message.queue, message.queue_offset),
        )

    @call
    def message_at(self, queue: MessageQueue, offset: int) -> RequestSteps[Delivery | None]:
        """Return the message at an offset of a queue; None where there is none."""
        queue = checked_queue(queue)
        checked_number("offset", offset, 0, _I64_MAX)
        brokers = {broker.name: broker for broker in (yield from self._brokers_of(queue.topic))}
        known_name("queue: broker", queue.broker_name, brokers)
        answer = yield from pull(
            brokers[queue.broker_name].any, TOOLS_GROUP, queue, offset, Subscription(queue.topic, "*"),
            Source(queue.broker_name, queue), max_count=1, post_subscription=True, timeout_s=self._timeout_s,
        )  # fmt: skip
        return next((message for message in answer.messages if message.queue_offset == offset), None)

    @call
    def find_by_place(self, msg_id: str) -> RequestSteps[Delivery | None]:
        """Return the message with a broker's offset id, of any topic; None where there is none."""
        messages = yield from by_place(self, checked_word("msg_id", msg_id), None)
        return messages[0] if messages else None

    @paged
    def browse(
        self,
        topic: str,
        *,
        begin: When | None = None,
        end: When | None = None,
        tags: str = "*",
        max_count: int | None = 2000,
    ) -> Iterator[RequestSteps[Sequence[Delivery]]]:
        """Return the messages of all queues of a topic, ordered by store time; nothing is committed.

        Args:
            begin, end: of the store time, both included; default: from the first to the last message of now.
            tags: ``"*"``, or tags joined by ``||``.
            max_count: limit, logged when there are more; None: all.
        """
        checked_topic(topic)
        if max_count is not None:
            checked_number("max_count", max_count, 1, _I64_MAX)
        return pages_of(self, topic, self._brokers_of(topic), _span(begin, end), tags, max_count)

    @paged
    def dead_letters(
        self, group: str, *, begin: When | None = None, end: When | None = None
    ) -> Iterator[RequestSteps[Sequence[Delivery]]]:
        """Return the dead letters of a group, ordered by store time. ``resend`` sends one to its original topic.

        Raises: ConfigError with the nearest name when no broker knows the group.
        """
        checked_group(group)
        topic = DLQ_PREFIX + group
        return pages_of(self, topic, _brokers_of_letters(self, group), _span(begin, end), "*", None)

    @call
    def resend(self, message: Delivery, *, topic: str | None = None) -> RequestSteps[SendResult]:
        """Send a message again, a dead letter to its original topic; the stored message stays.

        Body, keys, tags, unique id and the application's properties are the same; property ``DLQ_ATTEMPTS`` counts the
        resends of a dead letter.
        Args: topic: another one.
        Raises: ConfigError when the dead letter has no property of its original topic; NoRoute when that topic does not
            exist.
        """
        return (yield from _resent(self, message, topic))

    @call
    def trace(self, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> RequestSteps[Sequence[Mapping[str, Any]]]:
        """Return the trace records of a message, by time: ``type`` is Pub, SubBefore, SubAfter, EndTransaction or
        Recall; the other fields depend on the type (``group``, ``client_host``, ``cost_ms``, ``success``, ...).

        Args: msg_id: the producer's unique id.
        """
        checked_topic(trace_topic)
        return (yield from trace_of(self, checked_word("msg_id", msg_id), trace_topic))


_ORDER: Final = {"Pub": 0, "EndTransaction": 1, "SubBefore": 2, "SubAfter": 3}


def trace_of(admin: AdminBase, msg_id: str, trace_topic: str) -> RequestSteps[list[dict[str, Any]]]:
    """Return the trace records of a message, by time."""
    messages = yield from _by_key(admin, trace_topic, msg_id, BrowseRange(None, None), 64)
    rows = []
    for message in messages:
        try:
            body = message.body
        except FieldError as error:  # the trace message is damaged, the trace is not
            _log.warning("topic %s, message %s is left out: %s", trace_topic, message.offset_msg_id, error)
            continue
        rows += [{"client_host": message.born_host, **row} for row in trace_rows(body)]
    rows = [row for row in rows if row.get("msg_id") == msg_id]
    # A SubAfter record without a time gets the time of its SubBefore record.
    begun = {row["request_id"]: row["timestamp"] for row in rows if row["type"] == "SubBefore"}
    for row in rows:
        if row.get("timestamp") is None:
            row["timestamp"] = begun.get(row.get("request_id"))
    return sorted(rows, key=lambda row: (row["timestamp"] or 0, _ORDER.get(row["type"], 9)))


def checked_word(what: str, text: object) -> str:
    """Return a checked id or key. Raises: ConfigError."""
    if not isinstance(text, str) or not text or " " in text:
        raise ClientConfigError(f"{what}: expected a text without blanks, found {text!r}")
    return text


def _span(begin: When | None, end: When | None) -> BrowseRange:
    begin_ms = None if begin is None else milliseconds("begin", begin)
    end_ms = None if end is None else milliseconds("end", end)
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise ClientConfigError(f"begin: expected a time before end, found {begin!r} and {end!r}")
    return BrowseRange(begin_ms, end_ms)


def _brokers_of_letters(admin: AdminBase, group: str) -> RequestSteps[list[BrokerInfo]]:
    try:
        return (yield from admin._brokers_of(DLQ_PREFIX + group))
    except NoRoute:
        yield from known_group(admin, group)
        return []


def _by_key(
    admin: AdminBase, topic: str, key: str, span: BrowseRange, max_count: int, *, is_unique: bool = False
) -> RequestSteps[list[Delivery]]:
    """Return the messages with a key, of all brokers; keys are compared, since the index has hashes only."""
    fields = {
        "topic": topic, "key": key, "maxNum": max_count, "beginTimestamp": span.begin_ms or 0,
        "endTimestamp": _I64_MAX if span.end_ms is None else span.end_ms, "_UNIQUE_KEY_QUERY": is_unique,
    }  # fmt: skip
    messages: list[Delivery] = []
    for broker in (yield from admin._brokers_of(topic)):
        messages += yield from _query(admin, broker, key, fields)
    if is_unique:
        return [message for message in messages if message.msg_id == key]
    return [message for message in messages if key in message.keys and message.topic == topic][:max_count]


def _query(admin: AdminBase, broker: BrokerInfo, key: str, fields: Mapping[str, Any]) -> RequestSteps[list[Delivery]]:
    """Send a query by key to a broker."""
    also = (ResponseCode.QUERY_NOT_FOUND,)
    answer = yield from admin._call(broker.any, RequestCode.QUERY_MESSAGE, fields, also=also, about=f"key {key}")
    if answer.code != ResponseCode.SUCCESS:
        return []
    return read_answer(answer, broker.any, partial(decode_deliveries, source=Source(broker.name)))


def by_key_at(admin: AdminBase, broker: BrokerInfo, topic: str, unique_key: str) -> RequestSteps[list[Delivery]]:
    """Return the messages of a topic with a unique id at one broker."""
    fields = {
        "topic": topic, "key": unique_key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": _I64_MAX,
        "_UNIQUE_KEY_QUERY": True,
    }  # fmt: skip
    messages = yield from _query(admin, broker, unique_key, fields)
    return [message for message in messages if message.msg_id == unique_key and message.record_topic == topic]


def by_id(admin: AdminBase, topic: str, msg_id: str) -> RequestSteps[list[Delivery]]:
    """Return the messages of a topic with a unique id, else the one at the place that an offset id names."""
    messages = yield from _by_key(admin, topic, msg_id, BrowseRange(None, None), 32, is_unique=True)
    if messages:
        return messages
    return [
        message
        for message in (yield from by_place(admin, msg_id, topic))
        if topic in (message.topic, message.properties.get(names.REAL_TOPIC))
    ]


def by_place(admin: AdminBase, msg_id: str, topic: str | None) -> RequestSteps[list[Delivery]]:
    """Return the record at the place that an offset id names, at a broker of this cluster."""
    try:
        place = decode_message_id(msg_id)
    except (OffsetError, ValueError):
        return []
    # The address in an id may be of any machine: only a broker of this cluster gets a request.
    address = place.store_host
    broker = next(
        (info for info in (yield from admin._clusters()).of(None) if address in info.addresses.values()), None
    )
    if broker is None:
        return []
    fields = {"topic": topic, "offset": place.physical_offset}
    answer = yield from admin._call(
        address, RequestCode.VIEW_MESSAGE_BY_ID, fields, also=(ResponseCode.SYSTEM_ERROR,), about=f"message {msg_id}"
    )
    if answer.code != ResponseCode.SUCCESS:
        return []
    source = Source(broker.name)
    return read_answer(answer, address, partial(decode_deliveries, source=source))


# --- sending a stored message once more ---


def _resent(admin: AdminBase, message: Delivery, topic: str | None) -> RequestSteps[SendResult]:
    """Send a message again. Raises: ConfigError, NoRoute, SendTimeout, BrokerError."""
    if not isinstance(message, Delivery):
        raise ClientUsageError(f"message: expected a Delivery, found {type(message).__name__}")
    to = _topic_of(message) if topic is None else checked_topic(topic)
    route = yield from admin._route(to)
    queues = route.publish_queues()
    if not queues:
        raise NoRoute(f"topic {to}: expected a queue that may be written, the name servers know none")
    queue = _chosen(message, queues)
    address = route.brokers[queue.broker_name].addresses[0]
    fields = {
        "a": _SENDER, "b": to, "c": "TBW102", "d": 4, "e": queue.queue_id,
        "f": message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK), "g": message.born_timestamp,
        "h": message.flag, "i": names.encode(names.revived(message.properties, to)).decode(), "j": 0, "k": False,
        "m": False, "n": queue.broker_name,
    }  # fmt: skip
    code, about = RequestCode.SEND_MESSAGE_V2, f"message {message.msg_id} to topic {to}"
    try:
        answer = yield from admin._call(address, code, fields, bytes(message.view), also=_STATUS, about=about)
    except (CallTimeout, ConnectionLost) as error:
        raise SendTimeout(str(error), msg_id=message.msg_id) from None
    at = MessageQueue(to, queue.broker_name, read_field(answer, address, "queueId"))
    more = answer.ext_fields
    return SendResult(
        _STATUS[ResponseCode(answer.code)],
        message.msg_id,
        str(more.get("msgId", "")),
        at,
        read_field(answer, address, "queueOffset"),
        more.get("transactionId"),
        more.get("recallHandle"),
        more.get("MSG_REGION"),
        (message.msg_id,),
    )


def _topic_of(message: Delivery) -> str:
    if not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return message.topic
    origin = names.origin_of(message.properties)
    if origin is None:
        raise ClientConfigError(f"topic: expected one, because {message!r} does not tell where it came from")
    return origin


def _chosen(message: Delivery, queues: tuple[MessageQueue, ...]) -> MessageQueue:
    """Return the queue by the sharding key, as a producer does; without a key, by the offset of the dead letter."""
    key = message.properties.get(names.SHARDINGKEY)
    number = message.queue_offset if key is None else abs(names.jhash(key))
    return queues[number % len(queues)]
