"""The last file of a queue or of the index was cut or had grown: no open took it, verify said clean, repair left it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mqfast
from mqfast.errors import CorruptFile


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("change", [20, 1000, -20, -1000])
@pytest.mark.parametrize("files", ["consumequeue/T/0/*", "index/*"])
def test_repair_makes_them_anew(tmp_path: Path, files: str, change: int, killed: bool) -> None:
    path = tmp_path / "store"
    sizes = {"mapped_file_bytes_commit_log": 65536, "mapped_file_bytes_consume_queue": 2000}
    with mqfast.open(path, **sizes, max_index_num=200, max_hash_slot_num=50) as store:  # type: ignore[arg-type]
        for number in range(300):
            store.put("T", b"%d" % number, keys=f"k{number}")
    last = max(path.glob(files))
    os.truncate(last, last.stat().st_size + change)
    if killed:
        (path / "abort").touch()
    with pytest.raises(CorruptFile):
        mqfast.open(path)
    assert not mqfast.verify(path).ok
    mqfast.repair(path)
    with mqfast.open(path) as store:
        assert store.max_offset("T", 0) == 300
        assert [bytes(m.body) for m in store.query("T", "k299")] == [b"299"]
    assert mqfast.verify(path).ok
