"""The log as bytes: a slave that follows a master by raw ranges is its copy; gaps, overlaps and bad bytes are refused;
a slave's log is cut while it is open.
"""

from __future__ import annotations

import gc
import shutil
import signal
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import bodies, lab
from store.small_store import POOL, eventually, still

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import (
    CorruptFile,
    LogGap,
    LogOverlap,
    NotMaster,
    NotSlave,
    OffsetError,
    StoreClosed,
    UsageError,
)
from mqfast.store.log.acks import AckTable
from mqfast.store.message_store import open_store

FILE = 4096
SMALL: dict[str, Any] = {
    "mapped_file_bytes_commit_log": FILE,
    "mapped_file_bytes_consume_queue": 400,
    "max_hash_slot_num": 16,
    "max_index_num": 200,
}
SLAVE = SMALL | {"broker_role": "SLAVE"}
SYNC = {"flush_disk_type": "SYNC_FLUSH"}


def fill(store: Any, count: int, first: int = 0) -> None:
    for i in range(first, first + count):
        store.put(f"T{i % 3}", b"%d" % i * (i % 40), i % 2, keys=f"k{i}" if i % 4 == 0 else None)


def send(master: Any, slave: Any, size: int = 1000) -> None:
    """Everything that the slave lacks, ``size`` bytes at a time."""
    raw = slave.engine.raw
    at = raw.end
    while at < master.engine.raw.end:
        for view in master.engine.raw.read(at, size):
            at = raw.append(at, view)


def files(root: Path, *folders: str) -> dict[str, bytes]:
    found = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def log_of(root: Path) -> dict[str, bytes]:
    return files(root, "commitlog")


def assert_copy(master: Path, slave: Path) -> None:
    """Both are closed. Times in an index header are those of records, and so equal as well."""
    assert log_of(slave) == log_of(master)
    assert files(slave, "consumequeue") == files(master, "consumequeue")
    assert list(files(slave, "index").values()) == list(files(master, "index").values())


@pytest.mark.parametrize("extra", [{}, SYNC, POOL], ids=["async", "sync", "pool"])
@pytest.mark.parametrize("size", [1, 7, 90, 1000, 3 * FILE])
def test_a_slave_that_follows_is_a_copy(tmp_path: Path, size: int, extra: dict[str, Any]) -> None:
    master, slave = still(tmp_path / "m", **SMALL, **extra), still(tmp_path / "s", **SLAVE, **extra)
    for round_ in range(3):
        fill(master, 20, 20 * round_)
        if extra == POOL:
            master.log.commit()
        send(master, slave, size)
        assert slave.engine.raw.end == slave.engine.raw.next_offset == master.engine.raw.end
        slave.flush()
        lab(slave).step_dispatch()
        for topic in ("T0", "T1", "T2"):
            for queue_id in (0, 1):
                assert bodies(slave, topic, queue_id) == bodies(master, topic, queue_id)
        assert [m.body for m in slave.query("T0", "k0")] == [m.body for m in master.query("T0", "k0")]
    master.close()
    slave.close()
    assert_copy(tmp_path / "m", tmp_path / "s")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 2 * FILE), min_size=1, max_size=30), reconnect=st.sets(st.integers(0, 29)))
def test_any_cuts_and_any_reconnects_give_the_same_log(
    tmp_path_factory: Any, sizes: list[int], reconnect: set[int]
) -> None:
    place = tmp_path_factory.mktemp("raw")
    master, slave = still(place / "m", **SMALL), still(place / "s", **SLAVE)
    fill(master, 60)
    raw = slave.engine.raw
    at = step = 0
    while raw.end < master.engine.raw.end:
        if step in reconnect:
            if step % 2:
                raw.forget_part()
            at = raw.end
        for view in master.engine.raw.read(at, sizes[step % len(sizes)] if step < 200 else 3 * FILE):
            at = raw.append(at, view)
        step += 1
    lab(slave).step_dispatch()
    master.close()
    slave.close()
    assert_copy(place / "m", place / "s")
    shutil.rmtree(place)


