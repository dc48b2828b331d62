"""Timed messages in a broker, and 60, 61: parks messages of every put, and delivers due messages in the event loop.

The rules of the timer are in ``mqfast.schedule.timer``. The event loop does not wait for a disk, except after the clock
was set back. Source: HookUtils.handleScheduleMessage, BrokerController.initializeMessageStore.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mqfast.broker.context import BrokerContext
from mqfast.broker.send.message_writer import MessageRecord, Refusal
from mqfast.errors import CallRefused, MessageIllegal, MqfastError, StoreClosed
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.schedule.timer.accept import accept
from mqfast.schedule.timer.flush import TimerFlush
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.settings.declaration import specs_of
from mqfast.store.base.results import PutMessageStatus

__all__ = ["BrokerTimers"]

_log = logging.getLogger("mqfast.broker")
_SOON_S: Final = 0.005  # messages within this time are parked together
_LONGEST_S: Final = 1.0  # the wall clock may change meanwhile
_AFTER_FAILURE_MS: Final = 1000
_HOUR_MS: Final = 3_600_000


class BrokerTimers:
    """Parks timed messages and delivers them.

    Attributes: ``service``: parks and delivers; None with ``timerWheelEnable=false``, and on a slave.
    Raises: CorruptFile for a timer file of a wrong length; StorageError.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._settings = self._read_settings()
        self.service: TimerService | None = None
        if self._settings.is_enabled and context.store.config.broker_role != "SLAVE":
            self.service = TimerService(
                context.store,
                self._settings,
                context.now_ms(),
                on_delivered=self._delivered,
            )
        self._is_unsynced = False
        self._timer: asyncio.Handle | None = None
        self._timer_at_s = 0.0
        self._flush: asyncio.Future[None] | None = None
        self._stopped = False
        context.writer.deferrals.append(self)
        context.config.listeners.append(self._configure)

    def _read_settings(self) -> TimerSettings:
        config = self._context.config
        return TimerSettings(
            **{field: config[str(spec.rocketmq_name)] for field, spec in specs_of(TimerSettings).items()}
        )

    def _configure(self) -> None:
        self._settings = replace(
            self._read_settings(), precision_ms=self._settings.precision_ms, is_enabled=self._settings.is_enabled
        )
        if self.service is not None:
            self.service.configure(self._settings)
            self._run_in(_SOON_S)

    def register(self, processors: Processors) -> None:
        """Register 60 and 61, which slaves request; 370 is in ``recall_message.py``."""
        lane = ConcurrencyLimit("timer")
        processors.register([RequestCode.GET_TIMER_CHECK_POINT], self._check_point, lane)
        processors.register([RequestCode.GET_TIMER_METRICS], self._metrics, lane)

    def _check_point(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 60: the durable progress of the timer, in the format of the file."""
        if self.service is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return request.response(body=self.service.checkpoint.encode())

    def _metrics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 61: the number of parked messages by topic, in the format of the file."""
        if self.service is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return request.response(body=self.service.metrics.text())

    def start(self) -> None:
        """Start parking and delivery."""
        self._warn_of_retention()
        if self.service is not None:
            self._run()

    def _warn_of_retention(self) -> None:
        """Warn if retention deletes log files before the longest delay is over."""
        store, settings = self._context.store.config, self._settings
        rules = store.retention_rules
        kept_ms = store.file_reserved_time_hours * _HOUR_MS if rules.rocketmq else rules.age_ms
        waits_ms = max(store.delay_levels_ms, default=0)
        if settings.is_enabled:
            # A message due after the window is stored again at the end of the window.
            window_ms = settings.window_slots * settings.precision_ms
            waits_ms = max(waits_ms, min(settings.max_delay_s * 1000, window_ms))
        if kept_ms is not None and kept_ms < waits_ms:
            _log.warning(
                "messages are kept for %g h, and may wait for %g h until they are delivered (messageDelayLevel, "
                "timerMaxDelaySec): one that waits longer than it is kept is lost; keep messages for longer "
                "(fileReservedTime), or allow shorter delays",
                kept_ms / _HOUR_MS, waits_ms / _HOUR_MS,
            )  # fmt: skip

    async def stop(self) -> None:
        """Stop parking and delivery; the progress becomes durable."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self.service is None:
            return
        if self._flush is not None:
            await asyncio.wait([self._flush])
        try:
            await self._context.loop.run_in_executor(None, self.service.close, self._context.now_ms())
        except MqfastError as error:
            _log.warning("the timer was not flushed, some messages may come again: %s", error)

    # --- a message is put ---

    def defer(self, record: MessageRecord, now_ms: int) -> MessageRecord | Refusal | None:
        """Return the parked record if the properties name a time; ``record`` gets the parked properties, too."""
        settings = self._settings
        try:
            place = accept(
                settings, self._is_crowded, record.topic, record.queue_id, record.properties, record.sys_flag, now_ms
            )
        except MessageIllegal as error:
            done = self._context.writer.failed(error)
            return Refusal(done.code, done.remark or "")
        if place is None:
            return None
        if isinstance(place, PutMessageStatus):
            return refusal(place, settings)
        record.properties = place.properties
        self._wake()
        return record.with_topic(place.topic, place.queue_id, place.properties)

    def _is_crowded(self, due_ms: int, draw: Callable[[], int]) -> bool:
        return self.service is not None and self.service.is_crowded(due_ms, draw)

    def _wake(self) -> None:
        if self.service is not None:
            self.service.wake()
            self._run_in(_SOON_S)

    def advance(self) -> None:
        """Deliver what is due, and move the progress of the timer up to the present, also without a parked message."""
        self._wake()

    # --- runs ---

    def _delivered(self, topic: str, size: int) -> None:
        self._context.stats.put(topic, 1, size)
        self._is_unsynced = True

    def _run_in(self, delay_s: float) -> None:
        """Run after a delay, unless an earlier run is scheduled."""
        if self._stopped:
            return
        loop = self._context.loop
        at_s = loop.time() + delay_s
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s  # uvloop's handle of a call without delay has no time
        self._timer = loop.call_later(delay_s, self._run)

    def _run(self) -> None:
        assert self.service is not None
        self._timer = None
        now_ms = self._context.now_ms()
        try:
            at = self.service.run_once(now_ms)
            if self._is_unsynced:
                self._is_unsynced = False
                self._context.writer.flush_soon()
            if self.service.flush_is_due(now_ms):
                self._begin_flush(self.service.prepare_flush(now_ms))
        except StoreClosed:
            return
        except Exception:
            _log.exception("a turn of the timer failed, the next one is in %d ms", _AFTER_FAILURE_MS)
            at = now_ms + _AFTER_FAILURE_MS
        if at is not None:
            self._run_in(min(max(0, at - now_ms) / 1000, _LONGEST_S))

    def _begin_flush(self, flush: TimerFlush) -> None:
        self._flush = self._context.loop.run_in_executor(None, flush.run)
        self._flush.add_done_callback(self._end_flush)

    def _end_flush(self, future: asyncio.Future[None]) -> None:
        assert self.service is not None
        self._flush = None
        error = None if future.cancelled() else future.exception()
        self.service.end_flush(error)
        self._run_in(self._settings.flush_interval_ms / 1000)


def refusal(status: PutMessageStatus, settings: TimerSettings) -> Refusal:
    """Return RocketMQ's code and text for a message that the timer refuses. Source: SendMessageProcessor."""
    if status is PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL:
        most_ms = settings.max_delay_s * 1000
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {most_ms}ms; "
            "or if set del msg, the delay time should be bigger than the current time",
        )
    if status is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL:
        limit = settings.congest_count_each_slot
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater than "
            f"{limit} and less than {2 * limit}, trigger random flow control",
        )
    return Refusal(ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false")
