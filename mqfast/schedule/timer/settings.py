"""The settings of the timer, by RocketMQ's meaning and defaults (RocketMQ: MessageStoreConfig).

It must never read a file: whoever starts the timer has read the configuration.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mqfast.store.reader.timer_files import SLOTS

__all__ = ["TimerSettings"]

_BLANK_SLOTS: Final = 60


class TimerSettings(NamedTuple):
    """How the timer works; the comment names RocketMQ's key.

    ``retry_until_success`` is on here and off in RocketMQ, which drops a message that could not be put three times.
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
        """How many steps ahead a message is parked at most; one that is due later is parked again then."""
        most = min(SLOTS // 2 - _BLANK_SLOTS, (2**31 - 1) // self.precision_ms)  # the delay of a unit is an i32 of ms
        return self.roll_window_slots if 2 <= self.roll_window_slots <= most else most