def test_a_running_slave_dispatches_and_flushes_behind_the_append(tmp_path: Path) -> None:
    config = StoreConfig.tiny(**SLAVE)
    master = still(tmp_path / "m", **SMALL)
    with open_store(tmp_path / "s", config=config) as slave:
        for round_ in range(10):
            fill(master, 20, 20 * round_)
            send(master, slave)
        end = master.engine.raw.end
        assert eventually(lambda: slave.log.dispatched == end)
        assert eventually(lambda: slave.log.flushed == end)
        arrivals = slave.engine.arrivals()
        offset = slave.max_offset("T0", 0)
        arrivals.watch("T0", 0, offset)
        fill(master, 6, 0)
        send(master, slave)
        assert arrivals.wait(20) == [("T0", 0)]
        assert bodies(slave, "T0", 0, offset) == [b""]
    master.close()
    assert log_of(tmp_path / "s") == log_of(tmp_path / "m")


def test_a_slave_may_begin_with_any_file_of_its_master(tmp_path: Path) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    fill(master, 160)
    end = master.engine.raw.end
    first = end - end % FILE
    assert first > FILE
    for view in master.engine.raw.read(first, FILE):
        slave.engine.raw.append(first, view)
    assert (slave.engine.raw.min_offset, slave.engine.raw.end) == (first, end)
    lab(slave).step_dispatch()
    for topic, queue_id, low, high in slave.queues():
        assert high == master.max_offset(topic, queue_id)
        assert bodies(slave, topic, queue_id, low) == bodies(master, topic, queue_id, low)
    slave.close()
    with still(tmp_path / "s", **SLAVE) as slave:
        assert (slave.engine.raw.min_offset, slave.engine.raw.end) == (first, end)
    master.close()


def test_only_the_end_takes_bytes(tmp_path: Path) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    fill(master, 10)
    raw = slave.engine.raw
    [view] = master.engine.raw.read(0, 2000)
    with pytest.raises(LogGap) as gap:
        raw.append(100, view)
    assert (gap.value.offset, gap.value.expected) == (100, 0)
    part = view[: len(view) - 5]
    at = raw.append(0, part)
    assert at == len(part) > raw.end
    assert raw.end < at
    before = raw.end
    for offset, kind in ((at + 1, LogGap), (raw.end - 1, LogOverlap), (at - 1, LogOverlap)):
        with pytest.raises(kind) as refused:
            raw.append(offset, b"x")
        assert refused.value.expected == at
        assert raw.end == before
    at = raw.append(at, view[len(part) :])
    assert at == len(view)
    fill(master, 5, 10)
    [view] = master.engine.raw.read(at, 9999)
    raw.append(at, view[:130])
    assert raw.end < raw.next_offset
    raw.append(raw.end, master.engine.raw.read(raw.end, 9999)[0])  # a new connection begins with the record
    assert raw.end == raw.next_offset == master.engine.raw.end
    master.close()
    slave.close()


@pytest.mark.parametrize("place", [0, 3, 6, 30, 100])
def test_bytes_that_are_no_record_do_not_land(tmp_path: Path, place: int) -> None:
    """Size, magic, physical offset, and a body."""
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    first = master.put("T", b"x" * 50)
    second = master.put("T", b"y" * 50)
    good = b"".join(master.engine.raw.read(0, 9999))
    bad = bytearray(good)
    bad[second.physical_offset + place] ^= 0x40
    with pytest.raises(CorruptFile) as refused:
        slave.engine.raw.append(0, bad)
        slave.engine.raw.append(slave.engine.raw.next_offset, b"\0" * FILE)  # a size that is too large waits for more
    assert refused.value.offset == second.physical_offset
    assert slave.engine.raw.end == first.size
    assert slave.engine.raw.append(first.size, good[first.size :]) == len(good)
    lab(slave).step_dispatch()
    assert bodies(slave) == [b"x" * 50, b"y" * 50]
    master.close()
    slave.close()


