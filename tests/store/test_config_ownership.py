"""Tables of ``config/`` that belong to who opened the store: the store neither reads nor writes their files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from store.small_store import eventually

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, CorruptFile, StorageError
from mqfast.store.message_store import open_store
from mqfast.store.meta.tables import ConfigTables

MIB = 1 << 20
CONFIG = StoreConfig.tiny(mapped_file_bytes_commit_log=MIB, flush_consumer_offset_interval_ms=1)
TABLES = {"topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json", "consumerFilter.json"}


def files_of(root: Path) -> dict[str, bytes]:
    folder = root / "config"
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.is_dir() else {}


def test_the_store_writes_no_table_that_is_the_callers(tmp_path: Path) -> None:
    root = tmp_path / "s"
    tables = ConfigTables.load(root, CONFIG)
    with open_store(root, config=CONFIG, tables=tables) as store:
        for queue_id in range(3):
            store.put("T", b"x", queue_id)
        consumer = store.consumer("g", "T")
        while consumer.poll():
            pass
        consumer.commit()
        assert eventually(lambda: (root / "config" / "mqfast.json").exists())  # a turn of the thread that persists
    assert not TABLES & set(files_of(root))
    assert store.topic_table is tables.topics
    assert "T" not in tables.topics
    assert tables.offsets.get("g", "T", 0) == 1


def test_the_caller_persists_and_the_next_open_finds_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    tables = ConfigTables.load(root, CONFIG)
    with open_store(root, config=CONFIG, tables=tables) as store:
        tables.topics.ensure("T", 4)
        store.put("T", b"x")
        tables.offsets.commit("g", "T", 0, 1)
        flushed: list[int] = []
        assert tables.persist(before_offsets=lambda: flushed.append(store.log.flush()))
        assert flushed == [True]
        assert not tables.persist()
    again = ConfigTables.load(root, CONFIG)
    topic = again.topics.get("T")
    assert topic is not None
    assert topic.write_queue_nums == 4
    assert again.offsets.get("g", "T", 0) == 1
    assert again.warnings == []


def test_a_store_with_tables_leaves_their_files_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "s"
    (root / "config").mkdir(parents=True)
    text = json.dumps({"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {}})
    (root / "config" / "topics.json").write_text(text)
    tables = ConfigTables.load(root, CONFIG)
    (root / "config" / "topics.json").write_text("garbage: the store must not even read it")
    with open_store(root, config=CONFIG, tables=tables) as store:
        store.put("T", b"x")
        store.delete_topic("T")
        store.put("U", b"y")
    assert files_of(root)["topics.json"] == b"garbage: the store must not even read it"
    with pytest.raises(CorruptFile):
        mqfast.open(root)


def test_without_tables_the_store_persists_them_itself(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with mqfast.open(root, mapped_file_bytes_commit_log=MIB) as store:
        store.put("T", b"x")
    assert "T" in ConfigTables.load(root).topics


def test_an_offset_behind_the_end_is_cut_in_the_callers_table_in_memory_only(tmp_path: Path) -> None:
    root = tmp_path / "s"
    tables = ConfigTables.load(root, CONFIG)
    with open_store(root, config=CONFIG, tables=tables) as store:
        store.put("T", b"x")
        tables.offsets.commit("g", "T", 0, 1)
        tables.persist()
    log = root / "commitlog"
    for file in log.iterdir():
        os.truncate(file, 0)
        os.truncate(file, MIB)
    (root / "abort").touch()
    before = files_of(root)["consumerOffset.json"]
    tables = ConfigTables.load(root, CONFIG)
    with open_store(root, config=CONFIG, tables=tables):
        assert tables.offsets.get("g", "T", 0) == 0
    assert files_of(root)["consumerOffset.json"] == before


def test_tables_of_another_store_are_refused(tmp_path: Path) -> None:
    tables = ConfigTables.load(tmp_path / "a")
    with pytest.raises(ConfigError, match="expected those of the store"):
        open_store(tmp_path / "b", tables=tables)


def test_loading_makes_nothing(tmp_path: Path) -> None:
    tables = ConfigTables.load(tmp_path / "s")
    assert not tables.persist()
    assert not (tmp_path / "s").exists()


def test_a_table_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    tables = ConfigTables.load(tmp_path)
    tables.topics.ensure("T", 1)
    tables.groups.ensure("g")
    tables.persist()
    in_the_way = tmp_path / "config" / "topics.json.bak"
    (in_the_way / "x").mkdir(parents=True)  # no file can take its place
    tables.topics.ensure("U", 1)
    tables.groups.ensure("h")
    tables.offsets.commit("g", "T", 0, 7)
    with pytest.raises(StorageError, match=r"topics\.json"):
        tables.persist()
    again = ConfigTables.load(tmp_path)
    assert "h" in again.groups
    assert again.offsets.get("g", "T", 0) == 7
    (in_the_way / "x").rmdir()
    in_the_way.rmdir()
    assert tables.persist()
    assert "U" in ConfigTables.load(tmp_path).topics
