"""Zeros ahead of a log with sync flush: a setting apart from the prefault window.

It must never depend on how fast a thread of the store is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from store.small_store import eventually

import mqfast
from mqfast.sim.simulated_os import KINDS
from mqfast.store.base.os_api import OsApi

FILE_BYTES = 8 << 20
AHEAD = 1 << 20
_MSYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class Syncs:
    """A door that notes the length of each sync of a range."""

    def __init__(self) -> None:
        self.os_api = OsApi()
        self.lengths: list[int] = []
        place = ctypes.c_void_p.from_address(
            self.os_api.table_address + KINDS["msync"] * ctypes.sizeof(ctypes.c_void_p)
        )
        real: Callable[[int, int, int], int] = _MSYNC(place.value or 0)

        def msync(os: int, address: int, length: int) -> int:
            self.lengths.append(length)
            return real(os, address, length)

        self._kept = _MSYNC(msync)
        place.value = ctypes.cast(self._kept, ctypes.c_void_p).value


@pytest.mark.parametrize("window", [0, 64 << 10])
def test_zeros_go_to_the_disk_ahead_with_any_prefault_window(tmp_path: Path, window: int) -> None:
    syncs = Syncs()
    with mqfast.open(
        tmp_path / "store",
        os_api=syncs.os_api,
        flush_disk_type="SYNC_FLUSH",
        mapped_file_bytes_commit_log=FILE_BYTES,
        prefault_window_bytes=window,
        zeros_ahead_bytes=AHEAD,
    ) as store:
        assert store.put("T", b"x").status.name == "PUT_OK"
        assert eventually(lambda: sum(syncs.lengths) >= AHEAD)


def test_without_zeros_only_records_are_synced(tmp_path: Path) -> None:
    syncs = Syncs()
    with mqfast.open(
        tmp_path / "store",
        os_api=syncs.os_api,
        flush_disk_type="SYNC_FLUSH",
        mapped_file_bytes_commit_log=FILE_BYTES,
        prefault_window_bytes=AHEAD,
        zeros_ahead_bytes=0,
    ) as store:
        for _ in range(20):
            assert store.put("T", b"x" * 100).status.name == "PUT_OK"
    assert syncs.lengths
    assert max(syncs.lengths) <= 8192, "no more than the pages of the records"


def test_zeros_ahead_are_of_a_log_with_sync_flush(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", prefault_window_bytes=0, zeros_ahead_bytes=AHEAD) as store:
        assert store.log.zeros_ahead == 0
        assert store.log.ready_bytes == 0
