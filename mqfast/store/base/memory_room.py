"""Free memory for the files of a file system in memory (tmpfs), before the kernel kills the process.

A tmpfs reports the free space of the tmpfs, not the free memory: a control group or a machine with less memory kills
the process with SIGKILL. So the memory is checked before a new log file there is created. Limits that cannot be read,
and machines that swap, refuse nothing.
"""

from __future__ import annotations

import os.path
from errno import ENOSPC
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import DiskFull, MqfastError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqfast.store.base.os_api import OsApi

__all__ = ["MemoryRoom", "mount_of"]

_LEAST_SPARE: Final = 4 << 20  # for queue and index files, and the process: verify needs more than 1 MiB of it
_MOST_SPARE: Final = 16 << 20
_UNLIMITED: Final = 1 << 62
_GROUPS: Final = "/sys/fs/cgroup"


class _Limit(NamedTuple):
    """Files of a control group, version 2 or 1: limit, use, and numbers by name."""

    limit: str
    used: str
    stat: str
    reclaimable: tuple[str, ...]


_NEWER: Final = _Limit("memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file"))
_OLDER: Final = _Limit(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", ("total_inactive_file", "total_active_file")
)


def _read(os_api: OsApi, path: str) -> str | None:
    try:
        return os_api.read_file(path, max_bytes=1 << 20).decode("utf-8", "surrogateescape")
    except MqfastError:
        return None


def mount_of(os_api: OsApi, place: str) -> tuple[str, str, str] | None:
    """Return (device, kind, options) of the filesystem that holds ``place``, an absolute path; None if unknown."""
    text = _read(os_api, "/proc/self/mounts")
    best: tuple[str, tuple[str, str, str]] | None = None
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = fields[1].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best[0])):
            best = (point, (fields[0], fields[2], fields[3]))
    return best[1] if best is not None else None


def _numbers(text: str | None) -> dict[str, int]:
    """Return name -> number of lines like ``name 12`` or ``Name: 12 kB``, the latter in bytes."""
    numbers: dict[str, int] = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1].isdigit():
            numbers[fields[0].rstrip(":")] = int(fields[1]) * (1024 if fields[-1] == "kB" else 1)
    return numbers


class MemoryRoom:
    """Check of the free memory before a file is created. Thread: any."""

    def __init__(self, os_api: OsApi, directory: str) -> None:
        self._os_api = os_api
        mount = mount_of(os_api, directory)
        self._is_memory = mount is not None and mount[1] in ("tmpfs", "ramfs")

    def check(self, wanted: int, path: str, setting: str) -> None:
        """Check that a file of ``wanted`` bytes fits.

        Raises: DiskFull, with the free bytes and the name of the limit.
        """
        if not self._is_memory:
            return
        machine = _numbers(_read(self._os_api, "/proc/meminfo"))
        if machine.get("SwapTotal", 1):
            return
        rooms = [(machine.get("MemAvailable", _UNLIMITED), "this machine"), *self._groups()]
        free, whose = min(rooms)
        spare = max(_LEAST_SPARE, min(_MOST_SPARE, wanted // 4))
        if free >= wanted + spare:
            return
        error = DiskFull(
            ENOSPC,
            f"the file system is in memory: wanted {wanted} bytes and {spare} to spare, "
            f"{max(0, free)} are free in {whose}; {setting} asks for less",
            path,
        )
        error.wanted_bytes, error.free_bytes, error.setting = wanted, max(0, free), setting
        raise error

    def _groups(self) -> Iterator[tuple[int, str]]:
        """Yield (free bytes, name) of this process's control groups with a limit, outermost last."""
        for line in (_read(self._os_api, "/proc/self/cgroup") or "").splitlines():
            _, kinds, place = [*line.split(":", 2), "", ""][:3]
            if kinds and "memory" not in kinds.split(","):
                continue
            tree = f"{_GROUPS}/memory" if kinds else _GROUPS
            while True:  # in a container the outer groups may be invisible
                directory = tree + place.rstrip("/")
                free = self._room_of(directory, _OLDER if kinds else _NEWER)
                if free is not None:
                    yield free, f"the control group {directory}"
                if place in ("", "/"):
                    break
                place = os.path.dirname(place)

    def _room_of(self, directory: str, kind: _Limit) -> int | None:
        limit, used = (_read(self._os_api, f"{directory}/{name}") for name in (kind.limit, kind.used))
        if limit is None or used is None or not limit.strip().isdigit():  # "max": none
            return None
        if int(limit) >= _UNLIMITED:
            return None
        numbers = _numbers(_read(self._os_api, f"{directory}/{kind.stat}"))
        return int(limit) - int(used) + sum(numbers.get(name, 0) for name in kind.reclaimable)
