"""The table of targets and the floor in C, for every benchmark file."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Row:
    """One line of the closing table."""

    what: str
    figure: str
    target: str
    met: bool | None
    durability: str


class Table:
    """Collects rows; lives as long as the run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, what: str, figure: str, target: str, met: bool | None, durability: str = "page cache") -> None:
        """Add a line; met None: nothing to compare with."""
        self.rows.append(Row(what, figure, target, met, durability))


class Floor:
    """The C loops of floor.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._copy = library.floor_ns
        self._sync = library.sync_floor_ns
        self._pages = library.page_floor_ns
        for function in (self._copy, self._sync, self._pages):
            function.restype = ctypes.c_int64
        self._copy.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
        self._pages.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        self._sync.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]

    def copy_ns(self, directory: Path, size: int, count: int = 50_000, header: int = 91) -> float:
        """ns a record for copy and CRC into a fresh, writable file mapping."""
        return self._copy(os.fsencode(directory / "floor"), b"x" * size, size, header, count) / count

    def page_ns(self, directory: Path, size: int, megabytes: int = 128) -> float:
        """ns that the kernel takes to make as much of a fresh file writable as a record of this size needs."""
        took = self._pages(os.fsencode(directory / "floor"), megabytes << 20)
        return took / (megabytes << 20) * size

    def sync_ns(self, directory: Path, size: int, count: int = 200) -> float:
        """ns for one append and fdatasync."""
        return self._sync(os.fsencode(directory / "floor"), b"x" * size, size, count) / count
