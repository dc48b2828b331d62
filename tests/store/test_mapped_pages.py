"""Which pages of log and queues a process has mapped. What was written leaves its mapping before its sync, in one step:
each page that the sync would have to make read-only interrupts the other processors of the process. What puts come to
next stays, or is made ready.

Asks Linux which pages this process has mapped; nothing here may depend on the sizes of the pages.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import struct
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from laboratory import bodies, lab
from store.small_store import (
    POOL,
    eventually,
    still,
)

from mqfast.store.base.event import Event
from mqfast.store.base.os_api import OsApi
from mqfast.store.log.service_loops import FlushLoop, keep_prefaulted

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from hooks import msync_behind

PAGEMAP = Path("/proc/self/pagemap")
PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20  # a touch may bring all of it

pytestmark = pytest.mark.skipif(not PAGEMAP.exists(), reason="the system does not tell what is mapped")


def mapped_pages(path: Path) -> set[int]:
    """Numbers of the file's pages that this process has mapped."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] != str(path):
            continue
        begin, end = (int(address, 16) for address in fields[0].split("-"))
        with PAGEMAP.open("rb") as pages:
            pages.seek(begin // PAGE * 8)
            entries = struct.unpack(f"{(end - begin) // PAGE}Q", pages.read((end - begin) // PAGE * 8))
        first = int(fields[2], 16) // PAGE
        found |= {first + number for number, entry in enumerate(entries) if entry >> 63}
    return found


def only(directory: Path) -> Path:
    [path] = directory.iterdir()
    return path


def test_written_pages_of_the_log(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.put("T", b"x")
        log = only(tmp_path / "store" / "commitlog")
        for turn in range(3):
            for _ in range(16):
                store.put("T", b"x" * PAGE)
            last = store.log.written // PAGE
            flushed = store.log.flushed // PAGE + 1
            assert set(range(flushed, last + 1)) <= mapped_pages(log)
            store.log.flush()
            assert not mapped_pages(log) & set(range(flushed, last)), f"turn {turn}"
            assert last in mapped_pages(log), "a put would have to wait for its page"
        lab(store).step_dispatch()
        assert bodies(store) == [b"x", *[b"x" * PAGE] * 48]


def test_a_sync_with_waiters_unmaps_the_page_of_the_puts(tmp_path: Path) -> None:
    """The sync has one page less to tell all processors of; by the clock a put meanwhile shall not meet a fault."""
    os_api = OsApi()
    with still(tmp_path / "store", os_api) as store:
        store.put("T", b"x")
        log = only(tmp_path / "store" / "commitlog")
        by_clock = partial(FlushLoop(store.log, 0.001, 100.0, 1).run, Event(), 0.05)
        for sync, stays in ((by_clock, True), (store.log.flush, False)):
            for _ in range(16):
                store.put("T", b"x" * PAGE)
            last = store.log.written // PAGE
            meanwhile: list[set[int]] = []
            with msync_behind(os_api, partial(lambda seen: seen.append(mapped_pages(log)), meanwhile)):
                sync()
            assert [last in pages for pages in meanwhile] == [stays]
            assert last in mapped_pages(log), "the next put goes there"


def test_a_put_behind_a_flush_does_not_fault(tmp_path: Path) -> None:
    """A sync makes pages read-only, that of the next record as well (in memory alone, as on tmpfs, it does not)."""
    with still(tmp_path / "store") as store:
        producer = store.producer("T", 0)
        faults = []
        for _ in range(20):
            producer.put(b"x" * 100)
            store.log.flush()
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            producer.put(b"x" * 100)
            faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        assert sorted(faults)[10] == 0, faults


def test_the_first_pages_of_the_next_file_are_ready_before_a_put_comes_there(tmp_path: Path) -> None:
    settings = {"mapped_file_bytes_commit_log": 64 << 10, "prefault_window_bytes": 4 * PAGE}
    # With sync flush, and with a pool, pages are made ready in another way, and of other memory.
    for more, ready in (({}, 4 * PAGE), ({"flush_disk_type": "SYNC_FLUSH"}, 0), (POOL, 0)):
        place = tmp_path / str(len(more))
        with still(place, **settings, **more) as store:
            store.put("T", b"x")
            first = store.log.current_file
            assert first is not None
            assert first.ready == 0, "somebody waited for it"
            assert lab(store).make_next_file(), "the next file is made ahead"
            while store.log.written <= 64 << 10:
                store.put("T", b"x" * 2_000)
            second = store.log.current_file
            assert second is not None
            assert (second.start_offset, second.ready) == (64 << 10, ready)
            assert set(range(ready // PAGE)) <= mapped_pages(Path(second.path))


def buffer_of(body: bytes) -> int:
    """Address of the pool buffer whose first record has this body."""
    head = 84 + 4  # bytes of a record before the body, whose magic code is at 4
    with Path("/proc/self/mem").open("rb") as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(None, 5)
            begin, end = (int(address, 16) for address in fields[0].split("-"))
            if len(fields) > 5 or fields[1] != "rw-p":
                continue
            memory.seek(begin)
            content = memory.read(end - begin)
            at = content.find(body)
            while at >= 0:
                if at >= head and content[at - head + 4 : at - head + 8] == b"\xda\xa3\x20\xa7":
                    return begin + at - head
                at = content.find(body, at + 1)
    raise AssertionError("no record with this body in private memory")


def test_with_a_pool_the_memory_ahead_of_the_puts_is_touched(tmp_path: Path) -> None:
    """Whoever gives memory to this system may have taken it back since the buffer was made: a put should not wait."""
    libc = ctypes.CDLL(None, use_errno=True)
    first, window = 64 << 10, 1 << 20
    settings = {"mapped_file_bytes_commit_log": 8 << 20, "prefault_window_bytes": window, "mlock_budget_bytes": 0}
    with still(tmp_path / "store", **settings, **POOL) as store:
        body = os.urandom(32)
        store.put("T", body)
        buffer = buffer_of(body)

        def resident() -> list[bool]:
            pages = (ctypes.c_ubyte * ((8 << 20) // PAGE))()
            assert libc.mincore(ctypes.c_void_p(buffer), ctypes.c_size_t(8 << 20), pages) == 0
            return [bool(page & 1) for page in pages]

        lost = ctypes.c_void_p(buffer + first), ctypes.c_size_t((8 << 20) - first)
        assert libc.madvise(*lost, mmap.MADV_DONTNEED) == 0
        assert not any(resident()[first // PAGE :])
        event = Event()
        thread = threading.Thread(target=keep_prefaulted, args=(store.log, event))
        thread.start()
        try:
            assert eventually(lambda: all(resident()[: window // PAGE]))
        finally:
            event.set()
            thread.join()
        assert not any(resident()[(window + HUGE_PAGE) // PAGE + 2 :]), "the window has an end"
        store.log.commit()
        assert bodies(store) == [body]


def test_a_few_pages_are_not_worth_it(tmp_path: Path) -> None:
    with still(tmp_path / "store") as store:
        store.put("T", b"x" * 3 * PAGE)
        log = only(tmp_path / "store" / "commitlog")
        store.log.flush()
        assert {0, 1, 2} <= mapped_pages(log)


def test_written_pages_of_a_queue(tmp_path: Path) -> None:
    os_api = OsApi()
    with still(tmp_path / "store", os_api, mapped_file_bytes_consume_queue=400_000) as store:
        for number in range(10_000):
            store.put("T", b"")
            if number % 2_500 == 0:
                lab(store).step_dispatch()
        lab(store).step_dispatch()
        path = only(tmp_path / "store" / "consumequeue" / "T" / "0")
        last = 200_000 // PAGE
        assert set(range(last + 1)) <= mapped_pages(path)
        meanwhile: list[set[int]] = []
        with msync_behind(os_api, lambda: meanwhile.append(mapped_pages(path))):
            lab(store).flush_queues()
        for pages in (*meanwhile, mapped_pages(path)):
            assert not pages & set(range(last))
            assert last in pages, "the next unit goes there"
        assert len(meanwhile) == 1
        store.put("T", b"another")
        lab(store).step_dispatch()
        assert bodies(store) == [*[b""] * 10_000, b"another"]


def test_units_behind_a_flush_do_not_fault(tmp_path: Path) -> None:
    """The kernel writes all pages of a file in its own time, also those that wait for units, and takes the right to
    write from them; each was a fault of a thread that puts then, for as long as the file lasted.
    """
    sizes = {"mapped_file_bytes_commit_log": 64 << 20, "mapped_file_bytes_consume_queue": 6_000_000}
    with still(tmp_path / "store", **sizes, **POOL) as store:  # records go where all pages are there already
        producer = store.producer("T", 0)
        faults = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            for _ in range(10_000):
                producer.put(b"")
            faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
            store.log.commit()
            lab(store).step_dispatch()
            with only(tmp_path / "store" / "consumequeue" / "T" / "0").open("r+b") as file:
                os.fsync(file.fileno())
            lab(store).flush_queues()
        assert max(faults[1:]) < 10, f"{faults} of 49 pages each"
        assert len(bodies(store)) == 40_000


def test_a_first_queue_file_that_is_full(tmp_path: Path) -> None:
    """It is synced before there is a second one."""
    with still(tmp_path / "store", mapped_file_bytes_consume_queue=100_000) as store:
        for _ in range(5_001):
            store.put("T", b"")
            lab(store).step_dispatch()
        first, second = sorted((tmp_path / "store" / "consumequeue" / "T" / "0").iterdir())
        assert not mapped_pages(first) & set(range(100_000 // PAGE))
        assert 0 in mapped_pages(second)
        assert len(bodies(store)) == 5_001
