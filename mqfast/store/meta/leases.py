"""Read leases: a lease keeps a part of the log from deletion by age or budget until the lease expires.

A lease is a JSON file ``spark-leases/<uuid>``: ``minPhysicalOffset`` and ``expiresMs``. A reader in another process
writes, renews and ends the lease; retention honours the lease. Files whose names extend the lease's name behind a
point belong to the owner of the lease. A lease does not stop deletion on a full disk, ends at the stated time, and an
unreadable lease protects nothing.
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
    """Return (physical offset, expiry in ms) of a lease; (0, 0) for an invalid file."""
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
    """Create a lease that keeps the log from a physical offset on for ``ttl_ms``, and remove expired leases.

    Returns: the path of the lease; ``end_lease`` ends the lease.
    Raises: StorageError if the store may not be written.
    """
    now_ms = os_api.now_ms()
    directory = os.path.join(root, _DIRECTORY)
    os_api.makedirs(directory, durable=False)
    for path in _paths(os_api, root):
        if 0 < _read(os_api, path)[1] <= now_ms:
            end_lease(os_api, path)
    names = set(os_api.listdir(directory))
    for name in names:
        if "." in name and name.partition(".")[0] not in names:  # left by a killed process
            os_api.unlink(os.path.join(directory, name), missing_ok=True)
    path = os.path.join(directory, uuid.uuid4().hex)
    renew_lease(os_api, path, min_physical_offset, ttl_ms)
    return path


def renew_lease(os_api: OsApi, path: str, min_physical_offset: int, ttl_ms: int) -> None:
    """Extend a lease to ``ttl_ms`` from now, for the log from this physical offset on. An expired lease is valid again.

    Thread: any, any process. Raises: StorageError.
    """
    expires_ms = os_api.now_ms() + ttl_ms
    data = fastjson.dumps({"expiresMs": expires_ms, "minPhysicalOffset": min_physical_offset})
    temporary = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        os_api.write_file(temporary, data)  # half a lease would protect nothing
        os_api.rename(temporary, path)
    except StorageError:
        os_api.unlink(temporary, missing_ok=True)  # a partial file would keep a block of a full disk
        raise


def end_lease(os_api: OsApi, path: str) -> None:
    """Remove a lease. A missing lease is no error. Raises: StorageError."""
    directory, name = os.path.split(path)
    for beside in os_api.listdir(directory):
        if beside.startswith(f"{name}."):
            os_api.unlink(os.path.join(directory, beside), missing_ok=True)
    os_api.unlink(path, missing_ok=True)


def least_leased(os_api: OsApi, root: str, now_ms: int) -> int | None:
    """Return the lowest physical offset that a valid lease protects; None without a valid lease."""
    leases = [_read(os_api, path) for path in _paths(os_api, root)]
    return min((offset for offset, expires_ms in leases if expires_ms > now_ms), default=None)
