"""A store whose log files were all gone kept its index, whose end offset then kept the keys of new records out."""

from __future__ import annotations

import shutil
from pathlib import Path

import mqfast


def test_keys_are_indexed_after_the_log_was_lost(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 4096, "maxHashSlotNum": 16, "maxIndexNum": 100}
    with mqfast.open(tmp_path / "store", **settings) as store:
        for i in range(9):
            store.put("T", b"old", keys=f"k{i}")
    shutil.rmtree(tmp_path / "store/commitlog")
    with mqfast.open(tmp_path / "store", **settings) as store:
        assert store.query("T", "k8") == []
        store.put("T", b"new", keys="k1")
        assert [bytes(message.body) for message in store.query("T", "k1")] == [b"new"]
