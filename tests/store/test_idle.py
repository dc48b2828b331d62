"""How often the threads of a store wake up and take the GIL.

The loops: ``mqfast/store/log/service_loops.pyx``, ``mqfast/store/dispatch/dispatch.pyx``; the sleep:
``mqfast/store/log/idle.pyx``.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from laboratory import bodies
from store.small_store import eventually

import mqfast
from mqfast.store.base.os_api import service_gil_takes

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wake-ups of threads are counted in /proc")
SOON = {"flush_thorough_interval_ms_commit_log": 100, "flush_interval_ms_commit_log": 50}


def wake_ups() -> int:
    """How often all threads of services have slept so far."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("mqfast-"):
                lines = (task / "status").read_text().splitlines()
                found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
        except OSError:
            pass  # a thread that has just ended
    return found


def falls_asleep(seconds: float, most: float) -> bool:
    """Is there, within a minute, a time of so many seconds with at most so many wake-ups a second?"""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = wake_ups()
        time.sleep(seconds)
        if wake_ups() - before <= most * seconds:
            return True
    return False


@linux
@pytest.mark.parametrize("settings", [{}, {"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}])
def test_an_idle_store_sleeps(tmp_path: Path, settings: dict[str, object]) -> None:
    """Whether it never had a message or several, and each put finds it awake again."""
    config = {**SOON, "mapped_file_bytes_commit_log": 1 << 20, **settings}
    with mqfast.open(tmp_path / "store", **config) as store:  # type: ignore[arg-type]
        for number in range(2):
            assert falls_asleep(1.0, 3.0)
            end = store.put("T", b"%d" % number, keys="k")
            assert eventually(lambda: store.stats()["flushed_offset"] == store.stats()["written_offset"])
            assert store.get_by_offset(end.physical_offset).body == b"%d" % number
        assert bodies(store) == [b"0", b"1"]


def test_puts_that_find_the_threads_asleep_at_any_moment_are_dispatched(tmp_path: Path) -> None:
    """Each put comes a little later in the sleep of the dispatcher, around the moment at which it stops looking."""
    with mqfast.open(tmp_path / "store", dispatch="background", mapped_file_bytes_commit_log=1 << 20) as store:
        for number in range(40):
            store.put("T", b"%d" % number)
            assert eventually(lambda: store.stats()["dispatched_offset"] == store.stats()["written_offset"])
            time.sleep(0.1 + number * 0.001)
        assert len(bodies(store)) == 40


@pytest.mark.skipif(service_gil_takes() is None, reason="needs a build with MQFAST_DEBUG=1, which counts")
@pytest.mark.parametrize("keys", [False, True])
def test_the_services_hardly_take_the_gil_beside_a_thread_that_puts(disk_path: Path, keys: bool) -> None:
    """At most five times a second, most of them for the next files of log and queue; with keys also for blocks of the
    index, whose files have the size that a broker's have.
    """
    sizes = {"max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000} if keys else {}
    with mqfast.open(disk_path / "store", **sizes) as store:
        producer = store.producer("T", 0)
        stop = threading.Event()

        def put() -> None:
            due = time.perf_counter()
            while not stop.is_set():
                for _ in range(200):
                    if keys:
                        producer.put(b"x" * 40, "k")
                    else:
                        producer.put(b"x" * 40)
                due += 0.001  # 200,000 a second, where the machine is as fast
                time.sleep(max(0.0, due - time.perf_counter()))

        thread = threading.Thread(target=put)
        thread.start()
        time.sleep(6)  # the tables of topics and queues are written once
        before, put_before, began = service_gil_takes() or 0, store.put_count, time.monotonic()
        time.sleep(20)
        seconds = time.monotonic() - began
        takes, rate = ((service_gil_takes() or 0) - before) / seconds, (store.put_count - put_before) / seconds
        stop.set()
        thread.join()
    print(f"{takes:.1f} takes of the GIL a second beside {rate:.0f} puts")
    assert takes <= (8 if keys else 5) * max(1.0, rate / 200_000)
