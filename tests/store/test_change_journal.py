"""The journal of changes beside a large table: crashes, readers beside a writer, files of another program."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqfast.errors import StorageError
from mqfast.sim.simulated_os import Sim
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.metadata import SubscriptionGroupTable, TopicConfigTable

MANY = 20
LONG = {"note": "x" * 4000}  # so that a few entries make a table above 64 KiB


def topic(name: str, queues: int = 4) -> dict[str, Any]:
    return {
        "attributes": {}, "order": False, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": queues,
    }  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The text of a table that is large enough for a journal."""
    path = tmp_path_factory.mktemp("large") / "topics.json"
    table = TopicConfigTable(OsApi(), str(path))
    for i in range(MANY):
        table.put(f"topic-{i:02}", {**topic(f"topic-{i:02}"), "attributes": LONG})
    assert table.persist()
    text = path.read_bytes()
    assert len(text) > 64 << 10
    return text


@pytest.fixture
def path(tmp_path: Path, large: bytes) -> Path:
    path = tmp_path / "topics.json"
    path.write_bytes(large)
    return path


def journal_of(path: Path) -> Path:
    return path.with_name("topics.json.changes")


def load(path: Path) -> TopicConfigTable:
    return TopicConfigTable.load(OsApi(), str(path))


def state(table: TopicConfigTable) -> dict[str, int]:
    """Topic -> queues, of the topics that a test has made or changed."""
    return {name: table.get(name).read_queue_nums for name in table if not name.startswith("topic-0")}  # type: ignore[union-attr]


def test_changes_of_a_large_table_are_loaded_from_the_journal(path: Path, large: bytes) -> None:
    table = load(path)
    table.put("new", topic("new"))
    assert table.persist_changes()
    table.put("topic-10", topic("topic-10", 9))
    table.delete("topic-12")
    table.ensure("ensured", 3)
    assert table.persist_changes()
    assert not table.persist_changes()
    assert table.has_journal
    assert path.read_bytes() == large

    again = load(path)
    assert state(again) == state(table)
    assert again.data_version == table.data_version
    assert again.warnings == []

    assert table.persist()
    assert not table.has_journal
    assert not journal_of(path).exists()
    assert set(json.loads(path.read_bytes())["topicConfigTable"]) == set(table)
    assert state(load(path)) == state(table)


def test_a_loaded_journal_gets_into_the_file_before_the_next_change(path: Path) -> None:
    before = load(path)
    before.put("first", topic("first"))
    before.persist_changes()
    table = load(path)
    table.put("second", topic("second"))
    assert table.persist_changes()
    assert not journal_of(path).exists()
    assert {"first", "second"} <= set(json.loads(path.read_bytes())["topicConfigTable"])


def test_a_change_that_was_undone_leaves_no_journal(path: Path) -> None:
    table = load(path)
    table.put("new", topic("new"))
    table.persist_changes()
    again = load(path)
    again.delete("new")
    again.persist()
    assert not journal_of(path).exists()
    assert "new" not in load(path)


def test_a_small_table_has_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    table = TopicConfigTable(OsApi(), str(path))
    for name in ("a", "b"):
        table.put(name, topic(name))
        assert table.persist_changes()
        assert name in json.loads(path.read_bytes())["topicConfigTable"]
    assert not journal_of(path).exists()


def test_forbidden_topics_of_a_large_group_table_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    table = SubscriptionGroupTable(OsApi(), str(path))
    for i in range(MANY):
        table.put(f"group-{i}", {**table.ensure(f"group-{i}"), "attributes": LONG})
    table.forbid("group-1", "T", 4)
    table.persist()
    table.ensure("new")
    assert table.persist_changes()
    assert table.has_journal
    again = SubscriptionGroupTable.load(OsApi(), str(path))
    assert again.get("new") == table.get("new")
    table.forbid("group-2", "T", 4)
    assert table.delete("group-1")
    assert table.persist_changes()
    assert not table.has_journal
    again = SubscriptionGroupTable.load(OsApi(), str(path))
    assert again.forbidden_table == {"group-2": {"T": 4}}
    assert again.get("group-1") is None


# --- crashes, failures ---


def work(table: TopicConfigTable, acknowledged: list[dict[str, int]]) -> None:
    """Changes with every kind of write; the states that were durable, in their order."""
    for step in range(3):
        table.put(f"new-{step}", topic(f"new-{step}"))
        table.persist_changes()
        acknowledged.append(state(table))
        table.put("topic-13", topic("topic-13", 10 + step))
        table.delete(f"topic-1{4 + step}")
        table.persist_changes()
        acknowledged.append(state(table))
        if step == 1:
            table.persist()


@contextmanager
def simulated(root: Path) -> Iterator[Sim]:
    sim = Sim(root)
    yield sim
    sim.free()


