"""A plain file between the directories of the queues, as a file manager leaves one, kept a store from opening."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.store.reader import StoreReader
from mqfast.store.verify import verify


@pytest.mark.parametrize(
    "place", [".", "commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index", "config"]
)
@pytest.mark.parametrize("killed", [False, True])
def test_they_are_left_alone(tmp_path: Path, place: str, killed: bool) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny()) as store:
        for i in range(10):
            store.put("T", b"%d" % i, keys=f"k{i}")
    if killed:
        (path / "abort").touch()
    (path / place / ".stranger").write_bytes(b"x")
    (path / place / ".strangers").mkdir()
    with StoreReader(path) as reader:
        assert len(reader.get("T", 0, 0)) == 10
    with mqfast.open(path) as store:
        assert [bytes(m.body) for m in store.get("T", 0, 0)] == [b"%d" % i for i in range(10)]
        assert len(store.query("T", "k3")) == 1
        assert store.topics() == ["T"]
    assert [d for d in verify(path).damages if str(d.severity) != "note"] == []
    assert (path / place / ".stranger").read_bytes() == b"x"
