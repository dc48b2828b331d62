"""Stored records as messages for gRPC clients. A record is only read. Source: GrpcConverter.buildMessage."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from mqfast import properties as names
from mqfast.grpc.messages import DeadLetterQueue, Digest, GrpcMessage, Resource, SystemProperties
from mqfast.remoting.signature import OF_THE_SIGNATURE
from mqfast.store.record.record import StoredMessage, decode_record

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["DELAY", "FIFO", "NORMAL", "PRIORITY", "PRIORITY_PROPERTY", "TRANSACTION", "message_of_record", "type_of"]

NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY = 1, 2, 3, 4, 5, 6
"""Types of messages."""
PRIORITY_PROPERTY: Final = "_SYS_MSG_PRIORITY_"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_COMPRESSED: Final = 1
_GZIP, _IDENTITY, _MD5 = 2, 1, 2
_MORE: Final = frozenset(
    {
        BORN_HOST, BORN_TIMESTAMP, TRACE_CONTEXT, PRIORITY_PROPERTY, "RECONSUME_TIME", "ORIGIN_GROUP", "__LITE_TOPIC",
        "CONSUME_START_TIME", "__CRC32#", *OF_THE_SIGNATURE,
    }
)  # fmt: skip


def type_of(properties: dict[str, str]) -> int:
    """Return the type of a message by its properties. Source: TopicMessageType.parseFromMessageProperty."""
    if properties.get(names.TRAN_MSG) == "true":
        return TRANSACTION
    if names.DELAY in properties or any(name.startswith("TIMER_") for name in properties):
        return DELAY
    if names.SHARDINGKEY in properties:
        return FIFO
    return PRIORITY if PRIORITY_PROPERTY in properties else NORMAL


def message_of_record(
    record: bytes | memoryview | StoredMessage,
    context: BrokerContext,
    *,
    topic: Resource | None = None,
    handle: str | None = None,
    reconsume_times: int | None = None,
    invisible_ms: int | None = None,
) -> GrpcMessage:
    """Return the message of a record.

    Args: topic: as the client named the topic; handle: for the ack; reconsume_times: earlier deliveries, if not those
    of the record.
    """
    stored = record if isinstance(record, StoredMessage) else decode_record(record)
    pairs = stored.properties
    body = bytes(stored.body)
    times = stored.reconsume_times if reconsume_times is None else reconsume_times
    due = pairs.get(names.TIMER_DELIVER_MS, "")
    priority = pairs.get(PRIORITY_PROPERTY, "")
    origin = pairs.get(names.DLQ_ORIGIN_TOPIC)
    system = SystemProperties(
        tag=pairs.get(names.TAGS),
        keys=pairs.get(names.KEYS, "").split(),
        message_id=pairs.get(names.UNIQ_KEY) or stored.message_id,
        body_digest=Digest(_MD5, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=_GZIP if stored.sys_flag & _COMPRESSED else _IDENTITY,
        message_type=type_of(pairs),
        born_timestamp=stored.born_timestamp,
        born_host=pairs.get(BORN_HOST) or stored.born_host,
        store_timestamp=stored.store_timestamp,
        store_host=stored.store_host,
        delivery_timestamp=int(due) if due.isdigit() and len(due) < 18 else None,
        receipt_handle=handle,
        queue_id=stored.queue_id,
        queue_offset=stored.record_queue_offset,
        invisible_duration=invisible_ms,
        delivery_attempt=times + 1,
        message_group=pairs.get(names.SHARDINGKEY),
        trace_context=pairs.get(TRACE_CONTEXT),
        dead_letter_queue=(
            None if origin is None else DeadLetterQueue(origin, pairs.get(names.DLQ_ORIGIN_MESSAGE_ID, ""))
        ),
        priority=int(priority) if priority.isdigit() and len(priority) < 10 else None,
    )
    users = {name: value for name, value in pairs.items() if name not in names.RESERVED and name not in _MORE}
    return GrpcMessage(topic or Resource("", pairs.get(names.RETRY_TOPIC) or stored.topic), users, system, body)
