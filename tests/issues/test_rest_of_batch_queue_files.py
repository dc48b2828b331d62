"""Batch queues of files whose length is no multiple of 46: a reader looked for units in the bytes that hold none.

Room: tests/issues. What the engine makes of such files is in ``tests/store/test_batch_queue.py``.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.message import Message
from mqfast.store.base.results import BoundaryType, GetMessageStatus

FILE = 1000  # 21 units, and 34 bytes


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Seventy records of one to three messages: four files."""
    config = StoreConfig(mapped_file_bytes_commit_log=4096, mapped_file_bytes_batch_consume_queue=FILE)
    with mqfast.open(tmp_path / "store", config=config) as opened:
        opened.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        for i in range(70):
            count = {"INNER_NUM": str(i % 3 + 1)}
            opened.put_message(Message("B", b"%d" % i, sys_flag=0x80, properties=count))
    return tmp_path / "store"


def units(reader: mqfast.StoreReader) -> list[tuple[int, int]]:
    first, end = reader.min_offset("B", 0), reader.max_offset("B", 0)
    return [(unit.queue_offset, unit.messages) for some in reader.units("B", 0, first, end) for unit in some]


def test_every_unit_of_every_file(store: Path) -> None:
    files = sorted((store / "batchconsumequeue" / "B" / "0").iterdir())
    assert [int(file.name) for file in files] == [0, FILE, 2 * FILE, 3 * FILE]
    counts = [i % 3 + 1 for i in range(70)]
    expected = list(zip(accumulate(counts, initial=0), counts, strict=False))
    with mqfast.StoreReader(store) as reader:
        assert units(reader) == expected
        assert [int(bytes(message.body)) for message in reader.messages("B", 0)] == list(range(70))
        for offset, messages in expected:
            assert reader.unit_at("B", 0, offset + messages - 1).queue_offset == offset
            assert reader.get("B", 0, offset, max_count=1).status == GetMessageStatus.FOUND
        records = list(reader.scan())
        for record in records:
            assert reader.record_boundary(record.physical_offset, 1 << 40) == record.physical_offset
        moments = sorted({record.store_timestamp + way for record in records for way in (-1, 0, 1)})
        answers = [[reader.offset_by_time("B", 0, at, boundary) for at in moments] for boundary in BoundaryType]
    with mqfast.open(store) as opened:  # what the engine itself says
        assert answers == [[opened.offset_by_time("B", 0, at, boundary) for at in moments] for boundary in BoundaryType]


def test_a_queue_whose_first_files_retention_took(store: Path) -> None:
    with mqfast.StoreReader(store) as reader:
        before = units(reader)
    for file in sorted((store / "batchconsumequeue" / "B" / "0").iterdir())[:2]:
        file.unlink()
    with mqfast.StoreReader(store) as reader:
        assert units(reader) == before[42:]
        assert reader.get("B", 0, before[50][0], max_count=1).status == GetMessageStatus.FOUND


def test_a_queue_that_grows_into_its_next_file(store: Path) -> None:
    with mqfast.StoreReader(store) as reader:
        assert len(units(reader)) == 70
        with mqfast.open(store) as opened:
            for _ in range(30):
                opened.put("B", b"one more")
        reader.refresh()
        assert len(units(reader)) == 100


def test_a_first_file_that_goes_while_the_files_are_listed(store: Path) -> None:
    with mqfast.StoreReader(store) as reader:
        end = reader.max_offset("B", 0)
        first = min((store / "batchconsumequeue" / "B" / "0").iterdir())
        first.unlink()
        first.symlink_to(store / "gone")  # as retention leaves it in that moment: listed, and not there
        reader.refresh()
        assert reader.max_offset("B", 0) == end
