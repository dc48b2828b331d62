"""Mutants of gets, queries and the index."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import call, condition, replace, result, without

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "index-one-entry-too-many",
        "mqfast/store/index/index_file.pyx",
        "index_put",
        replace(">= s.room", "> s.room"),
        "the entry behind the last one is not in the file",
        ("test_file_equals_the_model",),
    ),
    Mutant(
        "index-hash-ignored",
        "mqfast/store/index/index_file.pyx",
        "IndexFile.walk",
        without(1, 4),
        "keys that share only a slot are not hits",
        ("test_file_equals_the_model",),
    ),
    Mutant(
        "index-first-moment-left-out",
        "mqfast/store/index/index_file.pyx",
        "IndexFile.walk",
        replace("begin_ms <=", "begin_ms <"),
        "the bounds of a query belong to it",
        ("test_the_bounds_of_a_query_belong_to_it",),
    ),
    Mutant(
        "index-chain-goes-round",
        "mqfast/store/index/index_file.pyx",
        "IndexFile.walk",
        replace("< number and", "and"),
        "a damaged chain must not keep a query for ever",
        ("test_a_circle_of_entries_ends",),
        seconds=30,
    ),
    Mutant(
        "index-sync-dropped",
        "mqfast/store/index/index_file.pyx",
        "IndexFile.flush",
        call("msync", "0"),
        "the checkpoint vouches for full index files behind a sync",
        ("test_the_keys_of_a_full_index_file_survive_once_the_checkpoint_says_so",),
    ),
    Mutant(
        "index-hit-not-verified",
        "mqfast/store/get/query.pyx",
        "carries",
        condition("blank > at", 3),
        "keys with the same hash are told apart by the message only",
        ("test_trap_26_hash_twins_are_told_apart_by_the_message",),
    ),
    Mutant(
        "next-offset-one-too-far",
        "mqfast/store/get/get_message.pyx",
        "finish",
        replace("= next_offset", "= next_offset + 1"),
        "a consumer would pass over one message",
        ("test_every_queue_in_order_and_nothing_twice",),
    ),
    Mutant(
        "max-bytes-without-the-next",
        "mqfast/store/get/unit_walk.pyx",
        "is_full",
        replace("+ size", ""),
        "a message that does not fit any more belongs to the next get",
        ("test_a_get_ends_at_its_byte_limit",),
    ),
    Mutant(
        "unit-believed",
        "mqfast/store/get/unit_walk.pyx",
        "check_record",
        replace("or r.total != w.size or r.physical_offset != w.physical", ""),
        "a damaged unit leads to another record",
        ("test_a_unit_that_leads_elsewhere_is_an_error",),
    ),
    Mutant(
        "record-of-another-queue",
        "mqfast/store/get/get_message.pyx",
        "stands_well",
        result("True"),
        "a get must never return a message of another queue",
        ("test_a_unit_that_leads_elsewhere_is_an_error",),
    ),
)
