"""A sync that takes as long as it likes: every timeout holds all the same, and a signal ends every wait."""

from __future__ import annotations

import ctypes
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import UsageError
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.results import PutMessageStatus

# Its place in the table of csrc/os_api.h.
MSYNC = 11
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
FAR_S = 30.0  # nothing here may take so long: the disk does not answer before it is told to


class Disk:
    """Syncs of the log wait while it is stuck."""

    def __init__(self) -> None:
        self.os_api = OsApi()
        self.answers = threading.Event()
        self.answers.set()
        table = (ctypes.c_void_p * (MSYNC + 1)).from_address(self.os_api.table_address)
        real = SIGNATURE(table[MSYNC] or 0)

        def msync(os: int, address: int, size: int) -> int:
            self.answers.wait()
            return int(real(os, address, size))

        self._kept = SIGNATURE(msync)
        table[MSYNC] = ctypes.cast(self._kept, ctypes.c_void_p).value


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.answers.set()


def opened(path: Path, disk: Disk, **settings: Any) -> mqfast.MessageStore:
    given = {"mapped_file_bytes_commit_log": 1 << 20, "message_index_enable": False, **settings}
    return mqfast.open(path / "store", os_api=disk.os_api, **given)


def took(work: Callable[[], object]) -> tuple[float, object]:
    began = time.monotonic()
    result = work()
    return time.monotonic() - began, result


def in_a_thread(work: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(FAR_S)
    assert results, "it still waits"
    return results[0]


@pytest.mark.parametrize("where", ["main thread", "another thread"])
@pytest.mark.parametrize("pool", [False, True])
def test_a_put_reports_the_timeout(tmp_path: Path, disk: Disk, where: str, pool: bool) -> None:
    settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 3} if pool else {}
    run = in_a_thread if where == "another thread" else (lambda work: work())
    with opened(tmp_path, disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=300, **settings) as store:
        assert store.put("T", b"quick").status is PutMessageStatus.PUT_OK
        disk.answers.clear()
        for put in (
            lambda: store.put("T", b"a"),
            lambda: store.producer("T").put(b"b"),
            lambda: store.put_many("T", [b"c", b"d"]),
            lambda: store.put_batch([mqfast.Message("T", b"e"), mqfast.Message("T", b"f")]),
            lambda: store.put_message(mqfast.Message("T", b"g")),
        ):
            seconds, result = took(lambda put=put: run(put))  # type: ignore[misc]
            assert result.status is PutMessageStatus.FLUSH_DISK_TIMEOUT  # type: ignore[attr-defined]
            assert 0.25 < seconds < FAR_S
        disk.answers.set()
        assert store.flush() is True
        assert store.put("T", b"h").status is PutMessageStatus.PUT_OK
        assert store.get("T", 0, 0).bodies() == [b"quick", *(bytes([c]) for c in b"abcdefgh")]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_flush_and_tickets_keep_their_timeouts(tmp_path: Path, disk: Disk, flush: str) -> None:
    with opened(tmp_path, disk, flush_disk_type=flush) as store:
        store.flush()
        disk.answers.clear()
        ticket = store.put_nowait("T", b"x")
        for wait in (
            lambda: store.flush(0.2),
            lambda: ticket.wait(0.2),
            lambda: store.flush(0),
            lambda: ticket.wait(-1),
        ):
            for run in (in_a_thread, lambda work: work()):
                seconds, result = took(lambda run=run, wait=wait: run(wait))  # type: ignore[misc]
                assert result is False
                assert seconds < FAR_S
        disk.answers.set()
        for timeout in (math.inf, 2**63, 10**400, 1e300, None, 60):
            assert store.flush(timeout) is True
            assert ticket.wait(timeout) is True


@pytest.mark.parametrize("timeout", [math.nan, "1", b"1", [], object()], ids=["nan", "text", "bytes", "list", "object"])
def test_what_is_no_timeout(tmp_path: Path, disk: Disk, timeout: Any) -> None:
    with opened(tmp_path, disk) as store:
        for wait in (store.flush, store.put_nowait("T", b"x").wait):
            with pytest.raises(UsageError, match="timeout: expected seconds or None"):
                wait(timeout)


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest keeps for itself."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_every_wait_behind_a_slow_sync(tmp_path: Path, disk: Disk, alarm: Callable[[], None]) -> None:
    store = opened(tmp_path, disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=3_600_000)
    store.put("T", b"quick")
    disk.answers.clear()
    ticket = store.put_nowait("T", b"ticket")
    for wait in (
        lambda: store.put("T", b"put"),
        lambda: store.put_many("T", [b"many"]),
        lambda: store.flush(),
        lambda: store.flush(3600),
        lambda: ticket.wait(),
        lambda: ticket.wait(3600),
        lambda: store.persist_offsets() if store.consumer_offsets.commit("G", "T", 0, 1) is None else None,
        lambda: store.close(),
        lambda: store.close(),
    ):
        alarm()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            wait()
        assert time.monotonic() - began < FAR_S
    disk.answers.set()
    store.close()
    with opened(tmp_path, disk) as store:
        assert store.get("T", 0, 0).bodies() == [b"quick", b"ticket", b"put", b"many"]
        assert store.recovery.clean


def test_a_signal_ends_the_wait_for_a_lock(tmp_path: Path, disk: Disk, alarm: Callable[[], None]) -> None:
    """Another thread is inside a close, which waits for the disk."""
    store = opened(tmp_path, disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=3_600_000)
    store.put("T", b"quick")
    disk.answers.clear()
    store.put_nowait("T", b"x")
    closer = threading.Thread(target=store.close)
    closer.start()
    deadline = time.monotonic() + FAR_S
    while store.state != "closed" and time.monotonic() < deadline:
        time.sleep(0.01)
    alarm()
    with pytest.raises(Interrupted):
        store.close()
    disk.answers.set()
    closer.join(FAR_S)
    assert not closer.is_alive()
