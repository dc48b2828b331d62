"""The watermarks and the free space look at the disk that each kind of file is on, links resolved, on real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab

import mqfast
from mqfast.errors import DiskFull

BODY = b"x" * 1000
SMALL: dict[str, Any] = {
    "mapped_file_bytes_commit_log": 64 << 10,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
    "clean_resource_interval_ms": 600_000,
    "delete_files_interval_ms_commit_log": 0,
    "retention": "rocketmq",
}
Tmpfs = Callable[[str], Path]


def fill(place: Path, percent: int) -> None:
    """Use the filesystem up to so many percent."""
    found = os.statvfs(place)
    wanted = found.f_blocks * percent // 100 - (found.f_blocks - found.f_bavail)
    with (place / "filler").open("ab") as file:
        os.posix_fallocate(file.fileno(), file.tell(), wanted * found.f_frsize)


def opened(tmp_path: Path, kind: str, other: Path) -> mqfast.MessageStore:
    """A store with one kind of file on another filesystem: named by the setting, or behind a link."""
    root = tmp_path / "store"
    root.mkdir()
    settings = dict(SMALL)
    if kind == "setting":
        settings["store_path_commit_log"] = str(other / "deep" / "log")
    elif kind == "link to the root":
        root.rmdir()
        (other / "behind").mkdir()
        root.symlink_to(other / "behind")
    else:
        (other / "behind").mkdir()
        (root / kind).symlink_to(other / "behind")
    store = mqfast.open(root, **settings)
    for number in range(400):
        store.put("T", BODY, keys=f"k{number}")
    store.flush()
    lab(store).step_dispatch()  # retention keeps files that the dispatcher has not read
    store.log.reap()
    return store


@pytest.mark.parametrize("kind", ["setting", "commitlog", "consumequeue", "index", "link to the root"])
def test_the_watermarks_look_at_the_disk_of_every_kind_of_file(tmp_path: Path, kind: str, tmpfs: Tmpfs) -> None:
    other = tmpfs("64m")
    with opened(tmp_path, kind, other) as store:
        now = store.os_api.now_ms()
        fill(other, 60)
        used = store.stats()["disk_used_percent"]
        assert store.retention.run_once(now) == 0
        fill(other, 87)
        assert store.retention.run_once(now) > 0  # forced: nothing is older than 72 h
        assert used < store.stats()["disk_used_percent"] in (86, 87, 88)
        said = store.stats()["disk_used_path"]
        assert os.stat(said).st_dev == os.stat(other).st_dev
        assert store.put("T", BODY).status.name == "PUT_OK"
        fill(other, 92)
        store.retention.run_once(now)
        with pytest.raises(DiskFull):
            store.put("T", BODY)
        (other / "filler").unlink()
        store.retention.run_once(now)
        assert store.put("T", BODY).status.name == "PUT_OK"


def test_the_disk_of_the_root_does_not_count_where_no_store_file_grows_on_it(tmp_path: Path, tmpfs: Tmpfs) -> None:
    """Deleting log files would not make room there, and RocketMQ does not look at it either."""
    home, other = tmpfs("64m"), tmpfs("64m")
    root = home / "store"
    root.mkdir()
    for kind in ("commitlog", "consumequeue", "batchconsumequeue", "index"):
        (other / kind).mkdir()
        (root / kind).symlink_to(other / kind)
    with mqfast.open(root, **SMALL) as store:
        for _ in range(400):
            store.put("T", BODY)
        store.flush()
        lab(store).step_dispatch()
        store.log.reap()
        fill(home, 95)
        assert store.retention.run_once(store.os_api.now_ms()) == 0
        assert store.put("T", BODY).status.name == "PUT_OK"


def test_the_use_is_known_before_the_first_pass_and_before_the_first_file(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", store_path_commit_log=str(tmp_path / "a" / "b")) as store:
        stats = store.stats()
        assert 0 <= stats["disk_used_percent"] <= 100
        assert os.path.isdir(stats["disk_used_path"])
