"""What the crash sweep found, one test each; ``tests/crash`` has the simulated system and the sweep itself."""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from laboratory import lab, open_still

from mqfast.config import StoreConfig
from mqfast.errors import StorageError, StoreFailed
from mqfast.store.base.results import StoreState
from mqfast.store.check.verify import verify

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from harness import Run, Workload, log_messages

from mqfast.sim.simulated_os import KILLED, STRICT


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A store of small files over a simulated system."""
    settings = {"mapped_file_bytes_commit_log": 8192, "mapped_file_bytes_consume_queue": 200}
    run = Run(Workload("test", lambda _: None, settings), str(tmp_path_factory.mktemp("crash")))
    run.open()
    yield run
    run.end()


def survivors(run: Run, mode: int) -> tuple[str, list[int]]:
    """The store that a crash now leaves, recovered and closed, and the numbers of its messages."""
    target = os.path.join(os.path.dirname(run.root), f"image{run.sim.calls}")
    run.sim.image(target, mode)
    path = os.path.join(target, "s")
    open_still(path, config=StoreConfig.tiny(**run.workload.settings)).close()
    return path, [struct.unpack(">I", bytes(m.body[:4]))[0] for m in log_messages(path)]


def test_flush_covers_what_the_killed_writer_left_in_the_page_cache(run: Run) -> None:
    for _ in range(30):
        run.put(size=500)
    run.abandon()
    run.open()
    run.flush()
    assert survivors(run, STRICT)[1] == list(range(30))


def test_no_gap_among_log_files_while_spare_ones_are_removed(run: Run) -> None:
    for _ in range(20):
        run.put(size=500)
        lab(run.store).make_next_file()
    assert lab(run.store).allocate.ready_count == 2
    target = os.path.join(os.path.dirname(run.root), "images")
    os.mkdir(target)
    run.sim.images(target, first=0, last=10**9, per_call=20, seed=1, kinds=1 << 18 | 1 << 21)
    run.close()
    run.sim.take()
    for number in range(len(run.sim.taken())):
        path = os.path.join(target, str(number), "s")
        open_still(path, config=StoreConfig.tiny(**run.workload.settings)).close()


def test_an_index_file_that_the_checkpoint_does_not_vouch_for_is_made_anew(run: Run) -> None:
    for i in range(10):
        run.put(keys=f"k{i}")
    run.reput()
    run.flush()
    target = os.path.join(os.path.dirname(run.root), "image")
    run.sim.image(target, KILLED)
    path = os.path.join(target, "s")
    (name,) = os.listdir(os.path.join(path, "index"))
    with open(os.path.join(path, "index", name), "r+b") as file:
        file.write(bytes(40))  # the header never reached the disk, the slots and entries did
    config = StoreConfig.tiny(**run.workload.settings)
    with open_still(path, config=config) as store:
        assert [len(store.query("t", f"k{i}")) for i in range(10)] == [1] * 10
    assert not [d for d in verify(path, config=config).damages if d.severity != "note"]


def test_queue_units_that_never_reached_the_disk_come_back_from_the_log(run: Run) -> None:
    for _ in range(60):
        run.put(size=20)
    run.flush()
    path, numbers = survivors(run, STRICT)
    assert numbers == list(range(60))
    with open_still(path, config=StoreConfig.tiny(**run.workload.settings)) as store:
        found = [m.queue_offset for at in range(0, 60, 20) for m in store.get("t", 0, at, 20)]
    assert found == list(range(60))


def test_a_last_record_without_the_end_of_its_properties_is_cut_off(run: Run) -> None:
    for i in range(5):
        run.put(keys=f"key{i}")
    target = os.path.join(os.path.dirname(run.root), "image")
    run.sim.image(target, KILLED)
    path = os.path.join(target, "s")
    last = log_messages(path)[-1]
    with open(os.path.join(path, "commitlog", "0" * 20), "r+b") as file:
        file.seek(last.physical_offset + last.size - 3)
        file.write(bytes(3))
    config = StoreConfig.tiny(**run.workload.settings)
    with open_still(path, config=config) as store:
        assert store.max_physical_offset == last.physical_offset
        assert store.max_offset("t", 0) == 4
        assert store.query("t", "ke") == []
    assert not [d for d in verify(path, config=config).damages if d.severity != "note"]


def test_a_last_record_without_the_end_of_its_topic_is_cut_off(run: Run) -> None:
    for _ in range(5):
        run.put("topic")
    target = os.path.join(os.path.dirname(run.root), "image")
    run.sim.image(target, KILLED)
    path = os.path.join(target, "s")
    last = log_messages(path)[-1]
    with open(os.path.join(path, "commitlog", "0" * 20), "r+b") as file:
        file.seek(last.physical_offset + last.size - 2 - 3)  # in front of the length of its properties, which is 0
        file.write(bytes(5))
    config = StoreConfig.tiny(**run.workload.settings)
    with open_still(path, config=config) as store:
        assert store.max_physical_offset == last.physical_offset
        assert store.queues() == [("topic", 0, 0, 4)]
    assert not [d for d in verify(path, config=config).damages if d.severity != "note"]


def test_a_directory_whose_name_could_not_be_synced_comes_back_at_the_next_open(run: Run) -> None:
    run.put("other")
    run.reput()
    run.flush()
    run.sim.fault("sync_directory", 1, errno.EIO)
    with pytest.raises(StorageError):
        run.flush_queues()
    run.sim.heal()
    with pytest.raises(StoreFailed):
        run.put("other")
    path, numbers = survivors(run, STRICT)
    assert numbers == [0]
    assert os.path.isdir(os.path.join(path, "consumequeue", "other", "0"))


def test_a_failed_sync_of_a_queue_latches_the_store(run: Run) -> None:
    run.put()
    run.reput()
    run.flush_log()
    run.sim.fault("msync", 1, errno.EIO)
    with pytest.raises(StorageError):
        run.flush_queues()
    run.sim.heal()
    assert run.store.state is StoreState.FAILED
    with pytest.raises(StoreFailed):
        run.store.put("t", b"more")
    run.store.close()
    assert run.sim.resyncs == 0
    assert survivors(run, STRICT)[1] == [0]


def test_a_topic_whose_deletion_failed_halfway_takes_messages_again(run: Run) -> None:
    run.put()
    run.reput()
    run.sim.fault("unlink", 1, errno.EIO)
    with pytest.raises(StorageError):
        run.delete_topic("t")
    run.sim.heal()
    run.put()
    run.reput()
    assert [m.queue_offset for m in run.store.get("t", 0, 0)] == [0]


def test_pages_of_a_failed_flush_are_written_by_the_next_open(run: Run) -> None:
    run.put()
    run.flush()
    for _ in range(20):
        run.put(size=300)
    run.sim.fault("msync", 1, errno.EIO)
    with pytest.raises(StorageError):
        run.flush()
    run.sim.heal()
    run.store.close()
    run.open()
    run.flush()
    assert survivors(run, STRICT)[1] == list(range(21))
