"""Mutants of the records of the log."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import condition, replace, result, without

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "body-crc-unchecked",
        "mqfast/store/record/record.pyx",
        "check_crc",
        result("1"),
        "recovery would keep a record with a torn or flipped body",
        ("test_trap_34_the_cut_removes_every_file_above_it",),
    ),
    Mutant(
        "property-crc-unchecked",
        "mqfast/store/record/record.pyx",
        "check_crc",
        result("value >= 0", -1),
        "where the whole record has a checksum, damage outside of the body would pass",
        ("test_the_checksum_of_the_whole_record_covers_topic_and_properties",),
    ),
    Mutant(
        "record-length-not-compared",
        "mqfast/store/record/record.pyx",
        "parse_record",
        result("REC_OK", -1),
        "a size word that contradicts the parts would send the walk to a wrong place",
        ("test_trap_05_a_size_that_disagrees_with_the_parts_is_damage",),
    ),
    Mutant(
        "body-length-unbounded",
        "mqfast/store/record/record.pyx",
        "parse_record",
        condition("False", 8),
        "a damaged body length would make the parser read memory that is not the record's",
        (
            "test_a_body_that_would_reach_out_of_its_file_ends_recovery",
            "test_a_body_that_would_reach_out_of_its_file_is_not_read",
        ),
    ),
    Mutant(
        "plain-record-of-any-length",
        "mqfast/store/record/record.pxd",
        "is_plain_record",
        result("True", -1),
        "a record whose lengths do not agree with its parts would be shown to readers",
        ("test_a_get_checks_the_place_and_the_lengths_of_a_record",),
    ),
    Mutant(
        "plain-record-of-any-queue",
        "mqfast/store/record/record.pxd",
        "is_plain_record",
        without(2, 2),
        "a unit that leads to a record of another queue would be believed",
        ("test_a_get_checks_the_place_and_the_lengths_of_a_record",),
    ),
    Mutant(
        "plain-record-body-unbounded",
        "mqfast/store/record/record.pxd",
        "is_plain_record",
        condition("False", 3),
        "a damaged body length would have a get look beyond the record, and beyond its file",
        ("test_a_body_that_would_reach_out_of_its_file_is_not_read",),
    ),
    Mutant(
        "properties-length-unbounded",
        "mqfast/store/record/record.pyx",
        "parse_record",
        condition("False", 12),
        "a negative length of the properties would be walked over backwards",
        ("test_a_negative_length_of_properties_is_not_walked_over_backwards",),
    ),
    Mutant(
        "host-width-of-the-other",
        "mqfast/store/record/record.pyx",
        "parse_record",
        replace("STORE_HOST_V6", "BORN_HOST_V6"),
        "everything behind an IPv6 host would be read at a wrong place",
        ("test_trap_01_ports_have_four_bytes_and_hosts_move_everything_behind_them",),
    ),
    Mutant(
        "crc-of-the-source",
        "mqfast/store/record/record.pyx",
        "encode_draft",
        replace("& 0x7FFFFFFF", "* 0 + crc31(d.body, d.body_bytes)"),
        "a body that changes while it is put would get the checksum of another",
        ("test_a_body_that_another_process_changes_has_the_checksum_of_what_was_stored",),
    ),
    Mutant(
        "tag-by-hash-only",
        "mqfast/store/record/filter.pyx",
        "record_has_tag",
        result("f.tags != NULL and may_have_tag(<const TagTexts *> context, jhash(f.tags, f.tags_bytes, 0))"),
        "tags that only share a hash are not the same tag",
        ("test_trap_15_tags_are_hashed_as_java_does_and_compared_by_their_text",),
    ),
)
