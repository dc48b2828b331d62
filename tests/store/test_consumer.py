"""Embedded consumers: order, tags, commits, and going on after a restart or a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import UsageError


def bodies(messages: object) -> list[bytes]:
    return [bytes(message.body) for message in messages]  # type: ignore[attr-defined]


def filled(path: Path, count: int = 20) -> mqfast.MessageStore:
    store = mqfast.open(path, config=StoreConfig.tiny())
    for number in range(count):
        store.put("T", b"%d" % number, number % 2, tags="even" if number % 2 == 0 else "odd")
    return store


def test_every_queue_in_order_and_nothing_twice(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        got = bodies(store.consumer("g", "T", batch=3))
        for parity in (0, 1):
            mine = [int(body) for body in got if int(body) % 2 == parity]
            assert mine == list(range(parity, 20, 2))
        assert bodies(store.consumer("g", "T")) == []
        store.put("T", b"20", 0)
        assert bodies(store.consumer("g", "T")) == [b"20"]


def test_tags_choose_and_the_others_are_passed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", tags="odd")
        assert [int(body) for body in bodies(consumer)] == list(range(1, 20, 2))
        assert consumer.lag() == 0


def test_an_uncommitted_message_comes_again(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        first = store.consumer("g", "T", batch=4)
        taken = first.poll()
        assert len(taken) == 4
        assert bodies(store.consumer("g", "T", batch=4).poll()) == bodies(taken)
        first.commit_message(taken[1])
        assert bodies(store.consumer("g", "T", batch=2).poll()) == bodies(taken[2:])


def test_the_group_goes_on_after_a_restart(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=4)
        seen = bodies(consumer.poll())
        consumer.commit()
    with mqfast.open(tmp_path / "store") as store:
        rest = bodies(store.consumer("g", "T"))
        assert sorted(map(int, seen + rest)) == list(range(20))
        assert len(bodies(store.consumer("another", "T"))) == 20


def test_synced_offsets_survive_a_kill(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=10)
        consumer.poll()
        consumer.sync()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")  # what a killed process leaves
    with mqfast.open(tmp_path / "killed") as store:
        assert not store.recovery.clean
        assert len(bodies(store.consumer("g", "T"))) == 10


def test_a_new_group_may_begin_behind_the_last_message(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", from_first=False)
        assert consumer.poll() == []
        store.put("T", b"new", 1)
        assert bodies(consumer.poll()) == [b"new"]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "store", 1) as store:
        for group in ("", "a@b"):
            with pytest.raises(UsageError, match="group"):
                store.consumer(group, "T")
        with pytest.raises(UsageError, match="batch"):
            store.consumer("g", "T", batch=0)
        with pytest.raises(UsageError, match="offset"):
            store.consumer("g", "T").seek(0, -1)


def test_seek_goes_anywhere_but_below_zero(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        consumer = store.consumer("g", "T", batch=2)
        consumer.seek(0, 8)
        assert [int(body) for body in bodies(consumer.poll())] == [16, 18]
        with pytest.raises(UsageError, match="offset"):
            consumer.seek(0, -1)
