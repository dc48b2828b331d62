"""The trace topic: records of sends and consumptions in RocketMQ's own text, for RocketMQ's tools.

    Pub, SubBefore, SubAfter, EndTransaction, Recall: fields joined by U+0001, records ended by U+0002, several records
    in a message

Trace messages are not traced. A send is never delayed and never fails because of the trace: records without room are
dropped and counted. The text is decoded in ``admin/trace_data.py``. Source: AsyncTraceDispatcher, TraceDataEncoder, and
the hooks SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl,
DefaultRecallMessageTraceHook.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from mqfast import properties as names
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook, ConsumeContext, SendContext
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.encode import Compressor, Wire, new_id, prepared
from mqfast.client.producer.send import Sender, SendOptions
from mqfast.client.values import ConsumeStatus, TransactionStatus
from mqfast.errors import ClientConfigError, MqfastError
from mqfast.message import Message, broker_accepts_topic, join_keys

__all__ = ["TRACE_TOPIC", "Tracer", "trace_topic"]

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
QUEUE_MAX: Final = 2048
FLUSH_RECORDS: Final = 20
FLUSH_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 128_000
_SEND_S: Final = 5.0
_NORMAL, _HALF, _COMMIT, _DELAYED = 0, 1, 2, 3
_STATES: Final = {
    TransactionStatus.COMMIT: "COMMIT_MESSAGE",
    TransactionStatus.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionStatus.UNKNOWN: "UNKNOW",
}
_REGION: Final = "DefaultRegion"
_log = logging.getLogger("mqfast.client.trace")


def trace_topic(trace: bool | str) -> str | None:
    """Return the topic of a setting; None: no trace. Raises: ConfigError."""
    if trace is False:
        return None
    if trace is True:
        return TRACE_TOPIC
    name: object = trace
    if not isinstance(name, str) or not broker_accepts_topic(name):
        raise ClientConfigError(f"trace: expected True, False or the name of a topic, found {trace!r}")
    return name


class _Record(NamedTuple):
    topic: str
    keys: frozenset[str]
    text: str


def _joined(*fields: object) -> str:
    texts = (
        "null" if field is None else str(field).lower() if isinstance(field, bool) else str(field) for field in fields
    )
    return "\x01".join(texts) + "\x02"


class Tracer(ClientHook):
    """Collects the records of the hooks of a client, and sends the records at intervals.

    Args: group: of the client, without the namespace. topic: the trace topic. kind: PRODUCE or CONSUME.
    Thread: any for the hooks; ``begin``, ``flush`` and ``close`` that of the instance's loop.
    """

    def __init__(self, group: str, topic: str, kind: str) -> None:
        self._group = group
        self._topic = topic
        self._wire = Wire(f"_INNER_TRACE_PRODUCER-{group}-{kind}-1", Compressor(4096))
        self._records: deque[_Record] = deque()
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None
        self._asked = False
        self._flushing: asyncio.Lock | None = None
        self._periodic: asyncio.Task[None] | None = None
        self.dropped = 0

    def begin(self, instance: ClientInstance) -> None:
        """Send over this instance from now on."""
        self._instance = instance
        self._sender = Sender(self._wire)
        self._flushing = asyncio.Lock()
        self._periodic = instance.every(FLUSH_S, self.flush, "trace")

    async def close(self, timeout_s: float) -> None:
        """Send the remaining records, and trace no more."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self.flush()
        except TimeoutError:
            _log.info("trace of group %s: %d records were not sent in time", self._group, len(self._records))
        self._instance = None
        if self._periodic is not None:
            self._periodic.cancel()

    def forget(self) -> None:
        """Drop the records of the parent in a child of a fork."""
        self._records = deque()
        self._instance = None
        self._asked = False

    # -- records ------------------------------------------------------------------------------------------------------

    def after_send(self, context: SendContext) -> None:
        """Record the end of a send."""
        message, result = context.message, context.result
        instance = self._instance
        if message.topic == self._topic or instance is None:
            return
        error = context.error
        msg_id = result.msg_id if result is not None else getattr(error, "msg_id", None)
        address = None if context.queue is None else instance.routes.address(context.queue.broker_name)
        keys = join_keys(message.keys) if message.keys else None
        size = len(message.encoded_body())  # type: ignore[arg-type]
        kind = _HALF if context.is_half else _kind(message)
        text = _joined(
            "Pub", round(time.time() * 1000), result.region_id if result is not None else None, self._group,
            message.topic, msg_id, message.tags, keys, address, size, round(context.seconds * 1000), kind,
            None if result is None else result.offset_msg_id, result is not None,
        )  # fmt: skip
        self._add(message.topic, [msg_id, *(keys or "").split(" ")], text)

    def before_consume(self, context: ConsumeContext) -> None:
        """Record that a handler is about to be called."""
        request = context.state["trace"] = new_id()
        for message in _traced(context):
            text = _joined(
                "SubBefore", round(time.time() * 1000), message.properties.get(names.MSG_REGION), self._group, request,
                message.msg_id, message.reconsume_times, " ".join(message.keys) or None,
            )  # fmt: skip
            self._add(message.topic, [message.msg_id, *message.keys], text)

    def after_consume(self, context: ConsumeContext) -> None:
        """Record the end of a handler."""
        request = context.state.get("trace")
        done = context.status is ConsumeStatus.CONSUME_SUCCESS and context.error is None
        code = 0 if done else 2 if context.error is not None else 4
        each_ms = round(context.seconds * 1000 / max(1, len(context.messages)))
        for message in _traced(context):
            text = _joined(
                "SubAfter", request, message.msg_id, each_ms, done, " ".join(message.keys) or None, code,
                round(time.time() * 1000), self._group,
            )  # fmt: skip
            self._add(message.topic, [message.msg_id, *message.keys], text)

    def ended(
        self,
        topic: str,
        properties: Mapping[str, str],
        address: str | None,
        msg_id: str,
        status: TransactionStatus,
        *,
        from_check: bool,
    ) -> None:
        """Record the end of a transaction. Args: topic: without the namespace; properties: of the half message."""
        keys = properties.get(names.KEYS)
        text = _joined(
            "EndTransaction", round(time.time() * 1000), properties.get(names.MSG_REGION) or _REGION, self._group,
            topic, msg_id, properties.get(names.TAGS), keys, address, _COMMIT, msg_id, _STATES[status], from_check,
        )  # fmt: skip
        self._add(topic, [msg_id, *(keys or "").split(" ")], text)

    def recalled(self, topic: str, msg_id: str, region: str | None, *, success: bool) -> None:
        """Record the response to a recall. Args: topic: without namespace; region: of the broker; None: no record."""
        if region is None:
            return
        text = _joined("Recall", round(time.time() * 1000), region, self._group, topic, msg_id, success)
        self._add(topic, [msg_id], text)

    def _add(self, topic: str, keys: Iterable[Any], text: str) -> None:
        instance = self._instance
        if instance is None or len(self._records) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._records.append(_Record(topic, frozenset(str(key) for key in keys if key), text))
        if len(self._records) >= FLUSH_RECORDS and not self._asked:
            self._asked = True
            try:
                instance.loop.call_soon_threadsafe(self._flush_soon)
            except RuntimeError:  # the loop has ended
                pass

    # -- sends --------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if self._instance is not None:
            self._instance.spawn(self.flush(), "mqfast trace now")

    async def flush(self) -> None:
        """Send the collected records; records that a broker refuses are dropped."""
        self._asked = False
        instance, sender, lock = self._instance, self._sender, self._flushing
        if instance is None or sender is None or lock is None:
            return
        async with lock:
            for message in self._messages():
                try:
                    out = prepared(message, self._wire)
                    await instance.driver.run(sender.send(instance, out, SendOptions(_SEND_S)))
                except MqfastError as error:
                    self.dropped += 1
                    _log.info("trace of group %s: %s", self._group, error)

    def _messages(self) -> list[Message]:
        by_topic: dict[str, list[_Record]] = {}
        while self._records:
            record = self._records.popleft()
            by_topic.setdefault(record.topic, []).append(record)
        messages: list[Message] = []
        for records in by_topic.values():
            part: list[_Record] = []
            size = 0
            for record in records:
                length = len(record.text.encode("utf-8", "replace"))
                if part and size + length > MESSAGE_BYTES_MAX:
                    messages.append(self._message(part))
                    part, size = [], 0
                part.append(record)
                size += length
            messages.append(self._message(part))
        return messages

    def _message(self, records: list[_Record]) -> Message:
        keys = sorted(frozenset().union(*(record.keys for record in records)))
        return Message(self._topic, "".join(record.text for record in records), keys=" ".join(keys))


def _traced(context: ConsumeContext) -> list[Delivery]:
    """Return the messages of brokers that want traces (traceOn)."""
    return [message for message in context.messages if message.properties.get(names.TRACE_ON) != "false"]


def _kind(message: Message) -> int:
    given = message.properties if isinstance(message.properties, dict) else {}
    delayed = message.delay_level or message.delay_s or message.deliver_at
    return _DELAYED if delayed or given.get(names.DELAY) or given.get(names.TIMER_DELIVER_MS) else _NORMAL
