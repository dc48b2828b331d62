"""The terms of a log: how far two logs are of one history, what a crash leaves, the mark of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqfast.errors import CorruptFile
from mqfast.ha.divergence import Divergence, forget_divergence, load_divergence, note_divergence
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.term_history import Term, common_end, parse_terms, terms_text
from mqfast.store.base.os_api import OsApi

A, B, C = Term(0, 0, 0, "a"), Term(0, 500, 0, "b"), Term(1, 900, 1, "c")


def load(path: Path) -> EpochFile:
    return EpochFile.load(OsApi(), str(path))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "common"),
    [
        ([A], 300, [A], 700, 300),
        ([A], 700, [A], 300, 300),
        ([A], 700, [A, B], 900, 500),  # the master lost its end in a power cut, and went on
        ([A, B], 700, [A, C], 1200, 500),
        ([A, B, C], 950, [A, B, C], 1200, 950),
        ([A, B], 1000, [A, B, C], 1200, 900),
        ([A, B._replace(history="x")], 1000, [A, B, C], 1200, 500),  # the same number, given twice
        ([B], 600, [A], 900, None),
        ([], 600, [A], 900, None),
        ([Term(0, 0)], 600, [Term(0, 0)], 900, None),  # nobody knows whether the two are one
    ],
)
def test_two_logs_are_equal_up_to_the_smaller_end_of_their_newest_common_term(
    mine: list[Term], my_end: int, theirs: list[Term], their_end: int, common: int | None
) -> None:
    assert common_end(mine, my_end, theirs, their_end) == common
    assert common_end(theirs, their_end, mine, my_end) == common


def test_each_start_of_a_master_is_a_term_of_its_epoch(tmp_path: Path) -> None:
    file = load(tmp_path)
    first = file.begin_term(0, 0)
    file.begin_term(0, 0)
    assert [term.history == first.history for term in file.terms] == [False], "a start without a message leaves nothing"
    file.begin_term(700, 0)
    assert file.entries == [(0, 0)]
    file.begin(1, 900, leader=2)
    again = load(tmp_path)
    assert again.terms == file.terms
    assert again.entries == [(0, 0), (1, 900)]
    assert (tmp_path / "epochFileCheckpoint").read_bytes().endswith(b"0-0\n1-900\n"), "RocketMQ's file has no terms"
    assert again.leaders == {0, 2}


def test_terms_below_the_first_byte_of_the_log_are_forgotten(tmp_path: Path) -> None:
    file = load(tmp_path)
    for start in (0, 100, 200, 300):
        file.begin_term(start, 0, low=150)
    assert [term.start for term in load(tmp_path).terms] == [100, 200, 300]


def test_no_epoch_is_assigned_again_after_a_truncation(tmp_path: Path) -> None:
    file = load(tmp_path)
    file.begin(5, 100)
    file.cut(100)
    assert load(tmp_path).terms == ()
    assert load(tmp_path).newest == 5
    assert load(tmp_path).begin_term(50).epoch == 5


def test_a_crash_between_both_files_leaves_an_epoch_without_an_id(tmp_path: Path) -> None:
    file = load(tmp_path)
    file.begin_term(0, 0)
    before = (tmp_path / "epochHistory").read_bytes()
    file.begin(1, 900)
    (tmp_path / "epochHistory").write_bytes(before)
    assert load(tmp_path).terms == (file.terms[0], Term(1, 900))
    file = load(tmp_path)
    file.cut(900)
    (tmp_path / "epochHistory").write_bytes(terms_text([file.terms[0], Term(1, 900, 1, "c")], 1))
    assert load(tmp_path).terms == file.terms


@pytest.mark.parametrize("damaged", [b"", b"{}", b"[]", b'{"crc": 1, "newestEpoch": 0, "terms": [[0, 0, 0, "a"]]}'])
def test_damaged_terms_leave_the_epochs(tmp_path: Path, damaged: bytes) -> None:
    load(tmp_path).begin_term(0, 0)
    (tmp_path / "epochHistory").write_bytes(damaged)
    with pytest.raises(CorruptFile, match="terms are damaged"):
        parse_terms(damaged, "x")
    assert load(tmp_path).terms == (Term(0, 0),)


def test_a_term_after_a_master_without_epochs_has_no_leader(tmp_path: Path) -> None:
    file = load(tmp_path)
    file.begin_unknown(0)
    assert file.terms == (), "a store without epochs stays one"
    file.begin_term(0, 0)
    file.begin_unknown(400)
    file.begin_unknown(800)
    assert load(tmp_path).terms[1:] == (Term(0, 400),)


def test_the_mark_of_a_store(tmp_path: Path) -> None:
    os_api, mark = OsApi(), Divergence(100, 400, 900, "h:1", 7)
    assert load_divergence(os_api, str(tmp_path)) is None
    note_divergence(os_api, str(tmp_path), mark)
    assert load_divergence(os_api, str(tmp_path)) == mark
    assert "from physical offset 100 on, 300 bytes (to 400)" in str(mark)
    assert "800 bytes of the master (to 900)" in str(mark)
    (tmp_path / "divergedFromMaster").write_bytes(b"{}")
    with pytest.raises(CorruptFile, match="divergedFromMaster"):
        load_divergence(os_api, str(tmp_path))
    forget_divergence(os_api, str(tmp_path))
    forget_divergence(os_api, str(tmp_path))
    assert load_divergence(os_api, str(tmp_path)) is None
