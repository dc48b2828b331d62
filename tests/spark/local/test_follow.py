"""A follower knows of a store what a look at all of it says, at the price of what was appended.

No Spark processes.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast

pytest.importorskip("pyarrow")

from mqfast.spark.local import follow
from mqfast.spark.local.local_backend import LocalBackend
from mqfast.spark.plan import Snapshot


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as path:
        yield path


def small(path: str) -> mqfast.MessageStore:
    sizes = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return mqfast.open(path, mapped_file_bytes_commit_log=1 << 16, **sizes)


def seen(snapshot: Snapshot) -> tuple[Any, ...]:
    return snapshot.log_start, snapshot.log_end, snapshot.queues, snapshot.newest


def at_once(root: str) -> tuple[Any, ...]:
    access = LocalBackend(root)
    try:
        return seen(access.snapshot())
    finally:
        access.close()


class Counting:
    """How often a reader was asked about all queues, and about one."""

    def __init__(self, access: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = self.one = 0
        kind = type(access.reader)
        refresh, queue_end = kind.refresh, kind.queue_end

        def every(reader: Any) -> None:
            self.all += 1
            refresh(reader)

        def single(reader: Any, topic: str, queue_id: int) -> Any:
            self.one += 1
            return queue_end(reader, topic, queue_id)

        monkeypatch.setattr(kind, "refresh", every)
        monkeypatch.setattr(kind, "queue_end", single)


def test_an_idle_store_is_not_listed_again_and_a_message_costs_one_queue(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small(root) as store:
        for n in range(300):
            store.put(f"t{n // 10}", b"x", n % 10)
        store.get("t29", 9, 0)  # a get of the writer dispatches first
        access = LocalBackend(root)
        follower = follow.StoreTailer(access)
        before = follower.refresh()
        counting = Counting(access, monkeypatch)
        for _ in range(50):
            assert follower.refresh() is before
        assert (counting.all, counting.one) == (0, 0)
        store.put("t3", b"x", 7)
        store.get("t3", 7, 0)
        after = follower.refresh()
        assert (counting.all, counting.one) == (0, 1)
        assert follower.refresh() is after
        assert seen(after) == at_once(root)
        assert sum(q.messages for q in after.queues) == 301


@pytest.mark.parametrize("seed", range(6))
def test_a_tailer_returns_the_snapshot_of_a_new_read(root: str, seed: int) -> None:
    """Messages to old and new queues, few and many at once, files and topics that go, another store."""
    chance = random.Random(seed)
    with small(root) as store:
        store.put("t0", b"first")
    follower = follow.StoreTailer(LocalBackend(root))
    topics = 3
    for _ in range(40):
        step = chance.choice(["few", "few", "many", "topic", "trim", "delete", "replace", "nothing"])
        if step in ("few", "many", "topic"):
            topics += step == "topic"
            with small(root) as store:
                for _ in range(chance.randrange(1, 5 if step == "few" else 400)):
                    store.put(f"t{chance.randrange(topics)}", b"x" * chance.randrange(300), chance.randrange(8))
        elif step == "trim":
            for file in sorted(Path(root, "commitlog").iterdir())[:-2]:
                file.unlink()
        elif step == "delete":
            with small(root) as store:
                store.delete_topic(f"t{chance.randrange(topics)}")
                store.put("last", b"x")
            follower._all_s -= 100  # a minute later: a deletion leaves no trace in the log
        elif step == "replace" and chance.random() < 0.3:
            shutil.rmtree(root)
            with small(root) as store:
                for n in range(chance.randrange(1, 300)):
                    store.put("t0", b"other %d" % n, n % 5)
        assert seen(follower.refresh()) == at_once(root), step


def test_a_message_that_is_not_dispatched_yet_is_seen_when_it_is(root: str) -> None:
    with small(root) as store:
        for n in range(30):
            store.put("t", b"x", n % 3)
    queue = Path(root, "consumequeue", "t", "1")
    unit = queue / sorted(os.listdir(queue))[0]
    whole = unit.read_bytes()
    unit.write_bytes(whole[: 9 * 20] + bytes(20) + whole[10 * 20 :])  # as a writer that is killed leaves it
    follower = follow.StoreTailer(LocalBackend(root))
    ends = {(q.topic, q.queue_id): q.max_offset for q in follower.refresh().queues}
    assert ends == {("t", 0): 10, ("t", 1): 9, ("t", 2): 10}
    unit.write_bytes(whole)
    follower._next_s = 0.0
    follower._at = 0
    ends = {(q.topic, q.queue_id): q.max_offset for q in follower.refresh().queues}
    assert ends == {("t", 0): 10, ("t", 1): 10, ("t", 2): 10}
