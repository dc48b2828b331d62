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


@pytest.mark.parametrize("by", [-20, 20, -1000])
def test_one_queue_of_another_length_does_not_speak_for_the_others(tmp_path: Path, by: int) -> None:
    """The length of queue files was that of the first queue, and every sound one was then refused."""
    path = tmp_path / "store"
    with mqfast.open(path) as store:
        for topic in ("a", "b", "c"):
            for number in range(5):
                store.put(topic, b"%d" % number)
    (odd,) = (path / "consumequeue" / "a" / "0").iterdir()
    os.truncate(odd, odd.stat().st_size + by)
    with pytest.raises(CorruptFile, match="wrong file length") as caught:
        mqfast.open(path)
    assert caught.value.path == str(odd)
    assert not mqfast.verify(path).ok
    mqfast.repair(path)
    with mqfast.open(path) as store:
        assert [store.max_offset(topic, 0) for topic in ("a", "b", "c")] == [5, 5, 5]
        assert [bytes(message.body) for message in store.get("a", 0, 0)] == [b"%d" % number for number in range(5)]
