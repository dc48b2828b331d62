"""A full disk: reads go on, what needs space waits, nothing that was stored is forgotten, and all goes on by itself.

Room: tests. The disk is simulated (tests/crash): from one call on nothing that asks for space gets any. A real one,
full to its last block, is in tests/block.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import DiskFull
from mqfast.store.base.os_api import lost_page_count
from mqfast.store.base.results import StoreState
from mqfast.store.base.space import Space
from mqfast.store.message_store import MessageStore, open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from mqfast.sim.simulated_os import Sim, in_real_time

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
SPARSE_BLOCK = 4096


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    with in_real_time(tmp_path) as sim:
        yield sim


def opened(sim: Sim, *, threads: bool = False, **settings: Any) -> MessageStore:
    """A small store; without threads, so that nothing happens but what a test does."""
    config = StoreConfig.tiny(preallocate_files=0, **settings)
    return open_store(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api, _start_services=threads)


def dispatch(store: MessageStore) -> None:
    """A turn of the dispatch thread that asks the disk again."""
    lab(store).step_dispatch(-1, True)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while len(got := store.get(topic, queue_id, len(found), 100)):
        found += got.bodies()
    return found


def until(found: Callable[[], Any], expected: Any, limit_s: float = 20.0) -> None:
    """Wait until that is found."""
    deadline = time.monotonic() + limit_s
    while found() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found() == expected


def put_copy(store: MessageStore, topic: str, body: bytes, limit_s: float = 60.0) -> int:
    """Put once the store takes a put: it asks a disk that was full once a second. Returns: the queue offset."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return store.put(topic, body).queue_offset
        except DiskFull:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def hits(store: MessageStore, key: str, topic: str = "T") -> list[bytes]:
    return [bytes(message.body) for message in store.query(topic, key)]


def check_whole(store: MessageStore) -> None:
    """Close, and compare everything with everything."""
    store.close()
    report = mqfast.verify(store.path)
    assert report.state == "clean", [str(damage) for damage in report.damages]


# --- keys ---


def test_keys_wait_and_nothing_else_does(sim: Sim) -> None:
    store = opened(sim)
    store.put("T", b"first")
    dispatch(store)
    sim.fill()
    sent = [b"%d" % number for number in range(20)]
    for body in sent:
        store.put("T", body, keys=f"k{int(body)}")
    store.put("T", b"no key")
    assert bodies(store) == [b"first", *sent, b"no key"]
    assert hits(store, "k3") == []
    assert store.state is StoreState.FULL
    assert [text.split(":")[0] for text in store.stats()["waits_for_space"]] == ["index"]
    assert store.get_by_offset(0).body == b"first"
    assert store.queues() == [("T", 0, 0, 22)]
    sim.heal()
    dispatch(store)
    assert [hits(store, f"k{int(body)}") for body in sent] == [[body] for body in sent]
    assert store.state is StoreState.OPEN
    assert store.stats()["waits_for_space"] == []
    check_whole(store)


