"""JsonTable: a small JSON file of ``config/`` that only a broker reads: orderly POP, modes of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles
from mqfast.store.meta.config_file import ConfigFile

__all__ = ["JsonTable"]


class JsonTable:
    """The content of a file, in memory, and the file.

    Attributes: ``root``: the content; ``changed`` replaces the content.
    Thread: changes in one thread; persist: any.
    Durability: a change is in memory until persist.
    """

    def __init__(self, os_api: OsFiles, path: str) -> None:
        self._file: Final = ConfigFile(os_api, path)
        self._lock: Final = Mutex()
        self._changes = self._persisted = 0
        self.root: dict[Any, Any] = {}

    @classmethod
    def load(cls, os_api: OsFiles, path: str) -> JsonTable:
        """Read the file, or the ``.bak``; empty without both. Raises: CorruptFile, StorageError."""
        self = cls(os_api, path)
        self.root = self._file.load()
        return self

    @property
    def warnings(self) -> list[str]:
        """Problems that load noted."""
        return self._file.warnings

    def changed(self, root: dict[Any, Any]) -> None:
        """Set the content; the next persist writes the file."""
        with self._lock:
            self.root = root
            self._changes += 1

    def persist(self, before: Callable[[], object] | None = None) -> bool:
        """Put the content on disk if it changed; see ConfigFile.persist. Raises: StorageError, and as ``before``."""
        with self._lock:
            changes = self._changes
            if changes == self._persisted:
                return False
            content = self.root
        written = self._file.persist(content, before)
        self._persisted = changes
        return written
