"""What a store keeps to around its puts and gets: use after close, views that outlive it, forks, a second writer,
topics deleted meanwhile, wrong questions.

Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import asyncio
import operator
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from golden_checks import files_of
from laboratory import bodies, lab
from store.small_store import (
    SMALL,
    in_threads,
)

import mqfast
from mqfast import Message
from mqfast.config import StoreConfig
from mqfast.errors import (
    ConfigError,
    OffsetError,
    StoreClosed,
    StoreForked,
    StoreLocked,
    StoreNotFound,
    UsageError,
)


def test_use_after_close(tmp_path: Path) -> None:
    store = mqfast.open(tmp_path / "store", **SMALL)
    producer = store.producer("T")
    producer.put(b"x", "k")
    consumer = store.consumer("g", "T")
    ticket = store.put_nowait("T", b"y")
    store.close()
    store.close()
    before = files_of(tmp_path / "store")
    for call in (
        lambda: store.put("T", b""),
        lambda: store.put("New", b""),
        lambda: store.put("T", b"", flag=1),
        lambda: store.put_many("T", [b""]),
        lambda: store.put_batch([Message("T", b"")]),
        lambda: store.put_nowait("T", b""),
        lambda: store.put_message(Message("T", b"")),
        lambda: producer.put(b""),
        lambda: producer.put_many([b""]),
        lambda: store.producer("T"),
        lambda: store.get("T", 0, 0),
        lambda: store.get_by_offset(0),
        lambda: store.query("T", "k"),
        lambda: store.offset_by_time("T", 0, 0),
        lambda: store.max_offset("T", 0),
        lambda: store.min_offset("T", 0),
        lambda: store.topics(),
        lambda: store.queues(),
        lambda: store.flush(),
        lambda: store.delete_topic("T"),
        lambda: store.consumer("g", "T"),
        lambda: consumer.poll(),
        lambda: asyncio.run(store.aput("T", b"")),
    ):
        with pytest.raises(StoreClosed):
            call()
    assert ticket.wait(0)
    assert store.state == "closed"
    assert "closed" in repr(store)
    assert store.stats()["state"] == "closed"
    assert files_of(tmp_path / "store") == before


def test_puts_in_many_threads_while_the_store_closes(tmp_path: Path) -> None:
    """Every single put is stored or raises StoreClosed; nothing acknowledged is lost, and the close is a clean one."""
    for turn in range(5):
        path = tmp_path / f"store{turn}"
        store = mqfast.open(path, **SMALL | {"mappedFileSizeCommitLog": 1 << 15})
        acknowledged: list[int] = []

        def work(number: int, store: Any = store, acknowledged: list[int] = acknowledged) -> None:
            if number == 0:
                time.sleep(0.02)
                store.close()
                return
            try:
                while True:
                    if number == 1:
                        acknowledged.extend(r.queue_offset for r in store.put_many("T", [b"m"] * 50))
                    elif number == 2:
                        store.get("T", 0, 0)
                    elif number == 3:
                        acknowledged.append(store.put("T", b"g", flag=1).queue_offset)
                    else:
                        acknowledged.append(store.put("T", b"s", keys="k" if number == 4 else None).queue_offset)
            except StoreClosed:
                pass

        in_threads(6, work)
        with mqfast.open(path) as again:
            assert again.recovery.clean
            assert len(set(acknowledged)) == len(acknowledged)
            # a put_many that the close cut short has stored a first part without an answer
            assert len(acknowledged) <= again.max_offset("T", 0) < len(acknowledged) + 50
            assert max(acknowledged, default=-1) < again.max_offset("T", 0)


def test_views_outlive_the_store_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = mqfast.open(path, fileReservedTime=1, **SMALL)
    given = [b"%03d" % i * 200 for i in range(40)]
    store.put_many("T", given)
    got = store.get("T", 0, 0, max_count=40)
    views = [message.body for message in got]
    first = got[0]
    store.flush()
    store.log.reap()
    for file in (path / "commitlog").iterdir():
        os.utime(file, (0, 0))
    lab(store).retention_at_any_hour()
    assert store.retention.run_once(store.os_api.now_ms()) >= 3
    assert not (path / "commitlog" / f"{0:020}").exists()
    assert [bytes(view) for view in views] == given
    with pytest.raises(OffsetError):
        store.get_by_offset(0)
    store.delete_topic("T")
    assert [bytes(view) for view in views] == given
    store.close()
    assert [bytes(view) for view in views] == given
    assert (first.topic, first.queue_offset, bytes(first.body)) == ("T", 0, given[0])
    assert [bytes(message.body) for message in got] == given
    del got, first
    assert [bytes(view) for view in views] == given
    shutil.rmtree(path)
    assert [bytes(view) for view in views] == given


def test_a_get_result_can_be_iterated_repeatedly(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        for number in range(5):
            store.put("T", b"%d" % number)
        found = store.get("T", 0, 0, 32)
        one, other = iter(found), iter(found)
        assert [bytes(next(one)), bytes(next(one)), bytes(next(other))] == [b"0", b"1", b"0"]
        assert (operator.length_hint(one), operator.length_hint(other), len(found)) == (3, 4, 5)
        del found  # what walks it keeps it
        rest = list(one)
    assert [bytes(message) for message in rest] == [b"2", b"3", b"4"]  # also after the close
    assert list(one) == []
    assert [message.queue_offset for message in other] == [1, 2, 3, 4]
    assert list(type(one)()) == []  # type: ignore[call-arg]


def test_a_forked_child_may_not_use_the_store(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        producer = store.producer("T")
        producer.put(b"before")
        message = store.get("T", 0, 0)[0]
        child = os.fork()
        if child == 0:
            wrong = 0
            for call in (
                lambda: store.put("T", b"child"),
                lambda: store.put("T", b"child", flag=1),
                lambda: store.put_many("T", [b"child"]),
                lambda: producer.put(b"child"),
                lambda: store.get("T", 0, 0),
                lambda: store.flush(),
                lambda: store.query("T", "k"),
            ):
                try:
                    call()
                    wrong += 1
                except StoreForked:
                    pass
                except BaseException:
                    wrong += 1
            try:
                mqfast.open(tmp_path / "store", **SMALL)
                wrong += 1
            except StoreLocked:  # the lock is the parent's
                pass
            except BaseException:
                wrong += 1
            wrong += bytes(message.body) != b"before"
            store.close()
            with mqfast.open(tmp_path / "own", **SMALL) as own:
                own.put("T", b"own")
            os._exit(wrong)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.put(b"after").queue_offset == 1
        store.flush()
        assert bodies(store) == [b"before", b"after"]
        assert (tmp_path / "store/abort").exists()
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.recovery.clean
        assert bodies(store) == [b"before", b"after"]
    with mqfast.open(tmp_path / "own", **SMALL) as store:
        assert bodies(store) == [b"own"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (tmp_path / "other").symlink_to(path)
    other_process = [sys.executable, "-c", "import sys, mqfast; mqfast.open(sys.argv[1]).close()", str(path)]
    with mqfast.open(path, **SMALL) as store:
        store.put("T", b"x")
        for name in (path, tmp_path / "other", tmp_path / "." / "store" / ".." / "store"):
            with pytest.raises(StoreLocked):
                mqfast.open(name, **SMALL)
        done = subprocess.run(other_process, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 1
        assert "StoreLocked" in done.stderr
        assert store.put("T", b"y").queue_offset == 1
    assert subprocess.run(other_process, check=False, timeout=300).returncode == 0
    with mqfast.open(path, **SMALL) as store:
        assert bodies(store) == [b"x", b"y"]


def test_an_open_that_fails_lets_go_of_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        store.put("T", b"x")
    for _ in range(2):
        with pytest.raises(ConfigError):
            mqfast.open(path, mappedFileSizeCommitLog=8192)
    with mqfast.open(path) as store:
        assert bodies(store) == [b"x"]
    with pytest.raises(StoreNotFound):
        mqfast.open(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()


def test_delete_topic_while_others_put(tmp_path: Path) -> None:
    def work(number: int) -> None:
        if number == 0:
            for _ in range(25):
                store.delete_topic("T")
            return
        producer = store.producer("T", number % 2)
        for _ in range(300):
            if number == 1:
                store.put_many("T", [b"m"] * 20, 1)
            elif number == 2:
                store.put("T", b"g", 0, keys="k")
            elif number == 3:
                producer.put(b"p")
            else:
                store.put("Stays", b"s%d" % counts[number], number)
                counts[number] += 1

    counts: dict[int, int] = defaultdict(int)
    sizes = SMALL | {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20000}
    with mqfast.open(tmp_path / "store", **sizes) as store:
        in_threads(6, work)
        store.delete_topic("T")
        assert store.topics() == ["Stays"]
        assert not (tmp_path / "store/consumequeue/T").exists()
        for number in (4, 5):
            assert bodies(store, "Stays", number) == [b"s%d" % i for i in range(counts[number])]
        assert [store.put("T", b"new").queue_offset for _ in range(3)] == [0, 1, 2]
        assert bodies(store) == [b"new"] * 3
    with mqfast.open(tmp_path / "store") as store:
        assert bodies(store) == [b"new"] * 3
        for number in (4, 5):
            assert bodies(store, "Stays", number) == [b"s%d" % i for i in range(counts[number])]


def test_wrong_questions(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x" * 50)
        for call in (lambda: store.get(5, 0, 0), lambda: store.get("T", 0, 0, -1), lambda: store.get("T", 0, 0, 1, -1)):
            with pytest.raises(UsageError):
                call()
        for where in (-1, 1, 142, 4096, 1 << 62, "7F00", "Z" * 32, "7F00000100002A9F" + "7" * 16):
            with pytest.raises(OffsetError):
                store.get_by_offset(where)
        assert store.get("T", 0, -5).status.name == "OFFSET_TOO_SMALL"
        assert store.get("T", 0, 1 << 50).status.name == "OFFSET_OVERFLOW_BADLY"
        assert len(store.get("T", 0, 0, 0)) == 0


def test_questions_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(ConfigError, match="store_path_root_dir"):
        mqfast.open(path, store_path_root_dir=str(tmp_path / "other"), **SMALL)
    with pytest.raises(ConfigError, match="expected one directory"):
        mqfast.open(path, store_path_commit_log=f"{path}/a,{path}/b", **SMALL)
    with pytest.raises(ConfigError, match="either a config object or settings"):
        mqfast.open(path, config=StoreConfig.tiny(), flush_disk_type="SYNC_FLUSH")
    with pytest.raises(UsageError, match="expected a path"):
        mqfast.open(7)  # type: ignore[arg-type]
    with mqfast.open(path, message_index_enable=False, **SMALL) as store:
        store.put("T", b"x", keys="k")
        with pytest.raises(UsageError, match="message_index_enable"):
            store.query("T", "k")
        for boundary in ("MIDDLE", 7):
            with pytest.raises(UsageError, match="LOWER or UPPER"):
                store.offset_by_time("T", 0, 0, boundary)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="queue_id: expected a whole number"):
            store.offset_by_time("T", "0", 0)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="timestamp_ms: expected a whole number"):
            store.offset_by_time("T", 0, 1 << 63)
        with pytest.raises(UsageError, match="timeout: expected seconds"):
            store.flush("1")  # type: ignore[arg-type]
        assert store.offset_by_time("T", 0, 0, "upper") == store.offset_by_time("none", 0, 0) == 0
        assert store.flush(5.0) is True


def test_services_that_cannot_all_start_are_stopped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads: the open fails, and leaves neither a thread nor the lock behind."""
    before = set(threading.enumerate())
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("mqfast"):
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        mqfast.open(tmp_path / "store", **SMALL)
    assert len(started) == 3
    assert set(threading.enumerate()) <= before
    monkeypatch.undo()
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")


def test_a_warning_is_said_once_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        for _ in range(3):
            lab(store).warn("the disk is nearly full")
        for number in range(200):
            lab(store).warn(f"warning {number}")
        shown = store.stats()["warnings"]
    assert [record.getMessage() for record in caplog.records].count(f"{store.path}: the disk is nearly full") == 1
    assert len(shown) == 100
    assert shown[-1] == "warning 199"
