"""Retention that took a full index file while it was being flushed made the dispatch of the next record fail.

Room: tests/issues. The moment is held by an msync that lets retention run before it answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from laboratory import lab, open_still

import mqfast
from mqfast.store.base.os_api import OsApi

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import msync_behind


def store_with_full_index(path: Path, os_api: OsApi) -> mqfast.MessageStore:
    config = mqfast.StoreConfig(max_hash_slot_num=5, max_index_num=6)
    store = open_still(path, config=config, os_api=os_api)
    for number in range(5):
        store.put("T", b"x", keys=f"k{number}")
    return store


def test_it_is_no_failure(tmp_path: Path) -> None:
    os_api = OsApi()
    gone: list[str] = []
    with store_with_full_index(tmp_path / "s", os_api) as store:
        index = lab(store).index
        assert index is not None
        with msync_behind(os_api, lambda: gone.extend(index.delete_expired(1 << 40))):
            store.put("T", b"x", keys="next")
            store.get("T", 0, 0)  # dispatched: the full file is flushed, and the next one made
        assert len(gone) == 1
        assert [bytes(m.body) for m in store.query("T", "next")] == [b"x"]
