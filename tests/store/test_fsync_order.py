"""What reaches the disk, and in which order: what a sync covers, and what is said to be durable before and after it.

Each test stops the simulated system of ``tests/crash`` at one moment and looks at what a power cut leaves then; the
sweep there does it at every moment, but not for every size. Written for lines that could be broken without any test
failing (``tests/mutation``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import FlushError, StorageError, StoreFailed
from mqfast.store.base.os_api import OsApi

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from harness import Run, Workload, log_messages
from hooks import msync_behind, until_asleep

from mqfast.sim.simulated_os import KINDS, SHORT_COUNT, STRICT

SMALL: dict[str, Any] = {"mapped_file_bytes_commit_log": 8192, "mapped_file_bytes_consume_queue": 200}


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """Opens a store over a simulated system."""
    runs: list[Run] = []

    def begin(**settings: Any) -> Run:
        run = Run(Workload("test", lambda _: None, {**SMALL, **settings}), str(tmp_path_factory.mktemp("sim")))
        runs.append(run)
        run.open()
        return run

    yield begin
    for run in runs:
        run.end()


def after_power_cut(run: Run) -> str:
    """The store as a power cut leaves it when nothing survives that was not synced."""
    target = os.path.join(os.path.dirname(run.root), f"image{run.sim.calls}")
    run.sim.image(target, STRICT)
    return os.path.join(target, "s")


def recovered(run: Run, path: str) -> list[int]:
    """The numbers of the messages that are there after recovery."""
    open_still(path, config=StoreConfig.tiny(**run.workload.settings)).close()
    return [struct.unpack(">I", bytes(m.body[:4]))[0] for m in log_messages(path)]


def checkpoint_times(path: str) -> tuple[int, int]:
    """Store times up to which log and queues are on the disk, as the file says."""
    try:
        data = Path(path, "checkpoint").read_bytes()
    except FileNotFoundError:
        return 0, 0
    physic, logics = struct.unpack(">2q", data[:16])
    return physic, logics


def test_one_flush_covers_several_files(start: Callable[..., Run]) -> None:
    run = start(mapped_file_bytes_commit_log=8 << 20, prefault_window_bytes=0)
    for _ in range(4):
        run.put(size=3 << 20)
    run.flush()
    assert recovered(run, after_power_cut(run)) == [0, 1, 2, 3]


def test_a_failed_sync_is_not_flushed(start: Callable[..., Run]) -> None:
    run = start()
    run.put()
    run.sim.fault("msync", 1, errno.EIO)
    with pytest.raises(FlushError):
        run.store.flush()
    run.sim.heal()
    assert run.store.log.flushed == 0
    with pytest.raises(StoreFailed):
        run.store.flush()


def test_the_checkpoint_follows_the_sync_of_the_queues(start: Callable[..., Run]) -> None:
    run = start()
    run.put()
    run.reput()
    run.flush_log()
    run.sim.fault("msync", 1, errno.EIO)
    with pytest.raises(StorageError):
        run.flush_queues()
    run.sim.heal()
    assert checkpoint_times(run.path)[1] == 0


def test_the_checkpoint_knows_nothing_of_what_was_not_dispatched(start: Callable[..., Run]) -> None:
    run = start(dispatch="background")
    run.sim.clock(1_600_000_000_000, 1_000_000)
    run.put()
    run.reput()
    run.flush_queues()
    dispatched = checkpoint_times(run.path)[1]
    assert dispatched == run.store.log.last_store_timestamp
    run.put()
    run.flush_queues()
    assert run.store.log.last_store_timestamp > dispatched
    assert checkpoint_times(run.path)[1] == dispatched


def test_the_checkpoint_names_no_offset_that_is_not_flushed(start: Callable[..., Run]) -> None:
    """The sixth number, at which a recovery of RocketMQ 5.5 may begin: both the log and the units must be there."""
    run = start()

    def stated() -> int:
        (offset,) = struct.unpack_from(">q", Path(run.path, "checkpoint").read_bytes(), 40)
        return int(offset)

    run.put()
    run.flush_log()
    end = run.store.log.flushed
    run.put()
    run.reput()
    run.flush_queues()
    assert run.store.log.dispatched > end > 0
    assert stated() == end
    run.flush_log()
    run.flush_queues()
    assert stated() == run.store.log.written


def test_a_message_that_comes_during_a_sync_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.fix_clock(1_700_000_000_000)
    puts: list[int] = []

    def put() -> None:
        if not puts:
            puts.append(1)
            os_api.fix_clock(1_700_000_060_000)
            store.put("T", b"during the sync")

    with open_still(tmp_path / "s", config=StoreConfig.tiny(), os_api=os_api) as store:
        store.put("T", b"before the sync")
        with msync_behind(os_api, put):
            lab(store).flush_log(thorough=True)
        assert puts
        assert lab(store).checkpoint.physic_msg_timestamp == 1_700_000_000_000
        lab(store).flush_log(thorough=True)
        assert lab(store).checkpoint.physic_msg_timestamp == 1_700_000_060_000


def test_a_batch_ends_where_the_store_was_latched(tmp_path: Path) -> None:
    os_api = OsApi()
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    place = ctypes.c_void_p.from_address(os_api.table_address + KINDS["clock_ms"] * ctypes.sizeof(ctypes.c_void_p))
    looks = 0

    def clock(_table: int) -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            store.log.fail(errno.EIO)  # as a flush in another thread
        return 1_700_000_000_000

    hook = call(clock)
    settings: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "prefault_window_bytes": 0}
    config = StoreConfig.from_kwargs(**settings)
    with (
        pytest.raises(StoreFailed),
        open_still(tmp_path / "s", config=config, os_api=os_api) as store,
    ):
        size = store.put("T", b"x" * 100).size
        place.value = ctypes.cast(hook, ctypes.c_void_p).value
        try:
            store.put_many("T", [b"x" * 100] * 2000)
        finally:
            # the put lock is let go of every 64 KiB, and then somebody looks
            assert (64 << 10) <= store.log.written <= (64 << 10) + 2 * size
            assert looks == 1


def test_a_waiter_for_a_concurrent_sync_is_woken(tmp_path: Path) -> None:
    os_api = OsApi()
    heard: list[bool] = []

    def wait() -> None:
        if not waiter.is_alive():
            waiter.start()
            until_asleep(waiter)  # should it be late all the same, it finds itself covered

    with open_still(tmp_path / "s", config=StoreConfig.tiny(), os_api=os_api) as store:
        tickets = [store.put_nowait("T", b"%d" % i) for i in range(2)]
        waiter = threading.Thread(target=lambda: heard.append(tickets[1].wait()), daemon=True)
        with msync_behind(os_api, wait):
            assert tickets[0].wait()
        waiter.join(20)
        assert heard == [True]


def test_of_two_messages_of_one_millisecond_only_the_first_is_known_durable(start: Callable[..., Run]) -> None:
    run = start()
    run.sim.clock(1_600_000_000_000, 0)
    for _ in range(30):
        run.put(size=300)
    run.flush_log()
    run.flush_queues()
    for _ in range(30):
        run.put(size=300)  # the same store time: the checkpoint covers it in name only
    run.abandon()
    run.open()
    run.flush()
    assert recovered(run, after_power_cut(run)) == list(range(60))


def test_a_store_whose_last_flush_failed_is_recovered_at_the_next_open(start: Callable[..., Run]) -> None:
    run = start()
    run.put()
    run.sim.fault("msync", 1, errno.EIO, for_ever=True)
    with pytest.raises(FlushError):  # why, and not that the store is closing
        run.store.close()
    run.sim.heal()
    assert os.path.exists(os.path.join(run.path, "abort"))
    run.open()
    assert not run.store.recovery.clean
    run.close()
    assert not os.path.exists(os.path.join(run.path, "abort"))


def test_a_saved_table_survives_with_its_name(start: Callable[..., Run]) -> None:
    run = start()
    for number in (4, 8):
        run.store.topic_table.ensure("t", number)
        run.store.topic_table.persist()
        path = after_power_cut(run)
        with mqfast.open(path, config=StoreConfig.tiny(**run.workload.settings)) as store:
            found = store.topic_table.get("t")
            assert found is not None
            assert found.read_queue_nums == number
            assert not store.stats()["warnings"]


def test_a_removed_log_file_stays_removed(start: Callable[..., Run]) -> None:
    run = start(retention_bytes=16384, delete_files_interval_ms_commit_log=0)
    for _ in range(70):
        run.put(size=600)
    run.reput()
    run.flush_log()
    run.flush_queues()
    run.store.log.reap()
    run.retain()
    first = run.store.min_physical_offset
    assert first > 0
    names = sorted(os.listdir(os.path.join(after_power_cut(run), "commitlog")))
    assert int(names[0]) == first


def test_the_keys_of_a_full_index_file_survive_once_the_checkpoint_says_so(start: Callable[..., Run]) -> None:
    run = start()
    for i in range(40):  # one file has room for 31 keys
        run.put(keys=f"k{i}")
    run.flush()
    run.reput()
    run.flush_queues()
    assert len(lab(run.store).index.files) == 2  # type: ignore[union-attr]
    path = after_power_cut(run)
    with open_still(path, config=StoreConfig.tiny(**run.workload.settings)) as store:
        assert not store.recovery.clean
        assert len(store.recovery.removed_index_files) == 1
        assert [len(store.query("t", f"k{i}")) for i in range(40)] == [1] * 40


def test_names_that_a_killed_writer_left_are_durable_at_the_next_open(start: Callable[..., Run]) -> None:
    run = start()
    run.put()
    run.flush()
    run.os_api.write_file(os.path.join(run.path, "commitlog", "made"), b"")  # its directory is not synced
    run.abandon()
    assert not os.path.exists(os.path.join(after_power_cut(run), "commitlog", "made"))
    run.open()
    assert os.path.exists(os.path.join(after_power_cut(run), "commitlog", "made"))


def test_a_write_that_the_system_cuts_short_is_carried_on(start: Callable[..., Run]) -> None:
    run = start()
    data = bytes(range(256)) * 40
    path = os.path.join(run.path, "made")
    run.sim.fault("pwrite", 1, SHORT_COUNT, True)
    run.os_api.write_file(path, data)
    run.sim.heal()
    assert run.os_api.read_file(path) == data


@pytest.mark.parametrize("many", [64, 1])
def test_units_are_on_the_disk_before_the_checkpoint_is(start: Callable[..., Run], many: int) -> None:
    run = start()
    lab(run.store).queues.many = many  # from so many queues on one sync of the filesystem does for all
    for i in range(25):  # three queue files in each
        run.put(f"t{i % 2}", queue_id=1, size=20)
    run.reput()
    run.flush_log()
    run.flush_queues()
    path = after_power_cut(run)
    assert checkpoint_times(path)[1] > 0
    for topic in ("t0", "t1"):
        folder = os.path.join("consumequeue", topic, "1")
        names = sorted(os.listdir(os.path.join(path, folder)))
        assert len(names) == 2
        for name in names:
            live = Path(run.path, folder, name).read_bytes()
            assert any(live)
            assert Path(path, folder, name).read_bytes() == live


@pytest.mark.parametrize("many", [64, 1])
def test_a_new_queue_has_its_name_on_the_disk_before_the_checkpoint_counts_it(
    start: Callable[..., Run], many: int
) -> None:
    run = start()
    lab(run.store).queues.many = many
    for topic in ("one", "two"):
        run.put(topic)
        run.reput()
        run.flush_queues()
        path = after_power_cut(run)
        assert checkpoint_times(path)[1] == run.store.log.last_store_timestamp
        file = os.path.join("consumequeue", topic, "0", "0" * 20)
        assert Path(path, file).read_bytes() == Path(run.path, file).read_bytes() != bytes(200)


def test_what_recovery_cut_stays_cut(start: Callable[..., Run]) -> None:
    run = start()
    for topic in "ttttttuu":
        run.put(topic, size=50)
    run.flush()
    run.reput()
    run.flush_queues()
    fifth = log_messages(run.path)[4].physical_offset
    run.abandon()
    with open(os.path.join(run.path, "commitlog", "0" * 20), "r+b") as file:  # in the page cache only
        file.seek(fifth + 90)
        file.write(b"damage")
    run.open()
    assert run.store.max_physical_offset == fifth
    run.flush_queues()
    path = after_power_cut(run)
    assert not any(Path(path, "commitlog", "0" * 20).read_bytes()[fifth:])
    assert not any(Path(path, "consumequeue", "t", "0", "0" * 20).read_bytes()[4 * 20 :])
    assert not any(Path(path, "consumequeue", "u", "0", "0" * 20).read_bytes())
    assert recovered(run, path) == [0, 1, 2, 3]


def test_nothing_is_dispatched_that_readers_may_not_see(start: Callable[..., Run]) -> None:
    run = start(flush_disk_type="SYNC_FLUSH", dispatch="background")
    run.put(keys="k")
    run.reput()
    assert run.store.log.dispatched == run.store.log.flushed == run.store.log.written
    run.put(keys="k", wait_store_ok=False)
    run.reput()
    assert run.store.log.dispatched == run.store.log.flushed < run.store.log.written
    assert len(run.store.query("t", "k")) == 1
    run.flush()
    run.reput()
    assert len(run.store.query("t", "k")) == 2
