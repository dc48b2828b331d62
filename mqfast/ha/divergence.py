"""The mark ``divergedFromMaster`` of a store whose log diverged from its master's log.

A slave writes the mark when a comparison found other records at the master. The slave removes the mark when it follows
again or was truncated. A promotion refuses a store with the mark. A master that did not answer leads to no mark.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile, StoreNotFound

if TYPE_CHECKING:
    from mqfast.store.base.paths import OsFiles

__all__ = ["Divergence", "forget_divergence", "load_divergence", "note_divergence"]

_NAME: Final = "divergedFromMaster"


class Divergence(NamedTuple):
    """The result of a comparison of two logs.

    Attributes: common: physical offset up to which both logs are equal; end: of the slave's log; master_end: the last
        known end of the master's log; master: its address; found_ms: time of the comparison.
    """

    common: int
    end: int
    master_end: int
    master: str
    found_ms: int = 0

    @property
    def own_bytes(self) -> int:
        """Return the number of bytes of this log that the master does not have."""
        return max(0, self.end - self.common)

    @property
    def missing_bytes(self) -> int:
        """Return the number of bytes of the master's log that this store does not have."""
        return max(0, self.master_end - self.common)

    def __str__(self) -> str:
        if not self.own_bytes:
            return (
                f"this log ends at {self.end}, and lacks {self.missing_bytes} bytes of its master {self.master} (to "
                f"{self.master_end}), which does not send what follows here"
            )
        return (
            f"this log is of another history than that of its master {self.master}: from physical offset {self.common} "
            f"on, {self.own_bytes} bytes (to {self.end}) are not the master's, and {self.missing_bytes} bytes of the "
            f"master (to {self.master_end}) are not here"
        )


def _path(root: str) -> str:
    return os.path.join(root, _NAME)


def load_divergence(os_api: OsFiles, root: str) -> Divergence | None:
    """Return the mark of a store, None without a mark. Raises: CorruptFile, StorageError."""
    path = _path(root)
    try:
        data = os_api.read_file(path)
    except StoreNotFound:
        return None
    try:
        fields = json.loads(data)
        common, end, master_end = (int(fields[name]) for name in ("common", "end", "masterEnd"))
        return Divergence(common, end, master_end, str(fields["master"]), int(fields["foundMs"]))
    except (ValueError, TypeError, LookupError):
        expected = "an object with common, end, masterEnd, master and foundMs"
        raise CorruptFile("mark of another history", path=path, expected=expected, found=repr(data[:60])) from None


def note_divergence(os_api: OsFiles, root: str, divergence: Divergence) -> None:
    """Write the mark. Raises: StorageError. Durability: on the disk when the call returns."""
    value = {
        "common": divergence.common, "end": divergence.end, "masterEnd": divergence.master_end,
        "master": divergence.master, "foundMs": divergence.found_ms,
    }  # fmt: skip
    os_api.replace_file(_path(root), json.dumps(value).encode() + b"\n")


def forget_divergence(os_api: OsFiles, root: str) -> None:
    """Remove the mark, if there is one. Raises: StorageError."""
    os_api.unlink(_path(root), missing_ok=True)
