"""Moments that a test holds: a call of the OS door that lets other work run first, a thread that surely sleeps.

Room: tests. Nothing here simulates anything: the real call follows. It must never leave a door changed behind a test
that goes on using it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mqfast.sim.simulated_os import KINDS
from mqfast.store.base.os_api import OsApi

Msync = Callable[[int, int, int], int]
_MSYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@contextmanager
def msync_by(os_api: OsApi, make: Callable[[Msync], Msync]) -> Iterator[None]:
    """Inside, msync of the door is another one, made from the real one."""
    place = ctypes.c_void_p.from_address(os_api.table_address + KINDS["msync"] * ctypes.sizeof(ctypes.c_void_p))
    before = place.value
    hook = _MSYNC(make(_MSYNC(before or 0)))
    place.value = ctypes.cast(hook, ctypes.c_void_p).value
    try:
        yield
    finally:
        place.value = before


@contextmanager
def msync_behind(os_api: OsApi, work: Callable[[], object]) -> Iterator[None]:
    """Inside, every msync through the door does the work first, in the thread that called it."""

    def make(real: Msync) -> Msync:
        def msync(table: int, address: int, length: int) -> int:
            work()
            return int(real(table, address, length))

        return msync

    with msync_by(os_api, make):
        yield


_FSYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


@contextmanager
def fsync_behind(os_api: OsApi, work: Callable[[], object]) -> Iterator[None]:
    """The same for every fsync."""
    place = ctypes.c_void_p.from_address(os_api.table_address + KINDS["fsync"] * ctypes.sizeof(ctypes.c_void_p))
    before = place.value
    real = _FSYNC(before or 0)

    def fsync(table: int, fd: int) -> int:
        work()
        return int(real(table, fd))

    hook = _FSYNC(fsync)
    place.value = ctypes.cast(hook, ctypes.c_void_p).value
    try:
        yield
    finally:
        place.value = before


def until_asleep(*threads: threading.Thread, seconds: float = 20) -> None:
    """Until each has waited in one and the same system call for a while, with the GIL free and a processor to be had;
    or has ended.
    """
    end = time.monotonic() + seconds
    for thread in threads:
        task = Path(f"/proc/self/task/{thread.native_id}")
        seen, same = "", 0
        while same < 10 and thread.is_alive():
            assert time.monotonic() < end
            time.sleep(0.01)
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split()
                now = f"{state[0]} {state[11]} {state[12]} {(task / 'syscall').read_text()}"
            except (FileNotFoundError, ProcessLookupError):
                break
            same = same + 1 if now == seen and state[0] == "S" else 0
            seen = now
