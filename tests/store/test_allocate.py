"""Making log files ahead of need: what a roll hears when a file, a buffer or locked memory cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, lab, open_still
from store.small_store import (
    SMALL,
)

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import PoolExhausted, StoreBusy, StoreClosed
from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.base.os_api import OsApi
from mqfast.store.log import allocate


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
    with open_still(tmp_path / "store", **pool, **SMALL) as store:
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
        lab(store).allocate.request_file(4096)
    assert lab(store).make_next_file() is False


def test_a_log_at_the_end_of_its_last_file_lets_services_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash between the end of a file and the first record of the next: there is nothing to wait for."""

    class EndedLog:
        def __init__(self, file: MappedFile) -> None:
            self.current_file, self.written, self.path = file, file.start_offset + file.file_bytes, str(tmp_path)

        def blocks_end(self) -> int:
            """Its file has all its blocks."""
            return -1

    os_api = OsApi()
    log: Any = EndedLog(MappedFile.create(os_api, tmp_path / f"{0:020}", 0, 4096))
    service = allocate.AllocateMappedFileService(os_api, log, StoreConfig.tiny(preallocate_files=0))
    waits: list[float] = []

    class Seen:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)

    def wait_until_written(log: EndedLog, event: Any, end: int, seconds: float) -> None:
        assert end > log.written, "a wait that ends at once"
        waits.append(seconds)

    monkeypatch.setattr(allocate, "wait_until_written", wait_until_written)
    service._run_once(Seen())  # type: ignore[arg-type]
    log.written -= 100
    service._run_once(Seen())  # type: ignore[arg-type]
    assert min(waits) > 1
    assert len(waits) == 2
