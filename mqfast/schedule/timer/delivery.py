"""Stores parked messages again: in the real topic, or in the timer's queue (RocketMQ: TimerMessageStore.doPut).

Only a message in the log counts as delivered. A message is given up only if no later put can succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqfast import properties as _properties
from mqfast.errors import (
    CorruptFile,
    DiskFull,
    MessageIllegal,
    MqfastError,
    NotMaster,
    OffsetError,
    PropertiesTooLong,
    StoreBusy,
    StoreClosed,
    StoreFailed,
)
from mqfast.schedule.delay_levels import real_place
from mqfast.store.reader.timer_files import TIMER_TOPIC
from mqfast.util.java_text import java_number

if TYPE_CHECKING:
    from mqfast.schedule.timer.metrics import TimerMetrics
    from mqfast.schedule.timer.settings import TimerSettings
    from mqfast.store.engine import Engine
    from mqfast.store.record.record import StoredMessage

__all__ = ["NEVER_PARKED", "TimerDelivery"]

_log = logging.getLogger("mqfast.schedule")

NEVER_PARKED: Final = 2**63 - 1  # the enqueue time of a message that was already due when read from the queue
_TRIES: Final = 3
_TOPIC: Final = TIMER_TOPIC.encode()


class TimerDelivery:
    """The puts of a timer.

    Args: on_delivered: called with topic and record size of each message that was stored in the real topic.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: TimerMetrics,
        settings: TimerSettings,
        on_delivered: Callable[[str, int], object] | None,
    ) -> None:
        self.settings = settings
        self._engine = engine
        self._metrics = metrics
        self._on_delivered = on_delivered
        self._tries = 0

    def is_hidden(self, physical_offset: int) -> bool:
        """Return True for a parked message that readers do not see yet, as on a new master of a fail-over."""
        log = self._engine.log
        return log.readable <= physical_offset < log.written

    def message_at(self, physical_offset: int, size: int) -> StoredMessage | None:
        """Return the parked record of a unit; None, with an error in the log, if missing."""
        try:
            message = self._engine.log.message(physical_offset)
            if message.size == size and message.topic_bytes == _TOPIC:
                return message
            reason = f"{message.size} bytes of {message.topic}"
        except (CorruptFile, OffsetError) as error:
            reason = str(error)
        _log.error("timer: a parked message at physical offset %d is gone: %s", physical_offset, reason)
        return None

    def deliver(
        self, message: StoredMessage, fields: dict[str, str], enqueue_ms: int, rolls: bool, now_ms: int
    ) -> bool:
        """Store a parked message in the real topic, or, if ``rolls``, in the timer's queue.

        Args: fields: properties, which are changed; enqueue_ms: when the message was parked; rolls: the message is
            not due yet, and is parked again. Returns: False if the delivery must be tried again later.
        """
        topic, queue_id = message.topic, message.queue_id
        if not rolls:
            if _properties.TIMER_DEL_UNIQKEY in fields:
                return True  # a delete is never delivered
            place = real_place(fields)
            if place is None:
                self._give_up(message, "expected REAL_TOPIC and REAL_QID of a queue that messages are delivered to")
                return True
            topic, queue_id = place
        parked_topic = fields.get(_properties.REAL_TOPIC)
        fields[_properties.TIMER_ENQUEUE_MS] = str(enqueue_ms)
        if rolls:
            fields[_properties.TIMER_ROLL_TIMES] = str(
                (java_number(fields.get(_properties.TIMER_ROLL_TIMES, "0")) or 0) + 1
            )
        fields[_properties.TIMER_DEQUEUE_MS] = str(now_ms)
        if not self._put(message, topic, queue_id, fields):
            return False
        if enqueue_ms != NEVER_PARKED and parked_topic is not None:
            self._metrics.add(parked_topic, -1, now_ms)
        return True

    def _put(self, message: StoredMessage, topic: str, queue_id: int, fields: dict[str, str]) -> bool:
        try:
            try:
                text = _properties.encode(fields)
                self._put_stored(message, topic, queue_id, text)
            except PropertiesTooLong:
                # The times are for tracing: without room for them the message is stored without the times.
                self._put_stored(message, topic, queue_id, None)
        except StoreClosed:
            raise
        except (MessageIllegal, CorruptFile, OffsetError) as error:
            self._give_up(message, str(error))
        except MqfastError as error:
            return self._retry(message, error)
        self._tries = 0
        return True

    def _put_stored(self, message: StoredMessage, topic: str, queue_id: int, text: bytes | None) -> None:
        result = self._engine.put_stored(message.physical_offset, topic.encode(), queue_id, text, wait=False)
        if self._on_delivered is not None and topic != TIMER_TOPIC:
            self._on_delivered(topic, result.size)

    def _retry(self, message: StoredMessage, error: Exception) -> bool:
        self._tries += 1
        skips = self.settings.skip_unknown_error and not isinstance(error, (StoreBusy, DiskFull))
        if not self.settings.retry_until_success and self._tries >= _TRIES:
            skips = True
        if skips and not isinstance(error, (StoreFailed, NotMaster)):
            self._give_up(message, f"{error} ({self._tries} tries)")
            self._tries = 0
            return True
        if self._tries in (1, 10, 100) or self._tries % 1000 == 0:
            _log.warning("timer: a message waits to be put, try %d: %s", self._tries, error)
        return False

    def _give_up(self, message: StoredMessage, why: str) -> None:
        _log.error("timer: the parked message at physical offset %d is not delivered: %s", message.physical_offset, why)
