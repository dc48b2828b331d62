"""Limits at their last allowed value and one beyond.

Written for comparisons that could be off by one without any test failing (``tests/mutation``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from laboratory import lab, open_still

import mqfast
from mqfast import Message
from mqfast.config import StoreConfig
from mqfast.errors import DiskFull, PropertiesTooLong

sys.path.append(str(Path(__file__).resolve().parent))

from test_retention import BODY, Disk, filled


def test_puts_are_refused_above_the_warning_level_and_not_at_it(tmp_path: Path) -> None:
    disk = Disk(used_percent=90)
    with filled(tmp_path / "store", disk, retention_when_full="refuse") as store:
        store.retention.run_once(store.os_api.now_ms())
        assert store.put("T", BODY).status.name == "PUT_OK"
        disk.used_percent = 91
        store.retention.run_once(store.os_api.now_ms())
        with pytest.raises(DiskFull):
            store.put("T", BODY)


def test_the_oldest_go_above_the_forcible_level_and_not_at_it(tmp_path: Path) -> None:
    disk = Disk(used_percent=85)
    with filled(tmp_path / "store", disk) as store:
        assert store.retention.run_once(store.os_api.now_ms()) == 0
        disk.used_percent = 86
        assert store.retention.run_once(store.os_api.now_ms()) > 0


def test_a_log_that_fills_its_budget_exactly_keeps_all_its_files(tmp_path: Path) -> None:
    config = StoreConfig.tiny(retention_bytes=128 << 10, delete_files_interval_ms_commit_log=0)
    with open_still(tmp_path / "store", config=config) as store:
        size = store.put("T", b"x" * 8000).size
        while store.log.written + size < 128 << 10:
            store.put("T", b"x" * 8000)
        left = (128 << 10) - store.log.written  # the rest of the second file, less its end mark
        store.put("T", b"x" * (8000 - size + left - 8))
        store.put("T", b"x")  # rolls
        assert store.log.written > 128 << 10
        for _ in range(30):
            store.put("T", b"x" * 900)
        store.flush()
        lab(store).step_dispatch()
        store.log.reap()
        exact = store.log.written - store.min_physical_offset
        store.retention._config = StoreConfig.tiny(retention_bytes=exact, delete_files_interval_ms_commit_log=0)
        assert store.retention.run_once(store.os_api.now_ms()) == 0
        store.retention._config = StoreConfig.tiny(retention_bytes=exact - 1, delete_files_interval_ms_commit_log=0)
        assert store.retention.run_once(store.os_api.now_ms()) == 1


def test_retention_removes_at_most_its_limit_of_files(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention_bytes=128 << 10, delete_file_batch_max=2) as store:
        assert store.stats()["log_files"] > 5
        assert store.retention.run_once(store.os_api.now_ms()) == 2
        assert store.retention.run_once(store.os_api.now_ms()) == 2


def test_four_dirty_pages_are_flushed_and_three_are_not(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", config=StoreConfig.tiny()) as store:
        size = store.put("T", b"x" * 900).size
        while store.log.written + size < 4 * 4096:
            store.put("T", b"x" * 900)
        lab(store).flush_log(thorough=False)
        assert store.log.flushed == 0
        store.put("T", b"x" * 900)
        lab(store).flush_log(thorough=False)
        assert store.log.flushed == store.log.written


def test_a_get_ends_at_its_byte_limit(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig.tiny()) as store:
        size = store.put("T", b"12345").size
        store.put_many("T", [b"12345"] * 4)
        assert len(store.get("T", 0, 0, max_bytes=3 * size)) == 3
        assert len(store.get("T", 0, 0, max_bytes=3 * size - 1)) == 2
        assert len(store.get("T", 0, 0, max_bytes=0)) == 1


@pytest.mark.parametrize("crc", [False, True])
def test_properties_fill_their_length_field_and_no_more(tmp_path: Path, crc: bool) -> None:
    config = StoreConfig.tiny(enabled_append_prop_crc=crc)
    most = 32767 - (20 if crc else 0)
    with mqfast.open(tmp_path / "store", config=config) as store:
        for properties in ({"p": "v" * (most - 3)}, {"p": "v" * (most - 4)}):
            assert store.put("T", b"", properties=properties).status.name == "PUT_OK"
            assert store.put_batch([Message("T", b"", properties=properties)]).status.name == "PUT_OK"
        with pytest.raises(PropertiesTooLong):
            store.put("T", b"", properties={"p": "v" * (most - 2)})
        with pytest.raises(PropertiesTooLong):
            store.put_batch([Message("T", b"", properties={"p": "v" * (most - 2)})])
        assert store.put("T", b"", keys="k" * (most - 6)).status.name == "PUT_OK"
        with pytest.raises(PropertiesTooLong):
            store.put("T", b"", keys="k" * (most - 5))
        assert [len(m.properties["p"]) for m in store.get("T", 0, 0, 4)] == [most - 3, most - 3, most - 4, most - 4]
