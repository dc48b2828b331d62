"""Records of transactions: half messages, and their marks in the op queue.

Only builds records. Properties have RocketMQ's names and order. Source: TransactionalMessageBridge,
TransactionalMessageUtil, EndTransactionProcessor.endMessageTransaction.
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
# The order is that of a table with 16 buckets, as the broker creates one.
OP_PROPERTIES: Final = names.encode({names.WAIT: True, names.TAGS: OP_TAG}, buckets=16)
# RocketMQ writes no mark for a half message that is stored once more, and reads such marks like all others.
OP_MOVE_PROPERTIES: Final = OP_PROPERTIES + names.encode({names.REAL_TOPIC: HALF_TOPIC})
_V1: Final = 0xDAA320A7
_V2: Final = 0xDAA320AB
_SHORT_TOPIC_MAX: Final = 127
_SYS_FLAG_AT: Final = 36
_BORN_HOST_V6, _STORE_HOST_V6 = 16, 32
_LONG_MAX: Final = 2**63 - 1
Key = tuple[str, str]
"""Of a transaction: the topic, and the unique key, which is chosen by the producer and may collide."""


def key_of(pairs: dict[str, str]) -> Key | None:
    """Return the key of a half message; None: the message has none."""
    unique = pairs.get(names.UNIQ_KEY)
    return (pairs.get(names.REAL_TOPIC, ""), unique) if unique else None


def half_of(record: MessageRecord) -> MessageRecord:
    """Return the half message of a prepared message, which readers of the topic do not see yet."""
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
    """Return the properties of a committed half message: to store now, and to store if a delay or timer parks it."""
    now = {name: value for name, value in pairs.items() if name not in (names.REAL_TOPIC, names.REAL_QID)}
    return now, {name: value for name, value in now.items() if name != names.TRAN_MSG}


def times_checked(pairs: dict[str, str]) -> int | None:
    """Return the number of checks; None without checks; -1 for a property that is not a number, as in RocketMQ."""
    text = pairs.get(names.TRANSACTION_CHECK_TIMES)
    if text is None:
        return None
    number = java_number(text)
    return -1 if number is None else number


def checked(pairs: dict[str, str]) -> dict[str, str]:
    """Return the properties of a half message after one more check."""
    times = times_checked(pairs)
    return {**pairs, names.TRANSACTION_CHECK_TIMES: str(1 if times is None else times + 1)}


def op_body(offsets: Iterable[int]) -> bytes:
    """Return the body of a mark, which ends these half queue offsets."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def ended_offsets(op: StoredMessage) -> list[int]:
    """Return the half queue offsets of a mark; 4.x writes a single offset without the comma."""
    if op.tags != OP_TAG:
        return []
    numbers = [java_number(text, _LONG_MAX) for text in str(op.body, "utf-8", "replace").split(",") if text]
    return [offset for offset in numbers if offset is not None and offset >= 0]


def is_move(op: StoredMessage) -> bool:
    """Return True if the half messages of the mark were stored once more, so that their transactions have not ended."""
    return op.properties.get(names.REAL_TOPIC) == HALF_TOPIC


def check_body(half: StoredMessage, pairs: dict[str, str], queue_offset: int, physical_offset: int) -> bytes:
    """Return the body of a check (39): the record with the real topic, at the position of the newest half message.

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
