"""StoreReader.tail: what a writer appends is seen once, whole and in order; files that are lost or cut are an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import CorruptFile, OffsetError, StoreClosed, UsageError
from mqfast.message import Message
from mqfast.store.reader.tail import LogTail

SMALL = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20 * 100, "message_index_enable": False}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3, "commitIntervalCommitLog": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqfast.MessageStore]:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        yield store


def tail_of(store: mqfast.MessageStore, *arguments: Any, **options: Any) -> LogTail:
    with mqfast.StoreReader(store.path) as reader:
        return reader.tail(*arguments, **options)


def taken(tail: LogTail, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        messages = tail.poll(timeout=60)
        assert messages, f"{len(bodies)} of {count} messages seen"
        bodies += [bytes(message.body) for message in messages]
    return bodies


def test_begins_at_the_end_of_the_log(store: mqfast.MessageStore) -> None:
    store.put("T", b"before")
    tail = tail_of(store)
    assert tail.poll(timeout=0) == []
    result = store.put("T", b"after", 3, tags="A", keys="k")
    (message,) = tail.poll(timeout=60)
    assert (bytes(message.body), message.topic, message.queue_id, message.tags) == (b"after", "T", 3, "A")
    assert (message.physical_offset, message.queue_offset) == (result.physical_offset, result.queue_offset)
    assert tail.position == result.physical_offset + result.size


@pytest.mark.parametrize("spin", [False, True], ids=["sleeping", "spinning"])
@pytest.mark.parametrize("mode", [{}, {"flushDiskType": "SYNC_FLUSH"}, POOL], ids=["async", "sync", "pool"])
def test_another_process_is_followed_over_many_files(tmp_path: Path, mode: dict[str, Any], spin: bool) -> None:
    count = 2000
    writer = f"""
import sys, mqfast
with mqfast.open({str(tmp_path / "store")!r}, **{(SMALL | mode)!r}) as store:
    print("open", flush=True)
    sys.stdin.readline()
    for number in range({count}):
        store.put_nowait("T", b"%d " % number * 20, number % 3)
    sys.stdin.readline()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with mqfast.StoreReader(tmp_path / "store") as reader:
            tail = reader.tail(from_offset=0, spin=spin)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert taken(tail, count) == [b"%d " % number * 20 for number in range(count)]
        assert tail.position > 4 << 16
        child.stdin.write("end\n")
        child.stdin.flush()
    assert child.returncode == 0
    assert tail.poll(timeout=0) == []


def test_filters(store: mqfast.MessageStore) -> None:
    tails = [tail_of(store, "T"), tail_of(store, "T", 1), tail_of(store, "T", tags="A || Bb"), tail_of(store, tags="A")]
    store.put("T", b"1", 0, tags="A")
    store.put("U", b"2", 1, tags="A")
    store.put("T", b"3", 1, tags="BB")  # the hash of "Aa" and "BB" is one
    store.put("T", b"4", 1, tags="Bb")
    store.put_message(Message("T", b"5", 1, "A", sys_flag=4))  # prepared: in no queue
    seen = [[bytes(message.body) for message in tail.poll(timeout=60)] for tail in tails]
    assert seen == [[b"1", b"3", b"4"], [b"3", b"4"], [b"1", b"4"], [b"1", b"2", b"5"]]


def test_most_messages_of_a_poll(store: mqfast.MessageStore) -> None:
    tail = tail_of(store)
    store.put_many("T", [b"%d" % number for number in range(10)])
    assert [len(tail.poll(4, timeout=60)) for _ in range(3)] == [4, 4, 2]


def test_iterates_until_closed(store: mqfast.MessageStore) -> None:
    tail = tail_of(store, from_offset=0)
    bodies: list[bytes] = []
    enough = threading.Event()

    def follow() -> None:
        for message in tail:
            bodies.append(bytes(message.body))
            if len(bodies) == 3:
                enough.set()

    thread = threading.Thread(target=follow)
    thread.start()
    store.put_many("T", [b"a", b"b", b"c"])
    assert enough.wait(60)
    tail.close()
    thread.join(60)
    assert not thread.is_alive()
    assert bodies == [b"a", b"b", b"c"]
    with pytest.raises(StoreClosed):
        tail.poll(timeout=0)


