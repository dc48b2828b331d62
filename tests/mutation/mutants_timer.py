"""Mutants of the timer."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import condition, drop

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "timer-ignores-a-fall",
        "mqfast/schedule/timer/service.py",
        "TimerService._follow_clock",
        condition("False"),
        "after a fall of the clock new messages would be delivered early, or never",
        ("test_after_a_fall_of_the_clock_nothing_is_early_and_nothing_comes_twice",),
    ),
    Mutant(
        "timer-checkpoint-before-the-log",
        "mqfast/schedule/timer/flush.py",
        "TimerFlusher.flush",
        drop("flush"),
        "the checkpoint would claim deliveries that a power cut takes from the log",
        ("test_a_crash_at_any_call_loses_nothing_that_was_flushed",),
    ),
    Mutant(
        "timer-unit-without-record",
        "mqfast/schedule/timer/recovery.py",
        "_Recovery.apply",
        condition("False", 2),
        "units of records that are gone would stay, and be taken for those of new messages",
        ("test_records_that_a_power_cut_took_from_the_log_leave_no_unit",),
    ),
    Mutant(
        "timer-chain-unchecked",
        "mqfast/schedule/timer/timer_log.pyx",
        "TimerLog.chain",
        condition("False", 2),
        "a damaged chain would deliver the messages of another time",
        ("test_a_broken_chain_is_searched_for",),
    ),
    Mutant(
        "timer-unit-counted-twice",
        "mqfast/schedule/timer/wheel.pyx",
        "TimerWheel.put",
        condition("True", 2),
        "recovery would count messages twice, and refuse others for it",
        ("test_a_kill_between_the_flush_of_the_wheel_and_that_of_the_checkpoint",),
    ),
)
