"""Delay levels in a broker: parks messages of every put, and delivers due messages in the event loop.

The rules of delays are in ``mqfast.schedule``. Source: HookUtils.handleScheduleMessage, ScheduleMessageService.start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mqfast.broker.context import BrokerContext
from mqfast.broker.send.message_writer import MessageRecord, Refusal
from mqfast.errors import MessageIllegal, MqfastError, StoreClosed
from mqfast.remoting.processors import Processors
from mqfast.schedule.delay_levels import SCHEDULE_TOPIC, DelayLevels
from mqfast.schedule.delay_service import DelayService
from mqfast.store.put.put_result import PutResult

__all__ = ["Delays"]

_log = logging.getLogger("mqfast.broker")
_AFTER_FAILURE_MS: Final = 1000
_SHORT_MS: Final = 1000  # levels with shorter delays are checked when a message arrives


class Delays:
    """Parks delayed messages and delivers them.

    Attributes: ``service``: delivers; tests with another clock call ``run_once``; ``is_delivering``: ``start`` was
        called, which is not the case on a slave.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.levels: Final = DelayLevels(context.store.config.delay_levels_ms)
        self.service: Final = DelayService(
            context.store, context.tables.delays, self.levels,
            on_delivered=self._delivered,
        )  # fmt: skip
        self._is_unsynced = False
        self._context = context
        self._timer: asyncio.Handle | None = None
        self._saver: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self.is_delivering = False
        self._stopped = False
        self._is_woken = False
        context.writer.deferrals.append(self)

    def register(self, processors: Processors) -> None:
        """Do nothing: delay levels serve no code."""

    def start(self) -> None:
        """Start the delivery."""
        self.is_delivering = True
        self._warn_of_levels()
        self._deliver()
        self._save_later()

    def _warn_of_levels(self) -> None:
        """Warn of messages in levels that the settings do not have: neither mqfast nor RocketMQ delivers those."""
        store, offsets, known = self._context.store, self._context.tables.delays, len(self.levels.delays_ms)
        for queue_id in store.queue_ids(SCHEDULE_TOPIC):
            first = max(store.min_offset(SCHEDULE_TOPIC, queue_id), offsets.get(queue_id + 1))
            count = store.max_offset(SCHEDULE_TOPIC, queue_id) - first
            if queue_id >= known and count > 0:
                _log.warning(
                    "%d messages wait in delay level %d and are not delivered, since messageDelayLevel has %d levels: "
                    "give it that level again", count, queue_id + 1, known,
                )  # fmt: skip

    async def stop(self) -> None:
        """Stop the delivery; the progress becomes durable."""
        self._stopped = True
        for handle in (self._timer, self._saver, self._saving):
            if handle is not None:
                handle.cancel()
        if not self.is_delivering:
            return  # a slave: the table has the master's progress, the service that of the start
        try:
            await self._context.loop.run_in_executor(None, self.service.stop)
        except MqfastError as error:
            _log.warning("the progress of delay levels was not noted, some messages will come again: %s", error)

    def defer(self, record: MessageRecord, now_ms: int) -> MessageRecord | Refusal | None:
        """Return the parked record if the properties name a delay level."""
        try:
            place = self.levels.park(record.topic, record.queue_id, record.properties, record.sys_flag)
        except MessageIllegal as error:
            done = self._context.writer.failed(error)
            return Refusal(done.code, done.remark or "")
        if place is None:
            return None
        if self.levels.delay_ms(place.queue_id + 1) < _SHORT_MS:
            self._wake()
        return record.with_topic(place.topic, place.queue_id, place.properties)

    def _wake(self) -> None:
        """Run after the present put, and repeatedly until readers see the message."""
        if not self._is_woken and not self._stopped:
            self._is_woken = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._context.loop.call_soon(self._deliver)

    def _delivered(self, topic: str, queue_id: int, result: PutResult) -> None:
        self._context.stats.put(topic, 1, result.size)
        self._is_unsynced = True

    def _deliver(self) -> None:
        try:
            wait_ms = self.service.run_once(self._context.now_ms())
            if self._is_unsynced:
                self._is_unsynced = False
                self._context.writer.flush_soon()
        except StoreClosed:
            return
        except Exception:
            _log.exception("a turn of the delay levels failed, the next one is in %d ms", _AFTER_FAILURE_MS)
            wait_ms = _AFTER_FAILURE_MS
        if self._stopped:
            return
        if self._is_woken:
            log = self._context.engine.log
            self._is_woken = log.readable < log.written
            wait_ms = min(wait_ms, 1) if self._is_woken else wait_ms
        loop = self._context.loop
        self._timer = loop.call_later(wait_ms / 1000, self._deliver) if wait_ms else loop.call_soon(self._deliver)

    def _save_later(self) -> None:
        interval_s = self._context.config["flushDelayOffsetInterval"] / 1000
        self._saver = self._context.loop.call_later(interval_s, self._save_soon)

    def _save_soon(self) -> None:
        self._save_later()
        if self._saving is None or self._saving.done():
            self._saving = self._context.loop.create_task(self._save())

    async def _save(self) -> None:
        """Persist the progress, after the deliveries before that progress."""
        context = self._context
        try:
            if self.service.has_unnoted_progress:
                await context.durable.wait(context.engine.log.written)
                self.service.settle()
            await context.loop.run_in_executor(None, context.tables.delays.persist)
        except MqfastError as error:
            _log.warning("delayOffset.json was not written, the next turn tries again: %s", error)
