"""A due slot: the deliverable messages, in the order of parking (RocketMQ:
TimerMessageStore.dequeue, TimerDequeueGetMessageService).

First the chain of units is read backward, then the deletes are read, then the messages are delivered, oldest first. No
message is delivered before all deletes of the slot are known.
"""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING, Final

from mqfast import properties as _properties
from mqfast.errors import CorruptFile
from mqfast.store.reader.timer_files import DELETE, ROLL

if TYPE_CHECKING:
    from mqfast.schedule.timer.delivery import TimerDelivery
    from mqfast.schedule.timer.metrics import TimerMetrics
    from mqfast.schedule.timer.timer_log import TimerLog

__all__ = ["DueSlot"]

_log = logging.getLogger("mqfast.schedule")

_UNITS_A_MESSAGE: Final = 50  # reading a unit is that much cheaper than delivering a message


class DueSlot:
    """The slot of a step during the delivery. Memory: eight bytes per message for the position."""

    def __init__(self, log: TimerLog, delivery: TimerDelivery, metrics: TimerMetrics, step: int, newest: int) -> None:
        self.step = step
        self._log = log
        self._delivery = delivery
        self._metrics = metrics
        self._precision = delivery.settings.precision_ms
        self._next = newest
        self._messages: array[int] = array("q")  # newest first
        self._deletes: array[int] = array("q")
        self._read_deletes = 0
        self._keys: set[tuple[str | None, str]] = set()  # topic of the delete, key
        self.waits = False

    @property
    def is_done(self) -> bool:
        """Return True if every message of the slot was processed."""
        return self._next < 0 and not self._messages and self._read_deletes == len(self._deletes)

    def advance(self, max_messages: int, now_ms: int) -> int:
        """Process at most ``max_messages`` messages. Returns: the number.

        Sets ``waits`` after a failed put, and for a message that readers do not see yet.
        """
        self.waits = False
        done = 0
        if self._next >= 0:
            self._read_chain(max_messages)
            if self._next >= 0:
                return max_messages
        while self._read_deletes < len(self._deletes) and done < max_messages:
            if not self._read_delete(self._deletes[self._read_deletes], now_ms):
                self.waits = True
                return done
            self._read_deletes += 1
            done += 1
        if self._read_deletes < len(self._deletes):
            return done
        while self._messages and done < max_messages:
            if not self._deliver(self._messages[-1], now_ms):
                self.waits = True
                break
            self._messages.pop()
            done += 1
        return done

    def remaining(self) -> list[int]:
        """Return the units that are still needed, oldest first: deletes and undelivered messages."""
        while self._next >= 0:
            self._read_chain(1000)
        return sorted([*self._deletes, *self._messages])

    def unit(self, position: int) -> tuple[int, int, int, int, int, int, int, int] | None:
        """Return the unit at a position; None, with an error in the log, for a damaged unit, which blocks no other
        unit.
        """
        try:
            return self._log.unit(position)
        except CorruptFile as error:
            _log.error("timer: a parked message is lost: %s", error)
            return None

    def _read_chain(self, max_messages: int) -> None:
        try:
            messages, deletes, self._next = self._log.chain(
                self._next, 0, self.step, self._precision, max_messages * _UNITS_A_MESSAGE
            )
        except CorruptFile as error:
            _log.error(
                "timer: the slot of %d is damaged; its units are searched: %s", self.step * self._precision, error
            )
            self._search()
            return
        self._messages.extend(messages)
        self._deletes.extend(deletes)

    def _search(self) -> None:
        """Find the units of the slot in the whole timer log, without its chain."""
        self._messages, self._deletes, self._next = array("q"), array("q"), -1
        position = self._log.begin
        while position < self._log.end:
            units, behind = self._log.units(position, 4096)
            for unit in units:
                if (unit[3] + unit[4]) // self._precision == self.step:
                    is_delete = unit[2] & DELETE and not unit[2] & ROLL
                    (self._deletes if is_delete else self._messages).append(unit[0])
            # An invalid unit is skipped.
            position = behind if units else self._log.following(behind)
        self._messages.reverse()

    def _read_delete(self, position: int, now_ms: int) -> bool:
        """Note the key of a delete. Returns: False if the delete must be read again later."""
        unit = self.unit(position)
        if unit is not None and self._delivery.is_hidden(unit[5]):
            return False
        message = None if unit is None else self._delivery.message_at(unit[5], unit[6])
        if message is None:
            return True
        fields = message.properties
        key = fields.get(_properties.TIMER_DEL_UNIQKEY)
        if key is not None:
            self._keys.add((fields.get(_properties.REAL_TOPIC), key))
            self._count(fields, 1, now_ms)  # until the deleted message is read
        return True

    def _is_deleted(self, fields: dict[str, str]) -> bool:
        """Return True if a delete of the same topic names the message."""
        unique = fields.get(_properties.UNIQ_KEY)
        if not self._keys or unique is None:
            return False
        topic = fields.get(_properties.REAL_TOPIC)
        if (
            topic,
            _properties.delete_key(topic, unique),
        ) in self._keys:  # 5.3 always, 5.5 with appendTopicForTimerDeleteKey
            return True
        return not self._delivery.settings.append_topic_for_delete_key and (topic, unique) in self._keys

    def _deliver(self, position: int, now_ms: int) -> bool:
        unit = self.unit(position)
        if unit is None:
            return True
        _, _, magic, write_ms, _, physical, size, _ = unit
        if self._delivery.is_hidden(physical):
            return False
        message = self._delivery.message_at(physical, size)
        if message is None:
            return True
        fields = message.properties
        if self._is_deleted(fields):
            self._count(fields, -1, now_ms)
            return True
        return self._delivery.deliver(message, fields, write_ms, bool(magic & ROLL), now_ms)

    def _count(self, fields: dict[str, str], change: int, now_ms: int) -> None:
        topic = fields.get(_properties.REAL_TOPIC)
        if topic is not None:
            self._metrics.add(topic, change, now_ms)
