"""Records of transactions: half messages, their marks in the op queue, and what becomes of a half message.

Room: broker. It must never store anything. Properties have RocketMQ's names and order. Source:
TransactionalMessageBridge, TransactionalMessageUtil, EndTransactionProcessor.endMessageTransaction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from mqfast import properties as names
from mqfast.broker.metadata.topic_manager import HALF_TOPIC
from mqfast.broker.send.message_writer import MessageRecord
from mqfast.store.record.record import StoredMessage
from mqfast.util.java_text import java_number

__all__ = [
    "COMMIT", "Key", "OP_MOVE_PROPERTIES", "OP_PROPERTIES", "ROLLBACK", "TRANSACTION_GROUP", "TRANSACTION_MASK",
    "check_body", "checked", "committed", "ended_offsets", "half_of", "is_move", "key_of", "op_body", "times_checked",
]  # fmt: skip

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
TRANSACTION_MASK: Final = 12
COMMIT: Final = 8
ROLLBACK: Final = 12
OP_TAG: Final = "d"
# The order is that of a table with 16 buckets, which the broker makes itself.
OP_PROPERTIES: Final = names.encode({names.WAIT: True, names.TAGS: OP_TAG}, buckets=16)
# RocketMQ writes no mark for a half message that it stores once more; it reads ours as any other, and goes on behind.
OP_MOVE_PROPERTIES: Final = OP_PROPERTIES + names.encode({names.REAL_TOPIC: HALF_TOPIC})
_V1: Final = 0xDAA320A7
_V2: Final = 0xDAA320AB
_SHORT_TOPIC_MAX: Final = 127
_SYS_FLAG_AT: Final = 36
_BORN_HOST_V6, _STORE_HOST_V6 = 16, 32
_LONG_MAX: Final = 2**63 - 1
Key = tuple[str, str]
"""Of a transaction: its topic, and its unique key, which its producer chose and others may choose as well."""


def key_of(pairs: dict[str, str]) -> Key | None:
    """Return the key of a half message; None: the message has none."""
    unique = pairs.get(names.UNIQ_KEY)
    return (pairs.get(names.REAL_TOPIC, ""), unique) if unique else None


def half_of(record: MessageRecord) -> MessageRecord:
    """The half message of a message that a producer prepares: readers of its topic do not see it yet."""
    pairs = names.decode(record.properties)
    if unique := pairs.get(names.UNIQ_KEY):
        pairs[names.TRANSACTION_ID] = unique
    pairs[names.REAL_TOPIC] = record.topic
    pairs[names.REAL_QID] = str(record.queue_id)
    return MessageRecord(
        HALF_TOPIC,
        0,
        record.body,
        names.encode(pairs),
        flag=record.flag,
        sys_flag=record.sys_flag & ~TRANSACTION_MASK,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
    )


def committed(pairs: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The properties of a half message that is committed: as it is stored now, and as a delay or timer parks it."""
    now = {name: value for name, value in pairs.items() if name not in (names.REAL_TOPIC, names.REAL_QID)}
    return now, {name: value for name, value in now.items() if name != names.TRAN_MSG}


def times_checked(pairs: dict[str, str]) -> int | None:
    """How often the producer was asked; None: never; -1: the property is no number, as RocketMQ counts that."""
    text = pairs.get(names.TRANSACTION_CHECK_TIMES)
    if text is None:
        return None
    number = java_number(text)
    return -1 if number is None else number


def checked(pairs: dict[str, str]) -> dict[str, str]:
    """The properties of a half message that is asked for once more."""
    times = times_checked(pairs)
    return {**pairs, names.TRANSACTION_CHECK_TIMES: str(1 if times is None else times + 1)}


def op_body(offsets: Iterable[int]) -> bytes:
    """The body of a mark: these half queue offsets are done with."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def ended_offsets(op: StoredMessage) -> list[int]:
    """The half queue offsets that a mark names; 4.x writes one of them, without the comma."""
    if op.tags != OP_TAG:
        return []
    found = [java_number(text, _LONG_MAX) for text in str(op.body, "utf-8", "replace").split(",") if text]
    return [offset for offset in found if offset is not None and offset >= 0]


def is_move(op: StoredMessage) -> bool:
    """Does the mark name half messages that were stored once more, and whose transactions have not ended by that?"""
    return op.properties.get(names.REAL_TOPIC) == HALF_TOPIC


def check_body(half: StoredMessage, pairs: dict[str, str], queue_offset: int, physical_offset: int) -> bytes:
    """The body of a check (39): the message as a record, under its real topic, at the place of its newest half message.

    Args: pairs: the properties of the newest half message. Source: MessageDecoder.encode.
    """
    body = bytes(half.body)
    text = {name: value for name, value in pairs.items() if name != names.CRC32}
    properties = names.encode({**text, names.WAIT: False})
    topic = pairs[names.REAL_TOPIC].encode()
    is_long = len(topic) > _SHORT_TOPIC_MAX
    hosts = sum(20 if half.sys_flag & bit else 8 for bit in (_BORN_HOST_V6, _STORE_HOST_V6))
    middle = half.to_bytes()[_SYS_FLAG_AT : _SYS_FLAG_AT + 32 + hosts]  # from the system flag to the prepared offset
    tail = b"".join(
        (
            struct.pack(">i", len(body)),
            body,
            struct.pack(">h" if is_long else ">b", len(topic)),
            topic,
            struct.pack(">h", len(properties)),
            properties,
        )
    )
    head = struct.pack(
        ">IIiiqq", _V2 if is_long else _V1, half.body_crc, int(pairs[names.REAL_QID]), half.flag, queue_offset,
        physical_offset,
    )  # fmt: skip
    return struct.pack(">i", 4 + len(head) + len(middle) + len(tail)) + head + middle + tail
