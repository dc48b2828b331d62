"""Redelivery: a message that was not acked in time is stored again, in the retry topic or with the dead letters.

A delivered retry has the original topic and the property POP_CK. Source: PopReviveService.reviveRetry,
PopMessageProcessor.popMsgFromQueue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast import properties as names
from mqfast.broker.metadata.topic_manager import RETRY_PREFIX, dlq_topic
from mqfast.broker.pop.receipt_handle import RETRY_V1, RETRY_V2, pop_retry_topic
from mqfast.broker.send.restored_message import MessageCopy, put_copy
from mqfast.errors import OffsetError
from mqfast.store.record.record import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqfast.broker.context import BrokerContext
    from mqfast.store.engine import GetMessageResult

__all__ = ["is_of_group", "message_at", "origin_topic", "put_dead_letter", "put_retry", "records_of", "with_topic"]

ORIGIN_GROUP: Final = "ORIGIN_GROUP"
_MAX_RETRIES: Final = 16  # RocketMQ: retryMaxTimes
_DLQ_QUEUES: Final = 1
_MAGIC_V1: Final = bytes.fromhex("daa320a7")
_MAGIC_V2: Final = bytes.fromhex("daa320ab")
_V1_TOPIC_MAX: Final = 127
_HEAD_BYTES: Final = 8


def message_at(context: BrokerContext, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
    """Return exactly the message at a queue offset; None if deleted. Raises: CorruptFile, StorageError."""
    try:
        return context.engine.log.message(context.engine.unit_at(topic, queue_id, offset).physical_offset, True)
    except OffsetError:
        return None


def origin_topic(topic: str, group: str) -> str:
    """Return the topic of the request for a retry topic of a group."""
    for prefix in (f"{RETRY_PREFIX}{group}+", f"{RETRY_PREFIX}{group}_"):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def is_of_group(message: StoredMessage, topic: str, group: str) -> bool:
    """Return False for a retry of another group: ``%RETRY%a_b_T`` is the retry topic of a for b_T, and of a_b for T.

    A group that the name of the topic cannot mean is ignored: RocketMQ before 5.4 leaves the property as the original
    has it.
    """
    if not topic.startswith(RETRY_PREFIX) or origin_topic(topic, group) == topic:
        return True
    other = message.properties.get(ORIGIN_GROUP, group)
    return other == group or origin_topic(topic, other) == topic


def put_retry(
    context: BrokerContext, message: StoredMessage, topic: str, group: str, pop_time: int, *, is_suspended: bool
) -> MessageCopy:
    """Store a message again for a group; after ``retryMaxTimes`` redeliveries with the dead letters.

    Args: topic: in which the message was delivered; is_suspended: the redelivery does not count.
    """
    reconsume_times = message.reconsume_times + (not is_suspended)
    rules = context.groups.table.get(group) or {}
    if not is_suspended and reconsume_times > int(rules.get("retryMaxTimes", _MAX_RETRIES)):
        return put_dead_letter(context, message, topic, group)
    kind = RETRY_V2 if context.config["enableRetryTopicV2"] else RETRY_V1
    target = pop_retry_topic(topic, group, kind)
    context.topics.ensure(target, 1)
    if context.offsets.get(group, target, 0) < 0:
        context.offsets.commit(group, target, 0, context.store.min_offset(target, 0))
    pairs = message.properties
    if message.reconsume_times == 0 or names.FIRST_POP_TIME not in pairs:
        pairs[names.FIRST_POP_TIME] = str(pop_time)
    pairs[ORIGIN_GROUP] = group
    return _put(context, message, target, pairs, reconsume_times)


def put_dead_letter(context: BrokerContext, message: StoredMessage, topic: str, group: str) -> MessageCopy:
    """Store a message in the dead letter topic of a group."""
    target = dlq_topic(group)
    context.topics.ensure(target, _DLQ_QUEUES)
    pairs = message.properties
    origin = origin_topic(topic, group)
    pairs[names.RETRY_TOPIC] = origin
    pairs.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    copy = _put(context, message, target, pairs, message.reconsume_times)
    if copy.result is not None:
        context.stats.add("SEND_TO_DLQ", f"{origin}@{group}")
    return copy


def _put(
    context: BrokerContext, message: StoredMessage, target: str, pairs: dict[str, str], reconsume_times: int
) -> MessageCopy:
    if context.writer.right is not None:
        context.writer.right.check()
    return put_copy(
        context, message, target, 0, pairs,
        reconsume_times=reconsume_times, store_host=context.store_host, may_be_parked=False,
    )  # fmt: skip


def records_of(got: GetMessageResult) -> Iterator[memoryview]:
    """Yield the record of each message of a get, as a view of the log."""
    for buffer in got.buffers:
        at = 0
        while at < len(buffer):
            size = int.from_bytes(buffer[at : at + 4], "big")
            yield buffer[at : at + size]
            at += size


def with_topic(message: StoredMessage, raw: memoryview, topic: str, pairs: dict[str, str]) -> bytes:
    """Return the record of a message with another topic and other properties, for a client. Args: raw: the record."""
    name, properties = topic.encode(), names.encode(pairs)
    before = 1 if raw[4:8] == _MAGIC_V1 else 2
    head = len(raw) - before - len(message.topic_bytes) - 2 - len(message.properties_bytes)
    length = bytes([len(name)]) if len(name) <= _V1_TOPIC_MAX else len(name).to_bytes(2, "big")
    magic = _MAGIC_V1 if len(length) == 1 else _MAGIC_V2
    tail = b"".join((length, name, len(properties).to_bytes(2, "big"), properties))
    return b"".join(((head + len(tail)).to_bytes(4, "big"), magic, raw[_HEAD_BYTES:head], tail))
