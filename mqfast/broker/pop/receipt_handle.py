"""Receipt handles of POP: the property POP_CK of a message, and the texts of a response from which clients build it.

A handle comes back from a client and is not signed: each field is checked before use. Source: ExtraInfoUtil.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mqfast.broker.metadata.topic_manager import RETRY_PREFIX
from mqfast.errors import FieldError

__all__ = [
    "NORMAL", "ORDER_QUEUE", "RETRY_V1", "RETRY_V2", "ReceiptHandle", "kind_of", "message_offsets", "order_counts",
    "pop_retry_topic", "start_offsets",
]  # fmt: skip

NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2
"""Kinds of topics in a handle: the topic of the request, and the two names of its retry topic."""
ORDER_QUEUE: Final = 999
"""The revive queue id of orderly POP, which writes no records."""
_FIELDS: Final = 8
_FIELDS_MAX: Final = 10  # with the physical offset that gateways append
_I32: Final = 2**31 - 1
_I64: Final = 2**63 - 1
_NUMBERS: Final = (
    ("ckQueueOffset", _I64), ("popTime", _I64), ("invisibleTime", _I64), ("reviveQid", _I32), ("topicFlag", RETRY_V2),
)  # fmt: skip


def pop_retry_topic(topic: str, group: str, kind: int) -> str:
    """Return the topic of a kind: the topic itself, or a retry topic of the group for this topic."""
    if kind == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    return f"{RETRY_PREFIX}{group}{'_' if kind == RETRY_V1 else '+'}{topic}"


def kind_of(topic: str, group: str) -> int:
    """Return the kind of a topic as its own group reads it."""
    if topic.startswith(f"{RETRY_PREFIX}{group}+"):
        return RETRY_V2
    return RETRY_V1 if topic.startswith(RETRY_PREFIX + group) else NORMAL


class ReceiptHandle(NamedTuple):
    """The place of a delivered message, and the time for which other consumers do not get the message.

    Attributes: ``start_offset``: the first queue offset of the delivered batch; ``pop_time``, ``invisible_ms``: begin
        and length of the invisible time, ms; ``revive_queue_id``: the queue of the batch's records, ORDER_QUEUE for
        orderly POP; ``kind``: NORMAL, RETRY_V1 or RETRY_V2; ``queue_id``, ``offset``: of the message.
    """

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    kind: int
    broker_name: str
    queue_id: int
    offset: int

    @property
    def due_ms(self) -> int:
        """Return the time of redelivery, ms since the epoch."""
        return self.pop_time + self.invisible_ms

    def encode(self) -> str:
        """Return the text of the property POP_CK."""
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str, field: str = "extraInfo") -> ReceiptHandle:
        """Parse eight fields; the ninth and tenth of gateways are ignored. Raises: FieldError."""
        parts = text.split(" ")
        if not _FIELDS <= len(parts) <= _FIELDS_MAX:
            raise FieldError(field, "8 fields separated by spaces", f"{len(parts)}: {text[:200]!r}")
        numbers = [
            _number(f"{field}.{name}", part, highest) for (name, highest), part in zip(_NUMBERS, parts, strict=False)
        ]
        if not parts[5]:
            raise FieldError(f"{field}.brokerName", "a name", "none")
        queue_id = _number(f"{field}.queueId", parts[6], _I32)
        offset = _number(f"{field}.queueOffset", parts[7], _I64)
        return cls(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], parts[5], queue_id, offset)


def _number(field: str, text: str, highest: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_I64))
    if not is_number or int(text) > highest:
        raise FieldError(field, f"0 to {highest}", repr(text[:40]))
    return int(text)


def start_offsets(batches: Iterable[tuple[int, int, int]]) -> str:
    """Return ``startOffsetInfo`` of (kind, queue id, start offset)."""
    return ";".join(f"{kind} {queue_id} {start}" for kind, queue_id, start in batches)


def message_offsets(batches: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """Return ``msgOffsetInfo`` of (kind, queue id, offsets)."""
    return ";".join(f"{kind} {queue_id} {','.join(map(str, offsets))}" for kind, queue_id, offsets in batches)


def order_counts(queue_id: int, counts: dict[int, int], messages: int) -> str:
    """Return ``orderCountInfo`` of a queue: the earlier deliveries of each offset, and the fewest of the queue.

    Args: counts: by offset, above 0; messages: the number of messages of the batch.
    """
    each = [f"0 qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    fewest = min(counts.values()) if counts and len(counts) == messages else 0
    return ";".join([*each, f"0 {queue_id} {fewest}"])
