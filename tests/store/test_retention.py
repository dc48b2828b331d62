"""Retention: the byte budget, the watermarks, who still reads, and what went unread."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path

import pytest
from laboratory import lab, open_still
from used_disk import Disk

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, DiskFull
from mqfast.store.meta.leases import least_leased, write_lease

BODY = b"x" * 1000
FAST = {"delete_files_interval_ms_commit_log": 0, "clean_resource_interval_ms": 600_000}


def filled(path: Path, disk: Disk | None = None, still: bool = True, **settings: object) -> mqfast.MessageStore:
    """Args: still: without threads, which would hold files for a moment."""
    config = StoreConfig.tiny(**FAST, **settings)  # type: ignore[arg-type]
    store = (open_still if still else mqfast.open)(path, config=config, os_api=disk.os_api if disk else None)
    for _ in range(400):
        store.put("T", BODY)
    store.flush()
    lab(store).step_dispatch()
    store.log.reap()  # else the flush service does, within half a second
    return store


def test_the_budget_takes_the_oldest_files_and_what_follows_them(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention_bytes=128 << 10) as store:
        store.consumer("slow", "T").commit_message(store.get("T", 0, 9, 1)[0])
        held = store.get("T", 0, 0, 1)[0]
        assert store.retention.run_once(store.os_api.now_ms()) > 0
        kept = store.log.written - store.min_physical_offset
        assert kept <= 128 << 10 < kept + (64 << 10)  # no more than asked for, and no file too many
        first = store.min_offset("T", 0)
        assert store.get("T", 0, 0).status.name == "OFFSET_TOO_SMALL"
        assert store.get("T", 0, first, 1)[0].physical_offset >= store.min_physical_offset
        assert store.stats()["dropped_unread_messages"] == first - 10
        assert bytes(held.body) == BODY
        assert store.stats()["held_removed_files"] == 1
        del held
        assert store.stats()["held_removed_files"] == 0
    with mqfast.open(tmp_path / "store") as store:
        assert store.min_offset("T", 0) == first


def test_above_the_forcible_level_the_oldest_go_whatever_their_age(tmp_path: Path) -> None:
    disk = Disk(used_percent=50)
    with filled(tmp_path / "store", disk) as store:
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) == 0
        disk.used_percent = 86
        assert store.retention.run_once(now) > 0
        assert store.put("T", BODY).status.name == "PUT_OK"


@pytest.mark.parametrize(("policy", "removes"), [("drop_oldest", True), ("refuse", False)])
def test_above_the_warning_level_puts_are_refused_until_there_is_space(
    tmp_path: Path, policy: str, removes: bool
) -> None:
    disk = Disk(used_percent=95)
    with filled(tmp_path / "store", disk, retention_when_full=policy) as store:
        now = store.os_api.now_ms()
        assert (store.retention.run_once(now) > 0) is removes
        with pytest.raises(DiskFull):
            store.put("T", BODY)
        assert str(store.state) == "full"
        disk.used_percent = 88  # between the levels nothing changes
        store.retention.run_once(now)
        with pytest.raises(DiskFull):
            store.put("T", BODY)
        disk.used_percent = 60
        store.retention.run_once(now)
        assert store.put("T", BODY).status.name == "PUT_OK"
        assert str(store.state) == "open"


def test_a_file_whose_time_is_over_goes_at_the_hour_or_when_space_is_short(tmp_path: Path) -> None:
    disk = Disk(used_percent=50)
    another_hour = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    with filled(tmp_path / "store", disk, file_reserved_time_hours=0, delete_when=another_hour) as store:
        now = store.os_api.now_ms() + 10_000
        assert store.retention.run_once(now) == 0
        disk.used_percent = 80
        assert store.retention.run_once(now) > 0


def test_the_retention_policy_is_one_line(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention_bytes=128 << 10, retention_when_full="refuse") as store:
        line = store.retention.policy()
        assert "131072 bytes" in line
        assert "refuses puts" in line
        assert "\n" not in line


def test_the_budget_is_compared_with_the_files_that_are_there(tmp_path: Path) -> None:
    filled(tmp_path / "store").close()
    mqfast.open(tmp_path / "store", retention_bytes=128 << 10).close()
    with pytest.raises(ConfigError, match="at least two log files"):
        mqfast.open(tmp_path / "store", retention_bytes=100 << 10)
    with pytest.raises(ConfigError, match="at least two log files"):
        mqfast.open(tmp_path / "new", retention_bytes=128 << 10)


def test_a_read_lease_keeps_log_files_until_it_ends(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention_bytes=128 << 10) as store:
        second = store.log.files[1].start_offset
        lease = Path(write_lease(store.os_api, str(tmp_path / "store"), second + 1, 60_000))
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) == 1  # the first file lies below the lease, the second one is in it
        assert store.min_physical_offset == second
        assert store.retention.run_once(now) == 0
        assert store.retention.run_once(now + 120_000) > 0
        assert store.min_physical_offset > second
        assert lease.exists()
        write_lease(store.os_api, str(tmp_path / "store"), 0, 60_000)
        assert lease.exists()
        store.os_api.fix_clock(now + 120_000)
        write_lease(store.os_api, str(tmp_path / "store"), 0, 60_000)
        assert not lease.exists()  # whoever writes the next lease removes those that have ended


def test_a_lease_does_not_hold_a_disk_that_runs_full_and_half_a_lease_holds_nothing(tmp_path: Path) -> None:
    disk = Disk(50)
    with filled(tmp_path / "store", disk) as store:
        write_lease(store.os_api, str(tmp_path / "store"), 0, 60_000)
        disk.used_percent = 96
        assert store.retention.run_once(store.os_api.now_ms()) > 0
    with filled(tmp_path / "other", retention_bytes=128 << 10) as store:
        lease = Path(write_lease(store.os_api, str(tmp_path / "other"), 0, 60_000))
        whole = lease.read_bytes()
        for broken in (b"", whole[:10], b"[]", b'{"minPhysicalOffset": "0", "expiresMs": 99999999999999}'):
            lease.write_bytes(broken)
            assert least_leased(store.os_api, str(tmp_path / "other"), 0) is None
        assert store.retention.run_once(store.os_api.now_ms()) > 0


def test_two_passes_at_once_take_turns(tmp_path: Path) -> None:
    """The clock's pass and one that somebody asks for: the second used to find the first one's files gone."""
    with filled(tmp_path / "store", retention_bytes=128 << 10) as store:
        files, barrier, removed = len(store.log.files), threading.Barrier(2), []

        def run() -> None:
            barrier.wait()
            removed.append(store.retention.run_once(store.os_api.now_ms()))

        switch = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            threads = [threading.Thread(target=run) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(switch)
        assert sorted(removed) == [0, files - len(store.log.files)]


def test_clean_now_deletes_expired_files_at_any_hour(tmp_path: Path) -> None:
    """Whatever the hour; the service wakes up for it."""
    another_hour = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    settings = {"file_reserved_time_hours": 0, "delete_when": another_hour}
    with filled(tmp_path / "store", still=False, **settings) as store:
        first = store.min_physical_offset
        assert store.retention.run_once(store.os_api.now_ms() + 10_000) == 0
        store.retention.clean_now()
        deadline = time.monotonic() + 30
        while store.min_physical_offset == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.min_physical_offset > first


def test_a_removed_file_with_a_long_hold_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "mqfast.store"),
        filled(tmp_path / "store", retention_bytes=128 << 10) as store,
    ):
        held = store.get("T", 0, 0, 1)[0]
        now = store.os_api.now_ms()
        assert store.retention.run_once(now) > 0
        later = now + store.config.redelete_hanged_file_interval_ms
        later += store.config.destroy_mapped_file_interval_forcibly_ms + 1
        store.retention.run_once(later)
        assert "still held by 1 readers" in caplog.text
        caplog.clear()
        store.retention.run_once(later + 1)  # not at every pass
        assert "still held" not in caplog.text
        assert bytes(held.body) == BODY


def test_groups_of_queues_that_are_not_there_count_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "store", retention_bytes=128 << 10) as store:
        store.consumer_offsets.commit("g", "Gone", 0, 5)
        store.consumer_offsets.commit("ahead", "T", 7, 5)
        store.consumer_offsets.commit("ahead", "T", 0, 10_000)
        assert store.retention.run_once(store.os_api.now_ms()) > 0
        assert store.stats()["dropped_unread_messages"] == 0
