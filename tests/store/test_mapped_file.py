"""One mapped file by itself: lengths, holds, locking in memory, and what other parts never ask of it.

It must never stand in for the tests of whole stores.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from mqfast.errors import CorruptFile, DiskFull, StorageError, StoreClosed
from mqfast.store.base.mapped_file import MappedFile, locked_byte_count, mapping_count
from mqfast.store.base.os_api import OsApi

BYTES = 8192


def made(path: Path) -> MappedFile:
    return MappedFile.create(OsApi(), path / "file", 4096, BYTES)


def test_lengths_are_part_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for size in (0, -1):
        with pytest.raises(CorruptFile, match="more than 0 bytes"):
            MappedFile.load(OsApi(), tmp_path / "empty", 0, size, True, False)
    with pytest.raises(CorruptFile, match=f"expected {BYTES} bytes"):
        MappedFile.load(OsApi(), tmp_path / "empty", 0, BYTES)
    (tmp_path / "file").write_bytes(bytes(BYTES))
    file = MappedFile.load(OsApi(), tmp_path / "file", 0, BYTES)
    os.truncate(tmp_path / "file", 100)  # between the listing and the first use
    with pytest.raises(CorruptFile, match="shorter than its format asks for"):
        file.preheat()
    assert not file.is_mapped


def test_a_file_that_was_dropped_gives_nothing_out(tmp_path: Path) -> None:
    before = mapping_count()
    file = made(tmp_path)
    assert (file.is_mapped, file.holds, mapping_count()) == (True, 0, before + 1)
    assert f"start=4096 bytes={BYTES} holds=0" in repr(file)
    file.drop()
    file.drop()
    assert (file.is_mapped, file.holds, mapping_count()) == (False, 0, before)
    file.destroy()
    file.destroy()  # safe when it is gone already
    assert not (tmp_path / "file").exists()
    sparse = MappedFile.create(OsApi(), tmp_path / "sparse", 0, BYTES, False)
    sparse.grow(100)
    sparse.grow(50)  # is there
    sparse.drop()
    with pytest.raises(StoreClosed):
        sparse.grow(BYTES + 1)


def test_memory_is_locked_once_and_within_the_budget(tmp_path: Path) -> None:
    file = made(tmp_path)
    before = locked_byte_count()
    assert file.lock_memory(before + BYTES - 1) == 0
    assert file.lock_memory(before + BYTES) == BYTES
    assert file.lock_memory(before + 10 * BYTES) == BYTES
    assert locked_byte_count() == before + BYTES
    file.drop()
    assert locked_byte_count() == before


def test_what_a_crash_left_is_cleared(tmp_path: Path) -> None:
    file = made(tmp_path)
    with (tmp_path / "file").open("r+b") as handle:
        handle.seek(5000)
        handle.write(b"x" * 3000)
    assert file.zero_tail(BYTES) == file.zero_tail(BYTES + 1) == 0
    assert file.zero_tail(5001) > 0
    assert (tmp_path / "file").read_bytes() == bytes(5000) + b"x" + bytes(BYTES - 5001)
    file.drop()


def test_pages_that_cannot_be_had(tmp_path: Path) -> None:
    """madvise and mlock that fail; the file stays usable."""
    os_api = OsApi()
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    failing = signature(lambda *_: -errno.ENOSPC)
    file = MappedFile.create(os_api, tmp_path / "file", 0, 9 << 20)
    assert file.preheat() == 9 << 20
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    kept = table[8], table[9]
    table[8] = ctypes.cast(failing, ctypes.c_void_p).value  # madvise, in csrc/os_api.h
    with pytest.raises(DiskFull, match="populate"):
        file.preheat()
    table[9] = ctypes.cast(failing, ctypes.c_void_p).value  # mlock
    with pytest.raises(StorageError, match="mlock"):
        file.lock_memory(1 << 40)
    table[8], table[9] = kept
    assert file.preheat() == 9 << 20
    file.drop()


def test_a_file_that_is_used_again_while_it_is_unmapped(tmp_path: Path) -> None:
    """Who unmapped it closed the descriptor that the other one had opened meanwhile, and was giving to fallocate."""
    os_api = OsApi()
    file = MappedFile.create(os_api, tmp_path / "file", 0, 4 << 20, False)
    file.grow(4096)
    file.unmap_idle()
    file.grow(8192)
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    at_work, rested = threading.Event(), threading.Event()
    took: list[object] = []

    def grow() -> None:
        try:
            file.grow(16384)
            took.append(16384)
        except StorageError as error:
            took.append(error)

    other = threading.Thread(target=grow)
    munmap_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    fallocate_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    real_munmap, real_fallocate = munmap_type(table[7]), fallocate_type(table[2])

    def munmap(os_: int, address: int, length: int) -> int:
        table[7] = kept[1]
        other.start()
        at_work.wait()
        return int(real_munmap(os_, address, length))

    def fallocate(os_: int, fd: int, offset: int, length: int) -> int:
        at_work.set()
        rested.wait()
        return int(real_fallocate(os_, fd, offset, length))

    hooks = munmap_type(munmap), fallocate_type(fallocate)
    kept = table[2], table[7]
    table[2], table[7] = (ctypes.cast(hook, ctypes.c_void_p).value for hook in reversed(hooks))
    file.unmap_idle()
    rested.set()
    other.join()
    table[2] = kept[0]
    assert took == [16384]
    file.drop()
