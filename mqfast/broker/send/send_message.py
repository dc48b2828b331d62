"""Sends: single messages (10, 310) and batches (320).

A message without delay and transaction is stored within the call, and answered at once unless the response waits for
the disk or for slaves. No body is copied, and a stored message is never answered with an error.
Source: SendMessageProcessor, AbstractSendMessageProcessor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import (
    DLQ_PREFIX,
    READ,
    RETRY_PREFIX,
    WRITE,
    dlq_topic,
    illegal_topic,
    is_of_the_broker,
)
from mqfast.broker.send.fast_send import SendPath, SendTopic
from mqfast.broker.send.message_priority import PRIORITY, placed_by_priority
from mqfast.broker.send.message_writer import ArrivalListener, MessageRecord, MessageWriter, Stored
from mqfast.errors import CallRefused, MqfastError, RemotingError
from mqfast.message import parse_host
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand, SendHeader, send_header
from mqfast.remoting.once import ONCE, STAMP
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.unique_ids import UniqueIds
from mqfast.store.meta.metadata import TopicConfig
from mqfast.store.put.put_result import BatchResult
from mqfast.util.java_text import java_number

if TYPE_CHECKING:
    from mqfast.broker.fast.topic_table import TopicTable
    from mqfast.broker.idempotence.idempotent_writes import IdempotentWrites

__all__ = ["PrepareHook", "RecallHandle", "SendProcessor"]

_HONOURS_RECONSUME_MAX: Final = 121  # V3_4_9
_MULTI_TAGS: Final = 2
_INNER_BATCH: Final = 64 | 128
_REPLACED: Final = (b"MSG_REGION", b"TRACE_ON", b"CLUSTER", b"POP_CK")
_KNOWN_MAX: Final = 100_000
_SLOW_S: Final = 0.001
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_UNIT, _UNIT_SUB = 1, 2
_SHORT_TOPIC_MAX: Final = 127
_MARK: Final = STAMP.encode() + b"\x01"
_LIGHT_QUEUES: Final = names.INNER_MULTI_DISPATCH.encode() + b"\x01"
_STORED: Final = Stored(0, None, None)

PrepareHook = Callable[[MessageRecord], MessageRecord]
"""Makes a half message of a record (transactions)."""
RecallHandle = Callable[[MessageRecord], str | None]
"""Returns the handle by which a delayed message can be recalled; None without a handle."""


def value_of(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of a property in a property string; None without the property."""
    key = name + b"\x01"
    at = properties.find(key)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(key, at + 1)
    return None if at < 0 else properties[at + len(key) :].partition(b"\x02")[0]


def without(properties: bytes, name: bytes) -> bytes:
    """Return a property string without a property."""
    if name not in properties:
        return properties
    return b"".join(
        pair + b"\x02" for pair in properties.split(b"\x02") if pair and not pair.startswith(name + b"\x01")
    )


class ReceivedSend(NamedTuple):
    """A send whose topic and queue are known.

    ``sys_flag``: with the bits of the topic; ``properties``: to store, with the properties that the broker adds.
    """

    request: RemotingCommand
    header: SendHeader
    topic: SendTopic
    queue_id: int
    sys_flag: int
    properties: bytes
    born_host: bytes

    def record(self, body: bytes | memoryview, properties: bytes) -> MessageRecord:
        """Return the message to store, with this body and these properties."""
        header = self.header
        return MessageRecord(
            header.topic,
            self.queue_id,
            body,
            properties,
            flag=header.flag,
            sys_flag=self.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=self.born_host,
            reconsume_times=header.reconsume_times,
        )


