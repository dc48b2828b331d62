"""Tables with queues as keys, in what brokers ask of consumers: from the bytes of Java and Go, and to those of Java.

Room: client. It must never know a consumer. Source: ResetOffsetBody, GetConsumerStatusBody, ConsumerRunningInfo.
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
    """The table of a reset (220), with queues as keys or as a list. Raises: FieldError."""
    found = decode_body(body, _Table, "body").offset_table or {}
    if isinstance(found, list):
        return {MessageQueue(one.topic, one.broker_name, one.queue_id): one.offset for one in found}
    return {_queue(key): offset for key, offset in found.items()}


def _queue(key: str) -> MessageQueue:
    try:
        found = msgspec.json.decode(key, type=_Queue, strict=False)
    except msgspec.MsgspecError as error:
        raise FieldError("body.offsetTable", f"queues as keys ({str(error)[:80]})", key[:80]) from None
    return MessageQueue(found.topic, found.broker_name, found.queue_id)


def by_queue(table: Mapping[MessageQueue, Any]) -> Raw:
    """A table as JSON whose keys are whole queues, sorted."""
    rows = (
        ({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}, value)
        for queue, value in sorted(table.items())
    )
    return Raw(object_keys((encode_body(queue), encode_body(value)) for queue, value in rows))


build_tables(__name__)
