"""Memory that the machine really has: what a virtual machine's host took back is asked for before anything is measured.

A host with free page reporting takes the pages that its guest does not use; the next touch of each costs twenty times
what the one after costs (here 9.4 and 0.4 us for 4 KiB), in whatever store happens to touch it. It must never change
the machine for longer than the run: the one setting that it changes is put back.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_REPORTING_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_NEVER = "11"  # free blocks have orders up to 10
# Advice of Linux that the standard library has no name for.
_HUGE_PAGES, _POPULATE_WRITE = 14, 23
_PIECE_BYTES = 1 << 30
_RESERVE_BYTES = 512 << 20  # of the free memory, for whatever else the machine does meanwhile


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What could be used without swapping, and without being killed for it: the least of what the kernel has and of
    what the control groups of this process may still take. 0 where nothing says so.
    """
    least = _told(proc, "MemAvailable:")
    for limit, used in _groups(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # the root has no limit, and "max" is none
            least = min(least, max(0, int(limit.read_text()) - int(used.read_text())))
    return least


def _told(proc: Path, name: str) -> int:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, Path]]:
    """Files with limit and use of each control group of this process, of version 2 and of version 1."""
    try:
        groups = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in groups:
        if number == "0":
            top, limit, used = cgroups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")  # in a container it may be named as the host sees it: then only the top is there
        for place in (group, *group.parents):
            if place == top or top in place.parents:
                yield place / limit, place / used


def touchable_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Three quarters of what is available, or nearly all that is free where that is more: files that the kernel keeps
    have their memory, and a run whose stores walk through the rest finds each page that was left out.
    """
    available = available_bytes(proc, cgroups)
    return max(available // 4 * 3, min(available, _told(proc, "MemFree:")) - _RESERVE_BYTES)


def touch(most_bytes: int) -> int:
    """Write to so much memory, at most touchable_bytes(), and give it back. Returns: bytes."""
    wanted = min(most_bytes, touchable_bytes())
    touched = 0
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        while touched < wanted:
            piece = min(_PIECE_BYTES, wanted - touched)
            memory = held.enter_context(mmap.mmap(-1, piece, flags=mmap.MAP_PRIVATE))
            memory.madvise(_HUGE_PAGES)
            memory.madvise(_POPULATE_WRITE)
            touched += piece
    return touched


@contextlib.contextmanager
def kept(most_bytes: int = 1 << 60) -> Iterator[str]:
    """Have so much memory backed by the host while the block runs, where root asks for it. Yields: what was done."""
    before = ""
    with contextlib.suppress(OSError):
        order = _REPORTING_ORDER.read_text()
        _REPORTING_ORDER.write_text(_NEVER)
        before = order
    try:
        told = f"{touch(most_bytes) / 2**30:.0f} GiB touched before the run"
        if before:
            told += ", free page reporting to the host off meanwhile"
        elif os.path.exists(_REPORTING_ORDER):
            told += ", the host may take free pages back meanwhile"
        yield told
    finally:
        if before:
            with contextlib.suppress(OSError):
                _REPORTING_ORDER.write_text(before)
