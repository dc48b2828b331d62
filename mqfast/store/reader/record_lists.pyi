"""Types of record_lists.pyx."""

from typing import Any

from mqfast.store.reader.gather import RecordColumns

def to_lists(batch: RecordColumns, json_maps: bool = False) -> dict[str, list[Any]]: ...
