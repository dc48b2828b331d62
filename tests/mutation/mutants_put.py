"""Mutants of puts."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import argument, condition, replace

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "batch-times-differ",
        "mqfast/store/put/put_record.pyx",
        "_append_records",
        argument("append_encoded", 8, "-1"),
        "a batch has one store time",
        ("test_all_elements_share_one_store_time",),
    ),
    Mutant(
        "body-length-unchecked",
        "mqfast/store/put/put_message.pyx",
        "BoundProducer.check_size",
        replace("> self.engine.max_body", "< 0"),
        "the limit of the settings is the limit of every way to put",
        ("test_what_is_refused_leaves_no_byte",),
    ),
    Mutant(
        "general-body-length-unchecked",
        "mqfast/store/put/put_record.pyx",
        "_fill",
        replace("> e.max_body", "< 0"),
        "the same, for a record of any kind",
        ("test_what_is_refused_leaves_no_byte",),
    ),
    Mutant(
        "properties-length-unchecked",
        "mqfast/store/put/put_record.pyx",
        "measure",
        condition("d.properties_bytes > MAX_PROPERTIES", 3),
        "the length field has 15 bits, the checksum property included",
        ("test_properties_fill_their_length_field_and_no_more",),
    ),
    Mutant(
        "key-length-off-by-one",
        "mqfast/store/put/put_message.pyx",
        "BoundProducer.append_any",
        replace("+ 6", "+ 5"),
        "the length field has 15 bits",
        ("test_properties_fill_their_length_field_and_no_more",),
    ),
    Mutant(
        "tags-left-behind-by-the-put",
        "mqfast/store/put/put_message.pyx",
        "BoundProducer.fill_template",
        replace("(bool(self.tags) and self.engine.dispatcher.index is not None)", "False"),
        "a put that puts its unit itself leaves no entry for its tags",
        ("test_a_put_with_nothing_older_before_the_dispatcher_leaves_its_tags_to_the_dispatcher",),
    ),
)
