"""One due slot: which of its messages are to be delivered, in the order in which they were parked (RocketMQ:
TimerMessageStore.dequeue, TimerDequeueGetMessageService).

First the chain of units is followed back, then the deletes are read, then the messages are delivered, oldest first. It
must never deliver a message before all deletes of the slot are known.
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

_UNITS_A_MESSAGE: Final = 50  # to follow a unit costs so much less than to deliver a message


class DueSlot:
    """The slot of one step while it is delivered. Positions take eight bytes a message."""

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
        """Is there nothing left of the slot?"""
        return self._next < 0 and not self._messages and self._read_deletes == len(self._deletes)

    def advance(self, most: int, now_ms: int) -> int:
        """Do the work of at most so many messages. Returns: of how many. Sets ``waits`` when one could not be put."""
        self.waits = False
        done = 0
        if self._next >= 0:
            self._follow(most)
            if self._next >= 0:
                return most
        while self._read_deletes < len(self._deletes) and done < most:
            self._read_delete(self._deletes[self._read_deletes], now_ms)
            self._read_deletes += 1
            done += 1
        if self._read_deletes < len(self._deletes):
            return done
        while self._messages and done < most:
            if not self._deliver(self._messages[-1], now_ms):
                self.waits = True
                break
            self._messages.pop()
            done += 1
        return done

    def left(self) -> list[int]:
        """The units that are still needed, oldest first: deletes, and messages that were not delivered."""
        while self._next >= 0:
            self._follow(1000)
        return sorted([*self._deletes, *self._messages])

    def unit(self, position: int) -> tuple[int, int, int, int, int, int, int, int] | None:
        """The unit at a position; None, with an error in the log, where it is damaged: no other one waits for it."""
        try:
            return self._log.unit(position)
        except CorruptFile as error:
            _log.error("timer: a parked message is lost: %s", error)
            return None

    def _follow(self, most: int) -> None:
        try:
            messages, deletes, self._next = self._log.chain(
                self._next, 0, self.step, self._precision, most * _UNITS_A_MESSAGE
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
        """Find the units of the slot without its chain: in all of the timer log."""
        self._messages, self._deletes, self._next = array("q"), array("q"), -1
        position = self._log.begin
        while position < self._log.end:
            units, behind = self._log.units(position, 4096)
            for unit in units:
                if (unit[3] + unit[4]) // self._precision == self.step:
                    is_delete = unit[2] & DELETE and not unit[2] & ROLL
                    (self._deletes if is_delete else self._messages).append(unit[0])
            # What is no unit is stepped over.
            position = behind if units else self._log.following(behind)
        self._messages.reverse()

    def _read_delete(self, position: int, now_ms: int) -> None:
        unit = self.unit(position)
        message = None if unit is None else self._delivery.message_at(unit[5], unit[6])
        if message is None:
            return
        fields = message.properties
        key = fields.get(_properties.TIMER_DEL_UNIQKEY)
        if key is not None:
            self._keys.add((fields.get(_properties.REAL_TOPIC), key))
            self._count(fields, 1, now_ms)  # until its target is found

    def _is_deleted(self, fields: dict[str, str]) -> bool:
        """Say whether a delete names the message. A delete of another topic does not, whatever its key."""
        unique = fields.get(_properties.UNIQ_KEY)
        if not self._keys or unique is None:
            return False
        topic = fields.get(_properties.REAL_TOPIC)
        if (topic, _properties.delete_key(topic, unique)) in self._keys:  # 5.3 always, 5.5 where it is asked for
            return True
        return not self._delivery.settings.append_topic_for_delete_key and (topic, unique) in self._keys

    def _deliver(self, position: int, now_ms: int) -> bool:
        unit = self.unit(position)
        if unit is None:
            return True
        _, _, magic, write_ms, _, physical, size, _ = unit
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
