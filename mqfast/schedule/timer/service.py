"""The timer of a store: parks messages from the timer's queue in wheel and timer log, and delivers due messages
(RocketMQ: TimerMessageStore).

``run_once`` does a bounded part of the work and returns the time of the next call; no clock is read. No message is
delivered before the due time, even if the clock is set back. A message is delivered twice only after a kill. No message
is lost: the checkpoint claims only what was flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mqfast import properties as _properties
from mqfast.errors import CorruptFile, StorageError, UsageError
from mqfast.properties import jhash
from mqfast.schedule.timer.checkpoint import TimerCheckpoint, load_checkpoint
from mqfast.schedule.timer.delivery import NEVER_PARKED, TimerDelivery
from mqfast.schedule.timer.flush import TimerFlush, TimerFlusher
from mqfast.schedule.timer.metrics import TimerMetrics
from mqfast.schedule.timer.recovery import Recovered, recover
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.schedule.timer.slot import DueSlot
from mqfast.schedule.timer.timer_log import TimerLog
from mqfast.schedule.timer.wheel import TimerWheel
from mqfast.store.base.paths import list_offset_files
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.engine import GetLimits
from mqfast.store.reader.timer_files import DELETE, ROLL, SLOTS, TIMER_TOPIC
from mqfast.util.java_text import java_number

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore
    from mqfast.store.record.record import StoredMessage

__all__ = ["TimerService"]

_log = logging.getLogger("mqfast.schedule")

_BATCH_MESSAGES: Final = 100
_MAGIC: Final = 1
_POLL_MS: Final = 100  # while a message may be about to enter the queue
_POLL_FOR_MS: Final = 2000
_RETRY_MS: Final = 500
_EXPIRE_MS: Final = 30_000
_BATCH_BYTES: Final = 4 << 20  # of records read in one turn


class TimerService:
    """Parks and delivers the timed messages of an open store.

    Args: now_ms: the clock at the start; on_delivered: called with topic and size of each delivered message.
    Attributes: ``settings`` may be replaced by ``configure``; ``enqueued`` and ``dequeued`` count messages.
    Raises: CorruptFile for a file of a wrong length; StorageError.
    Thread: a single thread, except for ``TimerFlush.run``.
    """

    def __init__(
        self,
        store: MessageStore,
        settings: TimerSettings,
        now_ms: int,
        on_delivered: Callable[[str, int], object] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.paths = store.paths
        self._engine = store.engine
        self._precision = settings.precision_ms
        if self._precision <= 0:
            raise UsageError(f"timerPrecisionMs: expected more than 0, found {self._precision}")
        os_api = store.log.os_api
        files = list_offset_files(os_api, self.paths.timer_log)[0]
        size = os_api.file_size(files[0].path) if files else store.config.mapped_file_bytes_timer_log
        self.wheel = TimerWheel(os_api, self.paths.timer_wheel)
        self.log = TimerLog(os_api, self.paths.timer_log, size)
        self.metrics = TimerMetrics(os_api, f"{self.paths.config}/timermetrics")
        self._delivery = TimerDelivery(self._engine, self.metrics, settings, on_delivered)
        self._limits = GetLimits(
            max_transfer_bytes_on_message_in_memory=_BATCH_BYTES,
            max_transfer_count_on_message_in_memory=_BATCH_MESSAGES,
            max_transfer_bytes_on_message_in_disk=_BATCH_BYTES,
            max_transfer_count_on_message_in_disk=_BATCH_MESSAGES,
        )
        self._flusher = TimerFlusher(store, self.wheel, self.log, self.metrics)
        checkpoint = load_checkpoint(os_api, self.paths.timer_check)
        try:
            self._start(
                recover(
                    self.wheel, self.log, checkpoint, self._precision, store.log.written, self._flusher.has_snapshots
                ),
                now_ms,
            )
        except BaseException:
            self._close_files()
            raise
        self._checkpoint = checkpoint or TimerCheckpoint()
        self.enqueued = 0
        self.dequeued = 0
        self._last_statistics = (now_ms, 0, 0)

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """Return the checkpoint of the last prepared flush."""
        return self._checkpoint

    def _start(self, recovered: Recovered, now_ms: int) -> None:
        self._write = now_ms // self._precision  # slots before this step are due
        self._read = self._write if recovered.read is None else recovered.read  # slots before this step were delivered
        self._queue_offset = recovered.queue_offset
        self._unseen_end: int | None = None  # the end of the log when the offset was first outside the queue
        self._parked = recovered.parked
        self._delivered = recovered.delivered
        self._slot: DueSlot | None = None
        self._next_used: int | None = None  # None: unknown
        self._is_changed = False
        self._is_flushing = False
        self._flushes = self._failures = 0
        self._flushed_ms = self._expired_ms = now_ms
        self._retry_ms = 0
        self._retry_after_ms = max(1, _RETRY_MS * self._precision // 1000)
        self._poll_until_ms = now_ms + _POLL_FOR_MS
        self._is_woken = False

    def configure(self, settings: TimerSettings) -> None:
        """Use other settings from now on, except the precision."""
        self.settings = replace(settings, precision_ms=self._precision)
        self._delivery.settings = self.settings

    # --- the work ---

    def wake(self) -> None:
        """Poll the timer's queue soon: a message is about to enter."""
        self._is_woken = True

    def run_once(self, now_ms: int, max_messages: int = _BATCH_MESSAGES) -> int | None:
        """Park and deliver due messages, at most ``max_messages`` of each.

        Returns: the time of the next call, ms; None: after the next ``wake``. Raises: StoreClosed.
        """
        self._follow_clock(now_ms)
        if self._is_woken:
            self._is_woken = False
            self._poll_until_ms = now_ms + _POLL_FOR_MS
        more = False
        if self._retry_ms - now_ms > self._retry_after_ms:
            self._retry_ms = 0  # the clock was set back
        if now_ms >= self._retry_ms:
            try:
                more = self._work(now_ms, max_messages)
            except StorageError as error:
                _log.error("timer: waits for its files: %s", error)
                self._retry_later(now_ms)
        if not self._is_flushing and now_ms - self._expired_ms >= _EXPIRE_MS:
            self._expired_ms = now_ms
            self.log.expire(self.store.log.min_offset)
        return self._next_call_ms(now_ms, more)

    def _work(self, now_ms: int, max_messages: int) -> bool:
        more = False
        # The wheel has slots for 14 days; the oldest slots are emptied before they are used again.
        is_far_behind = self._write - self._read > SLOTS // 2
        if not is_far_behind and not self.settings.stop_enqueue:
            more = self._enqueue(now_ms, max_messages)
        if not self.settings.stop_dequeue:
            more = self._dequeue(now_ms, max_messages) or more or is_far_behind
        self.log.write()
        return more and now_ms >= self._retry_ms

    def _retry_later(self, now_ms: int) -> None:
        self._retry_ms = now_ms + self._retry_after_ms

    def _next_call_ms(self, now_ms: int, more: bool) -> int | None:
        if more:
            return now_ms
        times: list[int] = []
        if now_ms < self._retry_ms:
            times.append(self._retry_ms)
        elif not self.settings.stop_dequeue:
            if self._next_used is None or 0 <= self._next_used < self._read:
                self._next_used = self.wheel.next_used(self._read, self._read + SLOTS)
            if self._next_used >= 0:
                times.append((max(self._next_used, self._write) + 1) * self._precision)
        if now_ms < self._poll_until_ms or self.store.log.written > self.store.log.readable:
            times.append(now_ms + _POLL_MS)
        if self._is_changed:
            times.append(max(now_ms, self._flushed_ms + self.settings.flush_interval_ms))
        return min(times, default=None)

    def _follow_clock(self, now_ms: int) -> None:
        step = now_ms // self._precision
        if step < self._read or (step == self._read and self._slot is not None):
            self._on_clock_set_back(step, now_ms)
        self._write = step

    def _on_clock_set_back(self, step: int, now_ms: int) -> None:
        """Make the slots from the step on due again, without the delivered messages."""
        _log.warning("timer: the clock fell by about %d ms", (max(self._write, self._read) - step) * self._precision)
        if self._slot is not None:
            self._restore_slot(self._slot)
        bounds = self.wheel.bounds()
        if bounds is not None and bounds[1] - step >= SLOTS:
            self._repark(step)
        else:
            self.wheel.clear(step, self._read)
        self._read = self._write = step
        self._next_used = None
        self._poll_until_ms = min(self._poll_until_ms, now_ms + _POLL_FOR_MS)
        self._expired_ms = min(self._expired_ms, now_ms)
        # Before a message is parked for a time that the checkpoint counts as delivered.
        self.flush(now_ms)

    def _restore_slot(self, slot: DueSlot) -> None:
        """Build the slot again from the remaining units."""
        units = [unit for position in slot.remaining() if (unit := slot.unit(position)) is not None]
        placed = self._append_unlinked([(unit[3] + unit[4], unit[2], unit[3], *unit[5:]) for unit in units])
        self.wheel.clear(slot.step, slot.step + 1)
        for step, position, change in placed:
            self.wheel.put(step, position, change)
        self._slot = None

    def _repark(self, step: int) -> None:
        """Park the messages of slots that are too far ahead for a round of the wheel again, within the window."""
        self._write = step
        write_ms = step * self._precision
        units = []
        time = self.wheel.next_used(self._read, self._read + SLOTS)
        while time >= 0:
            slot = DueSlot(self.log, self._delivery, self.metrics, time, self.wheel.last(time))
            for position in slot.remaining():
                unit = slot.unit(position)
                if unit is None:
                    continue
                _, _, magic, written, delay, physical, size, topic_hash = unit
                due_ms, magic = self._within_window(written + delay, magic)
                units.append((due_ms, magic, write_ms, physical, size, topic_hash))
            time = self.wheel.next_used(time + 1, self._read + SLOTS)
        placed = self._append_unlinked(units)
        self.wheel.clear_all()
        for at, position, change in placed:
            self.wheel.put(at, position, change)

    def _append_unlinked(self, units: list[tuple[int, int, int, int, int, int]]) -> list[tuple[int, int, int]]:
        """Append units without a change of the wheel, so that no message is lost on a full disk.

        Args: units: due time, magic, write time, physical offset, size, topic hash. Returns: step, position and change
            for the wheel.
        """
        newest: dict[int, int] = {}
        placed = []
        for due_ms, magic, write_ms, physical, size, topic_hash in units:
            step = due_ms // self._precision
            position = self.log.append(
                newest.get(step, -1), magic, write_ms, due_ms - write_ms, physical, size, topic_hash
            )
            newest[step] = position
            placed.append((step, position, -1 if magic & DELETE else 1))
        return placed

    # --- enqueue ---

    def _enqueue(self, now_ms: int, max_messages: int) -> bool:
        """Park messages of the queue. Returns: True if more messages wait."""
        try:
            result = self._engine.get_records(
                TIMER_TOPIC, 0, self._queue_offset, max_messages, max_bytes=_BATCH_BYTES, limits=self._limits
            )
        except CorruptFile as error:
            _log.error("timer: the message at offset %d of the queue is not parked: %s", self._queue_offset, error)
            self._queue_offset += 1
            self._is_changed = True
            return True
        with result:
            for message in result.messages:
                if not self._enqueue_one(message, now_ms):
                    self._queue_offset = message.queue_offset
                    self._retry_later(now_ms)
                    return False
                self._queue_offset = message.queue_offset + 1
                self._is_changed = True
            if result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY and self._waits_for_readers():
                return False
            self._unseen_end = None
            if result.status in (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY):
                _log.warning("timer: offset %d of the queue is outside: %s", self._queue_offset, result.status.name)
                self._queue_offset = result.next_offset
                return True
            return len(result) > 0 and self._queue_offset < result.max_offset

    def _waits_for_readers(self) -> bool:
        """Return True while readers do not see the log as it was when the offset was first outside: the messages that
        were read before may be behind, as on a new master of a fail-over.
        """
        log = self.store.log
        if self._unseen_end is None:
            self._unseen_end = log.written
        return log.readable < min(self._unseen_end, log.written)

    def _enqueue_one(self, message: StoredMessage, now_ms: int) -> bool:
        """Park a message, or deliver a due message at once. Returns: False if the message must be tried again."""
        fields = message.properties
        out_ms = java_number(fields.get(_properties.TIMER_OUT_MS, ""), 2**63 - 1)
        if out_ms is None:
            _log.error("timer: the message at offset %d of the queue has no TIMER_OUT_MS", message.queue_offset)
            return True
        step = out_ms // self._precision
        before_offset, before_step = self._delivered
        if message.queue_offset < before_offset and step < before_step:
            return True
        topic = fields.get(_properties.REAL_TOPIC)
        is_delete = _properties.TIMER_DEL_UNIQKEY in fields
        is_parked = message.physical_offset in self._parked
        if step < self._write and not is_parked:
            if not self._delivery.deliver(message, fields, NEVER_PARKED, False, now_ms):
                return False
            self.dequeued += 1
        else:
            if not is_parked:
                magic = _MAGIC | (DELETE if is_delete else 0)
                topic_hash = 0 if topic is None else jhash(topic)
                self._park(out_ms, magic, message.physical_offset, message.size, topic_hash)
            if topic is not None:
                self.metrics.add(topic, -1 if is_delete else 1, now_ms)
        self.enqueued += 1
        return True

    def _park(self, due_ms: int, magic: int, physical: int, size: int, topic_hash: int) -> None:
        due_ms, magic = self._within_window(due_ms, magic)
        self._append(due_ms, magic, self._write * self._precision, physical, size, topic_hash)

    def _within_window(self, due_ms: int, magic: int) -> tuple[int, int]:
        """Return the time for which a message is parked: the due time, or an earlier time to roll."""
        write_ms = self._write * self._precision
        slots = self.settings.window_slots
        beyond = due_ms - write_ms - slots * self._precision
        if beyond < 0:
            return due_ms, magic
        # The rest for the next roll must not be short.
        steps = slots // 2 if beyond < slots // 3 * self._precision else slots
        return write_ms + steps * self._precision, magic | ROLL

    def _append(self, due_ms: int, magic: int, write_ms: int, physical: int, size: int, topic_hash: int) -> None:
        step = due_ms // self._precision
        position = self.log.append(
            self.wheel.last(step), magic, write_ms, due_ms - write_ms, physical, size, topic_hash
        )
        self.wheel.put(step, position, -1 if magic & DELETE else 1)
        if self._next_used is not None and (self._next_used < 0 or step < self._next_used):
            self._next_used = step

    # --- dequeue ---

    def _dequeue(self, now_ms: int, max_messages: int) -> bool:
        """Deliver due slots. Returns: True if more messages are due."""
        remaining = max_messages
        while self._read < self._write and remaining > 0:
            if self._slot is None:
                step = self.wheel.next_used(self._read, min(self._write, self._read + SLOTS))
                if step < 0:
                    self._read = self._write
                    break
                self._read = step
                self._slot = DueSlot(self.log, self._delivery, self.metrics, step, self.wheel.last(step))
            self._is_changed = True
            done = self._slot.advance(remaining, now_ms)
            remaining -= done
            self.dequeued += done
            if self._slot.waits:
                self._retry_later(now_ms)
                return False
            if self._slot.is_done:
                self._slot = None
                self._read += 1
        return self._read < self._write

    # --- flush ---

    def flush_is_due(self, now_ms: int) -> bool:
        """Return True if there are changes to flush and the interval has passed."""
        due_ms = self._flushed_ms + self.settings.flush_interval_ms
        return self._is_changed and not self._is_flushing and not self._flushed_ms <= now_ms < due_ms

    def prepare_flush(self, now_ms: int) -> TimerFlush:
        """Return the flush of the current state. ``end_flush`` must be called after its run."""
        self.log.write()
        self._flushed_ms = now_ms
        self._is_flushing = True
        self._is_changed = False
        self._flushes += 1
        read_ms = self._read * self._precision
        self._checkpoint = self._checkpoint.moved(read_ms, self.log.end, self._queue_offset, now_ms)
        return TimerFlush(self._flusher, self._flushes, self._checkpoint, self.metrics.text())

    def end_flush(self, error: BaseException | None = None) -> None:
        """Note the end of a flush. Args: error: the exception; the flush is then tried again after the interval."""
        self._is_flushing = False
        if error is None:
            self._failures = 0
            return
        self._is_changed = True
        self._failures += 1
        if self._failures in (1, 10, 100) or self._failures % 1000 == 0:
            _log.error("timer: flush %d in a row failed, and is tried again: %s", self._failures, error)

    def flush(self, now_ms: int) -> None:
        """Make all work durable. Raises: StorageError."""
        flush = self.prepare_flush(now_ms)
        try:
            flush.run()
        except BaseException as error:
            self.end_flush(error)
            raise
        self.end_flush()

    def close(self, now_ms: int) -> None:
        """Flush and close the files; to be called before the store is closed. Raises: StorageError."""
        try:
            if self._slot is not None:
                self._restore_slot(self._slot)
            self.flush(now_ms)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self.wheel.close()
        self.log.close()

    # --- queries ---

    @property
    def delivered_until_ms(self) -> int:
        """Return the time before which all messages were delivered."""
        return self._read * self._precision

    @property
    def queue_offset(self) -> int:
        """Return the offset in the timer's queue before which all messages were parked or delivered."""
        return self._queue_offset

    def next_due_ms(self) -> int | None:
        """Return the time of the next delivery; None without a parked message."""
        step = self.wheel.next_used(self._read, self._read + SLOTS)
        return None if step < 0 else (step + 1) * self._precision

    def is_crowded(self, due_ms: int, draw: Callable[[], int]) -> bool:
        """Return True if a message for this time is refused because the slot is full. Args: draw: a number from 0 to
        999.

        Source: TimerMessageStore.isReject.
        """
        limit = self.settings.congest_count_each_slot
        count = self.wheel.count(due_ms // self._precision)
        if count <= limit:
            return False
        return count >= 2 * limit or draw() > 1000 * (count - limit) / (limit + 0.1)

    def statistics(self, now_ms: int) -> dict[str, object]:
        """Return numbers for operators, by RocketMQ's names.

        These are: lag of deliveries in seconds, messages of the queue that are not parked yet, parked messages, and
        both rates per second since the previous call.
        """
        due = self.wheel.next_used(self._read, min(now_ms // self._precision, self._read + SLOTS))
        waiting = max(0, self.store.max_offset(TIMER_TOPIC, 0) - self._queue_offset)
        before_ms, enqueued, dequeued = self._last_statistics
        seconds = max(now_ms - before_ms, 1000) / 1000
        self._last_statistics = (now_ms, self.enqueued, self.dequeued)
        return {
            "timerReadBehind": 0 if due < 0 else (now_ms - due * self._precision) // 1000,
            "timerOffsetBehind": waiting,
            "timerCongestNum": self.wheel.count_from(self._read),
            "timerEnqueueTps": round((self.enqueued - enqueued) / seconds, 2),
            "timerDequeueTps": round((self.dequeued - dequeued) / seconds, 2),
        }
