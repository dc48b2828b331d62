"""A deleted topic whose records were the last of the log came back when the store was closed and opened again."""

from __future__ import annotations

from pathlib import Path

import mqfast
from mqfast.config import StoreConfig


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny()) as store:
        store.put("Kept", b"kept")
        for _ in range(5):
            store.put("Gone", b"gone", keys="k")
        assert store.delete_topic("Gone") == 1
        assert store.topics() == ["Kept"]
    for _ in range(2):
        with mqfast.open(tmp_path / "store") as store:
            assert store.topics() == ["Kept"]
            assert [bytes(m.body) for m in store.get("Kept", 0, 0)] == [b"kept"]
    with mqfast.open(tmp_path / "store") as store:
        assert store.put("Gone", b"new").queue_offset == 0
        assert [bytes(m.body) for m in store.get("Gone", 0, 0)] == [b"new"]
