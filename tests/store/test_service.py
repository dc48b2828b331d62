"""One background loop: its turns go on whatever they raise, and it is told once."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

import pytest

import mqfast
from mqfast.store.base.event import Event
from mqfast.store.base.service import Service


def test_a_failed_turn_is_logged_once_and_the_loop_continues(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []
    enough = threading.Event()

    def turn(event: Event) -> None:
        turns.append(len(turns))
        if len(turns) > 6:
            enough.set()
            event.wait(60)
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

    def turn(event: Event) -> None:
        names.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())
        told.set()
        event.wait(60)

    service = Service("prefault", turn)
    service.start()
    assert told.wait(30)
    service.stop()
    assert names[0] == "mqfast-prefault\n"


def test_a_loop_continues_if_the_log_message_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for the words."""
    told = threading.Event()
    turns: list[int] = []

    def turn(event: Event) -> None:
        turns.append(1)
        if len(turns) > 3:
            told.set()
            event.wait(60)
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

    def turn(event: Event) -> None:
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
