"""A clean reopen put keys again: those of the last record when it has no queue unit (a prepared message) or stands in a
batch queue. The index grew with every open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laboratory import lab

import mqfast

SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 4096, "maxHashSlotNum": 16, "maxIndexNum": 100}


def test_the_index_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.topic_table.ensure("Batch", 1, attributes={"queue.type": "BatchCQ"})
        store.put("T", b"")
        store.put("Batch", b"x", keys=["a", "b"])
    for extra in (lambda s: None, lambda s: s.put("T", b"half", sys_flag=4, keys=["c", "d"])):
        with mqfast.open(path, **SMALL) as store:
            extra(store)
        before = [file.read_bytes() for file in (path / "index").iterdir()]
        assert before
        for _ in range(2):
            mqfast.open(path, **SMALL).close()
            assert [file.read_bytes() for file in (path / "index").iterdir()] == before


def test_the_first_record_of_the_log_too(tmp_path: Path) -> None:
    """Its physical offset is the end offset of an index without entries."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.put("T", b"half", sys_flag=4, keys="a")
    before = [file.read_bytes() for file in (path / "index").iterdir()]
    with mqfast.open(path, **SMALL) as store:
        assert [message.physical_offset for message in store.query("T", "a")] == [0]
        assert lab(store).index.query("T", "a", 9, 0, 1 << 60).physical_offsets == [0]
    assert [file.read_bytes() for file in (path / "index").iterdir()] == before