def test_a_crc_is_not_looked_at_when_told(tmp_path: Path) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    master.put("T", b"x" * 50)
    bad = bytearray(b"".join(master.engine.raw.read(0, 9999)))
    bad[100] ^= 1
    assert slave.engine.raw.append(0, bad, check_crc=False) == len(bad)
    master.close()
    slave.close()


def test_a_slave_takes_no_puts_and_a_master_no_bytes(tmp_path: Path) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    with pytest.raises(NotMaster):
        slave.put("T", b"x")
    end = master.put("T", b"x").size
    with pytest.raises(NotSlave):
        master.engine.raw.append(end, b"x")
    with pytest.raises(NotSlave):
        master.engine.raw.truncate_to(0)
    with pytest.raises(UsageError, match="bytes"):
        slave.engine.raw.append(0, "text")  # type: ignore[arg-type]
    raw = slave.engine.raw
    slave.close()
    with pytest.raises(StoreClosed):
        raw.append(0, b"x")
    with pytest.raises(StoreClosed):
        raw.read(0)
    master.close()


# --- a master's side


def test_ranges_are_cut_at_files_and_at_what_readers_may_see(tmp_path: Path) -> None:
    master = still(tmp_path / "m", **SMALL, **SYNC)
    fill(master, 100)
    raw = master.engine.raw
    durable = raw.end
    late = master.put_nowait("T", b"late").result
    views = raw.read(100, 3 * FILE)
    assert [len(view) for view in views][:2] == [FILE - 100, FILE]
    assert all(view.readonly for view in views)
    assert b"".join(raw.read(0, 1 << 20)) == b"".join(log_of(tmp_path / "m").values())[:durable]
    assert raw.read(durable) == []
    assert b"".join(raw.read(durable, unflushed=True)).find(b"late") > 0
    with pytest.raises(OffsetError):
        raw.read(durable + 1)
    assert raw.read(durable + late.size, unflushed=True) == []
    for offset in (-1, durable + late.size + 1):
        with pytest.raises(OffsetError, match="outside the log"):
            raw.read(offset, unflushed=True)
    assert raw.read(0, 0) == []
    master.close()


def test_a_view_outlives_its_file_and_its_store(tmp_path: Path) -> None:
    master = still(tmp_path / "m", **SMALL)
    fill(master, 160)
    [view] = master.engine.raw.read(0, 500)
    before = bytes(view)
    master.log.flush()
    lab(master).step_dispatch()
    master.log.reap()
    master.log.remove_first()
    with pytest.raises(OffsetError):
        master.engine.raw.read(0, 500)
    master.close()
    del master
    gc.collect()
    assert bytes(view) == before
    view.release()


@pytest.mark.parametrize("extra", [{}, SYNC, POOL], ids=["async", "sync", "pool"])
def test_waiting_for_an_offset(tmp_path: Path, extra: dict[str, Any]) -> None:
    with open_store(tmp_path / "m", config=StoreConfig.tiny(**SMALL | extra)) as master:
        raw = master.engine.raw
        assert not raw.wait_for(0, 0)
        assert not raw.wait_for(0, 0.01)
        end = 0
        for number in range(50):
            putting = threading.Thread(target=lambda: master.put("T", b"x" * 50))
            putting.start()
            assert raw.wait_for(end, 30, unflushed=number % 2 == 1)
            putting.join()
            assert raw.wait_for(end)
            end = raw.end
        waiting: list[BaseException] = []

        def wait() -> None:
            try:
                raw.wait_for(end)
            except BaseException as error:
                waiting.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
    thread.join(20)
    assert [type(error) for error in waiting] == [StoreClosed]


