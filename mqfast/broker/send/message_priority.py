"""The queue of a message with a priority: the queue with the number of the priority, whatever queue the producer chose.

Reads the property ``_SYS_MSG_PRIORITY_`` only, and nothing of the topic. Source: SendMessageProcessor (5.4),
TopicMessageType.parseFromMessageProperty.
"""

from __future__ import annotations

from typing import Final

from mqfast import properties as names

__all__ = ["PRIORITY", "placed_by_priority"]

PRIORITY: Final = b"_SYS_MSG_PRIORITY_"
_OTHER_TYPES: Final = (names.DELAY, names.SHARDINGKEY)
_DIGITS_MAX: Final = 10


def placed_by_priority(properties: bytes, queue_id: int, write_queues: int) -> tuple[int, bytes]:
    """Return queue id and properties of a message to store; a message of another type loses the priority."""
    pairs = names.decode(properties)
    text = pairs.get(PRIORITY.decode(), "")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return queue_id, properties
    is_other = pairs.get(names.TRAN_MSG) == "true" or any(name.startswith("TIMER_") for name in pairs)
    if is_other or any(name in pairs for name in _OTHER_TYPES):
        return queue_id, b"".join(
            pair + b"\x02" for pair in properties.split(b"\x02") if pair and not pair.startswith(PRIORITY + b"\x01")
        )
    return max(0, min(int(text), write_queues - 1)), properties
