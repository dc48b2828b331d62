"""The checkpoint file: against real ones, in place, and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import StorageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.checkpoint import StoreCheckpoint

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("golden-[45]*/*/store/checkpoint"))


def numbers(checkpoint: StoreCheckpoint) -> tuple[int, ...]:
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
        checkpoint.logics_physical_offset,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-4:-2]))
def test_files_of_real_brokers(path: Path) -> None:
    checkpoint = StoreCheckpoint.load(OsApi(), str(path))
    assert checkpoint.warnings == []
    expected = json.loads((path.parents[1] / "expected.json").read_text())["checkpointFileBefore"]
    stated = (
        expected["physicMsgTimestamp"],
        expected["logicsMsgTimestamp"],
        expected["indexMsgTimestamp"],
        expected["masterFlushedOffset"],
        expected["confirmPhyOffset"],
        expected.get("logicsPhysicalOffset", 0),
    )
    assert numbers(checkpoint) == stated


def test_missing_file_is_all_zero_and_the_first_flush_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = StoreCheckpoint.load(OsApi(), str(path))
    assert numbers(checkpoint) == (0,) * 6
    assert checkpoint.warnings == []
    assert not path.exists()
    checkpoint.confirm_phy_offset = 7
    assert checkpoint.flush()
    assert path.read_bytes() == struct.pack(">6q", 0, 0, 0, 0, 7, 0) + bytes(4096 - 48)


def test_flush_writes_in_place_and_only_on_change(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    # A Java broker has the same inode mapped, and what lies behind the numbers is not ours.
    path.write_bytes(struct.pack(">6q", 1, 2, 3, 4, 5, 6) + b"x" * (4096 - 48))
    inode = path.stat().st_ino
    checkpoint = StoreCheckpoint.load(OsApi(), str(path))
    assert not checkpoint.flush()
    checkpoint.physic_msg_timestamp = 10
    assert checkpoint.flush()
    assert not checkpoint.flush()
    assert path.stat().st_ino == inode
    assert path.read_bytes() == struct.pack(">6q", 10, 2, 3, 4, 5, 6) + b"x" * (4096 - 48)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=6, max_size=6))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, values: list[int]) -> None:
    path = str(tmp_path_factory.mktemp("checkpoint") / "checkpoint")
    checkpoint = StoreCheckpoint(OsApi(), path)
    (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_phy_offset,
        checkpoint.logics_physical_offset,
    ) = values
    checkpoint.flush()
    assert list(numbers(StoreCheckpoint.load(OsApi(), path))) == values


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "found 0"),
        (struct.pack(">5q", 1, 2, 3, 4, 5), "found 40"),
        (struct.pack(">6q", 9, 1, 3, 4, 5, -1).ljust(4096, b"\0"), "at least 0"),
        (bytes(8192), "found 8192"),
        (struct.pack(">5q", 9, -1, 3, 4, 5).ljust(4096, b"\0"), "at least 0"),
        (b"\xff" * 4096, "at least 0"),
    ],
)
def test_damage_gives_zeros_and_a_warning_and_is_mended_by_flush(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    checkpoint = StoreCheckpoint.load(OsApi(), str(path))
    assert numbers(checkpoint) == (0,) * 6
    assert len(checkpoint.warnings) == 1
    assert found in checkpoint.warnings[0]
    assert str(path) in checkpoint.warnings[0]
    checkpoint.flush()
    assert path.read_bytes() == bytes(4096)


def test_minimum_rules() -> None:
    checkpoint = StoreCheckpoint(OsApi(), "unused")
    assert (checkpoint.get_min_timestamp(), checkpoint.get_min_timestamp_index()) == (0, 0)
    checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp = 10_000, 9_000
    assert checkpoint.get_min_timestamp() == 6_000
    assert checkpoint.get_min_timestamp_index() == 0
    checkpoint.index_msg_timestamp = 5_000
    assert checkpoint.get_min_timestamp_index() == 5_000
    checkpoint.index_msg_timestamp = 50_000
    assert checkpoint.get_min_timestamp_index() == 6_000
    checkpoint.logics_msg_timestamp = 2_999
    assert checkpoint.get_min_timestamp() == 0


def test_a_failed_flush_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    checkpoint = StoreCheckpoint(OsApi(), str(place / "checkpoint"))
    checkpoint.confirm_phy_offset = 3
    with pytest.raises(OSError, match="open failed"):
        checkpoint.flush()
    place.mkdir()
    assert checkpoint.flush()
    assert numbers(StoreCheckpoint.load(OsApi(), str(place / "checkpoint")))[4] == 3


def test_a_removed_checkpoint_file_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = StoreCheckpoint(OsApi(), str(path))
    checkpoint.confirm_phy_offset = 1
    assert checkpoint.flush()
    path.unlink()
    checkpoint.confirm_phy_offset = 2
    assert checkpoint.flush()
    assert path.read_bytes() == struct.pack(">6q", 0, 0, 0, 0, 2, 0) + bytes(4096 - 48)


def test_a_directory_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = StoreCheckpoint(OsApi(), str(tmp_path / "checkpoint"))
    with pytest.raises(StorageError):
        checkpoint.flush()