def test_a_signal_handler_ends_a_wait(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with mqfast.open(tmp_path / "m", mapped_file_bytes_commit_log=1 << 20) as master:
        before = signal.signal(signal.SIGALRM, fail)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                master.engine.raw.wait_for(0, 60)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert master.put("T", b"x").queue_offset == 0


# --- cuts


def boundaries(store: Any) -> list[int]:
    """Ends of all records, and the beginning of the log."""
    ends, at = [0], 0
    while at < store.engine.raw.end:
        try:
            at += store.log.message(at).size
        except CorruptFile:
            at += FILE - at % FILE
        ends.append(at)
    return ends


@pytest.mark.parametrize("which", [0, 1, 5, 20, 30, 41, -2, -1])
@pytest.mark.parametrize("extra", [{}, SYNC, POOL], ids=["async", "sync", "pool"])
def test_a_cut_slave_follows_another_master(tmp_path: Path, which: int, extra: dict[str, Any]) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE, **extra)
    fill(master, 100)
    send(master, slave)
    slave.flush()
    lab(slave).step_dispatch()
    at = boundaries(master)[which]
    master.close()
    shutil.copytree(tmp_path / "m", tmp_path / "o")
    other = still(tmp_path / "o", **SLAVE)  # another master: the same up to there, and then other messages
    other.engine.raw.truncate_to(at)
    other.close()
    other = still(tmp_path / "o", **SMALL)
    assert other.engine.raw.end == at
    fill(other, 30, 1000)

    slave.engine.raw.truncate_to(at)
    raw = slave.engine.raw
    assert raw.end == raw.next_offset == at
    assert slave.log.flushed == slave.log.dispatched == at
    for topic, queue_id, _, _ in slave.queues():
        assert all(m.physical_offset < at for m in slave.get(topic, queue_id, 0).messages)
    assert lab(slave).checkpoint.logics_physical_offset <= at
    send(other, slave)
    slave.flush()
    lab(slave).step_dispatch()
    for topic in ("T0", "T1", "T2"):
        for queue_id in (0, 1):
            assert bodies(slave, topic, queue_id) == bodies(other, topic, queue_id)
    assert [m.body for m in slave.query("T1", "k1000")] == [m.body for m in other.query("T1", "k1000")]
    assert slave.query("T0", "k56") == other.query("T0", "k56") or at > other.engine.raw.end // 2
    other.close()
    slave.close()
    assert log_of(tmp_path / "s") == log_of(tmp_path / "o")
    with still(tmp_path / "s", **SLAVE) as slave:
        assert slave.recovery.clean
        assert slave.engine.raw.end == slave.log.dispatched


def test_a_cut_needs_the_end_of_a_record(tmp_path: Path) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    fill(master, 60)
    send(master, slave)
    end = slave.engine.raw.end
    ends = boundaries(master)
    for offset in (ends[3] + 1, ends[4] - 1, end + 1, -1):
        with pytest.raises(OffsetError):
            slave.engine.raw.truncate_to(offset)
        assert slave.engine.raw.end == end
    assert slave.engine.raw.truncate_to(end) == []
    master.close()
    slave.close()
    assert_copy(tmp_path / "m", tmp_path / "s")


def test_a_running_slave_is_truncated_and_continues(tmp_path: Path) -> None:
    config = StoreConfig.tiny(**SLAVE)
    master = still(tmp_path / "m", **SMALL)
    fill(master, 200)
    ends = boundaries(master)
    with open_store(tmp_path / "s", config=config) as slave:
        told: list[int] = []
        watch = slave.engine.watch_flushed(lambda flushed, error: told.append(flushed))
        for which in (150, 20, 199, 3, 60):
            send(master, slave)
            end = slave.engine.raw.end
            watch.want(end)
            assert eventually(lambda end=end: slave.log.dispatched == end == slave.log.flushed)  # type: ignore[misc]
            slave.engine.raw.truncate_to(ends[which])
            assert slave.engine.raw.end == ends[which]
        send(master, slave)
        watch.want(slave.engine.raw.end)
        assert eventually(lambda: told[-1] == master.engine.raw.end)
        assert eventually(lambda: slave.log.dispatched == master.engine.raw.end)
        for topic in ("T0", "T1", "T2"):
            assert bodies(slave, topic, 0) == bodies(master, topic, 0)
    master.close()
    assert log_of(tmp_path / "s") == log_of(tmp_path / "m")
    assert files(tmp_path / "s", "consumequeue").keys() == files(tmp_path / "m", "consumequeue").keys()


