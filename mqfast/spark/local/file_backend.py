"""The interface of a backend of files, for the modules that ``LocalBackend`` imports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from mqfast.spark.backend import LogAccess
from mqfast.spark.offsets import Place

if TYPE_CHECKING:
    from mqfast.store.reader.store_reader import StoreReader

__all__ = ["FileBackend"]


class FileBackend(LogAccess, Protocol):
    """A backend whose files a ``StoreReader`` reads. Thread: one at a time."""

    @property
    def reader(self) -> StoreReader:
        """The reader of the store's files; ``reopen`` replaces the reader."""

    def reopen(self) -> None:
        """Discard all cached state: the directory may hold another store now."""

    def group_offsets(self, group: str, queues: Iterable[Place] | None = None) -> dict[Place, int]:
        """Return the next queue offset of a consumer group, by queue; of all queues with an offset for None."""

    def modified_ms(self, path: str) -> int:
        """Return the time of a file's last write, ms since the epoch; 0 for a missing file."""
