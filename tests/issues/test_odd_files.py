"""Directories that nobody but root may read, foreign names, and log files that were cut short."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from laboratory import bodies

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, CorruptFile, MqfastError
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import list_queues

FILE = 1 << 16

_PROGRAM = """
import os, sys
import encodings.utf_8_sig, threading, mqfast
from mqfast import StoreReader
path = sys.argv[1]
with mqfast.open(path + "-warm", mapped_file_bytes_commit_log=65536) as store: store.put("T", b"x", keys="k")
mqfast.open(path + "-warm").close(); StoreReader(path + "-warm").close(); mqfast.verify(path + "-warm")
mqfast.repair(path + "-warm")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with mqfast.open(path) as store: assert len(store.get("T", 0, 0)) == 10 and store.topics() == ["T"]
with StoreReader(path) as reader: assert len(reader.get("T", 0, 0)) == 10 and reader.topics() == ["T"]
assert mqfast.verify(path).state == "clean"
assert mqfast.repair(path).actions == []
"""


def store_of(path: Path, messages: int = 10, size: int = 1000) -> Path:
    with mqfast.open(path, mapped_file_bytes_commit_log=FILE, mapped_file_bytes_consume_queue=2000) as store:
        for i in range(messages):
            store.put("T", b"%d " % i + b"x" * size, keys=f"k{i}")
    return path


def test_unreadable_directories_of_others(disk_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory that its store's user cannot read")
    path = store_of(disk_path / "s")
    os.chmod(disk_path, 0o755)
    (path / "batchconsumequeue").mkdir()
    for place in ("", "commitlog", "consumequeue", "consumequeue/T", "batchconsumequeue", "index", "config"):
        for name in ("lost+found", ".snapshot", "System Volume Information"):
            (path / place / name).mkdir()
    for folder, names, files in os.walk(path):
        for name in (".", *names, *files):
            if name not in ("lost+found", ".snapshot", "System Volume Information"):
                os.chown(os.path.join(folder, name), 65534, 65534)
            else:
                os.chmod(os.path.join(folder, name), 0o700)
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_directory_that_may_be_a_topics_is_an_error(tmp_path: Path) -> None:
    """What cannot be read may hold messages: nothing of them is hidden in silence."""

    class Door(OsApi):
        def subdirectories(self, path: str) -> list[str]:
            if path.endswith(("lost+found", "/T")):
                raise mqfast.errors.StorageError(13, "Permission denied", path)
            return super().subdirectories(path)

    (tmp_path / "lost+found").mkdir()
    assert list_queues(Door(), str(tmp_path)) == {"lost+found": []}
    (tmp_path / "T").mkdir()
    with pytest.raises(MqfastError, match="Permission denied"):
        list_queues(Door(), str(tmp_path))


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    path = store_of(tmp_path / "s")
    (path / "consumequeue/loop").symlink_to("loop")
    (path / "config/stranger.json").write_text("{no JSON")
    with mqfast.open(path) as store:
        assert store.topics() == ["T"]
    assert mqfast.verify(path).state == "clean"


def cut(path: Path, length: int) -> Path:
    file = max((path / "commitlog").iterdir(), key=lambda file: file.name)
    os.truncate(file, length)
    return file


@pytest.mark.parametrize("length", [5000, 4096, 40960, 40 * 1000 + 3, FILE - 1])
@pytest.mark.parametrize("messages", [50, 150], ids=["one-file", "three-files"])
@pytest.mark.parametrize("noted", [True, False])
def test_a_log_file_that_was_cut_short(tmp_path: Path, length: int, messages: int, noted: bool) -> None:
    path = store_of(tmp_path / "s", messages)
    file = cut(path, length)
    config = None
    if not noted:
        (path / "config/mqfast.json").unlink()
        if messages == 50:
            if length % 1024 == 0:
                pytest.skip("nothing tells that such a file was longer")
            with pytest.raises(ConfigError, match="mapped_file_bytes_commit_log"):
                mqfast.open(path)
            with pytest.raises(ConfigError, match="mapped_file_bytes_commit_log"):
                mqfast.repair(path)
            config = StoreConfig.from_kwargs(mapped_file_bytes_commit_log=FILE)
            with pytest.raises(MqfastError):
                mqfast.open(path, mapped_file_bytes_commit_log=FILE)
    if config is None:
        with pytest.raises(CorruptFile, match="cut short") as raised:
            mqfast.open(path)
        assert raised.value.path == str(file)
    assert file.stat().st_size == length
    assert mqfast.verify(path, config=config).state == "damaged"
    mqfast.repair(path, config=config)
    assert {found.stat().st_size for found in (path / "commitlog").iterdir()} == {FILE}
    with mqfast.open(path) as store:
        assert store.config.mapped_file_bytes_commit_log == FILE
        whole = (int(file.name) + length) // len(store.get_by_offset(0).to_bytes())
        found = [int(body.split()[0]) for body in bodies(store)]
        assert found == list(range(len(found)))
        assert min(messages, whole - 3) <= len(found) <= whole
        store.put("T", b"z" * 30_000)
    assert mqfast.verify(path).state == "clean"


def test_one_in_the_middle_gives_back_what_follows(tmp_path: Path) -> None:
    path = store_of(tmp_path / "s", 150)
    first = min((path / "commitlog").iterdir(), key=lambda file: file.name)
    os.truncate(first, 20_000)
    with pytest.raises(CorruptFile, match="cut short"):
        mqfast.open(path)
    report = mqfast.repair(path, salvage=True)
    assert report.salvaged == report.messages_lost > 80
    with mqfast.open(path) as store:
        found = [int(body.split()[0]) for body in bodies(store)]
    assert sorted(found) == [*range(150 - len(found), 150)] or len(set(found)) == len(found)
    assert set(range(100, 150)) < set(found)


@pytest.mark.parametrize("remake", [lambda path: None, lambda path: os.unlink(path / "config/mqfast.json")])
def test_another_size_can_be_chosen_for_a_new_log(tmp_path: Path, remake: Callable[[Path], None]) -> None:
    """The notes of an earlier log are not taken for those of the present one."""
    path = store_of(tmp_path / "s")
    for file in (path / "commitlog").iterdir():
        file.unlink()
    remake(path)
    with mqfast.open(path, mapped_file_bytes_commit_log=FILE // 2) as store:
        store.put("T", b"x")
    with mqfast.open(path) as store:
        assert store.config.mapped_file_bytes_commit_log == FILE // 2