def test_a_crash_at_any_step_keeps_acknowledged_changes(tmp_path: Path, large: bytes) -> None:
    live, images = tmp_path / "live", tmp_path / "images"
    live.mkdir()
    images.mkdir()
    (live / "topics.json").write_bytes(large)
    acknowledged: list[dict[str, int]] = []
    with simulated(live) as sim:
        table = TopicConfigTable.load(sim.os_api, str(live / "topics.json"))
        acknowledged.append(state(table))
        sim.images(str(images), first=0, last=1000, per_call=2, seed=1)

        class Marked(list[dict[str, int]]):
            def append(self, item: dict[str, int]) -> None:
                super().append(item)
                acknowledged.append(item)
                sim.mark(len(acknowledged) - 1)

        work(table, Marked())
        taken = sim.taken()
    assert len(taken) > 50
    for number, image in enumerate(taken):
        again = load(images / str(number) / "topics.json")
        assert not any("another program" in text for text in again.warnings), image
        assert state(again) in acknowledged[max(0, image.mark) : max(0, image.mark) + 2], image


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "sync_directory", "rename", "unlink"])
def test_a_step_that_fails_loses_no_change(tmp_path: Path, large: bytes, call: str, error: int) -> None:
    for n in range(1, 5):
        live = tmp_path / str(n)
        live.mkdir()
        (live / "topics.json").write_bytes(large)
        with simulated(live) as sim:
            table = TopicConfigTable.load(sim.os_api, str(live / "topics.json"))
            table.put("before", topic("before"))
            table.persist_changes()
            sim.fault(call, n, error)
            for name in ("first", "second"):
                table.put(name, topic(name))
                try:
                    table.persist_changes()
                except StorageError:
                    assert load(live / "topics.json").get("before")
                else:
                    assert load(live / "topics.json").get(name)
            try:
                table.persist()
            except StorageError:
                assert load(live / "topics.json").get("before")
            sim.heal()
            table.put("after", topic("after"))
            assert table.persist_changes()
        again = load(live / "topics.json")
        assert again.warnings == []
        assert {"before", "first", "second", "after"} <= set(again)


def test_an_incomplete_record_ends_the_journal(path: Path) -> None:
    table = load(path)
    table.put("a", topic("a"))
    table.persist_changes()
    whole = journal_of(path).stat().st_size
    table.put("b", topic("b"))
    table.persist_changes()
    data = journal_of(path).read_bytes()
    for end in (*range(whole, len(data), 7), len(data) - 1):
        journal_of(path).write_bytes(data[:end])
        assert "a" in load(path)
        assert "b" not in load(path)
    journal_of(path).write_bytes(data)
    assert {"a", "b"} <= set(load(path))


# --- other programs ---


def test_a_file_of_another_program_gets_new_entries_only(path: Path) -> None:
    table = load(path)
    table.put("new", topic("new"))
    table.put("other-too", topic("other-too", 9))
    table.put("gone", topic("gone"))
    table.put("topic-10", topic("topic-10", 9))
    table.persist_changes()
    table.delete("gone")
    table.persist_changes()
    other = json.loads(path.read_bytes())
    other["topicConfigTable"]["other-too"] = topic("other-too", 2)
    other["dataVersion"]["counter"] += 1
    path.write_text(json.dumps(other))
    again = load(path)
    assert again.get("topic-10").read_queue_nums == 4  # type: ignore[union-attr]
    assert again.get("other-too").read_queue_nums == 2  # type: ignore[union-attr]
    assert "new" in again
    assert "gone" not in again
    (warning,) = again.warnings
    assert "another program has replaced" in warning
    assert "topic-10" in warning
    assert again.persist()
    assert not journal_of(path).exists()
    assert set(load(path)) == set(again)


def test_a_reader_beside_a_writer_sees_every_acknowledged_change(path: Path) -> None:
    acknowledged = 0
    is_done = threading.Event()
    missed: list[int] = []

    def read() -> None:
        while not is_done.is_set():
            expected = acknowledged
            table = load(path)
            missed.extend(i for i in range(expected) if f"new-{i}" not in table)
            missed.extend([-1] if table.warnings else [])

    reader = threading.Thread(target=read)
    reader.start()
    table = load(path)
    for i in range(200):
        table.put(f"new-{i}", topic(f"new-{i}"))
        table.persist_changes()
        acknowledged = i + 1
        if i % 3 == 0:
            table.persist()
    is_done.set()
    reader.join()
    assert missed == []


def test_a_copy_of_file_and_journal_has_the_changes(path: Path, tmp_path: Path) -> None:
    table = load(path)
    table.put("new", topic("new"))
    table.persist_changes()
    shutil.copytree(path.parent, tmp_path / "copy")
    assert "new" in load(tmp_path / "copy" / "topics.json")
