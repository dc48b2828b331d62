"""The open half messages, by the half and the op queue, kept in memory.

No transaction ends twice, and no open transaction is forgotten. RocketMQ rebuilds this table (removeMap) in each check.
Source: TransactionalMessageServiceImpl.

A mark in the op queue ends a half message: the message was committed, rolled back, given up, or stored once more for a
check. RocketMQ writes no mark in the last case, so that two half messages are open after a crash. The progress of both
queues is the offset of the group CID_RMQ_SYS_TRANS: all offsets below have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import HALF_TOPIC, OP_TOPIC
from mqfast.broker.transaction.half_message import (
    OP_MOVE_PROPERTIES,
    OP_PROPERTIES,
    TRANSACTION_GROUP,
    Key,
    key_of,
    op_body,
)
from mqfast.broker.transaction.transaction_recovery import find_open, read_half
from mqfast.errors import MqfastError
from mqfast.store.put.put_result import PutResult
from mqfast.store.record.record import StoredMessage

__all__ = ["OpenTransactions"]

_log = logging.getLogger("mqfast.broker")
_AT_ONCE: Final = 64


class OpenTransactions:
    """The open half messages of a broker.

    Attributes: ``progress``: every half queue offset below has ended; ``stored_again_end``: the physical offset after
    the last half message that was stored once more.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._ended: set[int] = set()  # offsets at or above the progress
        self._marks: deque[tuple[int, int]] = deque()  # op queue offset, highest half queue offset of the mark
        self._again: dict[Key, int] = {}  # key -> offset of a half message that was stored once more
        self._unwritten: list[int] = []  # ended, with a mark that could not be stored yet
        self._unwritten_moves: list[int] = []
        self._topics: dict[int, str] = {}  # of open half messages that were counted
        self._counted_end = 0
        self.progress = 0
        self.stored_again_end = 0
        self._op_progress = 0

    # --- open transactions ---

    @property
    def end(self) -> int:
        """Return the offset after the last half message that readers see."""
        return self._context.store.max_offset(HALF_TOPIC, 0)

    @property
    def has_open(self) -> bool:
        """Return True if a transaction is open."""
        return self.progress < self.end

    def is_open(self, offset: int) -> bool:
        """Return True if the half message at this queue offset is open."""
        return offset >= self.progress and offset not in self._ended

    def newest(self, half: StoredMessage) -> int | None:
        """Return the queue offset of the newest half message of an open transaction; None if the transaction has ended.

        Args: half: any half message of the transaction, since a check may have stored a newer one; or a given up
        message.
        """
        offset = half.record_queue_offset
        if half.topic == HALF_TOPIC and self.is_open(offset):
            return offset
        key = key_of(half.properties)
        return None if key is None else self._again.get(key)

    def read(self, offset: int) -> StoredMessage | None:
        """Return the half message at a queue offset; None if the message was deleted."""
        return read_half(self._context, offset)

    async def count_by_topic(self) -> Counter[str]:
        """Return the number of open half messages by topic. Each message is read once; other tasks run in between."""
        end = self.end
        for offset in [counted for counted in self._topics if not self.is_open(counted)]:
            del self._topics[offset]
        for offset in range(max(self.progress, self._counted_end), end):
            if self.is_open(offset):
                half = self.read(offset)
                self._topics[offset] = "" if half is None else half.properties.get(names.REAL_TOPIC, "")
            if offset % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._counted_end = end
        return Counter(topic for offset, topic in self._topics.items() if self.is_open(offset))

    # --- ends ---

    def stored_again(self, key: Key | None, result: PutResult) -> None:
        """Note that a half message was stored once more, at this position."""
        self.stored_again_end = result.physical_offset + result.size
        if key is not None:
            self._again[key] = result.queue_offset

    def end_all(self, offsets: Sequence[int], key: Key | None = None) -> None:
        """End these half messages, with marks stored at once.

        Args: key: of the transaction that ended.
        """
        self.forget(key, offsets)
        self._mark(offsets, self._unwritten)

    def moved_all(self, offsets: Sequence[int]) -> None:
        """Mark these half messages as stored once more, or elsewhere, which does not end their transactions."""
        self._mark(offsets, self._unwritten_moves)

    def forget(self, key: Key | None, offsets: Sequence[int]) -> None:
        """Forget the key of a transaction that ended with one of these half messages."""
        if key is not None and self._again.get(key) in offsets:
            del self._again[key]

    def _mark(self, offsets: Sequence[int], unwritten: list[int]) -> None:
        self._ended.update(offset for offset in offsets if offset >= self.progress)
        unwritten += offsets
        self.write_marks()

    def write_marks(self) -> None:
        """Store the pending marks; marks that cannot be stored now stay pending."""
        self._write(self._unwritten, OP_PROPERTIES)
        self._write(self._unwritten_moves, OP_MOVE_PROPERTIES)
        self._advance()

    def _write(self, offsets: list[int], properties: bytes) -> None:
        if not offsets:
            return
        context = self._context
        try:
            result = context.engine.put_encoded(
                OP_TOPIC.encode(), 0, op_body(offsets), properties, born_timestamp=context.now_ms(),
                born_host=context.store_host, store_host=context.store_host, wait=False,
            )  # fmt: skip
        except MqfastError as error:
            context.writer.failed(error)  # logs the cause
            return
        self._marks.append((result.queue_offset, max(offsets)))
        offsets.clear()

    def _advance(self) -> None:
        before, op_before = self.progress, self._op_progress
        while self.progress in self._ended:
            self._ended.remove(self.progress)
            self.progress += 1
        while self._marks and self._marks[0][1] < self.progress:
            self._op_progress = self._marks.popleft()[0] + 1
        offsets = self._context.offsets
        if self.progress != before:
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, self.progress)
        if self._op_progress != op_before:
            offsets.commit(TRANSACTION_GROUP, OP_TOPIC, 0, self._op_progress)

    # --- start ---

    def load(self) -> None:
        """Load the open transactions from the queues: before any request, and when a fail-over has made this broker the
        master, since readers see the whole log only then.
        """
        self.progress = self._start(HALF_TOPIC)
        self._op_progress = self._start(OP_TOPIC)
        state = find_open(self._context, self.progress, self._op_progress)
        self._ended, self._marks, self._again = state.ended, state.marks, state.again
        self._ended.update(offset for offset in (*self._unwritten, *self._unwritten_moves) if offset >= self.progress)
        for offset, half in state.unmarked.items():
            self.end_all([offset], key_of(half.properties))
        self._advance()
        if state.open:
            _log.info("%d transactions are open; the first is at half queue offset %d", len(state.open), self.progress)

    def _start(self, topic: str) -> int:
        store = self._context.store
        noted = self._context.offsets.get(TRANSACTION_GROUP, topic, 0)
        low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
        start = min(max(noted, low), high)
        if noted not in (-1, start):
            _log.warning(
                "%s: offset %d is outside of the queue (%d to %d); it goes on at %d",
                topic,
                noted,
                low,
                high,
                start,
            )
        return start
