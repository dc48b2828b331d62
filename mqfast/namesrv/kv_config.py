"""Names and values that admins store in the name server, in a JSON file: ``{"configTable":{namespace:{key:value}}}``.

A new file is complete and on disk before the old file is replaced; the old file is kept as ``.bak``. Source:
KVConfigManager, MixAll.string2File.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from mqfast.errors import CorruptFile, FieldError
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.util.atomic_file import replace_file

__all__ = ["ORDER_TOPICS", "KvConfig"]

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the ordered topics: topic -> ``broker:queues;...``."""


_BYTES_MAX: Final = 1 << 20  # each change writes the whole file


class _File(Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """The table and the file.

    Args: path: None keeps the table in memory only.
    Durability: a change is on disk when the call returns.
    Raises: CorruptFile for a file without such a table; the builtin of StorageError, OSError, if a write fails.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        if path is not None:
            table = _read(path)
            self._table = (_read(_with(path, ".bak")) or {}) if table is None else table

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if missing."""
        return self._table.get(namespace, {}).get(key)

    def all_of(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None for a namespace that never had a value."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and write the file."""
        changed = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        self._write(changed)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value and write the file."""
        if key in self._table.get(namespace, {}):
            remaining = {name: value for name, value in self._table[namespace].items() if name != key}
            self._write({**self._table, namespace: remaining})

    def _write(self, table: dict[str, dict[str, str]]) -> None:
        data = encode_body(_File(table))
        if len(data) > _BYTES_MAX:
            raise FieldError("value", f"at most {_BYTES_MAX} bytes of all values", str(len(data)))
        if self._path is not None:
            replace_file(self._path, data, mode=0o644, backup=".bak")
        self._table = table


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _read(path: Path) -> dict[str, dict[str, str]] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return decode_body(data, _File, "configTable").config_table
    except FieldError as error:
        backup = _with(path, ".bak")
        raise CorruptFile(
            f"the name server's values cannot be read ({error}); repair the file, or put {backup.name} in its place",
            path=str(path),
        ) from None


build_tables(__name__)
