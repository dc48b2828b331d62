"""The requests of a POP consumer as request steps without I/O: pop, acks, another invisible time, notification.

The handle of a message is the property POP_CK, as in RocketMQ's clients. Source: MQClientAPIImpl.processPopResponse,
ExtraInfoUtil.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mqfast import properties as names
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Delivery, Source, decode_deliveries
from mqfast.client.net.request_steps import Request, RequestSteps, checked
from mqfast.errors import ClientError, ClientUsageError, CorruptFile, FieldError
from mqfast.message import RETRY_PREFIX
from mqfast.remoting.bodies import build_tables, encode_body, header_of
from mqfast.remoting.codes import RequestCode, ResponseCode

__all__ = ["BrokerReceiptHandle", "ack", "ack_all", "change_invisible_time", "handle_of", "has_messages", "pop"]

TIMEOUT_S: Final = 3.0
_LONGER_S: Final = 10.0  # longer than the broker holds the request
_EMPTY: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
_FIELDS: Final = 8


class BrokerReceiptHandle(NamedTuple):
    """The parts of POP_CK. Attributes: ``kind``: 0 the topic, 1 and 2 its retry topic by the two names of RocketMQ."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    kind: int
    broker_name: str
    queue_id: int
    offset: int

    def encode(self) -> str:
        """Return the text of the property."""
        return " ".join(map(str, self))

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic in which the message is."""
        return (
            topic
            if not self.kind or topic.startswith(RETRY_PREFIX)
            else f"{RETRY_PREFIX}{group}{'_' if self.kind == 1 else '+'}{topic}"
        )


class _Header(Struct, rename="camel"):
    pop_time: int
    invisible_time: int
    revive_qid: int
    start_offset_info: str = ""
    msg_offset_info: str = ""
    order_count_info: str = ""


class _Changed(Struct, rename="camel"):
    pop_time: int
    invisible_time: int
    revive_qid: int


def handle_of(message: Delivery) -> BrokerReceiptHandle:
    """Return the handle of a received message. Raises: UsageError for a message of another consumer."""
    text = message.properties.get(names.POP_CK)
    parts = text.split(" ") if text else []
    try:
        start, pop_time, invisible_ms, revive, kind, queue_id, offset = map(int, parts[:5] + parts[6:_FIELDS])
        return BrokerReceiptHandle(start, pop_time, invisible_ms, revive, kind, parts[5], queue_id, offset)
    except (ValueError, IndexError, TypeError):
        raise ClientUsageError(f"{message!r}: expected a message of receive(), found the handle {text!r}") from None


def pop(
    address: str,
    group: str,
    subscription: Subscription,
    source: Source,
    *,
    max_count: int,
    invisible_s: float,
    wait_s: float,
    from_max: bool,
    is_orderly: bool,
) -> RequestSteps[list[Delivery]]:
    """Request messages of all queues of a broker. Raises: BrokerError, NoRoute; ClientError for an invalid answer."""
    topic, broker = subscription.topic, source.broker_name
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": str(max_count),
        "invisibleTime": str(round(invisible_s * 1000)), "pollTime": str(round(wait_s * 1000)),
        "bornTime": "0", "initMode": str(int(from_max)), "bname": broker,
        "expType": subscription.kind, "exp": subscription.expression, "order": str(is_orderly).lower(),
    }  # fmt: skip
    answer = yield Request(address, RequestCode.POP_MESSAGE, fields, timeout_s=wait_s + _LONGER_S)
    about = f"pop of {topic} by group {group}"
    checked(answer, address, about, ResponseCode.SUCCESS, *_EMPTY)
    if answer.code in _EMPTY:
        return []
    try:
        header = header_of(answer, _Header)
        messages = decode_deliveries(answer.body, source)
        _set_handles(messages, header, group, topic, source)
    except (FieldError, CorruptFile, LookupError, ValueError) as error:
        raise ClientError(f"{about}: {address} answered with what is no answer: {error!r}") from error
    return messages


def _set_handles(messages: list[Delivery], header: _Header, group: str, topic: str, source: Source) -> None:
    """Set POP_CK of each message without one, from the header. Raises: LookupError, ValueError.

    A broker may leave a retry in its retry topic: one with long properties, or by popResponseReturnActualRetryTopic.
    """
    starts: dict[tuple[int, int], int] = {}
    for entry in _entries(header.start_offset_info):
        kind, queue_id, start = map(int, entry.split(" "))
        starts[kind, queue_id] = start
    counts: dict[str, int] = {}
    for _, place, count in (entry.split(" ") for entry in _entries(header.order_count_info)):
        counts[place] = int(count)
    kinds = {f"{RETRY_PREFIX}{group}_{topic}": 1, f"{RETRY_PREFIX}{group}+{topic}": 2}
    for message in messages:
        if names.POP_CK not in message.properties:
            kind = kinds.get(message.record_topic, 0)
            handle = BrokerReceiptHandle(
                starts[kind, message.queue_id], header.pop_time, header.invisible_time, header.revive_qid, kind,
                source.broker_name, message.queue_id, message.queue_offset,
            )  # fmt: skip
            message.properties[names.POP_CK] = handle.encode()
            if kind:
                source.retry_topic = message.record_topic
                message.properties[names.RETRY_TOPIC] = topic
            message.again = counts.get(f"qo{message.queue_id}%{message.queue_offset}", 0)
        message.properties.setdefault(names.FIRST_POP_TIME, str(header.pop_time))


def _entries(text: str) -> list[str]:
    return [entry for entry in text.split(";") if entry]


def _of_message(group: str, topic: str, handle: BrokerReceiptHandle) -> dict[str, Any]:
    return {
        "consumerGroup": group, "topic": handle.real_topic(topic, group), "queueId": str(handle.queue_id),
        "offset": str(handle.offset), "extraInfo": handle.encode(), "bname": handle.broker_name,
    }  # fmt: skip


def ack(address: str, group: str, topic: str, handle: BrokerReceiptHandle) -> RequestSteps[None]:
    """Acknowledge a message (200051). Raises: BrokerError, and the errors of the driver."""
    answer = yield Request(address, RequestCode.ACK_MESSAGE, _of_message(group, topic, handle), timeout_s=TIMEOUT_S)
    checked(answer, address, f"ack of {topic}, queue {handle.queue_id}, offset {handle.offset}")


def ack_all(address: str, group: str, handles: Sequence[tuple[str, BrokerReceiptHandle]]) -> RequestSteps[None]:
    """Acknowledge several messages of a broker by one request (200151), given by topic and handle."""
    acks = []
    for topic, handle in handles:
        position = handle.offset - handle.start_offset
        bits = (1 << position % 8).to_bytes(1, "little").rjust(position // 8 + 1, b"\0")
        acks.append({
            "c": group, "t": topic, "r": str(handle.kind), "so": handle.start_offset, "q": handle.queue_id,
            "rq": handle.revive_queue_id, "pt": handle.pop_time, "it": handle.invisible_ms,
            "b": base64.b64encode(bits).decode(),
        })  # fmt: skip
    body = encode_body({"acks": acks, "brokerName": handles[0][1].broker_name})
    answer = yield Request(address, RequestCode.BATCH_ACK_MESSAGE, None, body, timeout_s=TIMEOUT_S)
    checked(answer, address, f"ack of {len(handles)} messages by group {group}")


def change_invisible_time(
    address: str, group: str, topic: str, handle: BrokerReceiptHandle, invisible_s: float
) -> RequestSteps[BrokerReceiptHandle]:
    """Set another invisible time from now on (200053). Returns: the new handle."""
    fields = _of_message(group, topic, handle)
    fields["invisibleTime"] = str(round(invisible_s * 1000))
    answer = yield Request(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, timeout_s=TIMEOUT_S)
    about = f"invisible time of {topic}, queue {handle.queue_id}, offset {handle.offset}"
    checked(answer, address, about)
    try:
        header = header_of(answer, _Changed)
    except FieldError as error:
        raise ClientError(f"{about}: {address} answered with what is no answer: {error}") from error
    is_orderly = header.pop_time == handle.pop_time
    return handle._replace(
        start_offset=handle.start_offset if is_orderly else handle.offset,
        pop_time=header.pop_time,
        invisible_ms=header.invisible_time,
        revive_queue_id=header.revive_qid,
    )


def has_messages(address: str, group: str, topic: str, wait_s: float, *, is_orderly: bool) -> RequestSteps[bool]:
    """Wait until the group would get messages (200054). Returns: False at the end of the wait."""
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "pollTime": str(round(wait_s * 1000)),
        "bornTime": str(time.time_ns() // 1_000_000), "order": str(is_orderly).lower(),
    }  # fmt: skip
    answer = yield Request(address, RequestCode.NOTIFICATION, fields, timeout_s=wait_s + _LONGER_S)
    checked(answer, address, f"notification of {topic} for group {group}")
    return str(answer.ext_fields.get("hasMsg", "")).lower() == "true"


build_tables(__name__)