@pytest.mark.parametrize("step", ["noted", "checkpoint", "first file gone", "half cleared"])
def test_a_cut_that_a_crash_interrupted_is_finished_by_the_next_open(tmp_path: Path, step: str) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    fill(master, 100)
    send(master, slave)
    lab(slave).step_dispatch()
    slave.flush()
    at = boundaries(master)[12]
    lab(slave).notes.note_cut(at, record_head(slave, at))
    if step == "checkpoint":
        slave.engine.raw._lower(at, 1)
    shutil.copytree(tmp_path / "s", tmp_path / "crash")
    slave.close()
    log = sorted((tmp_path / "crash" / "commitlog").iterdir())
    if step in ("first file gone", "half cleared"):
        log.pop().unlink()
    if step == "half cleared":
        for file in log[1:]:
            file.unlink()
        with open(log[0], "r+b") as image:
            image.seek(at + 200)
            image.write(b"\0" * 300)
    with still(tmp_path / "crash", **SLAVE) as again:
        assert again.engine.raw.end == at
        assert lab(again).notes.cut is None
        assert again.recovery.kept_in == ""
        send(master, again)
        lab(again).step_dispatch()
        assert bodies(again, "T0", 0) == bodies(master, "T0", 0)
    master.close()
    assert log_of(tmp_path / "crash") == log_of(tmp_path / "m")


def record_head(store: Any, at: int) -> bytes:
    return bytes(store.log.read(at, 64))


def test_a_noted_cut_of_a_log_that_another_writer_extended_is_skipped(tmp_path: Path) -> None:
    slave = still(tmp_path / "s", **SLAVE)
    master = still(tmp_path / "m", **SMALL)
    fill(master, 20)
    send(master, slave)
    at = boundaries(master)[5]
    lab(slave).notes.note_cut(at, b"\1" * 64)
    end = slave.engine.raw.end
    slave.close()
    with still(tmp_path / "s", **SLAVE) as again:
        assert again.engine.raw.end == end
        assert any("was left out" in text for text in again.stats()["warnings"])
    master.close()


def test_a_killed_slave_resumes_behind_the_last_whole_record(tmp_path: Path) -> None:
    """What a kill leaves: the files as they are, at every moment between two appends."""
    master, slave = still(tmp_path / "m", **SMALL), still(tmp_path / "s", **SLAVE)
    fill(master, 60)
    at, number = 0, 0
    while at < master.engine.raw.end:
        for view in master.engine.raw.read(at, 777):
            at = slave.engine.raw.append(at, view)
            if number % 5 == 0:
                image = tmp_path / f"image{number}"
                shutil.copytree(tmp_path / "s", image)
                with still(image, **SLAVE) as again:
                    end, found = slave.engine.raw.end, again.engine.raw.end
                    assert found == end or (end % FILE == 0 and end - found < 200)  # an end mark is sent again
                    assert not again.recovery.clean
                    assert again.recovery.kept_in == ""
                    send(master, again, 500)
                assert log_of(image) == log_of(tmp_path / "m")
            number += 1
    assert number > 10
    master.close()
    slave.close()


def crash_images(sim: Any, place: Path) -> Any:
    """From here on the simulated system leaves images of a crash before each of its calls. Returns: ends that."""
    place.mkdir()
    sim.images(str(place), first=sim.calls, last=1 << 40, per_call=1, seed=7)

    def taken() -> list[Path]:
        sim.images(str(place), first=0, last=0, per_call=0, seed=7)
        return [place / str(number) / "s" for number in range(len(sim.taken()))]

    return taken


def test_a_crash_at_any_call_of_a_cut_leaves_the_old_log_or_the_cut_one(tmp_path: Path, sim: Any) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(Path(sim.root) / "s", sim.os_api, **SLAVE)
    fill(master, 140)
    send(master, slave)
    slave.flush()
    lab(slave).step_dispatch()
    lab(slave).flush_queues()
    end, at = slave.engine.raw.end, boundaries(master)[12]
    taken = crash_images(sim, tmp_path / "images")
    slave.engine.raw.truncate_to(at)
    images = taken()
    slave.close()
    found = set()
    for image in images:
        with still(image, **SLAVE) as again:
            found.add(again.engine.raw.end)
            assert again.recovery.kept_in == ""
            assert lab(again).notes.cut is None
            send(master, again)
            again.flush()
            lab(again).step_dispatch()
            for topic in ("T0", "T1", "T2"):
                assert bodies(again, topic, 0) == bodies(master, topic, 0)
        assert log_of(image) == log_of(tmp_path / "m")
    assert found == {end, at}
    assert len(images) > 20
    master.close()


