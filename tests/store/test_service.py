"""One background loop: its turns go on whatever they raise, and it is told once.

Room: tests/store.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
import sys
import threading
from pathlib import Path

import pytest
from store.small_store import eventually

import mqfast
from mqfast.store.base.service import Service
from mqfast.store.log._commit_log import Bell


def test_a_failed_turn_is_told_once_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []
    enough = threading.Event()

    def turn(bell: Bell) -> None:
        turns.append(len(turns))
        if len(turns) > 6:
            enough.set()
            bell.sleep(60)
        elif len(turns) > 5:
            return
        elif len(turns) > 4:
            raise ValueError("another")
        else:
            raise OSError("the same")

    service = Service("test", turn, pause_after_error_s=0.001)
    assert not service.is_running
    with caplog.at_level(logging.ERROR, "mqfast.store"):
        service.start()
        assert enough.wait(30)
    assert service.is_running
    assert service.error is None, "a turn that succeeded ends the trouble"
    assert [record.getMessage() for record in caplog.records] == ["test: the same", "test: another"]
    service.stop()
    service.stop()
    assert (service.is_running, service.is_stopping) == (False, True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of threads are seen in /proc")
def test_the_system_shows_the_name_of_the_loop() -> None:
    names: list[str] = []
    told = threading.Event()

    def turn(bell: Bell) -> None:
        names.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())
        told.set()
        bell.sleep(60)

    service = Service("prefault", turn)
    service.start()
    assert told.wait(30)
    service.stop()
    assert names[0] == "mqfast-prefault\n"


SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
SHORT_NS = 100_000


def slice_ns(thread: int) -> int:
    """Of a thread of this process; 0 where the system has none to tell (Linux before 6.12)."""
    if not sys.platform.startswith("linux") or platform.machine() not in SCHED_GETATTR:
        return 0
    attr = ctypes.create_string_buffer(48)
    rc = ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], thread, attr, len(attr), 0)
    return 0 if rc else int(struct.unpack("<IIQiIQQQ", attr.raw)[5])


needs_slices = pytest.mark.skipif(not slice_ns(0), reason="needs Linux 6.12, and a machine whose call is known here")


@needs_slices
@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE"])
def test_a_loop_asks_to_run_soon_unless_its_work_is_heavy_and_changes_nothing_else(policy: str) -> None:
    number = getattr(os, policy)
    found: dict[str, tuple[int, int, int]] = {}
    done: list[threading.Event] = [threading.Event(), threading.Event()]

    def turn(bell: Bell) -> None:
        name = threading.current_thread().name
        found[name] = (slice_ns(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
        done[name == "mqfast-heavy"].set()
        bell.sleep(60)

    services = [Service("light", turn), Service("heavy", turn, heavy=True)]

    def own_policy() -> None:  # of this thread and those that it starts, not of the others
        os.setpriority(os.PRIO_PROCESS, 0, 3)
        os.sched_setscheduler(0, number, os.sched_param(0))
        for service in services:
            service.start()

    usual = slice_ns(0)
    starter = threading.Thread(target=own_policy)
    starter.start()
    starter.join()
    for service, event in zip(services, done, strict=True):
        assert event.wait(30)
        service.stop()
    assert usual > SHORT_NS
    assert found["mqfast-light"] == (usual if policy == "SCHED_IDLE" else SHORT_NS, number, 3)
    assert found["mqfast-heavy"] == (usual, number, 3)


@needs_slices
@pytest.mark.parametrize(("pool", "heavy"), [(False, {"flush", "prefault"}), (True, {"flush", "commit", "prefault"})])
def test_what_is_heavy_of_a_store(tmp_path: Path, pool: bool, heavy: set[str]) -> None:
    before = {thread.native_id for thread in threading.enumerate()}
    settings = {"transient_store_pool_enable": pool, "mapped_file_bytes_commit_log": 1 << 20}
    with mqfast.open(tmp_path / "store", **settings):
        threads = {
            thread.name.removeprefix("mqfast-"): thread.native_id or 0
            for thread in threading.enumerate()
            if thread.native_id not in before
        }
        assert {"reput", "allocate", "metadata", "retention", *heavy} <= set(threads)
        # a thread that was just started has not asked yet
        assert eventually(lambda: {name for name, number in threads.items() if slice_ns(number) != SHORT_NS} == heavy)


def test_a_loop_that_cannot_even_tell_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for the words."""
    told = threading.Event()
    turns: list[int] = []

    def turn(bell: Bell) -> None:
        turns.append(1)
        if len(turns) > 3:
            told.set()
            bell.sleep(60)
            return
        raise Unspeakable

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise MemoryError

    service = Service("test", turn)
    service.start()
    assert told.wait(30)
    service.stop()


def test_a_loop_may_stop_itself_also_in_a_turn_that_fails() -> None:
    started, ended = threading.Event(), threading.Event()

    def turn(bell: Bell) -> None:
        started.wait(30)
        service.stop()
        ended.set()
        raise OSError("after the stop")

    service = Service("test", turn, pause_after_error_s=60)
    service.start()
    started.set()
    assert ended.wait(30)
    assert not service.is_running


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are kept on processors by Linux only")
def test_the_threads_of_a_store_stay_where_it_was_opened(tmp_path: Path) -> None:
    """As docs/performance.md says: off the processor that the thread which puts has to itself, whatever it does."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one processor")
    quiet = {min(allowed)}
    elsewhere = threading.enumerate()
    try:
        os.sched_setaffinity(0, allowed - quiet)
        with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=64 << 10) as store:
            os.sched_setaffinity(0, quiet)
            for number in range(300):  # several log files and queues
                store.put(f"T{number % 7}", b"x" * 1000, keys="k")
            store.flush()
            own = [thread for thread in threading.enumerate() if thread not in elsewhere]
            assert len(own) >= 4
            for thread in own:
                assert thread.native_id is not None
                assert os.sched_getaffinity(thread.native_id) == allowed - quiet, thread.name
    finally:
        os.sched_setaffinity(0, allowed)
