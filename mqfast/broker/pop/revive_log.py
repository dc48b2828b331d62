"""The revive log: redelivery of messages without ack, and the progress of the topic ``rmq_sys_REVIVE_LOG_<cluster>``.

Batches of this process become due by a timer, from memory. Records of earlier processes, of Java brokers among them,
are read from the topic, which the timing wheel fills: such a batch is redelivered once all acks up to its due time have
been read. The group's progress in the topic passes no check-point with a message that is neither acked nor stored
again. So a kill repeats messages, and loses none. Source: PopReviveService.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqfast import properties as names
from mqfast.broker.metadata.topic_manager import TIMER_TOPIC
from mqfast.broker.pop.check_point import (
    ACK,
    BATCH_ACK,
    CHECK_POINT,
    LIFE,
    REVIVE_GROUP,
    Batch,
    decode_ack,
    decode_check_point,
    revive_topic,
)
from mqfast.broker.pop.retry_message import message_at, origin_topic, put_retry
from mqfast.errors import CorruptFile, FieldError, MqfastError, StoreClosed
from mqfast.util.log_limit import LogLimit

if TYPE_CHECKING:
    import asyncio

    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pop.in_flight import InFlight
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.store.record.record import StoredMessage

__all__ = ["ReviveLog"]

_log = logging.getLogger("mqfast.broker")
_TURN_S: Final = 0.003
_SCAN_MS: Final = 500
_FOREIGN_SCAN_MS: Final = 100
_MARKS_MAX: Final = 100
_SCAN_RECORDS: Final = 32
_LONGEST_S: Final = 1.0  # the wall clock may change meanwhile
_AFTER_FAILURE_MS: Final = 1000


class _Queue:
    """The state of a revive queue. ``read``: the next offset to read; ``open``: check-points that are still needed."""

    __slots__ = ("open", "read")

    def __init__(self, read: int) -> None:
        self.read = read
        self.open: deque[tuple[int, Batch]] = deque()


class ReviveLog:
    """Redelivers messages.

    Args: on_room: called with topic and group of a message that is no
        longer in flight.
    Attributes: ``topic``: of the records; ``life``: names this process in its records; ``redelivered``: messages so
        far; ``timed_records``: records so far that came through the timing wheel.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        in_flight: InFlight,
        timers: BrokerTimers,
        on_room: Callable[[str, str], object],
    ) -> None:
        self._context: Final = context
        self._in_flight: Final = in_flight
        self._timers: Final = timers
        self._on_room: Final = on_room
        self.topic: Final = revive_topic(context.config["brokerClusterName"])
        self.life: Final = secrets.token_hex(6)
        self.redelivered = 0
        self.timed_records = 0
        self._queues: list[_Queue] = []
        self._scanned_ms = 0
        self._foreign = 0  # batches of earlier processes in ``open``
        self._complete_ms = 0  # the topic has all records with a due time up to here
        self._marks: deque[tuple[int, int]] = deque()  # times, and the end of the timer's queue at each
        self._delivered: tuple[int, int] | None = None  # a mark that the wheel has passed, and the end of the log then
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._is_running = False
        self._limit = LogLimit(_log)

    def start(self) -> None:
        """Begin after the last processed record of each revive queue."""
        store, offsets = self._context.store, self._context.offsets
        for queue_id in range(self.queue_count):
            offset = offsets.get(REVIVE_GROUP, self.topic, queue_id) + 1
            end = store.max_offset(self.topic, queue_id)
            self._queues.append(_Queue(min(max(offset, store.min_offset(self.topic, queue_id)), end)))
        self._is_running = True
        self._run_in(0.0)

    def stop(self) -> None:
        """Redeliver nothing more."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def queue_count(self) -> int:
        """Return the number of revive queues."""
        config = self._context.topics.get(self.topic)
        count: int = self._context.config["reviveQueueNum"]
        return max(1, count if config is None else config.write_queue_nums)

    # --- runs ---

    def wake(self) -> None:
        """Note that the next due time may have changed."""
        due_ms = self._in_flight.next_due_ms
        if due_ms is not None and self._is_running:
            self._run_in(max(0.0, min((due_ms - self._context.now_ms()) / 1000, _LONGEST_S)))

    def _run_in(self, delay_s: float) -> None:
        at_s = self._context.loop.time() + delay_s
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._context.loop.call_at(at_s, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._is_running:
            return
        redelivered = self.redelivered
        try:
            is_done = self.run_once(self._context.now_ms())
            if self.redelivered != redelivered:
                self._context.writer.flush_soon()
        except StoreClosed:
            return
        except Exception:
            _log.exception("a turn of POP's redelivery failed, the next one is in %d ms", _AFTER_FAILURE_MS)
            self._run_in(_AFTER_FAILURE_MS / 1000)
            return
        self._run_in(self._scan_ms / 1000 if is_done else 0.0)
        self.wake()

    def run_once(self, now_ms: int) -> bool:
        """Redeliver what is due, for some milliseconds. Returns: False if more is due. Raises: StoreClosed."""
        until_s = time.monotonic() + _TURN_S
        for batch in self._in_flight.take_due(now_ms):
            is_done = False
            try:
                is_done = self._redeliver(batch)
            finally:  # also after an exception: else the batch would be due again after a restart only
                if not is_done:
                    self._in_flight.due_at(now_ms + _AFTER_FAILURE_MS, batch)
            if time.monotonic() > until_s:
                return False
        if not 0 <= now_ms - self._scanned_ms < self._scan_ms:
            if not self.scan(until_s):
                return False
            self._scanned_ms = now_ms
        return True

    @property
    def _scan_ms(self) -> int:
        return _FOREIGN_SCAN_MS if self.has_foreign else _SCAN_MS

    def _redeliver(self, batch: Batch) -> bool:
        """Store the pending messages of a batch again. Returns: False if a message must be tried again."""
        context, origin = self._context, origin_topic(batch.topic, batch.group)
        # After a kill a retry topic may be in the log and not yet in the table.
        if context.topics.get(origin) is None or batch.group not in context.groups.table:
            self._in_flight.forget(batch)
            return True
        is_done = True
        for offset in sorted(batch.pending):
            if self._store_again(batch, offset):
                self._in_flight.settle(batch, offset)
            else:
                is_done = False
        self._on_room(origin, batch.group)
        return is_done

    def _store_again(self, batch: Batch, offset: int) -> bool:
        """Store a message of a batch again. Returns: False if the message must be tried again. Raises: StoreClosed."""
        context, place = self._context, (offset, batch.topic, batch.queue_id, batch.group)
        try:
            message = message_at(context, batch.topic, batch.queue_id, offset)
            if message is None:  # deleted by retention
                return True
            copy = put_retry(
                context, message, batch.topic, batch.group, batch.pop_time, is_suspended=batch.is_suspended
            )
            reason: object = copy.status.name
            is_stored = copy.result is not None
        except StoreClosed:
            raise
        except CorruptFile as error:
            _log.error("offset %d of topic %s, queue %d, is not redelivered to group %s: %s", *place, error)
            return True
        except MqfastError as error:
            reason, is_stored = error, False
        if is_stored:
            self.redelivered += 1
        else:
            self._limit.warning("put", "offset %d of topic %s, queue %d, waits for group %s: %s", *place, reason)
        return is_stored

    # --- the topic ---

    def scan(self, until_s: float) -> bool:
        """Read new records, redeliver due batches of earlier processes, commit the progress. Returns: False: once more.

        A record is parked until its due time, so the acks of a batch are in the topic once the wheel has delivered all
        messages up to the due time of the batch.
        """
        self._follow_timer()
        is_done = True
        for queue_id, queue in enumerate(self._queues):
            is_at_end = self._read(queue_id, queue, until_s)
            if is_at_end:
                is_at_end = self._redeliver_foreign(queue, until_s)
            while queue.open and not queue.open[0][1].pending:
                self._foreign -= not queue.open.popleft()[1].is_own
            self._commit(queue_id, queue)
            is_done = is_done and is_at_end
        return is_done

    def _follow_timer(self) -> None:
        """Find out up to which due time the topic has all records that were stored before that time, for readers."""
        timer, now_ms, log = self._timers.service, self._context.now_ms(), self._context.engine.log
        if timer is None:
            return
        if self._complete_ms > now_ms:  # the clock was set back
            self._complete_ms = 0
            self._marks.clear()
            self._delivered = None
        self._marks.append((now_ms, self._context.store.max_offset(TIMER_TOPIC, 0)))
        while self._marks and self._delivered is None:
            mark_ms, end = self._marks[0]
            if timer.queue_offset < end or timer.delivered_until_ms < mark_ms:
                break
            self._delivered = mark_ms, log.written
            self._marks.popleft()
            self._complete_if_readable()
        self._complete_if_readable()
        if self.has_foreign:
            self._timers.advance()
        elif len(self._marks) > _MARKS_MAX:
            self._marks.clear()

    def _complete_if_readable(self) -> None:
        """Note that readers have what the wheel had delivered: with SYNC_FLUSH after a sync."""
        log = self._context.engine.log
        if self._delivered is not None and min(log.readable, log.dispatched) >= self._delivered[1]:
            self._complete_ms, self._delivered = self._delivered[0], None

    @property
    def has_foreign(self) -> bool:
        """Return True if a batch of an earlier process waits for redelivery."""
        return self._foreign > 0

    def _redeliver_foreign(self, queue: _Queue, until_s: float) -> bool:
        """Redeliver due batches of earlier processes. Returns: False if the time is over before."""
        for _, batch in queue.open:
            if not batch.is_own and batch.pending and batch.due_ms <= self._complete_ms:
                self._redeliver(batch)
                if time.monotonic() > until_s:
                    return False
        return True

    def _read(self, queue_id: int, queue: _Queue, until_s: float) -> bool:
        """Read records up to the end of a queue. Returns: False if the time is over before."""
        context = self._context
        while queue.read < context.store.max_offset(self.topic, queue_id):
            try:
                got = context.engine.get_records(self.topic, queue_id, queue.read, _SCAN_RECORDS)
            except CorruptFile as error:
                self._limit.warning("record", "record %d of %s is damaged: %s", queue.read, self.topic, error)
                queue.read += 1
                continue
            with got:
                for message in got.messages:
                    self._enter(queue_id, queue, message)
                if got.next_offset <= queue.read:
                    return True
                queue.read = got.next_offset
            if time.monotonic() > until_s:
                return False
        return True

    def _enter(self, queue_id: int, queue: _Queue, message: StoredMessage) -> None:
        pairs = message.properties
        tag, is_own = pairs.get(names.TAGS), pairs.get(LIFE) == self.life
        broker: str = self._context.config["brokerName"]
        self.timed_records += names.TIMER_OUT_MS in pairs
        try:
            if tag == CHECK_POINT and is_own:
                batch = self._in_flight.get(pairs.get(names.UNIQ_KEY, "").removesuffix("@ck"))
            elif tag == CHECK_POINT:
                batch = decode_check_point(bytes(message.body), queue_id, broker)
                known = self._in_flight.get(batch.key)
                if known is None:
                    self._in_flight.add(batch)
                else:
                    batch = known
            elif tag in (ACK, BATCH_ACK) and not is_own:
                self._ack(*decode_ack(bytes(message.body), broker))
                return
            else:
                return
        except FieldError as error:
            self._limit.warning("record", "record %d of %s is skipped: %s", message.queue_offset, self.topic, error)
            return
        if batch is not None:
            queue.open.append((message.queue_offset, batch))
            self._foreign += not batch.is_own

    def _ack(self, key: str, offsets: tuple[int, ...]) -> None:
        batch = self._in_flight.get(key)
        if batch is not None:
            for offset in offsets:
                self._in_flight.settle(batch, offset)

    def _commit(self, queue_id: int, queue: _Queue) -> None:
        """Commit the offset of the last record that no later process needs."""
        last = (queue.open[0][0] if queue.open else queue.read) - 1
        if last >= 0 and last > self._context.offsets.get(REVIVE_GROUP, self.topic, queue_id):
            self._context.offsets.commit(REVIVE_GROUP, self.topic, queue_id, last)
