"""Making log files ahead of need: what a roll hears when a file, a buffer or locked memory cannot be had.

Room: tests/store.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from store.small_store import SMALL, bodies

import mqfast
from mqfast.errors import PoolExhausted, StoreBusy, StoreClosed
from mqfast.store import allocate


def test_a_file_that_is_not_ready_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        monkeypatch.setattr(allocate, "_TAKE_TIMEOUT_S", -1.0)
        with pytest.raises(StoreBusy, match="was not ready"):
            store.put("T", b"x")
        monkeypatch.undo()
        store.put("T", b"y")
        assert bodies(store) == [b"y"]


def test_a_pool_without_a_buffer_fails_at_once_where_that_is_asked_for(tmp_path: Path) -> None:
    pool = {
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 1,
        "fastFailIfNoBufferInStorePool": True,
    }
    with mqfast.open(tmp_path / "store", _start_services=False, **pool, **SMALL) as store:
        store.put("T", b"x" * 3900)
        with pytest.raises(PoolExhausted, match="all 1 buffers"):
            store.put("T", b"x" * 3900)
        store.flush()
        store.log.reap()
        assert store.put_count == 1


def test_locked_memory_has_a_budget_and_is_no_condition(tmp_path: Path) -> None:
    settings = {"warm_mapped_file_enable": True, "mlock_budget_bytes": 1}
    with mqfast.open(tmp_path / "store", **settings, **SMALL) as store:
        for _ in range(20):
            store.put("T", b"x" * 900)
        assert any("mlock budget of 1 bytes is used up" in text for text in store.stats()["warnings"])


def test_nothing_is_made_for_a_store_that_closes(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "store", **SMALL)
    store.put("T", b"x")
    store.close()
    with pytest.raises(StoreClosed, match="closing"):
        store._allocate.take(4096)
    assert store._allocate.step() is False
