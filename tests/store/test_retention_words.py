"""Retention in plain words: what is deleted by whom, and that nothing is where nobody asked."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab
from store.small_store import eventually
from used_disk import Disk

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, DiskFull
from mqfast.retention_rules import RetentionRules, parse_retention

BODY = b"x" * 1000
HOUR = 3_600_000
SMALL: dict[str, Any] = {
    "mapped_file_bytes_commit_log": 64 << 10,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
    "clean_resource_interval_ms": 600_000,
}


def filled(path: Path, disk: Disk | None = None, **settings: Any) -> mqfast.MessageStore:
    """400 messages of 1,000 bytes in seven log files, through the public open."""
    store = mqfast.open(path, os_api=disk.os_api if disk else None, **{**SMALL, **settings})
    refill(store)
    return store


def refill(store: mqfast.MessageStore) -> None:
    for _ in range(400):
        store.put("T", BODY)
    store.flush()
    lab(store).step_dispatch()  # retention keeps files that the dispatcher has not read
    store.log.reap()


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("never", RetentionRules()),
        (" NEVER ", RetentionRules()),
        ("72h", RetentionRules(age_ms=72 * HOUR)),
        ("3 days", RetentionRules(age_ms=72 * HOUR)),
        ("1.5h", RetentionRules(age_ms=HOUR * 3 // 2)),
        ("90 minutes", RetentionRules(age_ms=HOUR * 3 // 2)),
        ("2w", RetentionRules(age_ms=14 * 24 * HOUR)),
        ("20GB", RetentionRules(log_bytes=20 * 10**9)),
        ("500 MiB", RetentionRules(log_bytes=500 << 20)),
        ("1000b", RetentionRules(log_bytes=1000)),
        ("72h, 20GB", RetentionRules(72 * HOUR, 20 * 10**9)),
        ("20gb and 3d", RetentionRules(72 * HOUR, 20 * 10**9)),
        ("rocketmq", RetentionRules(rocketmq=True)),
    ],
)
def test_words(text: str, rules: RetentionRules) -> None:
    assert parse_retention(text) == rules


@pytest.mark.parametrize(
    "text",
    ["", "72", "h", "72x", "20G", "-1h", "0h", "0.0001b", "1h,2h", "1GB, 2GB", "forever", "72h,", "9" * 19 + "w"],
)
def test_other_words_are_errors(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="retention: expected"):
        mqfast.open(tmp_path / "store", retention=text)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({}, RetentionRules()),
        ({"clean_resource_interval_ms": 5}, RetentionRules()),
        ({"retention_when_full": "refuse"}, RetentionRules()),
        ({"retention_bytes": 1 << 30}, RetentionRules(log_bytes=1 << 30)),
        ({"fileReservedTime": 72}, RetentionRules(rocketmq=True)),
        ({"file_reserved_time_hours": 1}, RetentionRules(rocketmq=True)),
        ({"diskMaxUsedSpaceRatio": 75}, RetentionRules(rocketmq=True)),
        ({"cleanFileForciblyEnable": False}, RetentionRules(rocketmq=True)),
        ({"retention_when_full": "drop_oldest"}, RetentionRules(rocketmq=True)),
        ({"profile": "broker"}, RetentionRules(rocketmq=True)),
        ({"profile": "broker", "retention": "never"}, RetentionRules()),
        ({"profile": "broker", "retention_bytes": 3 << 30}, RetentionRules(log_bytes=3 << 30, rocketmq=True)),
        ({"retention": "rocketmq", "fileReservedTime": 5}, RetentionRules(rocketmq=True)),
    ],
)
def test_retention_rules_of_settings(settings: dict[str, Any], rules: RetentionRules) -> None:
    assert StoreConfig.from_kwargs(**settings).retention_rules == rules
    assert dataclasses.replace(StoreConfig.from_kwargs(**settings)).retention_rules == rules


def test_a_broker_conf_means_rocketmqs_rules_and_words_win_over_it() -> None:
    assert StoreConfig.from_broker_conf("brokerName=a").retention_rules == RetentionRules(rocketmq=True)
    given = StoreConfig.from_broker_conf("fileReservedTime=5", retention="20GB")
    assert given.retention_rules == RetentionRules(log_bytes=20 * 10**9)


@pytest.mark.parametrize(
    "settings",
    [
        {"retention": "72h", "fileReservedTime": 72},
        {"retention": "never", "diskSpaceCleanForciblyRatio": 80},
        {"retention": "72h", "retention_bytes": 1 << 40},
        {"retention": "never", "retention_when_full": "drop_oldest"},
    ],
)
def test_two_ways_to_say_it_are_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected one way to say it"):
        StoreConfig.from_kwargs(**settings)


@pytest.mark.parametrize("settings", [{}, {"retention": "never"}], ids=["silence", "never"])
def test_nothing_goes_by_itself_however_old_and_however_full_the_disk(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """10,696 of 12,000 acknowledged messages were gone within 12 s on a disk that others had filled."""
    disk = Disk(used_percent=99)
    with caplog.at_level(logging.INFO, "mqfast.store"), filled(tmp_path / "store", disk, **settings) as store:
        now = store.os_api.now_ms()
        for file in store.log.files:
            os.utime(file.path, (1, 1))
        for later in (0, 73 * HOUR, 10_000 * HOUR):
            assert store.retention.run_once(now + later) == 0
        store.retention.clean_now()
        assert store.retention.run_once(now + 10_000 * HOUR) == 0
        assert store.put("T", BODY).status.name == "PUT_OK"  # no watermark refuses either
        assert len(store.get("T", 0, 0, 1000, 1 << 20)) == 401
        assert store.stats()["retention"].startswith("never: nothing is deleted")
    assert f"{tmp_path / 'store'}: retention: never: nothing is deleted" in caplog.text


def test_an_age_means_age_at_any_hour_and_however_full_the_disk(tmp_path: Path) -> None:
    disk = Disk(used_percent=99)
    with filled(tmp_path / "store", disk, retention="72h") as store:
        now = store.os_api.now_ms()
        for file in store.log.files:
            os.utime(file.path, (1, 1))  # a filesystem in memory does not move it for a mapping
        for hour in range(24):
            assert store.retention.run_once(now + hour * HOUR) == 0
        last = store.log.files[-1].start_offset
        removed = 0
        for hour in range(73, 77):
            removed += store.retention.run_once(now + hour * HOUR)
        assert removed == 6
        assert store.min_physical_offset == last  # the last one never goes
        assert store.stats()["retention"].startswith("72h: log files whose youngest message is older than 72 h")


def test_a_size_means_size_however_full_the_disk(tmp_path: Path) -> None:
    disk = Disk(used_percent=99)
    with filled(tmp_path / "store", disk, retention="140kB") as store:
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) > 0
        kept = store.log.written - store.min_physical_offset
        assert 140_000 - (64 << 10) < kept <= 140_000
        assert store.retention.run_once(now + 1000 * HOUR) == 0


def test_of_both_the_first_one_decides(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention="1h, 140kB") as store:
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) > 0
        assert len(store.log.files) > 1
        assert store.retention.run_once(now + 2 * HOUR) > 0
        assert len(store.log.files) == 1


def test_a_record_of_the_future_makes_no_file_young(disk_path: Path) -> None:
    store = filled(disk_path / "store", retention="1h")
    with store:
        now = store.os_api.now_ms()
        assert store.retention.run_once(now - 10 * HOUR) == 0  # the clock was set back: nothing is old
        for file in store.log.files:
            os.utime(file.path, (now / 1000 - 20 * 3600,) * 2)
        assert store.retention.run_once(now - 10 * HOUR) > 0


def unread_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "unread messages" in r.getMessage()]


@pytest.mark.parametrize("forced", [False, True], ids=["size", "forced"])
def test_deleted_unread_messages_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forced: bool
) -> None:
    """Groups without a commit, with one of another queue, and consumers that read without a commit count as well."""
    disk = Disk(used_percent=50)
    settings: dict[str, Any] = {"retention": "rocketmq"} if forced else {"retention": "140kB"}
    with caplog.at_level(logging.WARNING, "mqfast.store"), filled(tmp_path / "store", disk, **settings) as store:
        for _ in range(10):
            store.put("T", BODY, 1)
        store.put("Other", BODY)
        assert len(store.consumer("reading", "T").poll()) == 32
        store.consumer_offsets.commit("partly", "T", 1, 10)
        store.consumer_offsets.commit("behind", "T", 0, 100)
        store.consumer_offsets.commit("done", "T", 0, 400)
        late = store.consumer("late", "T", from_first=False)
        assert late.poll() == []
        disk.used_percent = 99 if forced else 50
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) > 0
        gone = store.min_offset("T", 0)
        assert gone > 100
        assert store.stats()["dropped_unread_messages"] == gone  # one message is one, however many had not read it
        assert any(f"{gone} messages were deleted" in text for text in store.stats()["warnings"])
        (line,) = unread_lines(caplog)
        assert f"group reading had not read {gone} messages of topic T" in line
        assert f"group partly had not read {gone} messages of topic T" in line
        assert f"group behind had not read {gone - 100} messages of topic T" in line
        assert "done" not in line
        assert "late" not in line
        assert ("before their time: the filesystem of" in caplog.text) is forced


def test_the_warning_comes_once_a_minute_and_with_all_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "mqfast.store"),
        filled(tmp_path / "store", retention="140kB", delete_files_interval_ms_commit_log=0) as store,
    ):
        store.consumer("slow", "T")
        now, counts = store.os_api.now_ms(), []
        for passed_ms in (0, 1000, 30_000, 60_000, 61_000):
            assert store.retention.run_once(now + passed_ms) > 0
            counts.append(store.stats()["dropped_unread_messages"])
            refill(store)
        first, second = unread_lines(caplog)
        assert f"had not read {counts[0]} messages" in first
        assert f"had not read {counts[3] - counts[0]} messages" in second
        caplog.clear()
    (last,) = unread_lines(caplog)  # what waited for its minute is told by the close
    assert f"had not read {counts[4] - counts[3]} messages" in last


@pytest.mark.parametrize("words", ["never", None, "72h", "20GB"])
def test_on_a_full_disk_puts_are_refused_nothing_goes_and_room_brings_them_back(
    tmpfs: Callable[[str], Path], words: str | None
) -> None:
    place = tmpfs("8m")
    settings = {"retention": words} if words is not None else {}
    with mqfast.open(place / "store", **{**SMALL, "mapped_file_bytes_commit_log": 1 << 20}, **settings) as store:
        stored = 0
        with pytest.raises(DiskFull):
            for _ in range(20_000):
                store.put("T", BODY)
                stored += 1
        assert os.statvfs(place).f_bavail * os.statvfs(place).f_frsize < 1 << 20  # where the file system is full
        assert store.retention.run_once(store.os_api.now_ms()) == 0
        with pytest.raises(DiskFull):
            store.put("T", BODY)
        assert store.min_physical_offset == 0
        subprocess.run(["mount", "-o", "remount,size=16m", str(place)], check=True)

        def is_stored() -> bool:
            """Put once more: a full disk is asked once a second."""
            with contextlib.suppress(DiskFull):
                store.put("T", BODY)
            return store.max_offset("T", 0) > stored

        assert eventually(is_stored)
        assert store.min_offset("T", 0) == 0
        assert store.max_offset("T", 0) == stored + 1