class SendProcessor:
    """Serves 10, 310 and 320.

    Args: prepare: makes half messages; recall_handle: see RecallHandle; arrivals: notified of a message in a queue with
        held pulls.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        once: IdempotentWrites,
        arrivals: ArrivalListener,
        *,
        prepare: PrepareHook,
        recall_handle: RecallHandle,
    ) -> None:
        self._prepare: Final = prepare
        self._recall_handle: Final = recall_handle
        config = context.config
        self._context = context
        self._once: Final = once
        self._writer: MessageWriter = context.writer
        self._stats: Final = context.stats
        self._published: TopicTable | None = None
        self._open_reactors: Callable[[bool], None] | None = None
        self._additions: Final = (
            f"\x02MSG_REGION\x01{config['regionId']}\x02TRACE_ON\x01{str(config['traceOn']).lower()}"
            f"\x02CLUSTER\x01{config['brokerClusterName']}\x02"
        ).encode()
        self._answer_fields: Final = {"MSG_REGION": config["regionId"], "TRACE_ON": str(config["traceOn"]).lower()}
        self._ids = UniqueIds(context.store_host[:-4])  # the address in stored records
        self._id_prefix: Final = context.store_host.hex().upper()
        self._path = SendPath(
            context.engine.put_encoded,
            context.store_host,
            self._additions[1:],
            self._id_prefix,
            self._answer_fields,
            self._stats.put,
        )
        self._path.waiting, self._path.notify = arrivals.waiting, arrivals.notify_arrival
        self.settings_changed()
        config.listeners.append(self.settings_changed)
        context.topics.on_change.append(self.topics_changed)

    def register(self, processors: Processors) -> None:
        """Register the handlers; sends have a limit of their own."""
        config = self._context.config
        lane = ConcurrencyLimit(
            "send",
            concurrency=config["sendThreadPoolQueueCapacity"],
            queue_max=config["sendThreadPoolQueueCapacity"],
            queue_timeout_ms=config["waitTimeMillsInSendQueue"] if config["brokerFastFailureEnable"] else None,
        )
        codes = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        processors.register(codes, self.send, lane)

    def start(self) -> None:
        """Do nothing: no periodic work."""

    async def stop(self) -> None:
        """Do nothing: no periodic work."""

    def settings_changed(self) -> None:
        """Open the fast path if the broker accepts all messages, and has no lease to check before each put."""
        self._path.is_open = self._writer.right is None and not self._is_refusing
        self._path.waits = self._writer.must_wait(b"")
        self._path.routes.clear()
        self._publish_settings()

    def topics_changed(self, topics: Collection[str]) -> None:
        """Drop the cached routes of these topics; of all topics for an empty list."""
        if not topics:
            self._path.routes.clear()
        for topic in topics:
            self._path.routes.pop(topic, None)
        if self._published is not None:
            for topic in topics:
                self._published.withdraw(topic)
            if not topics:
                self._published.withdraw_all()

    # --- what reactors serve ---

    @property
    def additions(self) -> bytes:
        """Return the properties that the broker adds to a message, with a final separator."""
        return self._additions[1:]

    @property
    def id_prefix(self) -> str:
        """Return the first part of message ids."""
        return self._id_prefix

    @property
    def answer_fields(self) -> dict[str, str]:
        """Return the fields that all answers have."""
        return self._answer_fields

    @property
    def publishes(self) -> bool:
        """Return whether reactors serve sends."""
        return self._published is not None

    def publish_to(self, topics: TopicTable | None, open_reactors: Callable[[bool], None] | None) -> None:
        """Publish topics and settings for reactors; None: no longer.

        A topic is published with its first send by this class, and withdrawn when topics change.
        Args: open_reactors: called with True if sends may be served, at each change of settings.
        """
        self._published, self._open_reactors = topics, open_reactors
        self._path.routes.clear()
        self._publish_settings()

    def _publish_settings(self) -> None:
        if self._published is not None:
            self._published.withdraw_all()
        if self._open_reactors is not None:
            # A master that refuses messages is for Python.
            self._open_reactors(self._path.is_open and self._writer.fenced is None)

    def send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve 10, 310, 320. Raises: FieldError, CallRefused."""
        start_s = perf_counter()
        try:
            answer = self._path.send(channel, request)
        except RemotingError:
            raise
        except MqfastError as error:
            refused = self._writer.failed(error)
            return request.response(refused.code, remark=refused.remark)
        if answer is None:
            return self._send(channel, request)
        took_s = perf_counter() - start_s
        if took_s >= _SLOW_S:
            self._stats.put_took(took_s * 1000)
        if not self._path.waits:
            return answer
        return self._writer.on_committed(_STORED, partial(_with_code, request, answer), self._path.end_offset)

    def _send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        header = send_header(request)
        topic = self._path.routes.get(header.topic)
        if topic is None or self._is_refusing:
            topic = self._known_topic(header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        elif queue_id >= topic.queues:
            raise self._no_such_queue(channel, header)
        properties, is_batch = self._with_additions(header.properties), header.batch or request.code == _BATCH
        if PRIORITY in properties and not is_batch:
            queue_id, properties = placed_by_priority(properties, queue_id, topic.write_queues)
        sys_flag = header.sys_flag | topic.sys_flag
        send = ReceivedSend(request, header, topic, queue_id, sys_flag, properties, self._born_host(channel))
        may_be_once = is_batch or _MARK in properties  # the fields of other requests are not read
        if may_be_once and (span := request.ext_fields.get(ONCE)) is not None:
            return self._send_once(send, span, is_batch)
        return self._send_batch(send) if is_batch else self._send_single(send)

    def _send_single(self, send: ReceivedSend) -> RemotingCommand | Awaitable[RemotingCommand]:
        properties = send.properties
        unique = value_of(properties, b"UNIQ_KEY")
        if not unique:
            unique = self._ids.next().encode()
            properties = without(properties, b"UNIQ_KEY") + b"UNIQ_KEY\x01" + unique + b"\x02"
        if _LIGHT_QUEUES in properties:
            _check_light_queues(properties)
        request, record = send.request, send.record(send.request.body, properties)
        if record.topic.startswith(RETRY_PREFIX):
            self._as_dead_letter(request, send.header, record)
        properties = record.properties
        if b"DELAY\x01" in properties or b"TIMER_" in properties or b"TRAN_MSG\x01" in properties:
            return self._send_later(request, record, unique)
        done = self._writer.write(record)
        if done.result is not None and self._writer.must_wait(properties):
            return self._when_durable(request, record, done, unique)
        return self._answer(request, record, done, unique)

    def channel_closed(self, channel: Channel) -> None:
        """Forget a closed connection."""
        self._path.hosts.pop(channel, None)

    def _born_host(self, channel: Channel) -> bytes:
        host = self._path.hosts.get(channel)
        if host is None:
            host = host_bytes(channel)
            if not channel.is_closed:
                self._path.hosts[channel] = host
        return host

    # --- checks ---

    @property
    def _is_refusing(self) -> bool:
        config = self._context.config
        return config["startAcceptSendRequestTimeStamp"] > 0 or not config["brokerPermission"] & WRITE

    def _known_topic(self, header: SendHeader) -> SendTopic:
        """Return the checked topic of a send, cached until topics change. Raises: CallRefused."""
        config = self.topic_of(header)
        routes = self._path.routes
        if len(routes) >= _KNOWN_MAX:
            routes.clear()
        route = SendTopic(
            header.topic,
            max(config.read_queue_nums, config.write_queue_nums),
            config.write_queue_nums,
            _MULTI_TAGS if config.is_multi_tag else 0,
            not (config.is_batch_queue or header.topic.startswith(RETRY_PREFIX)),
        )
        if self._context.topics.is_written(header.topic):
            routes[header.topic] = route
            if self._published is not None and route.is_plain and not self._is_refusing:
                self._published.publish(header.topic, route.queues, route.sys_flag)
        return route

    def topic_of(self, header: SendHeader) -> TopicConfig:
        """Return the topic of a send; creates the topic where allowed. Raises: CallRefused with RocketMQ's code and
        text.

        Source: AbstractSendMessageProcessor.msgCheck.
        """
        context = self._context
        config = context.config
        refused_until = config["startAcceptSendRequestTimeStamp"]
        if refused_until > context.now_ms():
            raise CallRefused(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {when_text(refused_until)}")
        topic = context.topics.get(header.topic)
        if not config["brokerPermission"] & WRITE and topic is not None and topic.order:
            raise CallRefused(ResponseCode.NO_PERMISSION, f"the broker[{self._host}] sending message is forbidden")
        if (wrong := illegal_topic(header.topic)) is not None:
            raise CallRefused(ResponseCode.INVALID_PARAMETER, wrong)
        if is_of_the_broker(header.topic):
            raise _forbidden(header.topic)
        return topic if topic is not None else self._made(header)

    def _no_such_queue(self, channel: Channel, header: SendHeader) -> CallRefused:
        topic = self._context.topics.get(header.topic)
        return CallRefused(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{header.queue_id}] is illegal, {topic!r} Producer: {channel.peer[0]}:{channel.peer[1]}",
        )

    @property
    def _host(self) -> str:
        return self._context.address.rpartition(":")[0]

    def _made(self, header: SendHeader) -> TopicConfig:
        is_retry = header.topic.startswith(RETRY_PREFIX)
        sys_flag = (_UNIT_SUB if is_retry else _UNIT) if header.unit_mode else 0
        topics = self._context.topics
        made = topics.create_for_send(header.topic, header.default_topic, header.default_topic_queue_nums, sys_flag)
        if made is None and is_retry:
            made = topics.ensure(header.topic, 1, READ | WRITE, sys_flag)
        if made is None:
            remark = f"topic[{header.topic}] not exist, apply first please!"
            if topics.is_full:
                remark += f" The broker has {len(topics.table)} topics, and no send makes more (maxAutoCreatedTopics)."
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
        return made

    def _as_dead_letter(self, request: RemotingCommand, header: SendHeader, record: MessageRecord) -> None:
        """Make a dead letter of a message that a consumer sends back by a send, after the last retry.

        Source: SendMessageProcessor.handleRetryAndDLQ.
        """
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._context.groups.get(name)
        if group is None:
            raise CallRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        max_retries = int(group.get("retryMaxTimes", 16))
        if request.version >= _HONOURS_RECONSUME_MAX and header.max_reconsume_times is not None:
            max_retries = header.max_reconsume_times
        if header.reconsume_times > max_retries or self._context.locks.is_orderly(name):
            record.topic = dlq_topic(name)
            record.queue_id = 0
            record.properties = without(record.properties, b"DELAY") + b"DELAY\x01-1\x02"
            self._context.topics.ensure(record.topic, 1)

    # --- storing ---

    def _with_additions(self, properties: bytes) -> bytes:
        for name in _REPLACED:
            if name in properties:
                properties = without(properties, name)
        if not properties or properties.endswith(b"\x02"):
            return properties + self._additions[1:]
        return properties + self._additions

    def _send_later(
        self, request: RemotingCommand, record: MessageRecord, unique: bytes
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        is_half = (value_of(record.properties, b"TRAN_MSG") or b"").lower() == b"true"
        if is_half and not (record.reconsume_times > 0 and _level(record.properties) > 0):
            if self._context.config["rejectTransactionMessage"]:
                raise CallRefused(
                    ResponseCode.NO_PERMISSION, f"the broker[{self._host}] sending transaction message is forbidden"
                )
            other = self._prepare(record)
            done = self._store_as_it_is(other)
        else:
            done = self._writer.write(record)
        if done.result is not None and self._writer.must_wait(record.properties):
            return self._when_durable(request, record, done, unique)
        return self._answer(request, record, done, unique)

    def _store_as_it_is(self, record: MessageRecord) -> Stored:
        try:
            return Stored(0, None, self._writer.put(record))
        except MqfastError as error:
            return self._writer.failed(error)

    def _send_batch(self, send: ReceivedSend) -> RemotingCommand | Awaitable[RemotingCommand]:
        request, topic, properties = send.request, send.header.topic, send.properties
        if len(topic) > _SHORT_TOPIC_MAX:
            raise CallRefused(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic)}")
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise CallRefused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}")
        unique = value_of(properties, b"UNIQ_KEY")
        if _LIGHT_QUEUES in properties:
            _check_light_queues(properties)
        if unique and self._has_batch_queues(topic):
            record = send.record(request.body, properties + b"INNER_NUM\x01%d\x02" % inner_count(request.body))
            record.sys_flag |= _INNER_BATCH
            done = self._store_as_it_is(record)
            fields = {"batchUniqId": unique.decode("utf-8", "replace")}
        else:
            record = MessageRecord(topic, send.queue_id, b"", properties)
            done = self._write_batch(send, request.body)
            fields = {}
        if done.result is not None and self._writer.must_wait(properties):
            return self._when_durable(request, record, done, unique, fields)
        return self._answer(request, record, done, unique, fields)

    def _write_batch(self, send: ReceivedSend, body: bytes | memoryview) -> Stored:
        header = send.header
        return self._writer.write_batch(
            header.topic,
            send.queue_id,
            body,
            b"",
            sys_flag=send.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=send.born_host,
            reconsume_times=header.reconsume_times,
        )

    def _send_once(self, send: ReceivedSend, span: str, is_batch: bool) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store rows with exactly-once semantics: a batch, or a delayed message."""
        header, properties = send.header, b"" if is_batch else send.properties
        is_dead = header.topic.startswith(DLQ_PREFIX)
        if not send.topic.is_plain or is_dead or header.queue_id < 0 or value_of(properties, b"TRAN_MSG") is not None:
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{ONCE}: expected a queue of a topic with ConsumeQueues and no transaction, found topic {header.topic}"
                f", queue {header.queue_id}",
            )
        if _LIGHT_QUEUES in properties:
            _check_light_queues(properties)

        def put(body: bytes | memoryview) -> Stored:
            return self._write_batch(send, body) if is_batch else self._writer.write(send.record(body, properties))

        return self._once.send(send.request, span, header.topic, send.queue_id, properties, put)

    def _has_batch_queues(self, topic: str) -> bool:
        config = self._context.topics.get(topic)
        return config is not None and config.is_batch_queue

    def _when_durable(
        self,
        request: RemotingCommand,
        record: MessageRecord,
        done: Stored,
        unique: bytes | None,
        more: dict[str, str] | None = None,
    ) -> Awaitable[RemotingCommand]:
        return self._writer.on_committed(done, lambda safe: self._answer(request, record, safe, unique, more))

    # --- the response ---

    def _answer(
        self,
        request: RemotingCommand,
        record: MessageRecord,
        done: Stored,
        unique: bytes | None,
        more: dict[str, str] | None = None,
    ) -> RemotingCommand:
        result = done.result
        if result is None:
            return request.response(done.code, remark=done.remark)
        if not isinstance(result, BatchResult):
            message_id, queue_offset = f"{self._id_prefix}{result.physical_offset:016X}", result.queue_offset
            self._stats.put(record.topic, 1, result.size)
        else:
            message_id, queue_offset = result.message_id, result[0].queue_offset
            self._stats.put(record.topic, len(result), result.end_offset - result[0].physical_offset)
        fields: dict[str, object] = {
            "msgId": message_id,
            "queueId": record.queue_id,
            "queueOffset": queue_offset,
            **self._answer_fields,
        }
        if unique:
            fields["transactionId"] = unique.decode("utf-8", "replace")
        if more:
            fields.update(more)
        if b"TIMER_" in record.properties and (handle := self._recall_handle(record)) is not None:
            fields["recallHandle"] = handle
        return request.response(done.code, fields)


def _with_code(request: RemotingCommand, answer: RemotingCommand, safe: Stored) -> RemotingCommand:
    """Return the response of a stored message, with the code of the commit."""
    if not safe.code:
        return answer
    if safe.remark is not None:  # the store or the lease has failed
        return request.response(safe.code, remark=safe.remark)
    return request.response(safe.code, answer.ext_fields)


def _forbidden(topic: str) -> CallRefused:
    return CallRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


def _check_light_queues(properties: bytes) -> None:
    """Check all queues of INNER_MULTI_DISPATCH, %LMQ% or not. Raises: CallRefused."""
    for topic in names.light_queues(properties):
        if is_of_the_broker(topic):
            raise _forbidden(topic)


def _level(properties: bytes) -> int:
    text = value_of(properties, b"DELAY") or b"0"
    return max(0, java_number(text.decode("utf-8", "replace")) or 0)


def host_bytes(channel: Channel) -> bytes:
    """Return the peer's address in the form of records."""
    host, port = channel.peer
    try:
        return parse_host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError:
        return bytes(8)


def inner_count(body: bytes | memoryview) -> int:
    """Return the number of messages in a batch body. Raises: CallRefused for a truncated message."""
    at = count = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 20 or at + size > len(body):
            raise CallRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch body: expected a whole message at byte {at}, found {len(body) - at} bytes",
            )
        at += size
        count += 1
    return count


def when_text(ms: int) -> str:
    """Return a time in the format of RocketMQ's texts."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) + f":{ms % 1000:03d}"
