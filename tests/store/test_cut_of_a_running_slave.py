"""A cut of a slave's log beside what runs in the background: dispatch, flushes, retention, a close.

The code: ``truncate_to`` of ``mqfast/store/raw_log.py``. The cut itself: test_raw_log.py.
"""

from __future__ import annotations

import errno
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, lab
from store.small_store import POOL, eventually, still

from mqfast.config import StoreConfig
from mqfast.errors import MqfastError, OffsetError, StoreFailed
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.verify import verify
from mqfast.store.message_store import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import fsync_behind, msync_behind, until_asleep

from mqfast.sim.simulated_os import STRICT, Sim

FILE = 4096
SMALL: dict[str, Any] = {
    "mapped_file_bytes_commit_log": FILE,
    "mapped_file_bytes_consume_queue": 400,
    "max_hash_slot_num": 16,
    "max_index_num": 200,
}
SLAVE = SMALL | {"broker_role": "SLAVE"}
TOPICS = ("A", "B", "C")


def fill(store: Any, first: int, count: int, size: int = 20) -> None:
    """Messages of several queues; a number is in body and key, to tell the masters apart."""
    for i in range(first, first + count):
        store.put(TOPICS[i % 3], (b"%08d" % i) * (size // 8), i % 2, keys=f"key{i:08d}", tags=f"t{i % 5}")


def send(master: Any, slave: Any) -> None:
    """Everything that the slave lacks."""
    at = slave.engine.raw.end
    while at < master.engine.raw.end:
        for view in master.engine.raw.read(at, 1000):
            at = slave.engine.raw.append(at, view)


class Masters:
    """Two masters whose logs are the same up to ``fork``, and then differ."""

    def __init__(self, place: Path, *, common: int = 30, old: int = 70, new: int = 70, size: int = 20) -> None:
        self.common = common
        first = still(place / "old", **SMALL)
        fill(first, 0, common)
        self.fork = first.engine.raw.end
        first.close()
        shutil.copytree(place / "old", place / "new")
        self.old, self.new = still(place / "old", **SMALL), still(place / "new", **SMALL)
        fill(self.old, 1000, old)
        fill(self.new, 2000, new, size)
        self.gone = range(1000, 1000 + old)

    def close(self) -> None:
        self.old.close()
        self.new.close()


@contextmanager
def masters(place: Path, **sizes: int) -> Iterator[Masters]:
    made = Masters(place, **sizes)
    try:
        yield made
    finally:
        made.close()


def queues_of(store: Any) -> dict[tuple[str, int], list[bytes]]:
    return {(topic, queue_id): bodies(store, topic, queue_id) for topic in TOPICS for queue_id in (0, 1)}


def found(store: Any, numbers: range) -> list[int]:
    """Which of these messages are found by their key."""
    return [i for i in numbers if store.query(TOPICS[i % 3], f"key{i:08d}")]


def until_dispatch_rests() -> None:
    """Until the thread that dispatches has stopped to look for something to do."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "mqfast-reput"]
    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def wake_ups() -> list[str]:
        return [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches")]

    def rests() -> bool:
        before = wake_ups()
        time.sleep(0.15)  # its longest nap is 20 ms
        return wake_ups() == before

    assert eventually(rests)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wake-ups of threads are counted in /proc")
@pytest.mark.parametrize("new", [{}, {"new": 20}, {"new": 140}, {"size": 96}], ids=["same", "less", "more", "larger"])
@pytest.mark.parametrize("extra", [{}, {"flush_disk_type": "SYNC_FLUSH"}, POOL], ids=["async", "sync", "pool"])
def test_a_cut_below_what_a_resting_dispatcher_has_dispatched(
    tmp_path: Path, extra: dict[str, Any], new: dict[str, int]
) -> None:
    """The new bytes may end where the old ones did: nothing in the positions then tells that the log is another one."""
    with masters(tmp_path, **new) as two:
        with open_store(tmp_path / "s", config=StoreConfig.tiny(**SLAVE, **extra)) as slave:
            send(two.old, slave)
            assert eventually(lambda: slave.log.dispatched == two.old.engine.raw.end)
            until_dispatch_rests()
            assert queues_of(slave) == queues_of(two.old)
            assert found(slave, two.gone) == list(two.gone)
            before = {queue: len(kept) for queue, kept in queues_of(two.old).items()}

            slave.engine.raw.truncate_to(two.fork)
            kept = queues_of(slave)
            assert all(kept[queue] == queues_of(two.old)[queue][: len(kept[queue])] for queue in kept)
            assert sum(map(len, kept.values())) == two.common
            assert found(slave, two.gone) == []
            assert slave.max_physical_offset == slave.log.dispatched == two.fork
            for queue, count in before.items():
                assert slave.max_offset(*queue) == len(kept[queue])
                assert not list(slave.get(*queue, len(kept[queue]), 32))
                assert not list(slave.get(*queue, count - 1, 32)) or count == len(kept[queue])
            with pytest.raises(OffsetError):
                slave.get_by_offset(two.fork)

            send(two.new, slave)
            assert eventually(lambda: slave.log.dispatched == two.new.engine.raw.end)
            assert queues_of(slave) == queues_of(two.new)
            assert found(slave, two.gone) == []
            numbers = range(2000, 2000 + new.get("new", 70))
            assert found(slave, numbers) == list(numbers)
            assert slave.stats()["service_errors"] == {}
    report = verify(tmp_path / "s")
    assert not report.damages
    with still(tmp_path / "s", **SLAVE) as again:
        assert again.recovery.clean
        assert again.log.written == again.log.dispatched


@pytest.mark.parametrize("by_clock", [False, True], ids=["new names", "by the clock"])
def test_a_flush_under_way_counts_nothing_behind_a_cut_as_durable(tmp_path: Path, sim: Sim, by_clock: bool) -> None:
    """It has read where the queues end; the cut comes while it syncs. What then stands there is not what it synced."""
    with masters(tmp_path) as two, still(Path(sim.root) / "s", sim.os_api, **SLAVE) as slave:
        if by_clock:  # the names are durable then, and the flush needs no GIL
            at = two.old.engine.raw.read(0, two.fork)
            slave.engine.raw.append(0, at[0])
            lab(slave).step_dispatch()
            lab(slave).flush_turn()
        send(two.old, slave)
        slave.flush()
        lab(slave).step_dispatch()
        inside, go_on = threading.Event(), threading.Event()

        def hold_the_first() -> None:
            if threading.current_thread() is flush and not inside.is_set():
                inside.set()
                assert go_on.wait(30)

        flush = threading.Thread(target=lab(slave).flush_turn)
        cut = threading.Thread(target=slave.engine.raw.truncate_to, args=(two.fork,))
        with msync_behind(sim.os_api, hold_the_first):
            flush.start()
            assert inside.wait(30)
            cut.start()
            until_asleep(cut)  # or it has ended, where it does not wait for the flush
            go_on.set()
            flush.join(30)
            cut.join(30)
        assert not flush.is_alive()
        assert not cut.is_alive()
        assert lab(slave).checkpoint.logics_physical_offset <= two.fork

        send(two.new, slave)
        slave.flush()
        lab(slave).step_dispatch()
        lab(slave).flush_turn()
        assert lab(slave).checkpoint.logics_physical_offset == two.new.engine.raw.end
        sim.image(str(tmp_path / "image"), STRICT)
        live, image = Path(sim.root) / "s" / "consumequeue", tmp_path / "image" / "s" / "consumequeue"
        units = {str(path.relative_to(live)): path.read_bytes() for path in live.rglob("*") if path.is_file()}
        assert len(units) >= 6
        for name, content in units.items():
            assert (image / name).read_bytes() == content, f"{name}: the checkpoint claims units that are not durable"


def test_the_checkpoint_claims_no_page_that_was_left_before_a_cut(tmp_path: Path, sim: Sim) -> None:
    """The flush of a busy queue leaves its last page to the next flush, and claims then what it had found before."""
    busy = {"mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 200_000}
    with still(tmp_path / "m", **busy) as master, still(tmp_path / "n", **busy) as other:
        slave = still(Path(sim.root) / "s", sim.os_api, **busy, broker_role="SLAVE")
        for store, body in ((master, b"old"), (other, b"new message")):
            store.put_many("T", [body] * 4000)
        send(master, slave)
        slave.flush()
        lab(slave).step_dispatch()
        lab(slave).flush_turn()
        slave.engine.raw.truncate_to(0)
        view = other.engine.raw.read(0, other.engine.raw.end)[0]
        slave.engine.raw.append(0, view[: len(view) * 9 // 10])
        slave.flush()
        lab(slave).step_dispatch()
        lab(slave).flush_turn()
        claimed = lab(slave).checkpoint.logics_physical_offset
        sim.image(str(tmp_path / "image"), STRICT)
        (path,) = (tmp_path / "image" / "s" / "consumequeue" / "T" / "0").iterdir()
        units = path.read_bytes()
        durable = 0
        while int.from_bytes(units[20 * durable + 8 : 20 * durable + 12]):
            durable += 1
        end = other.engine.raw.end if durable == 4000 else other.get("T", 0, durable, 1)[0].physical_offset
        assert claimed <= end
        slave.close()


def test_retention_waits_for_a_cut(tmp_path: Path) -> None:
    """It would remove the file in which the log is to end."""
    os_api = OsApi()
    with masters(tmp_path, common=60, old=200) as two:
        slave = still(tmp_path / "s", os_api, **SLAVE, retention=f"{2 * FILE}B", delete_files_interval_ms_commit_log=0)
        send(two.old, slave)
        lab(slave).step_dispatch()
        slave.flush()
        slave.log.reap()  # as the flush thread does: only then a file may be removed
        thread = threading.Thread(target=slave.retention.run_once, args=(os_api.now_ms(),))

        def retention() -> None:
            if threading.current_thread() is not thread and not thread.is_alive() and not thread.ident:
                thread.start()
                until_asleep(thread)

        with fsync_behind(os_api, retention):  # of the note that a cut begins
            slave.engine.raw.truncate_to(two.fork)
        thread.join(30)
        assert not thread.is_alive()
        assert 0 <= slave.log.min_offset <= two.fork
        send(two.new, slave)
        lab(slave).step_dispatch()
        kept = {(t, q): bodies(slave, t, q, slave.min_offset(t, q)) for t, q in queues_of(two.new)}
        for queue, all_of_it in queues_of(two.new).items():
            assert kept[queue] == all_of_it[len(all_of_it) - len(kept[queue]) :]
        assert sum(map(len, kept.values())) > 70, "more than what came behind the cut"
        slave.close()
    assert not verify(tmp_path / "s").damages


def test_a_close_waits_for_a_cut(tmp_path: Path) -> None:
    """Until the cut is over the store does not count as closed in order."""
    os_api = OsApi()
    abort: list[bool] = []
    with masters(tmp_path) as two:
        slave = still(tmp_path / "s", os_api, **SLAVE)
        send(two.old, slave)
        lab(slave).step_dispatch()
        thread = threading.Thread(target=slave.close)

        def close() -> None:
            if not thread.ident and threading.current_thread() is not thread:
                thread.start()
                until_asleep(thread)
                abort.append((tmp_path / "s" / "abort").exists())

        with fsync_behind(os_api, close):
            slave.engine.raw.truncate_to(two.fork)
        thread.join(30)
        assert not thread.is_alive()
        assert abort == [True]
        with still(tmp_path / "s", **SLAVE) as again:
            assert again.recovery.clean
            assert again.engine.raw.end == two.fork
            send(two.new, again)
            lab(again).step_dispatch()
            assert queues_of(again) == queues_of(two.new)


@pytest.mark.parametrize("kind", ["msync", "fsync", "sync_directory", "unlink", "pwrite", "rename", "open"])
def test_a_cut_that_fails_latches_the_log_or_has_changed_nothing(tmp_path: Path, sim: Sim, kind: str) -> None:
    """A half-cut log takes no bytes, and nothing is synced again that failed; the next open goes on with the cut."""
    with masters(tmp_path) as two:
        ends, number = set(), 0
        while True:
            number += 1
            path = Path(sim.root) / f"s{number}"
            slave = still(path, sim.os_api, **SLAVE)
            send(two.old, slave)
            slave.flush()
            lab(slave).step_dispatch()
            lab(slave).flush_queues()
            sim.fault(kind, number, errno.EIO)
            try:
                slave.engine.raw.truncate_to(two.fork)
            except MqfastError:
                failed = True
            else:
                failed = False
            hit, latched, end = sim.fault_hits > 0, slave.log.error_number, slave.engine.raw.end
            sim.heal()
            if latched:
                assert failed
                with pytest.raises(StoreFailed):
                    slave.engine.raw.append(end, b"")
            elif failed:
                assert end == two.old.engine.raw.end, "nothing was changed"
                assert queues_of(slave) == queues_of(two.old)
            else:
                assert end == two.fork
            try:
                slave.close()
            except MqfastError:
                assert latched
            with still(path, sim.os_api, **SLAVE) as again:
                ends.add(again.engine.raw.end)
                assert again.engine.raw.end in (two.fork, two.old.engine.raw.end)
                assert again.engine.raw.end == two.fork or not latched
                if again.engine.raw.end != two.fork:
                    again.engine.raw.truncate_to(two.fork)
                send(two.new, again)
                lab(again).step_dispatch()
                assert queues_of(again) == queues_of(two.new)
            shutil.rmtree(path)
            if not hit:
                break
        assert number > 1, "no such call was met"
