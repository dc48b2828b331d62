"""Units in bulk and places where a log may be divided, on queues that lose something and logs that are damaged.

Columns: ``test_gather.py``, ``test_column_scan.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, OffsetError, StoreNotFound
from mqfast.store.reader.store_reader import StoreReader

UNIT = 20
PER_FILE = 50


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[Any]]:
    """Three files of units, and where the messages stand."""
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=PER_FILE * UNIT)
    with mqfast.open(tmp_path / "store", config=config) as opened:
        return tmp_path / "store", [opened.put("T", b"%d" % i) for i in range(140)]


def queue_file(path: Path, number: int) -> Path:
    return path / "consumequeue" / "T" / "0" / f"{number * PER_FILE * UNIT:020}"


def places_of_units(reader: StoreReader, start: int, end: int) -> Iterator[list[int]]:
    for units in reader.units("T", 0, start, end):
        yield [unit.physical_offset for unit in units]


def places_of_bytes(reader: StoreReader, start: int, end: int) -> Iterator[list[int]]:
    for data in reader.unit_bytes("T", 0, start, end):
        yield [physical for physical, _, _ in struct.iter_unpack(">qiq", data)]


BOTH = pytest.mark.parametrize("places", [places_of_units, places_of_bytes])
Places = Callable[[StoreReader, int, int], Iterator[list[int]]]


@BOTH
def test_units_in_bulk_are_those_of_the_messages(store: tuple[Path, list[Any]], places: Places) -> None:
    path, placed = store
    with StoreReader(path) as reader:
        assert reader.has_plain_units("T", 0)
        assert not reader.has_plain_units("T", 1)
        for start, end in ((0, 140), (49, 51), (100, 101), (7, 7)):
            found = [place for part in places(reader, start, end) for place in part]
            assert found == [place.physical_offset for place in placed[start:end]]
        for start, end in ((0, 141), (-1, 3), (140, 141)):
            with pytest.raises(OffsetError, match="expected an offset from 0 to 139"):
                list(places(reader, start, end))
        with pytest.raises(OffsetError, match="there is none"):
            list(reader.units("T", 1, 0, 0))


@BOTH
@pytest.mark.parametrize("what", ["unlisted", "listed", "cut"])
def test_units_that_go_meanwhile_are_an_error(store: tuple[Path, list[Any]], places: Places, what: str) -> None:
    path, _ = store
    with StoreReader(path) as reader:
        parts = places(reader, 0, 140)
        assert len(next(parts)) == PER_FILE
        if what == "cut":
            with queue_file(path, 1).open("r+b") as file:
                file.truncate(UNIT // 2)
        else:
            for number in (1, 2):
                queue_file(path, number).unlink()
        reader.release_files()
        if what == "unlisted":
            reader.refresh()
        with pytest.raises(StoreNotFound if what == "listed" else CorruptFile) as caught:
            list(parts)
        assert what == "listed" or "lost a unit" in str(caught.value)


def test_where_a_damaged_log_may_be_divided(store: tuple[Path, list[Any]]) -> None:
    path, placed = store
    log = path / "commitlog" / f"{0:020}"
    for bad in (20, 139):
        data = bytearray(log.read_bytes())
        at = placed[bad].physical_offset
        data[at : at + 8] = b"\xff" * 8
        log.write_bytes(data)
        with StoreReader(path) as reader:
            # Behind damage it goes on at the next record that is one, and behind the last one nowhere.
            expected = placed[bad + 1].physical_offset if bad + 1 < len(placed) else 1 << 16
            assert reader.record_boundary(at + 1, 1 << 16) == expected
            assert reader.record_boundary(placed[5].physical_offset + 1, 1 << 16) == placed[6].physical_offset
