"""Disk use of the filesystems that hold a store. Retention and the engine decide the consequences."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqfast.store.base.os_api import OsApi
    from mqfast.store.base.paths import StorePaths

__all__ = ["DiskUse", "disk_use"]


@dataclass(frozen=True)
class DiskUse:
    """The fullest filesystem below the store's files: percent in use (rounded up as df does), and a path on it."""

    percent: int
    path: str


def disk_use(os_api: OsApi, paths: StorePaths) -> DiskUse:
    """Return the use of the fullest filesystem that holds log, queue or index files (links resolved).

    Raises: StorageError.
    """
    worst, seen = DiskUse(-1, paths.root), set()
    kinds = [*paths.commit_logs, paths.consume_queue, paths.batch_consume_queue, paths.index]
    for path, device in zip(kinds, os_api.devices(kinds), strict=True):
        while device < 0:
            path = os.path.dirname(path)
            (device,) = os_api.devices([path])
        if device in seen:
            continue
        seen.add(device)
        total, available = os_api.statvfs(path)
        percent = -(-(total - available) * 100 // total) if total > 0 else 0
        if percent > worst.percent:
            worst = DiskUse(percent, path)
    return worst
