"""TransientStorePool: buffers go round, stay within the budget, and never let an older file's bytes reach the disk."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from laboratory import open_still

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import InternalError, MapFailed
from mqfast.store.base.mapped_file import MappedFile, locked_byte_count
from mqfast.store.base.os_api import OsApi
from mqfast.store.log.transient_pool import TransientStorePool

BYTES = 1 << 20
DOOR = OsApi()


def files(tmp_path: Path, count: int, file_bytes: int = BYTES) -> list[MappedFile]:
    return [
        MappedFile.create(DOOR, str(tmp_path / f"{i * file_bytes:020}"), i * file_bytes, file_bytes)
        for i in range(count)
    ]


def rss() -> int:
    info = psutil.Process().memory_info()
    return info.rss - getattr(info, "shared", 0)  # pool buffers are no file's pages


def test_buffers_go_round(tmp_path: Path) -> None:
    pool = TransientStorePool(DOOR, 2, BYTES, 0)
    a, b, c = files(tmp_path, 3)
    assert (pool.capacity, pool.free_count, pool.buffer_bytes) == (2, 2, BYTES)
    assert pool.lend(a)
    assert pool.lend(b)
    assert not pool.lend(c)
    assert pool.free_count == 0
    pool.give_back(a)
    assert pool.free_count == 1
    assert pool.lend(c)
    pool.give_back(b)
    pool.give_back(c)
    pool.give_back(c)  # has none any more
    assert pool.free_count == 2
    pool.close()
    assert not pool.lend(a)
    assert pool.free_count == 0


def test_misuse_is_refused(tmp_path: Path) -> None:
    pool, other = TransientStorePool(DOOR, 1, 4096, 0), TransientStorePool(DOOR, 1, 4096, 0)
    (large,) = files(tmp_path, 1, 8192)
    with pytest.raises(InternalError, match="8192 bytes, a pool buffer 4096"):
        pool.lend(large)
    (tmp_path / "small").mkdir()
    (small,) = files(tmp_path / "small", 1, 4096)
    assert pool.lend(small)
    with pytest.raises(InternalError, match="already"):
        pool.lend(small)
    with pytest.raises(InternalError, match="not one of this pool's"):
        other.give_back(small)
    pool.give_back(small)
    assert (pool.free_count, other.free_count) == (1, 1)
    for count, size in ((0, 4096), (-1, 4096), (1025, 4096), (1, 0), (1, -1), (1, 1 << 40)):
        with pytest.raises(ValueError, match="expected 1 to"):
            TransientStorePool(DOOR, count, size, 0)


def test_memory_is_resident_at_once_and_goes_with_close(tmp_path: Path) -> None:
    size, before = 32 << 20, rss()
    pool = TransientStorePool(DOOR, 2, size, 0)
    assert rss() - before > 60 << 20
    (lent,) = files(tmp_path, 1)
    assert pool.lend(lent)
    pool.close()
    pool.close()
    assert 28 << 20 < rss() - before < 40 << 20  # the lent one is still there
    pool.give_back(lent)
    assert rss() - before < 8 << 20
    pool = TransientStorePool(DOOR, 2, size, 0)
    del pool
    gc.collect()
    assert rss() - before < 8 << 20


def test_mlock_stays_within_the_budget() -> None:
    locked = locked_byte_count()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit not in (-1, resource.RLIM_INFINITY) and limit < 4 * 4096:
        pytest.skip("the system lets us lock less than four pages")
    pool = TransientStorePool(DOOR, 4, 4096, locked + 2 * 4096 + 1)
    assert pool.locked_bytes == 2 * 4096
    assert len(pool.warnings) == 1
    assert pool.warnings[0].startswith("2 of 4 pool buffers of 4096 bytes are not locked in memory: mlock budget")
    pool.close()
    assert pool.locked_bytes == 0
    pool = TransientStorePool(DOOR, 4, 4096, locked + 4 * 4096)
    assert (pool.locked_bytes, pool.warnings) == (4 * 4096, [])
    pool.close()


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_refused_mlock_is_a_warning() -> None:
    out = run(
        "import ctypes, os, resource\n"
        "from mqfast.store.base.os_api import OsApi\n"
        "from mqfast.store.log.transient_pool import TransientStorePool\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))\n"
        "if os.geteuid() == 0:\n"
        "    os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"  # root may always lock
        "pool = TransientStorePool(OsApi(), 3, 4096, 1 << 30)\n"
        "print(pool.free_count, pool.locked_bytes, len(pool.warnings), pool.warnings[0])\n"
    )
    assert out.startswith("3 0 1 3 of 3 pool buffers of 4096 bytes are not locked in memory: ")
    assert "ulimit -l" in out


def test_memory_that_is_not_there_is_an_error_and_nothing_is_kept() -> None:
    before = rss()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (96 << 20), hard))
    try:
        with pytest.raises(MapFailed, match="pool buffer"):
            TransientStorePool(DOOR, 64, 16 << 20, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert rss() - before < 8 << 20


def test_no_byte_of_an_older_file_reaches_the_disk(tmp_path: Path) -> None:
    size = 64 << 10
    with mqfast.open(
        str(tmp_path / "s"),
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        mapped_file_bytes_commit_log=size,
    ) as store:
        for i in range(600):  # two buffers, many files: each is used again and again
            store.put("T", b"%06d" % i + b"\xaa" * (300 if i % 2 else 9000))
        store.flush()
        result = store.get("T", 0, 590, max_count=10)
        assert [bytes(message.body)[:6] for message in result] == [b"%06d" % i for i in range(590, 600)]
        del result
    logs = sorted((tmp_path / "s/commitlog").iterdir())
    assert len(logs) > 20
    blanks = 0
    for log in logs:
        data = log.read_bytes()
        assert len(data) == size
        position = 0
        while position < size:
            total, magic = (int.from_bytes(data[position + i : position + i + 4], "big") for i in (0, 4))
            if magic != 0xDAA320A7:
                break
            position += total
        if log is not logs[-1]:
            assert (total, magic) == (size - position, 0xCBD43194)
            position += 8
            blanks += 1
        assert not data[position:].strip(b"\0"), f"{log.name}: bytes behind {position}"
    assert blanks > 20


def test_files_that_wait_for_a_commit_have_a_buffer_each(tmp_path: Path) -> None:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=4096, transient_store_pool_enable=True)
    with open_still(tmp_path / "store", config=config) as store:
        for i in range(10):
            store.put("T", b"%d" % i * 900)  # three files and a bit, nothing of which is committed
        assert store.stats()["pool_free_buffers"] == 0
        store.log.commit()
        assert [bytes(m.body) for m in store.get("T", 0, 0)] == [b"%d" % i * 900 for i in range(10)]
