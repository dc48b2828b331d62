"""The settings of the timer, with RocketMQ's meaning and defaults (RocketMQ: MessageStoreConfig). Reads no file."""

from __future__ import annotations

from typing import Final, NamedTuple

from mqfast.store.reader.timer_files import SLOTS

__all__ = ["TimerSettings"]

_BLANK_SLOTS: Final = 60


class TimerSettings(NamedTuple):
    """The settings of the timer; each comment names RocketMQ's key.

    ``retry_until_success`` is on by default, and off in RocketMQ, which drops a message after three failed puts.
    """

    precision_ms: int = 1000  # timerPrecisionMs
    roll_window_slots: int = 172_800  # timerRollWindowSlot
    flush_interval_ms: int = 1000  # timerFlushIntervalMs
    max_delay_s: int = 259_200  # timerMaxDelaySec
    is_enabled: bool = True  # timerWheelEnable
    stop_enqueue: bool = False  # timerStopEnqueue
    stop_dequeue: bool = False  # timerStopDequeue
    skip_unknown_error: bool = False  # timerSkipUnknownError
    retry_until_success: bool = True  # timerEnableRetryUntilSuccess
    congest_count_each_slot: int = 2**31 - 1  # timerCongestNumEachSlot
    append_topic_for_delete_key: bool = False  # appendTopicForTimerDeleteKey

    @property
    def window_slots(self) -> int:
        """Return the largest number of steps that a message is parked ahead; a later message is rolled."""
        # The delay of a unit is an i32 of ms.
        max_slots = min(SLOTS // 2 - _BLANK_SLOTS, (2**31 - 1) // self.precision_ms)
        return self.roll_window_slots if 2 <= self.roll_window_slots <= max_slots else max_slots