def test_a_crash_at_any_call_of_a_slave_that_follows_leaves_whole_records(tmp_path: Path, sim: Any) -> None:
    master, slave = still(tmp_path / "m", **SMALL), still(Path(sim.root) / "s", sim.os_api, **SLAVE)
    taken = crash_images(sim, tmp_path / "images")
    for round_ in range(6):
        fill(master, 20, 20 * round_)
        send(master, slave, 700)
        lab(slave).step_dispatch()
        if round_ % 2:
            slave.flush()
            lab(slave).flush_queues()
    images = taken()
    slave.close()
    ends = set(boundaries(master))
    for image in images[::3]:
        if not image.is_dir():
            continue  # before the first name of the store was durable
        with still(image, **SLAVE) as again:
            assert again.engine.raw.end in ends
            send(master, again)
            lab(again).step_dispatch()
            assert bodies(again, "T1", 1) == bodies(master, "T1", 1)
        assert log_of(image) == log_of(tmp_path / "m")
    assert len(images) > 60
    master.close()


# --- confirm offset


def test_the_confirm_offset_is_kept_by_the_checkpoint(tmp_path: Path) -> None:
    slave = still(tmp_path / "s", **SLAVE)
    master = still(tmp_path / "m", **SMALL)
    fill(master, 20)
    send(master, slave)
    raw, ends = slave.engine.raw, boundaries(master)
    assert raw.confirm_offset == raw.end
    raw.confirm(ends[4])
    raw.master_flushed_offset = ends[5]
    assert raw.confirm_offset == raw.end  # nothing is bounded
    for offset in (-1, raw.end + 1):
        with pytest.raises(OffsetError):
            raw.confirm(offset)
    slave.close()
    with still(tmp_path / "s", **SLAVE) as again:
        assert again.engine.raw.stored_confirm_offset == ends[4]
        assert again.engine.raw.master_flushed_offset == ends[5]
    master.close()


def test_readers_and_dispatch_end_at_the_confirm_offset_when_asked(tmp_path: Path) -> None:
    store = still(tmp_path / "s", **SMALL)
    raw = store.engine.raw
    first = store.put("T", b"a", keys="k")
    raw.bound_readers(raw.end)
    second = store.put("T", b"b", keys="k")
    lab(store).step_dispatch()
    assert store.log.dispatched == first.size
    assert bodies(store) == [b"a"]
    assert store.max_offset("T", 0) == 1
    assert [m.body for m in store.query("T", "k")] == [b"a"]
    assert b"".join(raw.read(0, 9999)) == b"".join(log_of(tmp_path / "s").values())[: first.size]
    with pytest.raises(OffsetError):
        store.get_by_offset(second.physical_offset)
    assert raw.confirm_offset == first.size
    raw.confirm(raw.end)
    assert bodies(store) == [b"a", b"b"]
    assert len(store.query("T", "k")) == 2
    store.close()


def test_slaves_are_sent_what_readers_may_not_see_yet(tmp_path: Path) -> None:
    store, slave = still(tmp_path / "s", **SMALL), still(tmp_path / "slave", **SLAVE)
    raw = store.engine.raw
    store.put("T", b"a")
    raw.bound_readers(raw.end)
    second = store.put("T", b"b")
    assert not raw.wait_for(second.physical_offset, 0)
    assert raw.wait_for(second.physical_offset, 0, unflushed=True)
    assert raw.age_ms(second.physical_offset) is not None, "how far a slave is behind in time"
    for view in raw.read(0, 9999, unflushed=True):
        slave.engine.raw.append(view.obj.physical_offset, view)
    assert slave.engine.raw.end == raw.end
    assert bodies(slave) == [b"a", b"b"]
    assert bodies(store) == [b"a"]
    store.close()
    slave.close()