@pytest.mark.parametrize("full_at_open", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_keys_that_waited_are_not_forgotten_by_close_or_kill(sim: Sim, full_at_open: bool, killed: bool) -> None:
    store = opened(sim)
    for number in range(40):  # an index file is full, the next one begun
        store.put("T", b"old%d" % number, keys=f"old{number}")
    assert hits(store, "old39") == [b"old39"]
    sim.fill()
    for number in range(40):
        store.put("T", b"new%d" % number, keys=f"new{number}")
    assert len(bodies(store)) == 80
    assert hits(store, "new39") == []
    if killed:
        leave(store)
    else:
        store.close()
    assert os.path.exists(os.path.join(store.path, "abort")), "the next open, a broker's too, has to dispatch again"
    if not full_at_open:
        sim.heal()
    store = opened(sim)
    assert len(bodies(store)) == 80
    if full_at_open:
        assert store.state is StoreState.FULL
        store.close()
        store = opened(sim)
        sim.heal()
        dispatch(store)
    assert [hits(store, f"{what}{number}") for what in ("old", "new") for number in range(40)] == [
        [f"{what}{number}".encode()] for what in ("old", "new") for number in range(40)
    ]
    check_whole(store)
    with opened(sim) as again:
        assert again.recovery.clean


def test_each_key_of_a_record_is_put_once_when_the_index_fills_up_inside_the_record(sim: Sim) -> None:
    store = opened(sim)
    for number in range(28):
        store.put("T", b"x", keys=f"k{number}")
    dispatch(store)
    sim.fill()
    store.put("T", b"many", keys=" ".join(f"m{number}" for number in range(9)))  # the file has room for three
    store.put("T", b"last", keys="last")
    assert len(bodies(store)) == 30
    sim.heal()
    dispatch(store)
    assert [hits(store, f"m{number}") for number in range(9)] == [[b"many"]] * 9
    assert hits(store, "last") == [b"last"]
    assert lab(store).index is not None
    assert sum(file.count - 1 for file in lab(store).index.files) == 28 + 9 + 1
    check_whole(store)


def test_the_first_key_takes_little_of_the_disk(sim: Sim) -> None:
    with opened(sim, max_hash_slot_num=1000, max_index_num=1_000_000) as store:
        store.put("T", b"x", keys="k")
        assert hits(store, "k") == [b"x"]
        (path,) = (Path(store.path) / "index").iterdir()
        assert path.stat().st_size == 40 + 4 * 1000 + 20 * 1_000_000
        assert path.stat().st_blocks * 512 <= 2 << 20


def leave(store: MessageStore) -> None:
    """As a killed process leaves it."""
    from harness import leave as left

    left(store)


# --- queues ---


def test_a_queue_without_room_holds_up_no_other(sim: Sim) -> None:
    store = opened(sim)
    store.put("T", b"0")
    assert bodies(store) == [b"0"]
    sim.fill()
    for number in range(1, 6):
        store.put("New", b"%d" % number)
        store.put("T", b"%d" % number)
        assert bodies(store) == [b"%d" % n for n in range(number + 1)]
    assert bodies(store, "New") == []
    assert [text.split(":")[0] for text in store.stats()["waits_for_space"]] == ["queues"]
    assert store.state is StoreState.FULL
    sim.heal()
    put_copy(store, "New", b"6")
    dispatch(store)
    store.put("New", b"7")
    assert bodies(store, "New") == [b"%d" % n for n in range(1, 8)]
    assert [m.queue_offset for m in store.get("New", 0, 0).messages] == list(range(7))
    check_whole(store)


@pytest.mark.parametrize(
    "settings",
    [{}, {"dispatch": "background"}, {"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}],
)
def test_a_queue_without_space_waits_and_continues(sim: Sim, settings: dict[str, Any]) -> None:
    store = opened(sim, threads=True, mapped_file_bytes_consume_queue=20_000, **settings)
    producer = store.producer("T", 0)
    producer.put(b"0")
    until(lambda: len(bodies(store)), 1)
    sim.fill()
    sent = 1
    with pytest.raises(DiskFull):
        while True:
            producer.put(b"%d" % sent)
            sent += 1
    assert sent > 300, "the log file had room for more"
    until(lambda: len(bodies(store)), 4096 // 20)
    sim.heal()
    until(lambda: bodies(store), [b"%d" % number for number in range(sent)])
    until(lambda: store.state, StoreState.OPEN)
    assert producer.put(b"more").queue_offset == sent
    check_whole(store)


@pytest.mark.parametrize("killed", [False, True])
def test_after_an_open_puts_wait_until_every_queue_has_its_units(sim: Sim, killed: bool) -> None:
    store = opened(sim)
    store.put("T", b"0")
    assert bodies(store) == [b"0"]
    store.consumer_offsets.commit("group", "T", 0, 1)
    sim.fill()
    for number in range(5):
        store.put("New", b"%d" % number)
    if killed:
        leave(store)
    else:
        store.close()
    store = opened(sim)
    assert bodies(store) == [b"0"]
    assert store.state is StoreState.FULL
    with pytest.raises(DiskFull, match="consumequeue"):
        store.put("New", b"5")
    with pytest.raises(DiskFull):
        store.put_many("T", [b"1"])
    store.close()
    store = opened(sim)
    assert bodies(store) == [b"0"]
    sim.heal()
    assert put_copy(store, "New", b"5") == 5
    assert bodies(store, "New") == [b"%d" % n for n in range(6)]
    assert store.state is StoreState.OPEN
    check_whole(store)


def test_offsets_of_a_group_stay_while_units_wait(sim: Sim) -> None:
    store = opened(sim, mapped_file_bytes_consume_queue=200)
    for number in range(25):
        store.put("T", b"%d" % number)
    assert len(bodies(store)) == 25
    store.consumer_offsets.commit("group", "T", 0, 25)
    store.consumer_offsets.persist()
    leave(store)
    for file in sorted((Path(store.path) / "consumequeue" / "T" / "0").iterdir())[1:]:
        file.unlink()
    sim.fill()
    store = opened(sim)
    assert len(bodies(store)) < 25
    assert store.consumer_offsets.get("group", "T", 0) == 25, "taken for an offset behind the end"
    consumer = store.consumer("group", "T")
    assert list(consumer) == []
    sim.heal()
    put_copy(store, "T", b"25")
    assert len(bodies(store)) == 26
    assert [message.body for message in consumer] == [b"25"]
    assert store.consumer_offsets.get("group", "T", 0) == 26
    check_whole(store)


def test_batch_queues_and_light_queues_wait_too(sim: Sim) -> None:
    store = opened(sim, **LIGHT)
    store.topic_table.ensure("Batch", 1, attributes={"queue.type": "BatchCQ"})
    store.topic_table.persist()
    store.put("T", b"0")
    dispatch(store)
    sim.fill()
    for number in range(30):
        store.put("Batch", b"b%d" % number)
        store.put("T", b"%d" % (number + 1), properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
    assert len(bodies(store)) == 31, "the record's own queue has room"
    assert bodies(store, "Batch") == []
    assert bodies(store, "%LMQ%a") == []
    sim.heal()
    dispatch(store)
    assert bodies(store, "Batch") == [b"b%d" % n for n in range(30)]
    for name in ("%LMQ%a", "%LMQ%b"):
        assert bodies(store, name) == [b"%d" % n for n in range(1, 31)]
    check_whole(store)


def test_a_topic_whose_units_wait_cannot_be_deleted(sim: Sim) -> None:
    """They would be put when there is space, and bring it back."""
    store = opened(sim)
    store.put("T", b"0")
    dispatch(store)
    sim.fill()
    store.put("New", b"x")
    with pytest.raises(DiskFull):
        store.delete_topic("New")
    sim.heal()
    assert store.delete_topic("New") == 1
    assert bodies(store, "New") == []
    check_whole(store)


# --- files of the open and the close ---


def test_a_store_that_cannot_note_its_writer_reads_and_refuses_puts(sim: Sim) -> None:
    with opened(sim) as store:
        store.put("T", b"0", keys="k")
    sim.fill()
    store = opened(sim)
    assert bodies(store) == hits(store, "k") == [b"0"]
    assert store.state is StoreState.FULL
    with pytest.raises(DiskFull, match="abort"):
        store.put("T", b"1")
    store.close()
    assert not os.path.exists(os.path.join(store.path, "abort")), "nothing was written: it is as clean as before"
    store = opened(sim)
    sim.heal()
    put_copy(store, "T", b"1")
    assert os.path.exists(os.path.join(store.path, "abort"))
    check_whole(store)


def test_the_dispatch_thread_ends_the_wait_without_a_put(sim: Sim) -> None:
    with opened(sim) as store:
        store.put("T", b"0")
    sim.fill()
    store = opened(sim, threads=True)
    assert store.state is StoreState.FULL
    sim.heal()
    until(lambda: store.state, StoreState.OPEN)
    assert store.put("T", b"1").queue_offset == 1
    check_whole(store)


def test_what_lock_and_abort_hold_does_not_matter(sim: Sim) -> None:
    with opened(sim) as store:
        store.put("T", b"0")
    for name in ("lock", "abort"):
        Path(store.path, name).write_bytes(b"")
    sim.fill()
    with opened(sim) as store:
        assert bodies(store) == [b"0"]
        store.put("T", b"1")  # the log file has room
    assert not os.path.exists(os.path.join(store.path, "abort"))


def test_close_ends_without_room_for_the_tables(sim: Sim, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(sim)
    store.put("T", b"0")
    dispatch(store)
    store.consumer_offsets.commit("group", "T", 0, 1)
    store.consumer_offsets.persist()
    sim.fill()
    store.put("T", b"1")
    dispatch(store)
    store.consumer_offsets.commit("group", "T", 0, 2)
    with caplog.at_level(logging.WARNING, "mqfast.store"):
        store.close()
    assert "consumerOffset.json could not be written at close" in caplog.text
    assert list(Path(store.path, "config").glob("*.tmp")) == []
    assert not os.path.exists(os.path.join(store.path, "abort")), "log, queues and index are whole"
    sim.heal()
    with opened(sim) as store:
        assert bodies(store) == [b"0", b"1"]
        assert store.consumer_offsets.get("group", "T", 0) == 1, "message 1 is handed out again, none is passed"


def test_tables_and_checkpoint_wait_while_the_store_runs(sim: Sim) -> None:
    store = opened(sim, threads=True, flush_consumer_offset_interval_ms=20, flush_interval_ms_consume_queue=20)
    store.put("T", b"0")
    assert bodies(store) == [b"0"]
    until(lambda: os.path.exists(os.path.join(store.path, "checkpoint")), True)
    until(lambda: os.path.exists(os.path.join(store.path, "config", "topics.json")), True)
    sim.fill()
    os.unlink(os.path.join(store.path, "checkpoint"))  # a flush finds it missing, and there is no room for another
    store.put("T", b"1")
    store.consumer_offsets.commit("group", "T", 0, 2)
    until(
        lambda: sorted(text.split(":")[0] for text in store.stats()["waits_for_space"]),
        ["checkpoint", "consumerOffset.json"],
    )
    assert store.state is StoreState.FULL
    assert bodies(store) == [b"0", b"1"]
    assert sorted(os.listdir(store.path)) == sorted(set(os.listdir(store.path)) - {"checkpoint.tmp"})
    sim.heal()
    until(lambda: store.stats()["waits_for_space"], [])
    assert store.state is StoreState.OPEN
    check_whole(store)
    with opened(sim) as store:
        assert store.consumer_offsets.get("group", "T", 0) == 2


# --- files with holes ---


def make_sparse(store: Path) -> None:
    """As cp --sparse=always and tar -S leave files, and as RocketMQ makes them: no block where there are only zeros."""
    for path in store.rglob("0*"):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            with path.open("wb") as file:
                file.truncate(len(data))
                for at in range(0, len(data), SPARSE_BLOCK):
                    if data[at : at + SPARSE_BLOCK].strip(b"\0"):
                        file.seek(at)
                        file.write(data[at : at + SPARSE_BLOCK])
    for path in (store / "index").iterdir():
        data = path.read_bytes()
        path.unlink()
        with path.open("wb") as file:
            file.truncate(len(data))
            file.write(data.rstrip(b"\0"))


@pytest.mark.parametrize("killed", [False, True])
def test_a_log_file_with_holes_gets_its_blocks_ahead_of_the_puts(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "live" / "s"
    config = {"mapped_file_bytes_commit_log": 32 << 20, "preallocate_files": 0}
    store = mqfast.open(root, **config)
    for number in range(50):
        store.put("T", b"%d" % number, keys=f"k{number}")
    store.put("T", bytes(100_000))  # a record with holes
    assert len(bodies(store)) == 51
    store.close()
    if killed:
        (root / "abort").write_text("1")
    make_sparse(root)
    log = root / "commitlog" / ("0" * 20)
    assert log.stat().st_blocks * 512 < 100_000
    sim = Sim(tmp_path / "live", real_clocks=True)
    lost = lost_page_count()
    try:
        sim.fill()
        store = open_store(str(root), config=StoreConfig.from_kwargs(**config), os_api=sim.os_api)
        assert len(bodies(store)) == 51
        for _ in range(3):
            with pytest.raises(DiskFull):
                store.put("T", b"no")
        assert store.state is not StoreState.FAILED
        assert store.flush()
        assert len(bodies(store)) == 51
        sim.heal()
        for number in range(2000):
            put_copy(store, "T", bytes(9_000) + b"%d" % number)
        blocks = log.stat().st_blocks * 512
        assert store.log.written < blocks <= store.log.written + (18 << 20), "step by step, not all at once"
        until(lambda: len(bodies(store)), 2051)
        check_whole(store)
    finally:
        sim.free()
    assert lost_page_count() == lost, "a write met a hole"


def test_queue_and_index_files_with_holes_wait(tmp_path: Path) -> None:
    root = tmp_path / "live" / "s"
    with mqfast.open(root, preallocate_files=0) as store:
        for number in range(50):
            store.put("T", b"%d" % number, keys=f"k{number}")
    make_sparse(root)
    sim = Sim(tmp_path / "live", real_clocks=True)
    lost = lost_page_count()
    try:
        store = open_store(str(root), config=StoreConfig.from_kwargs(preallocate_files=0), os_api=sim.os_api)
        store.put("Other", b"takes blocks for the log")
        sim.fill()
        for number in range(50, 900):
            store.put("T", b"%d" % number, keys=f"k{number}")
        got = len(bodies(store))
        assert 50 <= got < 900
        assert hits(store, "k3") == [b"3"]
        assert hits(store, "k899") == []
        assert {text.split(":")[0] for text in store.stats()["waits_for_space"]} >= {"queues", "index"}
        sim.heal()
        until(lambda: len(bodies(store)), 900)
        until(lambda: hits(store, "k899"), [b"899"])
        check_whole(store)
    finally:
        sim.free()
    assert lost_page_count() == lost, "a write met a hole"


def test_a_full_disk_is_retried_once_a_second_for_any_number_of_puts(sim: Sim) -> None:
    store = opened(sim, threads=True)
    store.put("T", b"first")
    until(lambda: bodies(store), [b"first"])
    sim.fill()
    began, refused = time.monotonic(), 0
    while refused < 5000 and time.monotonic() < began + 20:
        try:
            store.put("T", bytes(900))
        except DiskFull:
            refused += 1
    seconds = time.monotonic() - began
    assert refused > 0
    # the log, a queue, the index, two tables and the checkpoint, each once a second, with some calls for a file
    assert sim.asked_for_space <= 30 * (seconds + 2)
    sim.heal()
    put_copy(store, "T", b"last")
    check_whole(store)


# --- every call that asks for space ---


def _work(sim: Sim, store_of: Callable[[], MessageStore], sent: list[bytes]) -> MessageStore:
    """Everything that makes files; a put may be refused, nothing else may raise."""
    store = store_of()
    for number in range(40):
        topic = f"T{number % 3}"
        body = b"%d" % number + bytes(900)
        try:
            store.put(topic, body, keys=f"k{number} u{number}")
        except DiskFull:
            continue
        sent.append(body)
        if number % 5 == 0:
            dispatch(store)
            lab(store).flush_queues()
        store.consumer_offsets.commit("group", topic, 0, 1)
        for name in ("T0", "T1", "T2"):
            found = bodies(store, name)
            assert found == [m for m in sent if int(m.rstrip(b"\0")) % 3 == int(name[1])][: len(found)]
        store.query(topic, f"k{number}")
        if number == 20:
            store.close()
            store = store_of()
    return store


@pytest.mark.parametrize("end", ["close", "kill"])
def test_the_disk_may_fill_up_at_any_call(tmp_path: Path, end: str) -> None:
    logging.disable()
    try:
        n = 1
        while _filled_at(tmp_path / str(n), n, end):
            n += 1
    finally:
        logging.disable(logging.NOTSET)
    assert n > 30


def _filled_at(path: Path, n: int, end: str) -> bool:
    """Run with a disk that is full from the n-th call on. Was there such a call?"""
    path.mkdir()
    sim = Sim(path, real_clocks=True)
    settings: dict[str, Any] = {"mapped_file_bytes_commit_log": 16 << 10, "mapped_file_bytes_consume_queue": 200}
    sent: list[bytes] = []

    def store_of() -> MessageStore:
        return opened(sim, **settings)

    with store_of():
        pass  # where there is no store yet, and no room for one, the open may say so
    sim.fill(n)
    store = _work(sim, store_of, sent)
    met = sim.asked_for_space >= n
    if end == "close":
        store.close()
    else:
        sim.freeze(True)
        leave(store)
        sim.freeze(False)
    full = store_of()
    for name in ("T0", "T1", "T2"):
        bodies(full, name)
    full.close()
    sim.heal()
    with store_of() as again:
        assert again.put("T0", b"after", keys="after").queue_offset == sum(int(m.rstrip(b"\0")) % 3 == 0 for m in sent)
        for k in range(3):
            expected = [m for m in sent if int(m.rstrip(b"\0")) % 3 == k] + ([b"after"] if k == 0 else [])
            assert bodies(again, f"T{k}") == expected, (n, k)
        for body in sent:
            number = int(body.rstrip(b"\0"))
            assert hits(again, f"k{number}", f"T{number % 3}") == [body], (n, number)
            assert hits(again, f"u{number}", f"T{number % 3}") == [body], (n, number)
    report = mqfast.verify(again.path)
    assert report.state == "clean", (n, [str(damage) for damage in report.damages])
    assert sim.open_maps == sim.open_fds == 0
    sim.free()
    return met


# --- what the user hears ---


def test_disk_full_names_wanted_and_free_bytes_and_the_setting(sim: Sim) -> None:
    store = opened(sim, max_hash_slot_num=1000)
    store.put("T", b"0")
    dispatch(store)
    sim.fill()
    with pytest.raises(DiskFull) as caught:
        while True:
            store.put("T", bytes(1000), keys="k")
    error = caught.value
    assert error.wanted_bytes == 64 << 10
    assert error.free_bytes == store.os_api.statvfs(sim.root)[1]
    assert error.setting == "mapped_file_bytes_commit_log"
    for word in (
        "wanted 65536 bytes",
        f"{error.free_bytes} are free",
        "file system of /",
        "smaller mapped_file_bytes_commit_log",
        "commitlog",
    ):
        assert word in str(error)
    dispatch(store)
    (text,) = (text for text in store.stats()["waits_for_space"] if text.startswith("index"))
    assert "wanted 4096 bytes" in text
    os.makedirs(os.path.join(store.path, "index"))
    dispatch(store)
    store.close()


def test_the_log_has_one_line_a_minute_at_most(
    sim: Sim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(sim)
    store.put("T", b"0")
    dispatch(store)
    sim.fill()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def lines() -> int:
        return sum("disk full" in record.getMessage() for record in caplog.records)

    for number in range(50):
        store.put("T", b"x", keys="k")
        store.put(f"New{number % 3}", b"x", keys="k")
        dispatch(store)
        store.query("T", "k")
        now += 1
    assert lines() == 1
    now += 61
    dispatch(store)
    assert lines() == 2
    monkeypatch.undo()
    sim.heal()
    check_whole(store)


def test_space_names_what_waits_and_forgets_what_is_over() -> None:
    space = Space()
    assert not space.waits
    space.see("index", DiskFull(28, "no room", "/x"))
    space.see("queues", DiskFull(28, "no room either", "/y"))
    assert [text.split(":")[0] for text in space.texts()] == ["index", "queues"]
    space.see("index", None)
    assert space.waits
    space.see("queues", None)
    assert not space.waits