def test_messages_outlive_tail_and_store(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        tail = tail_of(store)
        store.put("T", b"kept" * 50)
        (message,) = tail.poll(timeout=60)
    body = message.body
    tail.close()
    del tail, message
    assert bytes(body) == b"kept" * 50


def test_waits_for_the_first_file(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        tail = tail_of(store)
        assert tail.poll(timeout=0.01) == []
        store.put("T", b"first")
        assert taken(tail, 1) == [b"first"]


def test_a_file_in_the_making_is_waited_for(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "whole", **SMALL) as store:
        store.put("T", b"first")
    whole = (tmp_path / "whole" / "commitlog" / ("0" * 20)).read_bytes()
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    log = log / ("0" * 20)
    log.write_bytes(bytes(1000))  # allocated piece by piece
    with mqfast.StoreReader(tmp_path / "store") as reader:
        tail = reader.tail(from_offset=0)
    assert tail.poll(timeout=0.01) == []
    os.truncate(log, len(whole))
    assert tail.poll(timeout=0.01) == []
    with log.open("r+b") as file:
        file.write(whole[:500])
    assert taken(tail, 1) == [b"first"]


def test_a_log_that_was_cut_back_is_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"stays")
        last = store.put("T", b"goes")
        tail = tail_of(store, from_offset=0)
        assert taken(tail, 2) == [b"stays", b"goes"]
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:  # as a recovery does that found the record torn
        file.seek(last.physical_offset)
        file.write(bytes(last.size))
    with pytest.raises(CorruptFile, match="cut back") as failure:
        tail.poll(timeout=1)
    assert failure.value.offset == last.physical_offset


def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put_many("T", [b"x" * 1000] * 20)
        tail = tail_of(store, from_offset=0)
        assert len(tail.poll(1, timeout=60)) == 1
    os.truncate(tmp_path / "store" / "commitlog" / ("0" * 20), 0)
    with pytest.raises(CorruptFile):
        tail.poll(timeout=1)


def test_bytes_that_are_no_record_are_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        first = store.put("T", b"good")
        second = store.put("T", b"flipped" * 10)
        tail = tail_of(store, from_offset=0)
    log = tmp_path / "store" / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(second.physical_offset + 100)
        byte = file.read(1)[0]
        file.seek(second.physical_offset + 100)
        file.write(bytes([byte ^ 1]))
    assert taken(tail, 1) == [b"good"]
    with pytest.raises(CorruptFile, match="no whole record") as failure:
        tail.poll(timeout=30)
    assert failure.value.offset == first.physical_offset + first.size


def test_what_retention_removed_is_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put_many("T", [b"x" * 1000] * 200)
        tail = tail_of(store, from_offset=0)
    first, second = sorted((tmp_path / "store" / "commitlog").iterdir())[:2]
    first.unlink()
    second.unlink()
    assert len(tail.poll(1000, timeout=60)) == 60  # the file that it follows is still there for it
    with pytest.raises(OffsetError, match="begins at 131072"):
        tail.poll(timeout=60)
    with pytest.raises(OffsetError, match="begins at 131072"):
        tail_of(store, from_offset=0)


def test_a_rest_behind_a_record_of_a_version_6_host(store: mqfast.MessageStore) -> None:
    """Its store time stands elsewhere; after each rest the last record is looked at again."""
    tail = tail_of(store)
    store.put("T", b"first", born_host="[::1]:99")
    assert taken(tail, 1) == [b"first"]
    assert tail.poll(timeout=0.2) == []  # longer than it takes until it looks around
    store.put("T", b"second")
    assert taken(tail, 1) == [b"second"]


def test_a_hole_in_the_log_is_an_error(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put_many("T", [b"x" * 1000] * 200)
        tail = tail_of(store, from_offset=0)
    sorted((tmp_path / "store" / "commitlog").iterdir())[1].unlink()
    assert len(tail.poll(1000, timeout=60)) == 60
    with pytest.raises(OffsetError, match="next file begins at 131072"):
        tail.poll(timeout=60)


def test_a_first_file_without_length_is_waited_for(tmp_path: Path) -> None:
    """It has its name before it has its length."""
    with mqfast.open(tmp_path / "store", **SMALL):
        pass
    (tmp_path / "store" / "commitlog").mkdir(exist_ok=True)
    (tmp_path / "store" / "commitlog" / f"{0:020}").touch()
    with mqfast.StoreReader(tmp_path / "store") as reader:
        tail = reader.tail(from_offset=0)
    assert tail.poll(timeout=0.1) == []
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"first")
        assert taken(tail, 1) == [b"first"]


def test_one_thread_polls_at_a_time(store: mqfast.MessageStore) -> None:
    tail = tail_of(store, from_offset=0)
    store.put("T", b"first")
    assert taken(tail, 1) == [b"first"]
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(StoreClosed):
            tail.poll()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until the other one is in
        try:
            tail.poll(timeout=0)
        except UsageError:
            break
    else:
        pytest.fail("two threads polled at once")
    tail.close()
    assert ended.wait(60)
    thread.join()


@pytest.mark.parametrize(
    "options",
    [{"topic": 1}, {"queue_id": 0}, {"topic": "T", "queue_id": -1}, {"poll_interval_us": 0}, {"tags": 7}],
)
def test_wrong_arguments(store: mqfast.MessageStore, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tail_of(store, from_offset=0, **options)


def test_wrong_count(store: mqfast.MessageStore) -> None:
    with pytest.raises(UsageError):
        tail_of(store).poll(0)
