"""A commit of much is written in pieces, so that whoever stands behind it has the processor in between.

What it is for: ``_write_out`` in ``mqfast/store/log/group_commit.pyx``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from laboratory import bodies, lab
from store.small_store import (
    POOL,
    still,
)

from mqfast.errors import StoreFailed
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore

PIECE = 128 << 10
_PWRITE = 14  # place in struct mq_os (csrc/os_api.h)
_WRITE_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


class Writes:
    """Notes the writes of a door (offset and bytes), and lets all from number ``fail_from`` on fail."""

    def __init__(self) -> None:
        self.os_api = OsApi()
        self.seen: list[tuple[int, int]] = []
        self.fail_from = sys.maxsize
        table = (ctypes.c_void_p * 27).from_address(self.os_api.table_address)
        real = _WRITE_CALL(table[_PWRITE] or 0)

        def pwrite(os_api: int, fd: int, source: int, count: int, offset: int) -> int:
            self.seen.append((offset, count))
            return -errno.EIO if len(self.seen) > self.fail_from else int(real(os_api, fd, source, count, offset))

        self._kept = _WRITE_CALL(pwrite)
        table[_PWRITE] = ctypes.cast(self._kept, ctypes.c_void_p).value


def filled(path: Path, count: int, os_api: OsApi | None = None, **settings: int) -> MessageStore:
    """A store with a pool and without threads, that many messages of 4,000 bytes in its buffers."""
    store = still(path, os_api, **{**POOL, "mapped_file_bytes_commit_log": 4 << 20, **settings})
    for number in range(count):
        store.put("T", b"%4000d" % number)
    return store


def test_pieces_end_at_even_places_and_leave_nothing_out(tmp_path: Path) -> None:
    writes = Writes()
    with filled(tmp_path / "store", 10, writes.os_api) as store:
        written: list[tuple[int, int]] = []
        for count in (0, 200, 1, 40):
            for number in range(count):
                store.put("T", b"%4000d" % (10_000 + number))
            writes.seen.clear()
            store.log.commit()
            assert all(size <= PIECE for _, size in writes.seen)
            assert all((offset + size) % PIECE == 0 for offset, size in writes.seen[:-1])
            written += writes.seen
        at = 0
        for offset, size in written:
            assert offset == at
            at += size
        assert at == store.log.committed == store.log.written
        lab(store).step_dispatch()
        assert len(bodies(store)) == store.put_count == 251


def test_a_piece_that_fails_latches_the_log_and_is_the_last_one(tmp_path: Path) -> None:
    writes = Writes()
    with filled(tmp_path / "store", 100, writes.os_api) as store:
        writes.seen.clear()
        writes.fail_from = 1
        with pytest.raises(StoreFailed, match="commit failed"):
            store.log.commit()
        assert writes.seen == [(0, PIECE), (PIECE, PIECE)]
        assert (store.log.committed, store.log.error_number) == (0, errno.EIO)
        store.log.commit()
        assert len(writes.seen) == 2
        writes.fail_from = sys.maxsize


def switches() -> int:
    """How often this thread had to leave the processor to another one."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return int(status.split("nonvoluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tells its switches in /proc")
def test_beside_a_thread_that_never_rests_a_commit_does_not_yield_at_each_piece(tmp_path: Path) -> None:
    """Else each piece of 30 us would cost as long as that thread may keep the processor, which is milliseconds."""
    allowed = os.sched_getaffinity(0)
    here = {min(allowed)}
    with filled(tmp_path / "store", 8000, mapped_file_bytes_commit_log=64 << 20) as store:
        spin = f"import os; os.sched_setaffinity(0, {here}); print(flush=True)\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as hog:
            try:
                assert hog.stdout is not None
                hog.stdout.readline()
                os.sched_setaffinity(0, here)
                before = switches()
                store.log.commit()
                found = switches() - before
            finally:
                os.sched_setaffinity(0, allowed)
                hog.kill()
        assert store.log.committed > 200 * PIECE
        assert found < 40