def test_puts_dispatch_themselves_after_unbound_readers(tmp_path: Path) -> None:
    store = still(tmp_path / "s", **SMALL)
    raw = store.engine.raw
    raw.bound_readers(0)
    fill(store, 10)
    assert store.log.dispatched == 0
    raw.unbound_readers()
    assert store.max_offset("T0", 0) == 2
    store.put("T0", b"x", 0)
    assert store.log.dispatched == raw.end, "without a step of the dispatcher"
    store.close()


@pytest.mark.parametrize("threads", [False, True])
def test_a_store_that_is_closed_with_bound_readers_is_whole_at_the_next_open(tmp_path: Path, threads: bool) -> None:
    config = StoreConfig.tiny(**{"mapped_file_bytes_commit_log": 1 << 20, **SMALL})
    store = open_store(tmp_path / "s", config=config) if threads else still(tmp_path / "s", **SMALL)
    fill(store, 6)
    store.engine.raw.bound_readers(store.engine.raw.end)
    fill(store, 20, first=6)
    seen = {queue: store.max_offset(*queue) for queue in (("T0", 0), ("T1", 1), ("T2", 0))}
    store.close()
    again = open_store(tmp_path / "s", config=config) if threads else still(tmp_path / "s", **SMALL)
    assert sum(again.max_offset(f"T{topic}", queue) for topic in range(3) for queue in range(2)) == 26
    assert all(again.max_offset(*queue) > end for queue, end in seen.items())
    again.put("T0", b"next", 0)
    again.close()
    assert mqfast.verify(tmp_path / "s").ok


def test_a_slave_is_cut_above_and_below_the_bound_of_its_readers(tmp_path: Path) -> None:
    one_file = {"mapped_file_bytes_commit_log": 1 << 16}
    master, slave = still(tmp_path / "m", **SMALL | one_file), still(tmp_path / "s", **SLAVE | one_file)
    fill(master, 30)
    raw, ends = slave.engine.raw, boundaries(master)
    raw.bound_readers(0)
    send(master, slave)
    raw.confirm(ends[10])
    assert slave.max_offset("T0", 0) == 2
    raw.truncate_to(ends[20])
    raw.confirm(ends[20])
    assert sum(slave.max_offset(f"T{topic}", queue) for topic in range(3) for queue in range(2)) == 20
    raw.truncate_to(ends[5])
    assert raw.confirm_offset == ends[5]
    assert sum(slave.max_offset(f"T{topic}", queue) for topic in range(3) for queue in range(2)) == 5
    send(master, slave)
    raw.unbound_readers()
    assert sum(slave.max_offset(f"T{topic}", queue) for topic in range(3) for queue in range(2)) == 30
    master.close()
    slave.close()
    assert mqfast.verify(tmp_path / "s").ok


# --- acknowledgements of slaves


def test_a_change_of_how_many_slaves_are_needed_holds_for_what_waits() -> None:
    acks = AckTable(2, 30)
    told: list[int] = []
    acks.watch(told.append)
    acks.report("a", 100)
    acks.report("b", 50)
    assert (acks.acked, told) == (50, [50])
    acks.change(1, 30)
    assert (acks.acked, told) == (100, [50, 100])
    acks.change(3, 30)
    assert acks.acked == 100, "what was acknowledged stays so"
    waiting = threading.Thread(target=acks.wait_for, args=(200,))
    waiting.start()
    assert eventually(lambda: len(acks._waiting) == 1)
    acks.change(0, 30)
    waiting.join(20)
    assert not waiting.is_alive()
    assert told[-1] > 200, "nobody is waited for"
    with pytest.raises(UsageError):
        acks.change(-1, 30)


