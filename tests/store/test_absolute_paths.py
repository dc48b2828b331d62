"""Every path is made absolute when a store is opened, and no name from outside leads out of the store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import mqfast
from mqfast.errors import MqfastError, StoreNotFound, UsageError
from mqfast.message import Message
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.leases import least_leased, write_lease

SMALL = {"mapped_file_bytes_commit_log": 64 << 10, "message_index_enable": False}
OUTSIDE = ["../x", "/tmp/x", "a/b", "..", ".", "", "a\0b", "x" * 3 + "/../../../y"]


def names(directory: Path) -> list[str]:
    """Everything below it but the files of the log, which are made ahead in a thread."""
    return sorted(str(path) for path in directory.rglob("*") if path.parent.name != "commitlog")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)


def test_a_relative_store_and_log_stay_where_they_were_opened(tmp_path: Path) -> None:
    with mqfast.open("store", store_path_commit_log="logs", **SMALL) as store:
        for number in range(100):
            store.put("T", b"%d" % number + b"x" * 1000)
        os.chdir("elsewhere")
        for number in range(100, 300):
            store.put(f"T{number % 3}", b"%d" % number + b"x" * 1000)
        store.flush()
        store.consumer_offsets.commit("G", "T", 0, 7)
    assert os.listdir(".") == []
    os.chdir(tmp_path)
    with mqfast.open("store", store_path_commit_log="logs", **SMALL) as store:
        assert sum(store.max_offset(topic, 0) for topic in store.topics()) == 300
        assert store.consumer_offsets.get("G", "T", 0) == 7


def test_readers_verify_and_repair_of_a_relative_path(tmp_path: Path) -> None:
    config = mqfast.StoreConfig.from_kwargs(store_path_commit_log="logs", **SMALL)
    with mqfast.open("store", config=config) as store:
        for number in range(200):
            store.put("T", b"%d" % number + b"x" * 1000)
    readers = [mqfast.StoreReader("store", config=config), mqfast.StoreReader("store", commit_log="logs")]
    os.chdir("elsewhere")
    for reader in readers:
        assert sum(1 for _ in reader.scan()) == 200
        assert reader.get("T", 0, 0).bodies()[0].startswith(b"0x")
        reader.refresh()
        assert reader.get("T", 0, 199).bodies()[0].startswith(b"199x")
        reader.close()
    os.chdir(tmp_path)
    assert mqfast.verify("store", config=config).ok
    assert mqfast.repair("store", config=config, keep="kept") is not None


def test_a_changed_link_does_not_move_an_open_store(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    link = tmp_path / "current"
    link.symlink_to("first")
    with mqfast.open(link, **SMALL) as store, mqfast.StoreReader(link) as reader:
        store.put("T", b"x" * 1000)
        link.unlink()
        link.symlink_to("second")
        for _ in range(199):
            store.put("T", b"x" * 1000)
        reader.refresh()
        assert sum(1 for _ in reader.scan()) == 200
    assert list((tmp_path / "second").iterdir()) == []


def test_a_lease_of_a_relative_root(tmp_path: Path) -> None:
    with mqfast.open("store", **SMALL) as store:
        store.put("T", b"x")
        root = mqfast.StoreReader("store").paths.root
        os.chdir("elsewhere")
        write_lease(OsApi(), root, 0, 60_000)
        assert least_leased(OsApi(), store.paths.root, 0) == 0


@pytest.mark.parametrize(
    "path", ["", b"", 5, None, 1.5, "a\0b", "a\ud800b", [], object()], ids=lambda path: type(path).__name__
)
def test_an_invalid_path_is_a_usage_error(tmp_path: Path, path: object) -> None:
    before = sorted(os.listdir("."))
    for call in (mqfast.open, mqfast.StoreReader, mqfast.verify, mqfast.repair):
        with pytest.raises(UsageError, match="path: expected"):
            call(path)  # type: ignore[operator]
    assert sorted(os.listdir(".")) == before


def test_bytes_and_path_objects_are_paths(tmp_path: Path) -> None:
    for path in (os.fsencode(tmp_path / "a"), tmp_path / "b", "c"):
        with mqfast.open(path, **SMALL) as store:
            store.put("T", b"x")
        with mqfast.StoreReader(path) as reader:
            assert len(reader.get("T", 0, 0)) == 1


def test_a_removed_working_directory(tmp_path: Path) -> None:
    os.chdir("elsewhere")
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFound, match="working directory was removed"):
        mqfast.open("store", **SMALL)
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")


@pytest.mark.parametrize("name", [*OUTSIDE, None, 5, [], b"T"], ids=repr)
def test_delete_topic_stays_inside(tmp_path: Path, name: object) -> None:
    for place in ("x", "b", "y"):
        (tmp_path / place).mkdir()
    with mqfast.open("store", **SMALL) as store:
        store.put("T", b"x")
        store.get("T", 0, 0)
        before = names(tmp_path)
        with pytest.raises(UsageError, match="topic: expected"):
            store.delete_topic(name)  # type: ignore[arg-type]
        assert names(tmp_path) == before
        assert store.get("T", 0, 0).bodies() == [b"x"]


def test_a_topic_that_only_others_can_make_can_be_deleted(tmp_path: Path) -> None:
    with mqfast.open("store", **SMALL) as store:
        assert store.delete_topic("%DLQ%" + "x" * 200) == 0
        assert store.delete_topic("unknown") == 0


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_no_put_makes_a_directory_outside(tmp_path: Path, name: str) -> None:
    with mqfast.open("store", enable_multi_dispatch=True, enable_lmq=True, **SMALL) as store:
        store.put("T", b"x")
        store.get("T", 0, 0)
        outside = sorted(str(path) for path in tmp_path.rglob("*") if "/store" not in str(path))
        inside = sorted(os.listdir("store/consumequeue"))
        with pytest.raises(UsageError):
            store.put(name, b"y")
        with pytest.raises(UsageError):
            store.put_message(Message(name, b"y"))
        if name and "," not in name:
            try:
                store.put("T", b"z", properties={"INNER_MULTI_DISPATCH": f"%LMQ%{name}"})
            except MqfastError:
                assert "/" in name or "\0" in name
        store.get("T", 0, 0)
        assert sorted(str(path) for path in tmp_path.rglob("*") if "/store" not in str(path)) == outside
        made = set(os.listdir("store/consumequeue")) - set(inside)
        assert made <= {f"%LMQ%{name}"}
