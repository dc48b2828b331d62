"""Which half messages are open: what the half and the op queue say, kept in memory.

Room: broker. It must never end a transaction twice, never forget an open one, and never look at more than it needs.
Source: TransactionalMessageServiceImpl, whose removeMap is made anew in each check.

A half message ends when a mark in the op queue names it: it was committed, rolled back, given up, or stored once more
for a check. RocketMQ writes no mark in the last case, so that a crash leaves it with two open half messages. The
progress of both queues is that of the group CID_RMQ_SYS_TRANS: everything below is done with.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from mqfast import properties as names
from mqfast.broker.again.half import COMMIT, OP_PROPERTIES, TRANSACTION_GROUP, TRANSACTION_MASK, ended_offsets, op_body
from mqfast.broker.again.stored_again import look
from mqfast.broker.context import BrokerContext
from mqfast.broker.topics import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from mqfast.errors import CorruptFile, MqfastError, OffsetError
from mqfast.schedule.delay_levels import real_place
from mqfast.store.put._put_result import PutResult
from mqfast.store.record._record import StoredMessage

__all__ = ["OpenHalves"]

_log = logging.getLogger("mqfast.broker")
# How far a mark may be behind its commit at a crash: RocketMQ collects marks for 3 s, this broker writes them at once.
_LOOK_BACK_MS: Final = 10_000


class OpenHalves:
    """The open half messages of a broker.

    Attributes: ``progress``: every half queue offset below has ended; ``stored_again_end``: the physical offset behind
    the last half message that was stored once more.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._ended: set[int] = set()  # at or above the progress
        self._marks: deque[tuple[int, int]] = deque()  # op queue offset, highest half queue offset that it names
        self._again: dict[str, int] = {}  # unique key -> offset of a half message that was stored once more
        self._unwritten: list[int] = []  # ended, but the mark could not be stored
        self.progress = 0
        self.stored_again_end = 0
        self._op_progress = 0

    # --- what is open ---

    @property
    def end(self) -> int:
        """Behind the last half message that readers see."""
        return self._context.store.max_offset(HALF_TOPIC, 0)

    def is_open(self, offset: int) -> bool:
        """Is the half message at this queue offset open?"""
        return offset >= self.progress and offset not in self._ended

    def newest(self, half: StoredMessage) -> int | None:
        """The queue offset by which an open transaction is known now; None: it has ended.

        Args: half: any half message of it, since a check may have stored it once more; or what was given up.
        """
        offset = half.record_queue_offset
        if half.topic == HALF_TOPIC and self.is_open(offset):
            return offset
        return self._again.get(half.properties.get(names.UNIQ_KEY, ""))

    def read(self, offset: int) -> StoredMessage | None:
        """The half message at a queue offset; None: it is there no more."""
        try:
            unit = self._context.engine.unit_at(HALF_TOPIC, 0, offset)
        except OffsetError:
            return None
        return look(self._context, unit.physical_offset)

    # --- what ends ---

    def stored_again(self, unique: str | None, result: PutResult) -> None:
        """A half message was stored once more, there."""
        self.stored_again_end = result.physical_offset + result.size
        if unique:
            self._again[unique] = result.queue_offset

    def end_all(self, offsets: Sequence[int], unique: str | None = None) -> None:
        """These half messages have ended: mark them, at once.

        Args: unique: the key of a transaction that ended with them.
        """
        self.forget(unique, offsets)
        self._ended.update(offset for offset in offsets if offset >= self.progress)
        self._unwritten += offsets
        self.write_marks()

    def forget(self, unique: str | None, offsets: Sequence[int]) -> None:
        """A transaction ended with one of these: its older half messages lead nowhere."""
        if unique is not None and self._again.get(unique) in offsets:
            del self._again[unique]

    def write_marks(self) -> None:
        """Store the mark of what has ended; what cannot be stored now is in the next one."""
        if not self._unwritten:
            return
        context = self._context
        try:
            result = context.engine.put_encoded(
                OP_TOPIC.encode(), 0, op_body(self._unwritten), OP_PROPERTIES, born_timestamp=context.now_ms(),
                born_host=context.store_host, store_host=context.store_host, wait=False,
            )  # fmt: skip
        except MqfastError as error:
            context.writer.failed(error)  # logs the cause
            return
        self._marks.append((result.queue_offset, max(self._unwritten)))
        self._unwritten = []
        self._advance()

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
        """Learn from the queues what is open; once, before any request."""
        self.progress = self._start(HALF_TOPIC)
        self._op_progress = self._start(OP_TOPIC)
        late = self._load_marks()
        open_ones = self._load_halves()
        self._end_late(late, open_ones)
        self._end_committed(open_ones)
        self._advance()
        if open_ones:
            _log.info("%d transactions are open; the first is at half queue offset %d", len(open_ones), self.progress)

    def _start(self, topic: str) -> int:
        store = self._context.store
        noted = self._context.offsets.get(TRANSACTION_GROUP, topic, 0)
        least, most = store.min_offset(topic, 0), store.max_offset(topic, 0)
        start = min(max(noted, least), most)
        if noted not in (-1, start):
            _log.warning(
                "%s: offset %d is outside of the queue (%d to %d); it goes on at %d", topic, noted, least, most, start
            )
        return start

    def _load_marks(self) -> list[int]:
        """Read the marks. Returns: what they name of half messages below the progress."""
        late: list[int] = []
        engine = self._context.engine
        for offset in range(self._op_progress, self._context.store.max_offset(OP_TOPIC, 0)):
            try:
                named = ended_offsets(engine.unit_at(OP_TOPIC, 0, offset).record)
            except (OffsetError, CorruptFile) as error:
                _log.error("the mark at offset %d of %s cannot be read and is left out: %s", offset, OP_TOPIC, error)
                named = []
            for one in named:
                if one >= self.progress:
                    self._ended.add(one)
                else:
                    late.append(one)
            self._marks.append((offset, max(named, default=-1)))
        return late

    def _load_halves(self) -> dict[int, StoredMessage]:
        """Read the open half messages. Of one transaction only the newest is open."""
        found: dict[int, StoredMessage] = {}
        newest: dict[str, int] = {}
        for offset in range(self.progress, self.end):
            if offset in self._ended:
                continue
            half = self.read(offset)
            if half is None:
                continue  # the next check looks again, and gives up on it
            pairs = half.properties
            unique = pairs.get(names.UNIQ_KEY)
            if unique and (names.TRANSACTION_CHECK_TIMES in pairs or names.TRAN_PREPARED_QUEUE_OFFSET in pairs):
                if (older := newest.get(unique)) is not None:
                    self._ended.add(older)
                    found.pop(older, None)
                self._again[unique] = offset
            if unique:
                newest[unique] = offset
            found[offset] = half
        return found

    def _end_late(self, late: list[int], open_ones: dict[int, StoredMessage]) -> None:
        """A mark may name a half message that a broker of RocketMQ had stored once more already: that one has ended."""
        for offset in late if self._again else ():
            half = self.read(offset)
            unique = None if half is None else half.properties.get(names.UNIQ_KEY)
            newer = None if unique is None else self._again.get(unique)
            if newer is not None:
                open_ones.pop(newer, None)
                self.end_all([newer], unique)

    def _end_committed(self, open_ones: dict[int, StoredMessage]) -> None:
        """A crash may have come between a commit and its mark: whose message is in its queue already has ended."""
        if not open_ones:
            return
        by_place = {half.physical_offset: offset for offset, half in open_ones.items()}
        queues = {(SCHEDULE_TOPIC, level) for level in range(len(self._context.store.config.delay_levels_ms))}
        queues.add((TIMER_TOPIC, 0))
        queues.update(place for half in open_ones.values() if (place := real_place(half.properties)) is not None)
        for topic, queue_id in queues:
            for prepared in self._last_commits(topic, queue_id, min(by_place)):
                if (offset := by_place.get(prepared)) is not None and offset in open_ones:
                    half = open_ones.pop(offset)
                    _log.warning(
                        "the transaction at half queue offset %d was committed without a mark; it has one now", offset
                    )
                    self.end_all([offset], half.properties.get(names.UNIQ_KEY))

    def _last_commits(self, topic: str, queue_id: int, least: int) -> Iterator[int]:
        """The prepared offset of each recent commit in a queue, down to a physical offset."""
        store, engine = self._context.store, self._context.engine
        earliest_ms = engine.log.last_store_timestamp - _LOOK_BACK_MS
        for offset in range(store.max_offset(topic, queue_id) - 1, store.min_offset(topic, queue_id) - 1, -1):
            try:
                record = engine.unit_at(topic, queue_id, offset).record
                if record.physical_offset < least or record.store_timestamp < earliest_ms:
                    return
                if record.sys_flag & TRANSACTION_MASK == COMMIT:
                    yield record.prepared_transaction_offset
            except (OffsetError, CorruptFile):
                return
