"""What a broker learns at its start from the half and the op queue: which transactions are open.

Room: broker. It must never store anything, and never call a transaction open that has ended. A crash, or a broker of
RocketMQ, may have left a commit without its mark, a mark that names a half message which was stored once more
meanwhile, or two half messages of one transaction. Source: TransactionalMessageServiceImpl.fillOpRemoveMap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mqfast import properties as names
from mqfast.broker.context import BrokerContext
from mqfast.broker.metadata.topic_manager import HALF_TOPIC, OP_TOPIC, PARKED, SCHEDULE_TOPIC, TIMER_TOPIC
from mqfast.broker.send.restored_message import get_by_offset
from mqfast.broker.transaction.half_message import COMMIT, TRANSACTION_MASK, Key, ended_offsets, is_move, key_of
from mqfast.errors import CorruptFile, OffsetError
from mqfast.schedule.delay_levels import real_place
from mqfast.store.record.record import StoredMessage

__all__ = ["RecoveredTransactions", "find_open", "read_half"]

_log = logging.getLogger("mqfast.broker")
# How far a mark may be behind its commit: RocketMQ collects marks for 3 s, this broker writes them at once.
_MARK_LATE_MS: Final = 10_000
# Beyond that age of a transaction that was checked, its marks and its commit are not looked for.
_LOOK_BACK_MS: Final = 3_600_000
_LOOK_BACK_MAX: Final = 10_000


@dataclass
class RecoveredTransactions:
    """What the queues say.

    Attributes:
        open: half queue offset -> half message.
        ended: half queue offsets at or above the progress.
        marks: op queue offset, highest half queue offset that the mark names.
        again: key -> half queue offset of an open half message that was stored once more.
        unmarked: half queue offset -> half message of transactions that have ended without a mark that says so.
    """

    open: dict[int, StoredMessage] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    again: dict[Key, int] = field(default_factory=dict)
    unmarked: dict[int, StoredMessage] = field(default_factory=dict)

    def end(self, offset: int) -> None:
        """An open one has ended."""
        if (half := self.open.pop(offset, None)) is not None:
            self.unmarked[offset] = half
            key = key_of(half.properties)
            if key is not None and self.again.get(key) == offset:
                del self.again[key]


def read_half(context: BrokerContext, offset: int) -> StoredMessage | None:
    """The half message at a queue offset; None: it is there no more."""
    try:
        unit = context.engine.unit_at(HALF_TOPIC, 0, offset)
    except OffsetError:
        return None
    return get_by_offset(context, unit.physical_offset)


def find_open(context: BrokerContext, progress: int, op_progress: int) -> RecoveredTransactions:
    """Read both queues from their progress on, and a little before it where transactions were checked."""
    found = RecoveredTransactions()
    end = context.store.max_offset(OP_TOPIC, 0)
    named: list[int] = []
    for offset in range(op_progress, end):
        mark = _mark_at(context, offset)
        offsets = [] if mark is None else ended_offsets(mark)
        found.ended.update(one for one in offsets if one >= progress)
        found.marks.append((offset, max(offsets, default=-1)))
        if mark is not None and not is_move(mark):
            named += offsets
    _read_halves(context, progress, found)
    if not found.open:
        return found
    earliest_ms = _earliest_ms(context, found)
    if found.again:
        older: list[int] = []  # newest first
        for offset in range(op_progress - 1, max(-1, op_progress - 1 - _LOOK_BACK_MAX), -1):
            mark = _mark_at(context, offset)
            if mark is None or mark.store_timestamp < earliest_ms:
                break
            if not is_move(mark):
                older += ended_offsets(mark)
        _end_named(context, [*reversed(older), *named][-_LOOK_BACK_MAX:], found)
    _end_committed(context, earliest_ms, found)
    return found


def _mark_at(context: BrokerContext, offset: int) -> StoredMessage | None:
    try:
        return context.engine.unit_at(OP_TOPIC, 0, offset).record
    except (OffsetError, CorruptFile) as error:
        _log.error("the mark at offset %d of %s cannot be read and is left out: %s", offset, OP_TOPIC, error)
        return None


def _read_halves(context: BrokerContext, progress: int, found: RecoveredTransactions) -> None:
    """Read the half messages without a mark. Of one transaction only the newest is open."""
    newest: dict[Key, int] = {}
    for offset in range(progress, context.store.max_offset(HALF_TOPIC, 0)):
        if offset in found.ended:
            continue
        half = read_half(context, offset)
        if half is None:
            continue  # the next check looks again, and gives up on it
        pairs = half.properties
        key = key_of(pairs)
        if key is not None:
            if names.TRANSACTION_CHECK_TIMES in pairs or names.TRAN_PREPARED_QUEUE_OFFSET in pairs:
                if (older := newest.get(key)) is not None:
                    found.ended.add(older)
                    found.open.pop(older, None)
                found.again[key] = offset
            newest[key] = offset
        found.open[offset] = half


def _earliest_ms(context: BrokerContext, found: RecoveredTransactions) -> int:
    """Since when marks and commits of the open transactions may be in the log, so far as they are looked for."""
    last_ms = context.engine.log.last_store_timestamp
    born_ms = min((found.open[offset].born_timestamp for offset in found.again.values()), default=last_ms)
    return max(last_ms - _LOOK_BACK_MS, min(born_ms, last_ms - _MARK_LATE_MS))


def _end_named(context: BrokerContext, named: list[int], found: RecoveredTransactions) -> None:
    """A mark says that the transaction ended, and its half message was stored once more before RocketMQ wrote it."""
    for offset in named:
        half = read_half(context, offset)
        key = None if half is None else key_of(half.properties)
        newer = None if key is None else found.again.get(key)
        if newer is not None and newer > offset:
            found.end(newer)


def _end_committed(context: BrokerContext, earliest_ms: int, found: RecoveredTransactions) -> None:
    """The message of a transaction is in its queue, or parked: the transaction was committed."""
    by_place = {half.physical_offset: (offset, key_of(half.properties)) for offset, half in found.open.items()}
    queues = {(SCHEDULE_TOPIC, level) for level in range(len(context.store.config.delay_levels_ms))}
    queues.add((TIMER_TOPIC, 0))
    queues.update(place for half in found.open.values() if (place := real_place(half.properties)) is not None)
    for topic, queue_id in queues:
        for commit in _last_commits(context, topic, queue_id, earliest_ms):
            pairs = commit.properties
            # Of the message's own topic: whatever another topic holds, ends no transaction of this one.
            key = key_of(pairs if topic in PARKED else {**pairs, names.REAL_TOPIC: topic})
            offset, prepared = by_place.get(commit.prepared_transaction_offset, (None, None))
            # A committed message that was delayed, or given back, names place 0: there may be another half message.
            if offset is None or prepared != key:
                offset = None if key is None else found.again.get(key)
            if offset is not None and offset in found.open:
                _log.warning("the transaction at half queue offset %d was committed without a mark of it", offset)
                found.end(offset)


def _last_commits(context: BrokerContext, topic: str, queue_id: int, earliest_ms: int) -> Iterator[StoredMessage]:
    store, engine = context.store, context.engine
    end = store.max_offset(topic, queue_id)
    for offset in range(end - 1, max(store.min_offset(topic, queue_id), end - _LOOK_BACK_MAX) - 1, -1):
        try:
            record = engine.unit_at(topic, queue_id, offset).record
            if record.store_timestamp < earliest_ms:
                return
            if record.sys_flag & TRANSACTION_MASK == COMMIT:
                yield record
        except (OffsetError, CorruptFile):
            return
