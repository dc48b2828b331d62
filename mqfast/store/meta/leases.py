"""Leases: who has planned to read a part of the log keeps it from being deleted by age or budget for a while.

Room: the store. A lease is a small file ``spark-leases/<uuid>`` of JSON: ``minPhysicalOffset`` and ``expiresMs``. A
reader in another process writes it, renews it while it reads, and ends it; retention honours it. Files beside it whose
names go on behind a point are its owners' own. It must never keep a disk from being cleared when it runs
full, and never hold longer than it says; a file that cannot be read holds nothing.
"""

from __future__ import annotations

import logging
import os
import uuid
from typing import Final

from mqfast.errors import MqfastError, StorageError
from mqfast.store.base.os_api import OsApi
from mqfast.util import fastjson

__all__ = ["end_lease", "least_leased", "renew_lease", "write_lease"]

_log = logging.getLogger("mqfast.store")
_DIRECTORY: Final = "spark-leases"
_MOST_BYTES: Final = 4096
_TEMPORARY: Final = ".tmp"


def _read(os_api: OsApi, path: str) -> tuple[int, int]:
    """(physical offset, when it ends in ms) of one lease; (0, 0) of what is none."""
    try:
        root = fastjson.loads(os_api.read_file(path, max_bytes=_MOST_BYTES), path)
        offset, expires_ms = root["minPhysicalOffset"], root["expiresMs"]
    except (MqfastError, KeyError, TypeError):
        return 0, 0
    return (offset, expires_ms) if type(offset) is int and type(expires_ms) is int else (0, 0)


def _paths(os_api: OsApi, root: str) -> list[str]:
    directory = os.path.join(root, _DIRECTORY)
    if not os_api.is_dir(directory):
        return []
    return [os.path.join(directory, name) for name in os_api.listdir(directory) if "." not in name]


def write_lease(os_api: OsApi, root: str, min_physical_offset: int, ttl_ms: int) -> str:
    """Ask for everything from a physical offset on to be kept for ``ttl_ms``; removes leases that have ended.

    Returns: the path of the lease; ``end_lease`` ends it.
    Raises: StorageError, where the store may not be written.
    """
    now_ms = os_api.now_ms()
    directory = os.path.join(root, _DIRECTORY)
    os_api.makedirs(directory, durable=False)
    for path in _paths(os_api, root):
        if 0 < _read(os_api, path)[1] <= now_ms:
            end_lease(os_api, path)
    names = set(os_api.listdir(directory))
    for name in names:
        if "." in name and name.partition(".")[0] not in names:  # what a process left that was killed
            os_api.unlink(os.path.join(directory, name), missing_ok=True)
    path = os.path.join(directory, uuid.uuid4().hex)
    renew_lease(os_api, path, min_physical_offset, ttl_ms)
    return path


def renew_lease(os_api: OsApi, path: str, min_physical_offset: int, ttl_ms: int) -> None:
    """Ask for ``ttl_ms`` from now on, for what begins at this physical offset; also where the lease has ended.

    Thread: any, any process. Raises: StorageError.
    """
    expires_ms = os_api.now_ms() + ttl_ms
    data = fastjson.dumps({"expiresMs": expires_ms, "minPhysicalOffset": min_physical_offset})
    temporary = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        os_api.write_file(temporary, data)  # half a lease would hold nothing
        os_api.rename(temporary, path)
    except StorageError:
        os_api.unlink(temporary, missing_ok=True)  # a part of it would keep a block of a full disk
        raise


def end_lease(os_api: OsApi, path: str) -> None:
    """Let retention have what the lease kept; also where it is gone. Raises: StorageError."""
    directory, name = os.path.split(path)
    for beside in os_api.listdir(directory):
        if beside.startswith(f"{name}."):
            os_api.unlink(os.path.join(directory, beside), missing_ok=True)
    os_api.unlink(path, missing_ok=True)


def least_leased(os_api: OsApi, root: str, now_ms: int) -> int | None:
    """The lowest physical offset that a lease in force asks to be kept; None when there is none."""
    found = [_read(os_api, path) for path in _paths(os_api, root)]
    return min((offset for offset, expires_ms in found if expires_ms > now_ms), default=None)
