"""A topic that was deleted and made again: after a kill its queue lacked acknowledged messages, or had deleted ones;
after a clean close repair brought the deleted ones back; records of topics that topics.json did not know got no queue.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, open_still
from store.small_store import (
    still,
)

import mqfast
from mqfast.config import StoreConfig
from mqfast.message import Message

SIZES: dict[str, Any] = {"mapped_file_bytes_commit_log": 8192, "mapped_file_bytes_consume_queue": 2000}


def reopened(path: Path, **settings: Any) -> mqfast.MessageStore:
    return open_still(path, config=StoreConfig.tiny(**{**SIZES, **settings}))


def kill(path: Path, target: Path) -> Path:
    """What a kill leaves now: the page cache survives."""
    shutil.copytree(path, target)
    return target


def fill(store: mqfast.MessageStore, word: bytes, count: int, size: int = 100) -> None:
    for i in range(count):
        store.put("t", b"%s%d " % (word, i) + b"x" * size, i % 2)


def read(store: mqfast.MessageStore) -> list[bytes]:
    return [body.split()[0] for queue_id in (0, 1) for body in bodies(store, "t", queue_id)]


def expected(word: bytes, count: int) -> list[bytes]:
    return [b"%s%d" % (word, i) for first in (0, 1) for i in range(first, count, 2)]


def drop(*names: str) -> Callable[[Path], None]:
    def work(path: Path) -> None:
        for name in names:
            if (path / name).is_dir():
                shutil.rmtree(path / name)
            else:
                (path / name).unlink(missing_ok=True)

    return work


@pytest.mark.parametrize(
    "lose",
    [
        drop(),
        drop("consumequeue"),
        drop("consumequeue", "checkpoint"),
        drop("config/topics.json", "consumequeue"),
        drop("consumequeue/t/0"),
        drop("index", "checkpoint"),
    ],
    ids=["nothing", "queues", "queues-checkpoint", "topics", "one-queue", "index-checkpoint"],
)
@pytest.mark.parametrize("old", [4, 200])
def test_the_new_topic_is_whole_after_a_kill(tmp_path: Path, old: int, lose: Callable[[Path], None]) -> None:
    with still(tmp_path / "live", **SIZES) as store:
        store.put("other", b"other")
        fill(store, b"old", old)
        assert store.delete_topic("t") == 2
        fill(store, b"new", 10)
        assert read(store) == expected(b"new", 10)
        path = kill(tmp_path / "live", tmp_path / "killed")
    lose(path)
    for _ in range(2):
        with reopened(path) as store:
            assert read(store) == expected(b"new", 10)
            assert [m.queue_offset for m in store.get("t", 0, 0)] == list(range(5))
            assert bodies(store, "other") == [b"other"]
        assert mqfast.verify(path).state == "clean"
    assert mqfast.repair(path).actions == []


@pytest.mark.parametrize("again", [False, True])
def test_what_a_kill_leaves_of_a_deletion(tmp_path: Path, again: bool) -> None:
    """Right behind it, and where it stopped before the queues were removed."""
    with still(tmp_path / "live", **SIZES) as store:
        fill(store, b"old", 20)
        assert store.max_offset("t", 0) == 10
        store.consumer_offsets.commit("g", "t", 0, 7)
        store.persist_offsets()
        offsets = (tmp_path / "live/config/consumerOffset.json").read_bytes()
        queues = tmp_path / "queues"
        shutil.copytree(tmp_path / "live/consumequeue", queues)
        store.delete_topic("t")
        path = kill(tmp_path / "live", tmp_path / "killed")
    if again:
        shutil.rmtree(path / "consumequeue")
        shutil.copytree(queues, path / "consumequeue")
        (path / "config/consumerOffset.json").write_bytes(offsets)
    with reopened(path) as store:
        assert store.topics() == []
        assert store.consumer_offsets.get("g", "t", 0) in (-1, None)
        assert b"t@g" not in (path / "config/consumerOffset.json").read_bytes()
        assert store.put("t", b"new").queue_offset == 0
        assert bodies(store, "t") == [b"new"]
    assert mqfast.verify(path).state == "clean"


def test_deleted_twice(tmp_path: Path) -> None:
    with still(tmp_path / "live", **SIZES) as store:
        for word in (b"a", b"b", b"c"):
            fill(store, word, 30)
            store.delete_topic("t")
        fill(store, b"new", 4)
        path = kill(tmp_path / "live", tmp_path / "killed")
    with reopened(path) as store:
        assert read(store) == expected(b"new", 4)


def test_batch_and_light_queues(tmp_path: Path) -> None:
    settings = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}
    with still(tmp_path / "live", **settings) as store:
        store.topic_table.ensure("units", 1, attributes={"queue.type": "BatchCQ"})
        store.topic_table.persist()
        for word in (b"old", b"new"):
            store.put_batch([Message("units", word)] * 3)
            store.put("t", word, properties={"INNER_MULTI_DISPATCH": "%LMQ%light"})
            assert store.max_offset("%LMQ%light", 0) == 1
            if word == b"old":
                for topic in ("units", "t", "%LMQ%light"):
                    store.delete_topic(topic)
                store.topic_table.ensure("units", 1, attributes={"queue.type": "BatchCQ"})
                store.topic_table.persist()
        path = kill(tmp_path / "live", tmp_path / "killed")
    for _ in range(2):
        with reopened(path, **settings) as store:
            assert bodies(store, "t") == [b"new"]
            assert bodies(store, "%LMQ%light") == [b"new"]
            assert store.max_offset("units", 0) == 3


def test_without_a_note_the_queue_itself_tells(tmp_path: Path) -> None:
    """RocketMQ deletes topics without one."""
    with still(tmp_path / "live", **SIZES) as store:
        fill(store, b"old", 10)
        store.delete_topic("t")
        fill(store, b"new", 10)
        assert len(read(store)) == 10
        path = kill(tmp_path / "live", tmp_path / "killed")
    (path / "config/mqfast.json").unlink()
    with reopened(path) as store:
        assert read(store) == expected(b"new", 10)


def test_clean_close_verify_and_repair(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with mqfast.open(path, **SIZES) as store:
        fill(store, b"old", 200)
        store.delete_topic("t")
        store.put("t", b"new")
    report = mqfast.verify(path)
    assert report.state == "clean", str(report)
    assert mqfast.repair(path).actions == []
    shutil.rmtree(path / "consumequeue")
    (path / "checkpoint").unlink()
    with mqfast.open(path) as store:
        assert bodies(store, "t") == [b"new"]


def test_a_note_of_another_log_hides_nothing(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "a", **SIZES) as store:
        fill(store, b"old", 100)
        store.delete_topic("t")
    with mqfast.open(tmp_path / "b", **SIZES) as store:
        fill(store, b"kep", 150)  # the same sizes at the same places
    shutil.copy(tmp_path / "a/config/mqfast.json", tmp_path / "b/config/mqfast.json")
    shutil.rmtree(tmp_path / "b/consumequeue")
    with mqfast.open(tmp_path / "b") as store:
        assert read(store) == expected(b"kep", 150)
        assert any("does not have" in text for text in store.stats()["warnings"])
    with mqfast.open(tmp_path / "b") as store:
        assert store.stats()["warnings"] == []
    shutil.copy(tmp_path / "a/config/mqfast.json", tmp_path / "b/config/mqfast.json")
    shutil.rmtree(tmp_path / "b/commitlog")
    with mqfast.open(tmp_path / "b") as store:
        fill(store, b"new", 200)
        path = kill(tmp_path / "b", tmp_path / "c")
    with mqfast.open(path) as store:
        assert read(store) == expected(b"new", 200)


def test_a_cut_before_the_deletion_hides_nothing_that_comes_after(tmp_path: Path) -> None:
    """The log is damaged before the record that the note names: what is put at those places later is not deleted."""
    with still(tmp_path / "live", **SIZES) as store:
        fill(store, b"old", 20)
        middle = store.get("t", 0, 5)[0].physical_offset
        store.delete_topic("t")
        path = kill(tmp_path / "live", tmp_path / "killed")
    with open(path / "commitlog" / ("0" * 20), "r+b") as file:
        file.seek(middle + 100)
        file.write(b"!")
    with reopened(path) as store:
        assert store.recovery.end == middle
        fill(store, b"new", 30)
        assert read(store) == expected(b"new", 30)
        again = kill(path, tmp_path / "again")
    for where in (path, again):
        with reopened(where) as store:
            assert read(store) == expected(b"new", 30)


def test_a_damaged_note_is_said(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "s", **SIZES) as store:
        fill(store, b"old", 5)
        store.delete_topic("t")
    for name in ("mqfast.json", "mqfast.json.bak"):
        (tmp_path / "s/config" / name).write_text('{"deletedTopics":{"t":7}}')
    with mqfast.open(tmp_path / "s") as store:
        assert any("mqfast.json" in text for text in store.stats()["warnings"])


@pytest.mark.parametrize("topics", ["older", "none", "same"])
@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/b"])
def test_every_topic_is_made_anew_from_the_log(tmp_path: Path, topics: str, gone: str) -> None:
    path = tmp_path / "s"
    with mqfast.open(path, **SIZES) as store:
        store.put("a", b"x")
    older = (path / "config/topics.json").read_bytes()
    with mqfast.open(path) as store:
        for i in range(66):
            store.put("b", b"b%d " % i + b"x" * 200, 3)
        store.put("c", b"c")
    if topics == "older":
        (path / "config/topics.json").write_bytes(older)
    elif topics == "none":
        (path / "config/topics.json").unlink()
        (path / "config/topics.json.bak").unlink()
    shutil.rmtree(path / gone)
    with mqfast.open(path) as store:
        assert [body.split()[0] for body in bodies(store, "b", 3)] == [b"b%d" % i for i in range(66)]
        assert bodies(store, "a") == [b"x"]
        assert bodies(store, "c") == [b"c"]
        said = [text for text in store.stats()["warnings"] if "b/3" in text]
        assert bool(said) == (gone != "consumequeue")
        assert store.put("b", b"more", 3).queue_offset == 66
    assert mqfast.verify(path).state == "clean"


def test_a_topic_that_rocketmq_deleted_stays_deleted(tmp_path: Path) -> None:
    """It takes the topic out of topics.json, steps that file's version, and removes the directory."""
    path = tmp_path / "s"
    with mqfast.open(path, **SIZES) as store:
        store.put("gone", b"x")
        store.put("kept", b"x")
    table = json.loads((path / "config/topics.json").read_text())
    del table["topicConfigTable"]["gone"]
    table["dataVersion"]["counter"] += 1
    table["dataVersion"]["timestamp"] += 1000
    (path / "config/topics.json").write_text(json.dumps(table))
    shutil.rmtree(path / "consumequeue/gone")
    with mqfast.open(path) as store:
        assert store.topics() == ["kept"]
        assert store.stats()["warnings"] == []
