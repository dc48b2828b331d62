"""Recovery of the open transactions from the half and the op queue, at the start of a broker.

Stores nothing. A crash, or a broker of RocketMQ, may have left a commit without a mark, a mark of a half message that
was stored once more meanwhile, or two half messages of one transaction; an ended transaction is never open.
Source: TransactionalMessageServiceImpl.fillOpRemoveMap.
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
# The longest time from a commit to the mark: RocketMQ collects marks for 3 s, this broker writes marks at once.
_MARK_LATE_MS: Final = 10_000
# Marks and commits of older checked transactions are not searched for.
_LOOK_BACK_MS: Final = 3_600_000
_LOOK_BACK_MAX: Final = 10_000


@dataclass
class RecoveredTransactions:
    """The state by the two queues.

    Attributes:
        open: half queue offset -> half message.
        ended: half queue offsets at or above the progress.
        marks: op queue offset, highest half queue offset of the mark.
        again: key -> half queue offset of an open half message that was stored once more.
        unmarked: half queue offset -> half message of transactions that have ended without a mark.
    """

    open: dict[int, StoredMessage] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    again: dict[Key, int] = field(default_factory=dict)
    unmarked: dict[int, StoredMessage] = field(default_factory=dict)

    def end_transaction(self, offset: int) -> None:
        """End an open half message."""
        if (half := self.open.pop(offset, None)) is not None:
            self.unmarked[offset] = half
            key = key_of(half.properties)
            if key is not None and self.again.get(key) == offset:
                del self.again[key]


def read_half(context: BrokerContext, offset: int) -> StoredMessage | None:
    """Return the half message at a queue offset; None if the message was deleted."""
    try:
        unit = context.engine.unit_at(HALF_TOPIC, 0, offset)
    except OffsetError:
        return None
    return get_by_offset(context, unit.physical_offset)


def find_open(context: BrokerContext, progress: int, op_progress: int) -> RecoveredTransactions:
    """Read both queues from the progress on, and earlier marks if transactions were checked."""
    recovered = RecoveredTransactions()
    end = context.store.max_offset(OP_TOPIC, 0)
    named: list[int] = []
    for offset in range(op_progress, end):
        mark = _mark_at(context, offset)
        offsets = [] if mark is None else ended_offsets(mark)
        recovered.ended.update(ended for ended in offsets if ended >= progress)
        recovered.marks.append((offset, max(offsets, default=-1)))
        if mark is not None and not is_move(mark):
            named += offsets
    _read_halves(context, progress, recovered)
    if not recovered.open:
        return recovered
    earliest_ms = _earliest_ms(context, recovered)
    if recovered.again:
        older: list[int] = []  # newest first
        for offset in range(op_progress - 1, max(-1, op_progress - 1 - _LOOK_BACK_MAX), -1):
            mark = _mark_at(context, offset)
            if mark is None or mark.store_timestamp < earliest_ms:
                break
            if not is_move(mark):
                older += ended_offsets(mark)
        _end_named(context, [*reversed(older), *named][-_LOOK_BACK_MAX:], recovered)
    _end_committed(context, earliest_ms, recovered)
    return recovered


def _mark_at(context: BrokerContext, offset: int) -> StoredMessage | None:
    try:
        return context.engine.unit_at(OP_TOPIC, 0, offset).record
    except (OffsetError, CorruptFile) as error:
        _log.error("the mark at offset %d of %s cannot be read and is left out: %s", offset, OP_TOPIC, error)
        return None


def _read_halves(context: BrokerContext, progress: int, recovered: RecoveredTransactions) -> None:
    """Read the half messages without a mark. Of each transaction only the newest is open."""
    newest: dict[Key, int] = {}
    for offset in range(progress, context.store.max_offset(HALF_TOPIC, 0)):
        if offset in recovered.ended:
            continue
        half = read_half(context, offset)
        if half is None:
            continue  # the next check reads the message again, and gives up
        pairs = half.properties
        key = key_of(pairs)
        if key is not None:
            if names.TRANSACTION_CHECK_TIMES in pairs or names.TRAN_PREPARED_QUEUE_OFFSET in pairs:
                if (older := newest.get(key)) is not None:
                    recovered.ended.add(older)
                    recovered.open.pop(older, None)
                recovered.again[key] = offset
            newest[key] = offset
        recovered.open[offset] = half


def _earliest_ms(context: BrokerContext, recovered: RecoveredTransactions) -> int:
    """Return the earliest store time of marks and commits of the open transactions, within the search limit."""
    last_ms = context.engine.log.last_store_timestamp
    born_ms = min((recovered.open[offset].born_timestamp for offset in recovered.again.values()), default=last_ms)
    return max(last_ms - _LOOK_BACK_MS, min(born_ms, last_ms - _MARK_LATE_MS))


def _end_named(context: BrokerContext, named: list[int], recovered: RecoveredTransactions) -> None:
    """End transactions whose half message was stored once more before RocketMQ wrote the mark."""
    for offset in named:
        half = read_half(context, offset)
        key = None if half is None else key_of(half.properties)
        newer = None if key is None else recovered.again.get(key)
        if newer is not None and newer > offset:
            recovered.end_transaction(newer)


def _end_committed(context: BrokerContext, earliest_ms: int, recovered: RecoveredTransactions) -> None:
    """End transactions whose message is in the topic, or parked: the transaction was committed."""
    by_place = {half.physical_offset: (offset, key_of(half.properties)) for offset, half in recovered.open.items()}
    queues = {(SCHEDULE_TOPIC, level) for level in range(len(context.store.config.delay_levels_ms))}
    queues.add((TIMER_TOPIC, 0))
    queues.update(place for half in recovered.open.values() if (place := real_place(half.properties)) is not None)
    for topic, queue_id in queues:
        for commit in _last_commits(context, topic, queue_id, earliest_ms):
            pairs = commit.properties
            # Of the message's own topic: a message of another topic does not end the transaction.
            key = key_of(pairs if topic in PARKED else {**pairs, names.REAL_TOPIC: topic})
            offset, prepared = by_place.get(commit.prepared_transaction_offset, (None, None))
            # A committed message that was delayed, or sent back, has offset 0, where another half message may be.
            if offset is None or prepared != key:
                offset = None if key is None else recovered.again.get(key)
            if offset is not None and offset in recovered.open:
                _log.warning("the transaction at half queue offset %d was committed without a mark of it", offset)
                recovered.end_transaction(offset)


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
