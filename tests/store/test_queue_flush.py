"""Many queues flushed at once: how seldom Python is met, what one bad file costs the others, what a sync of a whole
filesystem does not reach.

The rules: ``mqfast/store/queues/queue_flush.pyx``. That the disk has what counts as flushed, and in which order:
``test_fsync_order.py``.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from laboratory import bodies, lab, open_still
from store.small_store import (
    still,
)

from mqfast import Message
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, StorageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore
from mqfast.store.queues.consume_queue import ConsumeQueue, QueueTable
from mqfast.store.queues.queue_flush import flush_queues

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import Msync, msync_behind, msync_by

from mqfast.sim.simulated_os import STRICT, Sim

EACH_BY_ITSELF, TOGETHER = 1 << 30, 1


def fill(store: MessageStore, queues: int) -> None:
    """A unit more in each queue."""
    for number in range(queues):
        store.put("T", b"x", queue_id=number)
    lab(store).step_dispatch()


def flushed(store: MessageStore, queues: int) -> list[int]:
    """Bytes of units that count as durable, of each queue."""
    found = []
    for number in range(queues):
        queue = lab(store).queues.get("T", number)
        assert isinstance(queue, ConsumeQueue)
        found.append(queue.flushed_bytes)
    return found


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="waits are counted by thread on Linux only")
@pytest.mark.parametrize("many", [EACH_BY_ITSELF, TOGETHER])
def test_a_flush_stops_other_threads_a_few_times_not_once_a_queue(tmp_path: Path, many: int) -> None:
    """A thread that computes waits only when another one has asked it for the GIL."""
    waits: list[int] = []
    done = threading.Event()

    def compute() -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        while not done.is_set():
            pass
        waits.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)

    with still(tmp_path / "store") as store:
        lab(store).queues.many = many
        fill(store, 200)
        lab(store).queues.flush()  # the names of new queues are synced one by one
        fill(store, 200)
        thread = threading.Thread(target=compute)
        thread.start()
        lab(store).queues.flush()
        done.set()
        thread.join()
        assert flushed(store, 200) == [40] * 200
    assert waits[0] < 50


@pytest.mark.parametrize("many", [EACH_BY_ITSELF, TOGETHER])
@pytest.mark.parametrize("count", [1, 256, 257, 600])
def test_more_files_than_are_worked_on_at_once(tmp_path: Path, many: int, count: int) -> None:
    with still(tmp_path / "store") as store:
        lab(store).queues.many = many
        fill(store, count)
        lab(store).queues.flush()
        assert flushed(store, count) == [20] * count
        assert lab(store).queues.flush() == 0
        assert bodies(store, queue_id=count - 1) == [b"x"]


@pytest.mark.parametrize("many", [EACH_BY_ITSELF, TOGETHER])
def test_a_queue_of_many_files(tmp_path: Path, many: int) -> None:
    """It counts as flushed behind its last file, wherever among them the work was divided."""
    with still(tmp_path / "store", mapped_file_bytes_consume_queue=40) as store:
        lab(store).queues.many = many
        for _ in range(601):
            store.put("T", b"x")
            lab(store).step_dispatch()
        lab(store).queues.flush()
        assert flushed(store, 1) == [601 * 20]
        assert lab(store).queues.flush() == 0


def put_units(store: MessageStore, count: int) -> None:
    for _ in range(count):
        store.put("T", b"")
    lab(store).step_dispatch()


@pytest.mark.parametrize("many", [EACH_BY_ITSELF, TOGETHER])
def test_by_the_clock_a_busy_queue_keeps_the_page_that_its_units_come_to(tmp_path: Path, many: int) -> None:
    """A put that comes there during the sync would wait for the filesystem. Whoever asks for a flush gets all of it."""
    file_bytes = 150_000  # no whole number of pages
    with still(tmp_path / "store", mapped_file_bytes_consume_queue=file_bytes) as store:
        lab(store).queues.many = many
        put_units(store, 10_000)
        lab(store).flush_queues(by_clock=True)
        assert flushed(store, 1) == [file_bytes + (200_000 - file_bytes) // 4096 * 4096]
        put_units(store, 10)
        lab(store).flush_queues(by_clock=True)
        assert flushed(store, 1) == [200_200], "few units are all of them"
        put_units(store, 10_000)
        lab(store).flush_queues()
        assert flushed(store, 1) == [400_200]
        assert len(bodies(store)) == 20_010


def test_the_checkpoint_does_not_claim_unflushed_units(tmp_path: Path) -> None:
    os_api = OsApi()
    with still(tmp_path / "store", os_api, mapped_file_bytes_consume_queue=6_000_000) as store:
        known = []
        for ms, count in ((1_000_000, 10_000), (2_000_000, 10_000), (3_000_000, 10), (4_000_000, 0)):
            os_api.fix_clock(ms)
            put_units(store, count)
            lab(store).flush_queues(by_clock=True)
            known.append(lab(store).checkpoint.logics_msg_timestamp)
        assert known == [0, 1_000_000, 3_000_000, 3_000_000]


@pytest.mark.parametrize("many", [EACH_BY_ITSELF, TOGETHER])
def test_a_file_that_was_cut_short_costs_the_other_queues_nothing(tmp_path: Path, many: int) -> None:
    """The error names it each time, and all others are durable, those behind it as well."""
    with still(tmp_path / "store") as store:
        lab(store).queues.many = many
        fill(store, 5)
        path = tmp_path / "store" / "consumequeue" / "T" / "2" / ("0" * 20)
        whole = path.stat().st_size
        os.truncate(path, whole - 20)
        for _ in range(2):
            with pytest.raises(CorruptFile, match=f"cut short or removed.*T/2/.*{whole - 20} bytes"):
                lab(store).queues.flush()
            assert flushed(store, 5) == [20, 20, 0, 20, 20]
        os.truncate(path, whole)
        lab(store).queues.flush()
        assert flushed(store, 5) == [20] * 5


def test_a_sync_that_fails_is_the_last_one(tmp_path: Path) -> None:
    """Nothing behind it is synced, and nothing counts as durable that was not."""
    os_api = OsApi()
    tried: list[int] = []

    def third_fails(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            tried.append(address)
            return -errno.EIO if len(tried) == 3 else real(table, address, length)

        return msync

    with open_still(tmp_path / "store", config=StoreConfig.tiny(), os_api=os_api) as store:
        fill(store, 5)
        with msync_by(os_api, third_fails), pytest.raises(StorageError, match="msync"):
            lab(store).queues.flush()
        assert len(tried) == 3
        assert flushed(store, 5)[2:] == [0, 0, 0]


def test_a_first_file_that_comes_during_a_flush_has_its_name_on_the_disk_after_the_next_one(sim: Sim) -> None:
    """Of a queue that recovery left without files: it was dirty when the flush began, and its names were not new."""
    base = os.path.join(sim.root, "consumequeue")
    sim.os_api.makedirs(base, False)
    sim.os_api.fsync_dir(sim.root)  # as the store does when it opens
    table = QueueTable()
    other, cut = (ConsumeQueue(sim.os_api, base, "T", number, 400) for number in range(2))
    for queue, at in ((other, 0), (cut, 100)):
        queue.make_room(at)
        queue.put(0, 100, 0, at)
        table.insert(queue)
    flush_queues(table.dirty()[0])
    other.put(100, 100, 0, 1)
    cut.cut_to(0)
    assert not cut.file_list

    def first_unit() -> None:
        if not cut.file_list:
            cut.make_room(0)
            cut.put(200, 100, 0, 0)

    with msync_behind(sim.os_api, first_unit):
        flush_queues(table.dirty()[0])
    assert cut.file_list
    assert cut.flushed_bytes == 0
    flush_queues(table.dirty()[0])
    assert cut.flushed_bytes == 20
    image = Path(sim.root).parent / "image"
    sim.image(str(image), STRICT)
    (file,) = (image / "consumequeue" / "T" / "1").iterdir()
    assert file.name == "0" * 20  # the one that was cut away began at byte 2000
    assert any(file.read_bytes())
    other.close()
    cut.close()


def test_a_light_queue_that_is_bad_costs_the_batch_queues_nothing(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.topic_table.ensure("B", 1, attributes={"queue.type": "BatchCQ"})
        store.put_message(Message("B", b"x", sys_flag=0x80, properties={"INNER_NUM": "3"}))
        fill(store, 1)
        path = tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)
        whole = path.stat().st_size
        os.truncate(path, whole - 20)
        with pytest.raises(CorruptFile):
            lab(store).queues.flush()
        batch = lab(store).queues.get("B", 0)
        assert batch is not None
        assert batch.flush() == 0  # type: ignore[union-attr]
        os.truncate(path, whole)


def test_a_queue_in_another_filesystem_is_synced_by_itself(tmp_path: Path) -> None:
    """Behind a link, say: the sync of the store's own filesystem does not reach it."""
    here = tmp_path.stat().st_dev
    elsewhere = [place for place in ("/dev/shm", "/var/tmp") if os.path.isdir(place) and os.stat(place).st_dev != here]
    if not elsewhere:
        pytest.skip("needs two filesystems")
    os_api = OsApi()
    synced: list[int] = []
    with (
        tempfile.TemporaryDirectory(dir=elsewhere[0]) as other,
        open_still(tmp_path / "store", config=StoreConfig.tiny(), os_api=os_api) as store,
    ):
        (tmp_path / "store" / "consumequeue" / "T").mkdir(parents=True)
        (tmp_path / "store" / "consumequeue" / "T" / "1").symlink_to(other)
        lab(store).queues.many = TOGETHER
        fill(store, 3)
        with msync_behind(os_api, lambda: synced.append(1)):
            lab(store).queues.flush()
        assert flushed(store, 3) == [20] * 3
        together = lab(store).queues._directory
        whole = together is not None and together.sync_filesystem()  # else each is synced
        assert len(synced) == (1 if whole else 3)
