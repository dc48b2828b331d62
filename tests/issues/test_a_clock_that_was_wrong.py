"""A clock that was wrong once does not stay in the store: store times are the clock's, as RocketMQ's are, and a crash
behind its fall loses nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from laboratory import lab, open_still

import mqfast
from mqfast.store.base.os_api import OsApi

NOW = 1_800_000_000_000
WRONG = NOW + 19 * 365 * 86_400_000
SMALL: dict[str, Any] = {
    "mapped_file_bytes_commit_log": 16 << 10,
    "max_hash_slot_num": 16,
    "max_index_num": 200,
}


def test_the_next_message_has_the_right_time_and_the_user_is_told(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(WRONG)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        assert store.put("T", b"x").store_timestamp == WRONG
        assert store.stats()["warnings"] == []
        os_api.fix_clock(NOW)
        assert store.put("T", b"y").store_timestamp == NOW
        (warning,) = store.stats()["warnings"]
        assert "the clock fell from 2046" in warning
        os_api.fix_clock(NOW + 5)
        assert store.put("T", b"z").store_timestamp == NOW + 5
    os_api.fix_clock(NOW + 10)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        result = store.put("T", b"a")
        assert result.store_timestamp == NOW + 10
        assert store.stats()["warnings"] == []
        message = store.get("T", 0, 3).messages[0]
        assert message.store_timestamp == message.born_timestamp == NOW + 10
    assert mqfast.verify(tmp_path / "store").ok


def test_a_reopen_under_the_right_clock_tells_as_well(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(WRONG)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        store.put("T", b"x")
    os_api.fix_clock(NOW)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        assert store.put("T", b"y").store_timestamp == NOW
        assert any("the clock fell" in text for text in store.stats()["warnings"])


def test_an_adjustment_of_the_clock_is_no_warning(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(NOW)
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        store.put("T", b"x")
        os_api.fix_clock(NOW - 2_500)
        assert store.put("T", b"y").store_timestamp == NOW - 2_500
        assert store.stats()["warnings"] == []


def test_a_power_cut_behind_the_fall_loses_nothing(tmp_path: Path) -> None:
    """The checkpoint is of before the fall; of the queues behind it one reached the disk, the other did not."""
    os_api = OsApi()
    os_api.fix_clock(WRONG)
    old, new, cut = tmp_path / "old", tmp_path / "new", tmp_path / "cut"
    store = open_still(tmp_path / "store", os_api=os_api, **SMALL)
    for number in range(40):
        store.put(f"T{number % 2}", b"%d" % number + b"x" * 300, keys=f"k{number}")
    store.get("T0", 0, 0)
    lab(store).flush_log(thorough=True)
    lab(store).flush_queues()
    shutil.copytree(tmp_path / "store", old)
    os_api.fix_clock(NOW)
    for number in range(40, 400):
        store.put(f"T{number % 2}", b"%d" % number + b"x" * 300, keys=f"k{number}")
    store.get("T0", 0, 0)
    shutil.copytree(tmp_path / "store", new)
    store.close()

    shutil.copytree(new, cut)
    shutil.copyfile(old / "checkpoint", cut / "checkpoint")
    shutil.rmtree(cut / "consumequeue" / "T1")
    shutil.copytree(old / "consumequeue" / "T1", cut / "consumequeue" / "T1")
    assert (cut / "abort").exists()
    os_api.fix_clock(NOW + 1000)
    with mqfast.open(cut, os_api=os_api, **SMALL) as store:
        assert not store.recovery.clean
        for topic in (0, 1):
            found = [
                bytes(m.body).rstrip(b"x")
                for at in range(0, 200, 32)
                for m in store.get(f"T{topic}", 0, at, 32).messages
            ]
            assert found == [b"%d" % number for number in range(topic, 400, 2)]
        for number in (0, 39, 41, 399):
            assert len(store.query(f"T{number % 2}", f"k{number}")) == 1
    assert mqfast.verify(cut).ok
