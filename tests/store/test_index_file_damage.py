"""Index files that are damaged, and the sizes that a file's contents tell: wrong answers at most, never a crash or an
endless chain.

Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqfast.errors import CorruptFile
from mqfast.store.base.os_api import OsApi
from mqfast.store.index.index_file import IndexFile, infer_sizes

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
EVER = (-(2**63), 2**63 - 1)
DOOR = OsApi()
PREVIOUS = st.none() | st.tuples(st.integers(1, 10**13), st.integers(1, 2**40))
I32 = struct.Struct(">i")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "20260101000000000")


# --- damage ----------------------------------------------------------------------------------------------------------


def filled(path: str, slots: int = 7, capacity: int = 60, entries: int = 50) -> IndexFile:
    file = IndexFile.create(DOOR, path, slots, capacity)
    rng = random.Random(1)
    for i in range(entries):
        file.put(rng.randrange(9), 1000 + i, 1_700_000_000_000 + i * 400)
    return file


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("count", [0, -1, -(2**31), 61, 2**31 - 1])
def test_impossible_count(path: str, count: int, writable: bool) -> None:
    """Too high: taken as full and reported. Not positive: an empty file, which is damage only below 0."""
    filled(path).close()
    with open(path, "r+b") as raw:
        raw.seek(36)
        raw.write(I32.pack(count))
    file = IndexFile.open(DOOR, path, 7, 60, writable=writable)
    assert file.count == (60 if count > 0 else 1)
    assert (file.damage is None) == (count == 0)
    assert file.damage is None or f"{count}" in file.damage
    if count > 0:
        assert file.is_full
        assert set(file.query(3, *EVER, 100)) <= set(range(1000, 1050))
    else:
        assert file.query(3, *EVER, 100) == []
    file.close()


def test_a_circle_of_entries_ends(path: str) -> None:
    file = IndexFile.create(DOOR, path, 1, 10)
    for i in range(1, 6):
        file.put(i, i, 1000)
    file.close()
    for previous in (1, 3, 4, 5, 9, 10, 11, 2**31 - 1, -1):
        with open(path, "r+b") as raw:
            raw.seek(44 + 20 * 3 + 16)
            raw.write(I32.pack(previous))
        file = IndexFile.open(DOOR, path, 1, 10)
        assert file.query(5, *EVER, 100) == [5]
        assert file.query(1, *EVER, 100) == ([1] if previous == 1 else [])
        file.close()


def test_a_slot_that_points_at_the_next_entry_is_no_chain(path: str) -> None:
    """What a crash between slot and count leaves: the next put ends its chain there, as RocketMQ's does."""
    file = filled(path, 1, 60, 5)
    file.close()
    with open(path, "r+b") as raw:
        raw.seek(40)
        raw.write(I32.pack(6))
    file = IndexFile.open(DOOR, path, 1, 60)
    assert file.query(77, *EVER, 10) == []
    file.put(77, 9999, 1_700_000_000_000)
    assert next(row for row in file.entries() if row[0] == 6)[4] == 6
    assert file.query(77, *EVER, 10) == [9999]
    file.put(78, 10000, 1_700_000_000_000)
    assert file.query(77, *EVER, 10) == [9999]


def test_a_full_files_slot_cannot_point_behind_its_end(path: str) -> None:
    file = filled(path, 1, 10, 9)
    file.close()
    with open(path, "r+b") as raw:
        raw.seek(40)
        raw.write(I32.pack(10))
    for writable in (True, False):
        file = IndexFile.open(DOOR, path, 1, 10, writable=writable)
        assert file.query(0, *EVER, 10) == []
        file.close()


@given(st.lists(st.tuples(st.integers(0, 40 + 28 + 1200 - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_random_damage_is_never_more_than_wrong_answers(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    path = str(tmp_path / "d")
    filled(path).close()
    try:
        image = bytearray(Path(path).read_bytes())
        for position, value in damage:
            image[position] = value
        Path(path).write_bytes(image)
        stored = {struct.unpack_from(">q", image, 40 + 28 + 20 * n + 4)[0] for n in range(60)}
        for writable in (False, True):
            file = IndexFile.open(DOOR, path, 7, 60, writable=writable)
            for h in range(12):
                hits = file.query(h, *EVER, 1000)
                assert len(hits) <= 59
                assert set(hits) <= stored
            assert len(list(file.entries())) == file.count - 1
            if writable:
                before = file.count
                assert file.put(3, 5, 1_700_000_000_000) == (before < 60)
            file.close()
        try:
            slots, capacity = infer_sizes(DOOR, path)
            assert 40 + 4 * slots + 20 * capacity == len(image)
        except CorruptFile:
            pass
    finally:
        os.unlink(path)


# --- sizes -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 90), st.integers(2, 90), st.integers(1, 95), st.integers(0, 2**32), PREVIOUS)
def test_sizes_are_told_by_the_contents(
    tmp_path: Path, slots: int, capacity: int, entries: int, seed: int, previous: tuple[int, int] | None
) -> None:
    path = str(tmp_path / "s")
    file = IndexFile.create(DOOR, path, slots, capacity, previous)
    try:
        rng = random.Random(seed)
        for i in range(entries):
            file.put(rng.randrange(1, 2**31), 100 + 200 * i, 1_700_000_000_000 + i)
        assert infer_sizes(DOOR, path) == (slots, capacity)
        assert infer_sizes(DOOR, path, slots + 1, capacity) == (slots, capacity)
        assert infer_sizes(DOOR, path, slots, capacity) == (slots, capacity)
    finally:
        file.destroy()


def test_sizes_of_every_real_file() -> None:
    files = [path for path in GOLDEN.glob("golden-[0-9]*/*/store/index/*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        assert infer_sizes(DOOR, path) == (64, 200), path


def test_sizes_despite_one_damaged_entry_and_one_unknown_to_the_count(path: str) -> None:
    file = filled(path, 30, 200, 150)
    file.close()
    image = bytearray(Path(path).read_bytes())
    image[40 + 120 + 20 * 40] ^= 0xFF
    I32.pack_into(image, 36, 150)
    Path(path).write_bytes(image)
    assert infer_sizes(DOOR, path) == (30, 200)


@pytest.mark.parametrize("length", [0, 1, 40, 44, 47, 60, 61, 64, 5000])
def test_sizes_of_nothing_are_refused(path: str, length: int) -> None:
    Path(path).write_bytes(bytes(length))
    with pytest.raises(CorruptFile):
        infer_sizes(DOOR, path)


def test_default_sizes_are_known(path: str) -> None:
    with open(path, "wb") as raw:
        raw.truncate(420_000_040)
    assert infer_sizes(DOOR, path) == (5_000_000, 20_000_000)
