"""The table of targets, the floor in C and interleaved rounds, for every benchmark file."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A short look that shows whether everything works; its figures are no figures.
QUICK = os.environ.get("MQFAST_BENCH_QUICK", "") not in ("", "0")
ROUNDS = 3 if QUICK else 9


def compiled(source: str, directory: Path) -> ctypes.CDLL:
    """A C file of this folder, built with the CRC of the engine for this machine."""
    out = directory / f"{source}.so"
    sources = [str(ROOT / "bench" / source), *map(str, sorted((ROOT / "csrc").glob("crc32*.c")))]
    flags = ["-O3", "-std=c11", "-shared", "-fPIC", "-pthread", "-I", str(ROOT / "csrc")]
    subprocess.run(["cc", *flags, *sources, "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def in_memory() -> str | None:
    """A directory on a RAM disk with some room, or None: for what needs thousands of files and no disk."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if found.f_bavail * found.f_frsize > 4 << 30 else None


def scaled(count: int) -> int:
    """The count of a full run, or a tenth of it in a quick one (at least 1)."""
    return max(1, count // 10) if QUICK else count


def interleaved(*works: Callable[[], float], rounds: int = ROUNDS) -> list[list[float]]:
    """Run the works turn about, in changing order; returns the figures of each. The first round is dropped."""
    found: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        order = range(len(works)) if number % 2 else range(len(works) - 1, -1, -1)
        for which in order:
            figure = works[which]()
            if number:
                found[which].append(figure)
    return found


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios of the rounds."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


@dataclass
class Row:
    """One line of the closing table."""

    what: str
    figure: str
    target: str
    met: bool | None
    durability: str
    baseline: str = ""
    """What the same work takes in C, without a store."""


class Table:
    """Collects rows; lives as long as the run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def add(
        self, what: str, figure: str, target: str, met: bool | None, durability: str = "page cache", baseline: str = ""
    ) -> None:
        """Add a line; met None: nothing to compare with; baseline: what the same work takes in C, in the same run."""
        self.rows.append(Row(what, figure, target, met, durability, baseline))


class Floor:
    """The C loops of floor.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._copy = library.floor_ns
        self._record = library.record_floor_ns
        self._sustained = library.sustained_floor_ns
        self._sync = library.sync_floor_ns
        self._pages = library.page_floor_ns
        self._spread = library.spread_floor_ns
        self._gather = library.gather_floor_ns
        self._group = library.group_floor_ns
        self._walk = library.walk_floor_ns
        self._touch = library.touch_floor_ns
        self._hand_over = library.hand_over_floor_ns
        self._hand_over.restype = ctypes.c_int64
        self._hand_over.argtypes = [*[ctypes.c_int64] * 3, ctypes.POINTER(ctypes.c_int64)]
        for function in (self._walk, self._touch, self._sync, self._pages, self._spread, self._gather, self._group):
            function.restype = ctypes.c_int64
        for function, numbers in ((self._copy, 6), (self._record, 7), (self._sustained, 3)):
            function.restype = ctypes.c_int64
            function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_int64] * numbers]
        self._pages.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self._spread.argtypes = [ctypes.c_char_p, *[ctypes.c_int64] * 4]
        self._gather.argtypes = [ctypes.c_char_p, *[ctypes.c_int64] * 4]
        self._group.argtypes = [
            *[ctypes.c_char_p] * 2,
            *[ctypes.c_int64] * 3,
            ctypes.POINTER(ctypes.c_int64),
        ]
        self._walk.argtypes = self._touch.argtypes = [ctypes.c_char_p, *[ctypes.c_int64] * 3]
        self._sync.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]

    def copy_ns(
        self,
        directory: Path,
        size: int,
        count: int = 50_000,
        header: int = 91,
        many: int = 1,
        *,
        unseen: int = 0,
        spare: int = 0,
    ) -> float:
        """ns a record for copy and CRC into a fresh, writable file mapping; of so many different bodies in a row.
        unseen: records before the clock runs; spare: bytes that are made writable after those, to empty the cache.
        """
        path = os.fsencode(directory / "floor")
        return self._copy(path, b"x" * (size * many), many, size, header, count, unseen, spare) / count

    def record_ns(
        self,
        directory: Path,
        size: int,
        count: int,
        header: int,
        many: int = 1,
        *,
        unseen: int = 0,
        spare: int = 0,
        alone: bool = False,
    ) -> float:
        """The same with every field of the record, its queue unit and its place: all that a batch has to write. Alone:
        with the lock, the time and the published end that each of them has when they do not come in a batch.
        """
        path = os.fsencode(directory / "floor")
        bodies = b"x" * (size * many)
        return self._record(path, bodies, many, size, header - 88, count, unseen, spare, alone) / count

    def sustained_ns(self, directory: Path, size: int, megabytes: int = 512, header: int = 91) -> float:
        """The same without a rest, into new pages that a second thread makes ahead."""
        count = (megabytes << 20) // (size + header)
        return self._sustained(os.fsencode(directory / "floor"), b"x" * size, size, header, count) / count

    def page_ns(self, directory: Path, size: int, megabytes: int = 128) -> float:
        """ns that the kernel takes to make as much of a fresh file writable as a record of this size needs."""
        took = self._pages(os.fsencode(directory / "floor"), megabytes << 20)
        return took / (megabytes << 20) * size

    def spread_ns(self, directory: Path, places: int, record: int, count: int, file_bytes: int = 6_004_736) -> float:
        """ns to copy a record and touch the next of so many queues: three lines and their page, then a fence."""
        return self._spread(os.fsencode(directory / "floor"), places, file_bytes, record, count) / count

    def gather_ns(self, directory: Path, size: int, batch: int, count: int = 100_000, header: int = 97) -> float:
        """ns a record to read it once from a mapped file and copy its body into a buffer made for the batch."""
        return self._gather(os.fsencode(directory / "floor"), size, header, count, batch) / count

    def touch_ns(self, directory: Path, size: int, count: int = 100_000, header: int = 97) -> float:
        """ns a record to follow its unit to it and look at its head and its end."""
        return self._touch(os.fsencode(directory / "floor"), size, header, count) / count

    def walk_rate(self, directory: Path, size: int, count: int = 200_000, header: int = 130) -> float:
        """Bytes a second of a walk over records in the page cache that does nothing but the CRC of each body."""
        return (size + header) * count * 1e9 / self._walk(os.fsencode(directory / "floor"), size, header, count)

    def group(self, directory: Path, size: int, threads: int, count: int) -> tuple[float, float]:
        """Records a second, and ns for a sync, of as many threads of C that wait for each other's syncs."""
        syncs = ctypes.c_int64()
        took = self._group(os.fsencode(directory / "floor"), b"x" * size, size, threads, count, ctypes.byref(syncs))
        return threads * count * 1e9 / took, took / syncs.value

    def hand_over_ns(self, count: int, pause_ns: int, nap_ns: int) -> list[int]:
        """ns from one thread of C to another that looks at a word without a rest (0), or sleeps so long in between."""
        took = (ctypes.c_int64 * count)()
        if self._hand_over(count, pause_ns, nap_ns, took) < 0:
            raise OSError("the floor's second thread cannot be started")
        return list(took)

    def sync_ns(self, directory: Path, size: int, count: int = 200) -> float:
        """ns for one append and fdatasync."""
        return self._sync(os.fsencode(directory / "floor"), b"x" * size, size, count) / count
