"""Idempotent writes: the fields and properties that identify rows, of which a broker stores each once.

A task that writes rows sends its batches (320) and delayed messages (310) with the field ONCE. An mqfast broker keeps
the last row of each task and queue, and stores no row twice. Brokers of RocketMQ ignore the field. Each message ends
with the property SPK, which stores the same data with the message.

    field ONCE      key:batch:partition:previous:last:crc:queues.brokers
    property SPK    key:batch:partition:row:crc:queues.brokers
                    key:batch:done:rows:topics  of a record of the broker's own, where a batch is stored as a whole;
                                                topics with ; between
                    gone:topic                  of a record of the broker's own, where a topic was deleted

``key`` names the write, ``previous`` is the task's last row for this queue before the request, -1 where there was none.
``crc`` (8 hex digits) is the checksum of all rows of the task for this queue up to this row. ``queues.brokers`` is the
number of queues and of brokers for the rows of the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mqfast.util.java_text import java_whole

__all__ = [
    "ASK_ONCE", "END_ONCE", "KEY_MAX", "NUMBER_MAX", "ONCE", "STAMP", "VERSION",
    "RowSequence", "SequenceRange", "ended", "end_text", "gone", "gone_text",
]  # fmt: skip

ASK_ONCE: Final = 990_001
"""The request code for the state of a write at a broker; brokers without idempotent writes do not know the code."""
END_ONCE: Final = 990_002
"""The request code that marks a batch as stored as a whole: no task has to send rows of the batch again."""
ONCE: Final = "mqfastOnce"
"""The field of a send; in the response its value is the result of the rows: stored, before or rest."""
STAMP: Final = "SPK"  # mqfast.properties.STAMP
VERSION: Final = 1

_DONE: Final = "done"
_PARTS: Final = 6
_END_PARTS: Final = 5
_SPAN_PARTS: Final = 7
_GONE: Final = "gone"
_DIGITS_MAX: Final = 19
KEY_MAX: Final = 64
"""Characters of the name of a write."""
NUMBER_MAX: Final = (1 << 63) - 1
"""The largest batch, partition and row."""


class RowSequence(NamedTuple):
    """The sequence of a message; see above."""

    key: str
    batch: int
    partition: int
    row: int
    crc: int
    queues: int
    brokers: int

    @classmethod
    def parse(cls, text: str) -> RowSequence | None:
        """Return the sequence of a property's value; None: another kind of value."""
        parts = text.split(":")
        if len(parts) != _PARTS or not 0 < len(parts[0]) <= KEY_MAX:
            return None
        queues, _, brokers = parts[5].partition(".")
        try:
            batch, partition, row = map(java_whole, parts[1:4])
            element = cls(parts[0], batch, partition, row, int(parts[4], 16), java_whole(queues), java_whole(brokers))
        except ValueError:
            return None
        return element if min(element[1:]) >= 0 and max(element[1:]) <= NUMBER_MAX else None

    def text(self) -> str:
        """Return the value of the property."""
        return f"{self.key}:{self.batch}:{self.partition}:{self.row}:{self.crc:08x}:{self.queues}.{self.brokers}"


class SequenceRange(NamedTuple):
    """The rows of a request: after ``previous`` up to ``last``."""

    previous: int
    last: RowSequence

    @classmethod
    def parse(cls, text: str) -> SequenceRange | None:
        """Return the range of a field; None: the field cannot be decoded."""
        parts = text.split(":")
        if len(parts) != _SPAN_PARTS:
            return None
        last = RowSequence.parse(":".join((*parts[:3], *parts[4:])))
        try:
            previous = java_whole(parts[3])
        except ValueError:
            return None
        return cls(previous, last) if last is not None and -1 <= previous < last.row else None

    def text(self) -> str:
        """Return the value of the field."""
        row = self.last
        return (
            f"{row.key}:{row.batch}:{row.partition}:{self.previous}:{row.row}:{row.crc:08x}:{row.queues}.{row.brokers}"
        )


def end_text(key: str, batch: int, rows: int, topics: Iterable[str]) -> str:
    """Return the property value of a batch that is stored as a whole in these topics."""
    return f"{key}:{batch}:{_DONE}:{rows}:{';'.join(topics)}"


def ended(text: str) -> tuple[str, int, list[str]] | None:
    """Return (key, batch, topics) of a value of ``end_text``; None: another value."""
    parts = text.split(":")
    if len(parts) != _END_PARTS or parts[2] != _DONE or not parts[1].isdecimal() or len(parts[1]) > _DIGITS_MAX:
        return None
    return parts[0], int(parts[1]), parts[4].split(";")


def gone_text(topic: str) -> str:
    """Return the property value of a deleted topic, whose rows are deleted too."""
    return f"{_GONE}:{topic}"


def gone(text: str) -> str | None:
    """Return the topic of a value of ``gone_text``; None: another value."""
    name, _, topic = text.partition(":")
    return topic if name == _GONE and topic and ":" not in topic else None
