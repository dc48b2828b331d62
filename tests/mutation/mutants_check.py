"""Mutants of open, recovery and close of the store."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import call, condition, drop, instead, replace

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "checkpoint-ignored",
        "mqfast/store/check/recovery.py",
        "_start_file",
        replace("<= limit", ""),
        "what the checkpoint does not vouch for must be walked again",
        ("test_trap_33_recovery_starts_three_seconds_before_the_checkpoint",),
    ),
    Mutant(
        "clean-start-one-file-later",
        "mqfast/store/check/recovery.py",
        "_start_file",
        replace("largest", "largest + file.file_bytes"),
        "a record whose unit is missing would be passed over",
        ("test_after_a_clean_stop_the_walk_begins_where_the_units_end",),
    ),
    Mutant(
        "torn-properties-kept",
        "mqfast/store/check/recovery.py",
        "_Recovery._walk",
        instead("_is_torn", "torn = False"),
        "no checksum covers the properties of the last record",
        ("test_a_last_record_without_the_end_of_its_properties_is_cut_off",),
    ),
    Mutant(
        "doubtful-units-kept",
        "mqfast/store/check/recovery.py",
        "_Recovery._prepare",
        drop("truncate"),
        "pages of units may be lost where the power went",
        ("test_after_a_kill_a_unit_with_a_torn_end_is_put_again",),
    ),
    Mutant(
        "whole-records-cut-and-not-kept",
        "mqfast/store/check/recovery.py",
        "_Recovery._keep_what_is_cut",
        condition("True", 3),
        "whole records behind damage are acknowledged messages",
        ("test_whole_records_behind_damage_are_kept",),
    ),
    Mutant(
        "deleted-records-get-units",
        "mqfast/store/check/recovery.py",
        "_Recovery._leave_out_deleted",
        drop("exclude_deleted"),
        "a deletion holds when queues are made anew from the log",
        ("test_the_new_topic_is_whole_after_a_kill",),
    ),
    Mutant(
        "scan-without-a-chain",
        "mqfast/store/check/boundaries.py",
        "_scan",
        instead("_is_end", "proven = True"),
        "a body may hold what looks like a record at its own place",
        ("test_without_units_what_a_body_holds_is_no_record",),
    ),
    Mutant(
        "salvage-begins-again",
        "mqfast/store/check/salvage.py",
        "_Salvage.run",
        drop("_put_before"),
        "a salvage that was cut off has put some messages already",
        ("test_a_salvage_that_was_cut_off_goes_on",),
    ),
    Mutant(
        "queues-not-cut-at-the-end",
        "mqfast/store/check/recovery.py",
        "_Recovery._cut",
        drop("truncate"),
        "a unit behind the end of the log points at whatever comes there",
        ("test_units_of_a_cut_log_go_with_it",),
    ),
    Mutant(
        "lost-keys-not-put-again",
        "mqfast/store/check/recovery.py",
        "_Recovery._prepare",
        replace("< start", "< 0", 2),
        "keys of an index file that recovery drops lie before the start file too",
        (
            "test_trap_27_no_key_is_lost_by_a_crash",
            "test_the_keys_of_a_full_index_file_survive_once_the_checkpoint_says_so",
        ),
    ),
    Mutant(
        "names-of-a-killed-writer-not-synced",
        "mqfast/store/check/recovery.py",
        "sync_names",
        call("is_dir", "not directory"),
        "a name that only the page cache has is lost with the power, and the file with it",
        ("test_names_that_a_killed_writer_left_are_durable_at_the_next_open",),
    ),
    Mutant(
        "waiting-queues-settled",
        "mqfast/store/opening.py",
        "open_parts",
        replace("hold_back(log.written)", "hold_back(log.written) and False"),
        "a put would get a queue offset that a waiting message has",
        ("test_after_an_open_puts_wait_until_every_queue_has_its_units",),
    ),
    Mutant(
        "abort-not-written",
        "mqfast/store/opening.py",
        "open_parts",
        replace("clean and not log.files", "False"),
        "after a kill nothing would say that the store has to be recovered",
        (
            "test_trap_29_the_abort_file_alone_decides",
            "test_a_kill_keeps_what_was_promised",
        ),
    ),
    Mutant(
        "abort-removed-after-a-failure",
        "mqfast/store/message_store.py",
        "MessageStore._say_closed_in_order",
        condition("True"),
        "a store that could not be closed in order must be recovered",
        ("test_a_store_whose_last_flush_failed_is_recovered_at_the_next_open",),
    ),
)
