"""Mutants of the checkpoint and other small files."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import replace, result, without

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "deletion-of-another-log-believed",
        "mqfast/store/meta/notes.py",
        "StoreNotes.floors",
        without(3, 2),
        "a note of another log would hide messages",
        ("test_a_note_of_another_log_hides_nothing",),
    ),
    Mutant(
        "checkpoint-without-allowance",
        "mqfast/store/meta/checkpoint.py",
        "",
        replace("_ALLOWANCE_MS: Final = 3000", "_ALLOWANCE_MS: Final = 0"),
        "flushes are behind the times in the checkpoint",
        ("test_minimum_rules",),
    ),
    Mutant(
        "checkpoint-takes-the-later",
        "mqfast/store/meta/checkpoint.py",
        "StoreCheckpoint.get_min_timestamp",
        replace("min", "max"),
        "both the log and the queues must be on the disk",
        ("test_minimum_rules",),
    ),
    Mutant(
        "index-checkpoint-ignored",
        "mqfast/store/meta/checkpoint.py",
        "StoreCheckpoint.get_min_timestamp_index",
        result("self.get_min_timestamp()"),
        "with messageIndexSafe the index must be on the disk too",
        ("test_minimum_rules",),
    ),
    Mutant(
        "no-backup",
        "mqfast/store/meta/config_file.py",
        "ConfigFile._put",
        replace('backup if self._main_is_good else self.path + ".damaged"', "None"),
        "RocketMQ and load fall back to the copy",
        (
            "test_a_crash_at_any_step_leaves_the_old_or_the_new_state",
            "test_new_tables_look_like_a_brokers",
        ),
    ),
)
