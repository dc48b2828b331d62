"""A disk that is as full as a test says.

Room: tests. It must never answer for anything but the free space.
"""

from __future__ import annotations

import ctypes
import os

from mqfast.store.base.os_api import OsApi

_STATVFS = 22  # its place in struct mq_os (csrc/os_api.h)
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64)
)


class Disk:
    """``os_api`` says ``used_percent`` of every filesystem, and ``below[path]`` of what lies at or below that path."""

    def __init__(self, used_percent: int) -> None:
        self.os_api = OsApi()
        self.used_percent = used_percent
        self.below: dict[str, int] = {}
        self._callback = _CALL(self._statvfs)
        table = (ctypes.c_void_p * 27).from_address(self.os_api.table_address)
        table[_STATVFS] = ctypes.cast(self._callback, ctypes.c_void_p).value

    def _statvfs(self, _os: int, path: bytes, total: object, available: object) -> int:
        used = self.used_percent
        for top, percent in self.below.items():
            if os.path.commonpath([top, os.fsdecode(path)]) == top:
                used = percent
        total[0], available[0] = 1000, 1000 - used * 10  # type: ignore[index]
        return 0
