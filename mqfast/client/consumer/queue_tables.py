"""Tables with queues as keys in requests to consumers: decoded from Java and Go, encoded as Java does.
Source: ResetOffsetBody, GetConsumerStatusBody, ConsumerRunningInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from mqfast.client.values import MessageQueue
from mqfast.errors import FieldError
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.util.fastjson import object_keys

__all__ = ["by_queue", "offsets_of"]


class _Queue(Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


class _Row(_Queue):
    offset: int = -1


class _Table(Struct, rename="camel"):
    offset_table: dict[str, int] | list[_Row] | None = None


def offsets_of(body: bytes) -> dict[MessageQueue, int]:
    """Decode the table of a reset (220), with queues as keys or as a list. Raises: FieldError."""
    table = decode_body(body, _Table, "body").offset_table or {}
    if isinstance(table, list):
        return {MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in table}
    return {_queue(key): offset for key, offset in table.items()}


def _queue(key: str) -> MessageQueue:
    try:
        queue = msgspec.json.decode(key, type=_Queue, strict=False)
    except msgspec.MsgspecError as error:
        raise FieldError("body.offsetTable", f"queues as keys ({str(error)[:80]})", key[:80]) from None
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def by_queue(table: Mapping[MessageQueue, Any]) -> Raw:
    """Encode a table as JSON whose keys are queues as objects, sorted."""
    rows = (
        ({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}, value)
        for queue, value in sorted(table.items())
    )
    return Raw(object_keys((encode_body(queue), encode_body(value)) for queue, value in rows))


build_tables(__name__)
