"""Storing a message of the log once more, under the topic that delay levels and timers determine.

Neither copies the body nor waits for the disk. Source: MessageStore.putMessage with a MessageExtBrokerInner that was
made of a stored message.
"""

from __future__ import annotations

from typing import NamedTuple

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.send.message_writer import MessageRecord, Refusal
from mqfast.errors import (
    CorruptFile,
    DiskFull,
    MapFailed,
    MessageIllegal,
    MqfastError,
    OffsetError,
    PageCacheBusy,
    PropertiesTooLong,
    StorageError,
    StoreClosed,
)
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.put.put_result import PutResult
from mqfast.store.record.record import StoredMessage

__all__ = ["MessageCopy", "get_by_offset", "put_copy", "status_of"]


class MessageCopy(NamedTuple):
    """The outcome: status, topic, position if stored; ``refusal``: of a timer."""

    status: PutMessageStatus
    topic: str
    result: PutResult | None
    refusal: Refusal | None = None


def get_by_offset(context: BrokerContext, physical_offset: int) -> StoredMessage | None:
    """Return the message that starts at a physical offset; None if there is none."""
    try:
        return context.engine.log.message(physical_offset, True)
    except (OffsetError, CorruptFile):
        return None


def put_copy(
    context: BrokerContext,
    source: StoredMessage,
    topic: str,
    queue_id: int,
    pairs: dict[str, str],
    *,
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
    prepared_transaction_offset: int = 0,
    store_host: bytes | None = None,
    when_parked: dict[str, str] | None = None,
    may_be_parked: bool = True,
) -> MessageCopy:
    """Store a message once more.

    Args: source: of the log; pairs: the new properties; sys_flag, reconsume_times, store_host: None: those of the
    message; when_parked: the properties if a delay or a timer parks the message; may_be_parked: False: no delay
    applies.
    """
    kept = source.sys_flag if sys_flag is None else sys_flag
    again = source.reconsume_times if reconsume_times is None else reconsume_times
    try:
        properties = names.encode(pairs)
        asked = MessageRecord(
            topic,
            queue_id,
            b"",
            properties if when_parked is None or not may_be_parked else names.encode(when_parked),
            flag=source.flag,
            sys_flag=kept,
            born_timestamp=source.born_timestamp,
            reconsume_times=again,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        other = context.writer.deferred(asked) if may_be_parked else asked
        if isinstance(other, Refusal):
            return MessageCopy(PutMessageStatus.MESSAGE_ILLEGAL, topic, None, other)
        result = context.engine.put_stored(
            source.physical_offset,
            other.topic.encode(),
            other.queue_id,
            properties if other is asked else other.properties,
            sys_flag=kept,
            store_host=store_host,
            reconsume_times=again,
            prepared_transaction_offset=prepared_transaction_offset,
            wait=False,
        )
    except MqfastError as error:
        context.writer.failed(error)  # logs the cause
        return MessageCopy(status_of(error), topic, None)
    context.stats.put(other.topic, 1, result.size)
    return MessageCopy(PutMessageStatus.PUT_OK, other.topic, result)


def status_of(error: MqfastError) -> PutMessageStatus:
    """Return RocketMQ's status for a failed put."""
    if isinstance(error, PropertiesTooLong):
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, MessageIllegal):
        return PutMessageStatus.MESSAGE_ILLEGAL
    if isinstance(error, PageCacheBusy):
        return PutMessageStatus.OS_PAGE_CACHE_BUSY
    if isinstance(error, MapFailed):
        return PutMessageStatus.CREATE_MAPPED_FILE_FAILED
    if isinstance(error, (DiskFull, StorageError, StoreClosed)):
        return PutMessageStatus.SERVICE_NOT_AVAILABLE
    return PutMessageStatus.UNKNOWN_ERROR