def test_a_put_ends_when_enough_slaves_have_it(tmp_path: Path) -> None:
    store = still(tmp_path / "m", **SMALL)
    acks = AckTable(2, 30)
    store.engine.wait_for_slaves(acks)
    raw = store.engine.raw

    def follow(name: str, count: int) -> None:
        at = 0
        for _ in range(count):
            assert raw.wait_for(at, 30)
            at = raw.end
            acks.report(name, at)

    slaves = [threading.Thread(target=follow, args=(name, 1)) for name in "ab"]
    for slave in slaves:
        slave.start()
    assert store.put("T", b"x").status.name == "PUT_OK"
    for slave in slaves:
        slave.join(30)
    assert acks.acked == raw.end
    assert acks.slaves == {"a": raw.end, "b": raw.end}
    store.close()


@pytest.mark.parametrize("extra", [{}, SYNC], ids=["async", "sync"])
def test_the_statuses_of_slaves(tmp_path: Path, extra: dict[str, Any]) -> None:
    store = still(tmp_path / "m", **SMALL, **extra)
    store.engine.wait_for_slaves(AckTable(1, 0.01))
    assert store.put("T", b"x").status.name == "FLUSH_SLAVE_TIMEOUT"
    assert store.producer("T").put(b"x").status.name == "FLUSH_SLAVE_TIMEOUT"
    assert store.put_many("T", [b"x"] * 3).status.name == "FLUSH_SLAVE_TIMEOUT"
    assert store.put("T", b"x", wait_store_ok=False).status.name == "PUT_OK"
    acks = AckTable(1, 0.01, fail_fast=True)
    store.engine.wait_for_slaves(acks)
    assert store.put("T", b"x").status.name == "SLAVE_NOT_AVAILABLE"
    store.log.flush()  # put_stored reads what readers may see
    element = struct.pack(">5i1sh", 23, 0, 0, 0, 1, b"x", 0)
    for stored in (
        store.engine.put_encoded(b"E", 0, b"x"),
        store.engine.put_batch_encoded(b"E", 0, element),
        store.engine.put_stored(0, b"E"),
    ):
        assert stored.status.name == "SLAVE_NOT_AVAILABLE"
    assert store.engine.put_encoded(b"E", 0, b"x", b"WAIT\x01false\x02").status.name == "PUT_OK"
    acks.report("a", 0)
    assert store.put("T", b"x").status.name == "FLUSH_SLAVE_TIMEOUT"
    acks.report("a", 1 << 40)
    assert store.put("T", b"x").status.name == "PUT_OK"
    acks.remove("a")
    assert acks.slaves == {}
    store.engine.wait_for_slaves(AckTable(0))
    assert store.put("T", b"x").status.name == "PUT_OK"
    store.engine.wait_for_slaves(None)
    assert store.put("T", b"x").status.name == "PUT_OK"
    assert len(bodies(store)) == 11
    store.close()


def test_acknowledgements(tmp_path: Path) -> None:
    told: list[int] = []
    acks = AckTable(2, 0.01)
    acks.watch(told.append)
    acks.report("a", 100)
    assert (acks.acked, told) == (0, [])
    acks.report("b", 50)
    acks.report("c", 70)
    acks.report("c", 60)
    assert (acks.acked, told) == (70, [50, 70])
    assert acks.in_sync(150, 90) == 1
    assert acks.wait_for(70).name == "PUT_OK"
    assert acks.wait_for(71).name == "FLUSH_SLAVE_TIMEOUT"
    acks.remove("a")
    assert acks.acked == 70
    acks.unwatch(told.append)
    with pytest.raises(UsageError):
        acks.report("a", -1)
    with pytest.raises(UsageError):
        AckTable(-1)


def test_many_waiters_are_woken_in_the_order_of_their_offsets() -> None:
    acks = AckTable(1, 30)
    ended: list[int] = []

    def wait(end: int) -> None:
        assert acks.wait_for(end).name == "PUT_OK"
        ended.append(end)

    threads = [threading.Thread(target=wait, args=(end,)) for end in range(10, 0, -1)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(acks._waiting) == 10)
    acks.report("a", 5)
    assert eventually(lambda: len(ended) == 5)
    assert sorted(ended) == [1, 2, 3, 4, 5]
    acks.report("a", 10)
    for thread in threads:
        thread.join(20)
    assert len(ended) == 10
