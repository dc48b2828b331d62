"""The mark of a store whose log is of another history than its master's: the file ``divergedFromMaster``.

A slave writes the mark when a comparison found other records at the master, and removes the mark when the slave follows
again, or was cut. A promotion refuses a store with that mark.

Room: ha. It must never be written for a master that did not answer.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.errors import CorruptFile, StoreNotFound

if TYPE_CHECKING:
    from mqfast.store.base.paths import Door

__all__ = ["Divergence", "forget_divergence", "load_divergence", "note_divergence"]

_NAME: Final = "divergedFromMaster"


class Divergence(NamedTuple):
    """What a comparison found.

    Attributes: common: physical offset up to which both logs are equal; end: of the slave's log; master_end: of its
        master's, as far as the slave heard; master: where that one is; found_ms: when.
    """

    common: int
    end: int
    master_end: int
    master: str
    found_ms: int = 0

    @property
    def own_bytes(self) -> int:
        """So many bytes of this log the master does not have."""
        return max(0, self.end - self.common)

    @property
    def missing_bytes(self) -> int:
        """So many bytes of the master's log this store does not have."""
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


def load_divergence(os_api: Door, root: str) -> Divergence | None:
    """The mark of a store, None where there is none. Raises: CorruptFile, StorageError."""
    path = _path(root)
    try:
        data = os_api.read_file(path)
    except StoreNotFound:
        return None
    try:
        found = json.loads(data)
        common, end, master_end = (int(found[name]) for name in ("common", "end", "masterEnd"))
        return Divergence(common, end, master_end, str(found["master"]), int(found["foundMs"]))
    except (ValueError, TypeError, LookupError):
        expected = "an object with common, end, masterEnd, master and foundMs"
        raise CorruptFile("mark of another history", path=path, expected=expected, found=repr(data[:60])) from None


def note_divergence(os_api: Door, root: str, found: Divergence) -> None:
    """Write the mark. Raises: StorageError. Durability: on the disk when the call returns."""
    value = {
        "common": found.common, "end": found.end, "masterEnd": found.master_end, "master": found.master,
        "foundMs": found.found_ms,
    }  # fmt: skip
    os_api.replace_file(_path(root), json.dumps(value).encode() + b"\n")


def forget_divergence(os_api: Door, root: str) -> None:
    """Remove the mark, if there is one. Raises: StorageError."""
    os_api.unlink(_path(root), missing_ok=True)
