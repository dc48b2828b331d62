"""The file of epochs: RocketMQ's bytes, what is refused, what a damaged file falls back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqfast.errors import CorruptFile, UsageError
from mqfast.ha.epoch_file import EpochEntry, EpochFile, epochs_text, parse_epochs
from mqfast.ha.term_history import NO_EPOCH
from mqfast.store.base.os_api import OsApi

EXAMPLE = b"2\n773307083\n7-7000\n8-8000\n"  # of RocketMQ's CheckpointFile


def load(path: Path) -> EpochFile:
    return EpochFile.load(OsApi(), str(path))


def test_the_bytes_are_those_of_rocketmq(tmp_path: Path) -> None:
    assert epochs_text([EpochEntry(7, 7000), EpochEntry(8, 8000)]) == EXAMPLE
    (tmp_path / "epochFileCheckpoint").write_bytes(EXAMPLE)
    assert load(tmp_path).entries == [(7, 7000), (8, 8000)]


def test_epochs_begin_one_after_the_other(tmp_path: Path) -> None:
    file = load(tmp_path)
    assert file.last_epoch == NO_EPOCH
    file.begin(1, 100)
    file.begin(4, 250)
    assert load(tmp_path).entries == [(1, 100), (4, 250)]
    with pytest.raises(UsageError, match="more than 4"):
        file.begin(4, 300)
    file.begin(5, 250)  # epoch 4 wrote nothing; both numbers of a file grow
    assert load(tmp_path).entries == [(1, 100), (5, 250)]


def test_a_slave_has_the_epochs_of_its_master_as_far_as_its_log_goes(tmp_path: Path) -> None:
    file = load(tmp_path)
    theirs = [EpochEntry(1, 0), EpochEntry(2, 500), EpochEntry(3, 900)]
    assert not file.follow(theirs, 600)
    assert load(tmp_path).entries == [(1, 0), (2, 500)]
    assert file.follow(theirs, 900)
    file.cut(900)
    assert load(tmp_path).entries == [(1, 0), (2, 500)]
    file.cut(0)
    assert load(tmp_path).entries == []


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"2\n773307083\n7-7000\n", b"2\n1\n7-7000\n8-8000\n", b"2\n0\n8-8000\n7-7000\n", b"x\ny\n",
        b"1\n0\n7\n", b"\xff\xfe", b"2\n0\n7-7000\n8-7000\n",
    ],
)  # fmt: skip
def test_a_damaged_epoch_file_is_replaced_by_its_backup(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "epochFileCheckpoint"
    file = load(tmp_path)
    file.begin(7, 7000)
    file.begin(8, 8000)
    path.write_bytes(damaged)
    assert load(tmp_path).entries == [(7, 7000)]
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(damaged)
    with pytest.raises(CorruptFile, match="epochFileCheckpoint"):
        load(tmp_path)


def test_a_crc_of_0_is_not_checked() -> None:
    assert parse_epochs(b"1\n0\n3-30\n", "x") == [(3, 30)]
