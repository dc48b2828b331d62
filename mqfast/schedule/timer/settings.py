"""The settings of the timer, with RocketMQ's meaning and defaults (RocketMQ: MessageStoreConfig). Reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqfast.settings.declaration import setting
from mqfast.store.reader.timer_files import SLOTS

__all__ = ["TimerSettings"]

_BLANK_SLOTS: Final = 60


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """The settings of the timer; the broker's settings of these names are declared here.

    ``retry_until_success`` is on by default, and off in RocketMQ, which drops a message after three failed puts.
    """

    precision_ms: int = setting(1000, "timerPrecisionMs", "ms", "Length of one slot of the wheel.")
    roll_window_slots: int = setting(
        172_800, "timerRollWindowSlot", "slots", "A message that is due later than this is parked again then."
    )
    flush_interval_ms: int = setting(
        1000, "timerFlushIntervalMs", "ms", "Pause between flushes of wheel and timer log.", is_live=True
    )
    max_delay_s: int = setting(
        259_200, "timerMaxDelaySec", "s", "Longest delay; a later message is refused.", is_live=True
    )
    is_enabled: bool = setting(True, "timerWheelEnable", "", "Whether messages with any delay are accepted.")
    stop_enqueue: bool = setting(
        False, "timerStopEnqueue", "", "No message enters the wheel from its queue.", is_live=True
    )
    stop_dequeue: bool = setting(False, "timerStopDequeue", "", "No message is delivered from the wheel.", is_live=True)
    skip_unknown_error: bool = setting(
        False, "timerSkipUnknownError", "", "A message that fails for an unknown reason is skipped.", is_live=True
    )
    retry_until_success: bool = setting(
        True,
        "timerEnableRetryUntilSuccess",
        "",
        "A message whose put fails is tried again without limit.",
        is_live=True,
    )
    congest_count_each_slot: int = setting(
        2**31 - 1, "timerCongestNumEachSlot", "messages", "Messages of one slot; one more is refused.", is_live=True
    )
    append_topic_for_delete_key: bool = setting(
        False,
        "appendTopicForTimerDeleteKey",
        "",
        "Only deletes whose key holds the topic are applied, as RocketMQ 5.3 writes keys.",
        is_live=True,
    )

    @property
    def window_slots(self) -> int:
        """Return the largest number of steps that a message is parked ahead; a later message is rolled."""
        # The delay of a unit is an i32 of ms.
        max_slots = min(SLOTS // 2 - _BLANK_SLOTS, (2**31 - 1) // self.precision_ms)
        return self.roll_window_slots if 2 <= self.roll_window_slots <= max_slots else max_slots
