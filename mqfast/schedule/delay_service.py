"""Delivers the messages of delay levels when they are due.

Each level is a queue of SCHEDULE_TOPIC_XXXX with units that have the delivery time as tags code. A due message is
stored again under its real topic; the body is not decoded. Invariants: no delivery before the time, the order of a
level is kept, stored progress is never ahead of durable deliveries, and a call is limited to one turn. Source:
ScheduleMessageService.

After the clock was set back, the first message of a level may be further away than the whole delay of the level. The
messages parked at that moment then wait for a whole delay: none is early, and none stalls. RocketMQ delivers such
messages at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, MessageIllegal, MqfastError, OffsetError, StoreClosed
from mqfast.schedule.delay_levels import SCHEDULE_TOPIC, DelayLevels, real_place

if TYPE_CHECKING:
    from mqfast.store.engine import QueueUnit
    from mqfast.store.message_store import MessageStore
    from mqfast.store.meta.metadata import DelayOffsetTable
    from mqfast.store.put.put_result import PutResult

__all__ = ["DelayService"]

_log = logging.getLogger("mqfast.schedule")

_LEVEL_BATCH: Final = 16  # messages of a level before the next level is served
_IDLE_MS: Final = 1000  # poll interval of an empty level
_RETRY_MS: Final = 100  # after a failed put
# Smaller values are no time: the hash of tags, as 4.x rebuilds units, or an address of an extension.
_NO_TIME: Final = 1 << 32


class _Level:
    """The progress of a level, and the state of the first message."""

    __slots__ = ("capped_end", "capped_ms", "number", "offset", "retry_ms", "snapshot", "warned")

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        self.offset = offset  # the next queue offset
        self.retry_ms = 0  # not before
        self.capped_ms = 0  # latest delivery time of units before capped_end
        self.capped_end = 0
        self.snapshot = (0, offset)  # a physical offset, and the progress that is safe once the log is durable there
        self.warned = False

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelayService:
    """Delivers due messages of all levels, a bounded step per call of ``run_once``.

    Args:
        store: an open store.
        offsets: the table of ``delayOffset.json``. The table only gets durable progress, so that it may be persisted at
        any time.
        levels: the delays.
        turn_ms: approximate time limit of a step.
        on_delivered: called with topic, queue id and outcome of every delivery.
    Thread: no concurrent calls. Durability: progress that is not in the file at a crash is delivered again, as in
        RocketMQ.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: DelayOffsetTable,
        levels: DelayLevels,
        *,
        turn_ms: float = 2.0,
        on_delivered: Callable[[str, int, PutResult], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._table = offsets
        self._levels = levels
        self._turn_s = turn_ms / 1000
        self._on_delivered = on_delivered
        self._clock = clock or time.perf_counter
        self._states = [_Level(number, offsets.get(number)) for number in range(1, len(levels.delays_ms) + 1)]
        self._first = 0
        self._result: PutResult | None = None
        for level in self._states:
            self._correct(level)

    def offset(self, level: int) -> int:
        """Return the next queue offset of a level to deliver."""
        return self._states[level - 1].offset

    def offsets(self) -> dict[int, int]:
        """Return the next queue offset of every level with deliveries; the disk may have smaller offsets."""
        return {level.number: level.offset for level in self._states if level.offset}

    @property
    def has_unnoted_progress(self) -> bool:
        """Return True if a level has delivered messages that the table does not contain yet."""
        return any(level.offset != self._table.get(level.number) for level in self._states)

    def run_once(self, now_ms: int) -> int:
        """Deliver due messages, for a turn at most.

        Args: now_ms: the time of day.
        Returns: ms until the next turn; 0: more messages are due now.
        Raises: StoreClosed.
        """
        end_s = self._clock() + self._turn_s
        while (wait_ms := self._pass(now_ms, end_s)) == 0 and self._clock() < end_s:
            pass
        self.settle()
        return wait_ms

    def _pass(self, now_ms: int, end_s: float) -> int:
        """Serve every level once, from the level at which the last pass ended. Returns: as run_once."""
        wait_ms = _IDLE_MS
        count = len(self._states)
        for i in range(count):
            level = self._states[(self._first + i) % count]
            before = level.offset
            wait_ms = min(wait_ms, self._run_level(level, now_ms))
            if level.offset != before and self._clock() >= end_s:
                self._first = (self._first + i + 1) % count
                return 0
        return wait_ms

    def settle(self) -> None:
        """Store the durable progress in the table."""
        log = self._store.engine.log
        flushed, written = log.flushed, log.written
        for level in self._states:
            end, offset = level.snapshot
            if flushed >= end:
                if offset != self._table.get(level.number):
                    self._table.set(level.number, offset)
                level.snapshot = (written, level.offset)

    def stop(self) -> None:
        """Make the deliveries durable and store all progress. Raises: FlushError, StoreFailed; then no progress is
        stored.
        """
        self._store.flush()
        self.settle()
        self.settle()  # the first call stored the progress of the last snapshot; this one stores the rest

    # -- one level -----------------------------------------------------------------------------------------------------

    def _run_level(self, level: _Level, now_ms: int) -> int:
        if not 0 <= level.retry_ms - now_ms <= _RETRY_MS:
            level.retry_ms = 0
        if level.retry_ms > now_ms:
            return level.retry_ms - now_ms
        end = self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)
        for _ in range(_LEVEL_BATCH):
            if level.offset >= end:
                if level.offset > end:
                    self._correct(level)
                return _IDLE_MS
            try:
                unit = self._store.engine.unit_at(SCHEDULE_TOPIC, level.queue_id, level.offset)
            except OffsetError:
                before = level.offset
                self._correct(level)
                if level.offset == before:
                    return _IDLE_MS
                continue
            wait_ms = self._due_ms(level, unit, now_ms, end) - now_ms
            if wait_ms > 0:
                return min(wait_ms, _IDLE_MS)
            if not self._deliver(level, unit, now_ms):
                return _RETRY_MS
            level.offset += 1
        return 0

    def _correct(self, level: _Level) -> None:
        """Move the offset into the bounds of the queue, which retention or a truncation may have changed."""
        min_offset = self._store.min_offset(SCHEDULE_TOPIC, level.queue_id)
        max_offset = self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)
        offset = min(max(level.offset, min_offset), max(min_offset, max_offset))
        if offset != level.offset:
            _log.warning(
                "delay level %d: offset %d is outside of its queue (%d to %d); the level goes on at %d",
                level.number, level.offset, min_offset, max_offset, offset,
            )  # fmt: skip
            level.offset = offset
            level.snapshot = (0, offset)

    def _due_ms(self, level: _Level, unit: QueueUnit, now_ms: int, end: int) -> int:
        delay_ms = self._levels.delay_ms(level.number)
        due_ms = unit.tags_code
        if due_ms < _NO_TIME:
            try:
                due_ms = unit.record.store_timestamp + delay_ms
            except (OffsetError, CorruptFile):
                return now_ms  # the delivery logs the error
        if due_ms <= now_ms + delay_ms:
            return due_ms
        if unit.queue_offset >= level.capped_end or level.capped_ms > now_ms + delay_ms:
            _log.warning(
                "delay level %d: the message at offset %d is due in %d ms, but the delay is %d ms: the clock was set "
                "back, or the delay was longer; what is parked now waits for one delay at most",
                level.number, unit.queue_offset, due_ms - now_ms, delay_ms,
            )  # fmt: skip
            level.capped_ms, level.capped_end = now_ms + delay_ms, end
        return level.capped_ms

    def _deliver(self, level: _Level, unit: QueueUnit, now_ms: int) -> bool:
        """Store a message for the consumers. Returns: True if the level may continue behind the message."""
        try:
            place = real_place(unit.record.properties)
            if place is None:
                self._skip(level, unit, "expected REAL_TOPIC and REAL_QID of a queue that messages are delivered to")
                return True
            topic, queue_id = place
            result = self._store.engine.put_stored(
                unit.physical_offset,
                topic.encode(),
                queue_id,
                prepared_transaction_offset=0,
                wait=False,
                result=self._result,
            )
        except (CorruptFile, OffsetError, MessageIllegal) as error:
            self._skip(level, unit, str(error))
            return True
        except StoreClosed:
            raise
        except MqfastError as error:
            if not level.warned:
                _log.warning("delay level %d: a delivery failed and is tried again: %s", level.number, error)
            level.warned = True
            level.retry_ms = now_ms + _RETRY_MS
            return False
        level.warned = False
        self._result = result
        if self._on_delivered is not None:
            self._on_delivered(topic, queue_id, result)
        return True

    def _skip(self, level: _Level, unit: QueueUnit, why: str) -> None:
        _log.error(
            "delay level %d: the message at offset %d (physical offset %d) cannot be delivered and stays in %s: %s",
            level.number, unit.queue_offset, unit.physical_offset, SCHEDULE_TOPIC, why,
        )  # fmt: skip
