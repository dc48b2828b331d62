"""The simulated operating system of sim_door.c as a Python object.

Room: tests. It must never be used by two stores that are open at the same time in different threads without need, and
never be freed while an object of a store may still call it. What it promises is written at the head of sim_door.c.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from shared_library import shared_library

from mqfast.store.base.os_api import OsApi

__all__ = ["KINDS", "SHORT_COUNT", "Image", "Sim", "in_real_time", "scratch_root"]

_HERE: Final = Path(__file__).resolve().parent
_CSRC: Final = _HERE.parents[1] / "csrc"

# The order of the table in csrc/os_api.h.
KINDS: Final = {
    name: number
    for number, name in enumerate(
        """open close fallocate ftruncate fstat stat mmap munmap madvise mlock munlock msync seek_data pread pwrite
        fdatasync fsync rename unlink mkdir rmdir sync_directory statvfs lock_byte clock_ms monotonic_ns
        sync_filesystem unlock_byte lock_directory""".split()  # noqa: SIM905
    )
}
# A fault that reads or writes half of what was asked.
SHORT_COUNT: Final = 100000
KILLED, STRICT, MIXED, NAMES_ONLY, CONTENTS_ONLY = range(5)
# Long ago, so that a store which is opened later with the real clock only sees times go up.
START_MS: Final = 1_600_000_000_000


class Image(NamedTuple):
    """One crash image: before which call, what had happened by then, and how it was made."""

    call: int
    mark: int
    mode: int
    seed: int


class _Image(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_int64),
        ("mark", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    )


def scratch_root() -> str | None:
    """A directory in memory where there is one: no image needs a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled simulation; compiled once for each state of its sources."""
    path = shared_library(
        "sim",
        [_HERE / "sim_door.c", _CSRC / "os_api.c"],
        ["-O2", "-g", f"-I{_CSRC}", "-lpthread"],
        headers=[_CSRC / "os_api.h"],
    )
    lib = ctypes.CDLL(str(path))
    p, i, i64, u32, u64, s = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.c_char_p,
    )
    signatures: dict[str, tuple[object, list[object]]] = {
        "sim_new": (p, [p, s, i64, i]),
        "sim_free": (None, [p]),
        "sim_images": (None, [p, i64, i64, u32, i, u64, s]),
        "sim_take": (None, [p]),
        "sim_image": (None, [p, s, i, u64]),
        "sim_image_count": (i, [p]),
        "sim_image_list": (ctypes.POINTER(_Image), [p]),
        "sim_mark": (None, [p, i]),
        "sim_freeze": (None, [p, i]),
        "sim_calls": (i64, [p]),
        "sim_count": (i64, [p, i]),
        "sim_clock": (None, [p, i64, i64]),
        "sim_fault": (None, [p, i, i64, i, i]),
        "sim_fault_hits": (i64, [p]),
        "sim_full": (None, [p, i64]),
        "sim_asked_for_space": (i64, [p]),
        "sim_resyncs": (i64, [p]),
        "sim_open_maps": (i, [p]),
        "sim_open_fds": (i, [p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Sim:
    """One simulated system over the tree below ``root``; ``os_api`` is what a store is opened with.

    What is below ``root`` now counts as durable. Everything else is the thin shape of sim_door.c.
    """

    def __init__(self, root: str | os.PathLike[str], *, real_clocks: bool = False, start_ms: int = START_MS) -> None:
        self.root = os.fspath(root)
        self.os_api = OsApi()
        self._lib = library()
        self._sim = self._lib.sim_new(self.os_api.table_address, self.root.encode(), start_ms, int(real_clocks))

    def images(
        self, target: str, *, first: int, last: int, per_call: int, seed: int, kinds: int = (1 << 26) - 1
    ) -> None:
        """Take ``per_call`` images into ``target`` before every call with ``first <= number < last``."""
        self._lib.sim_images(self._sim, first, last, kinds, per_call, seed, target.encode())

    def taken(self) -> list[Image]:
        """The images so far; number n lies in ``target``/n."""
        table = self._lib.sim_image_list(self._sim)
        return [
            Image(table[n].call, table[n].mark, table[n].mode, table[n].seed)
            for n in range(self._lib.sim_image_count(self._sim))
        ]

    def take(self) -> None:
        """A moment at which a crash may come, without a call."""
        self._lib.sim_take(self._sim)

    def image(self, path: str, mode: int, seed: int = 0) -> None:
        """One image of this moment."""
        self._lib.sim_image(self._sim, path.encode(), mode, seed)

    def mark(self, number: int) -> None:
        """Note how far the workload is; images carry it."""
        self._lib.sim_mark(self._sim, number)

    def freeze(self, on: bool) -> None:
        """Calls work but leave no trace, until this is called with False."""
        self._lib.sim_freeze(self._sim, int(on))

    def clock(self, start_ms: int, tick_us: int) -> None:
        """Set the wall clock, and how far each look at it moves it."""
        self._lib.sim_clock(self._sim, start_ms, tick_us)

    def fault(self, kind: str, n: int, error: int, for_ever: bool = False) -> None:
        """Let the n-th call of this kind from now on fail."""
        self._lib.sim_fault(self._sim, KINDS[kind], n, error, int(for_ever))

    def fill(self, n: int = 1) -> None:
        """From the n-th call on that asks for space (blocks, a new name, a longer file) the disk is full."""
        self._lib.sim_full(self._sim, n)

    @property
    def asked_for_space(self) -> int:
        """Such calls since ``fill``."""
        return int(self._lib.sim_asked_for_space(self._sim))

    def heal(self) -> None:
        """No faults any more, and space."""
        self._lib.sim_fault(self._sim, -1, 0, 0, 0)
        self._lib.sim_full(self._sim, 0)

    @property
    def calls(self) -> int:
        """Calls so far."""
        return int(self._lib.sim_calls(self._sim))

    def count(self, kind: str) -> int:
        """Calls of one kind so far."""
        return int(self._lib.sim_count(self._sim, KINDS[kind]))

    @property
    def fault_hits(self) -> int:
        """Calls that failed since ``fault``."""
        return int(self._lib.sim_fault_hits(self._sim))

    @property
    def resyncs(self) -> int:
        """Syncs of pages on which an earlier sync had failed."""
        return int(self._lib.sim_resyncs(self._sim))

    @property
    def open_maps(self) -> int:
        """Mappings that the store holds now."""
        return int(self._lib.sim_open_maps(self._sim))

    @property
    def open_fds(self) -> int:
        """Descriptors that the store holds now."""
        return int(self._lib.sim_open_fds(self._sim))

    def free(self) -> None:
        """End the simulation. Every store object that used its door must be gone or closed."""
        if self._sim:
            self._lib.sim_free(self._sim)
            self._sim = None


@contextmanager
def in_real_time(directory: Path) -> Iterator[Sim]:
    """A simulation with real clocks below a directory, for stores with threads. By the end all must be closed."""
    root = directory / "live"
    root.mkdir()
    sim = Sim(root, real_clocks=True)
    yield sim
    sim.heal()
    assert sim.open_maps == 0
    assert sim.open_fds == 0
    sim.free()
