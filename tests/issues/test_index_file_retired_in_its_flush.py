"""Retention that took a full index file while it was being flushed made the dispatch of the next record fail.

Room: tests/issues. The moment is held by an msync that lets retention run before it answers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import mqfast
from mqfast.store._os import OsDoor
from mqfast.store.message_store import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from simulation import KINDS


def store_with_full_index(path: Path, door: OsDoor) -> mqfast.MessageStore:
    config = mqfast.StoreConfig(max_hash_slot_num=5, max_index_num=6)
    store = open_store(path, config=config, door=door, _start_services=False)
    for number in range(5):
        store.put("T", b"x", keys=f"k{number}")
    return store


def test_it_is_no_failure(tmp_path: Path) -> None:
    door = OsDoor()
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    place = ctypes.c_void_p.from_address(door.table_address + KINDS["msync"] * ctypes.sizeof(ctypes.c_void_p))
    real = call(place.value or 0)
    gone: list[str] = []

    def msync(table: int, address: int, length: int) -> int:
        gone.extend(retire())
        return int(real(table, address, length))

    hook = call(msync)
    with store_with_full_index(tmp_path / "s", door) as store:
        index = store._index
        assert index is not None
        retire: Callable[[], list[str]] = lambda: index.delete_expired(1 << 40)  # noqa: E731
        place.value = ctypes.cast(hook, ctypes.c_void_p).value
        try:
            store.put("T", b"x", keys="next")
            store.get("T", 0, 0)  # dispatched: the full file is flushed, and the next one made
        finally:
            place.value = ctypes.cast(real, ctypes.c_void_p).value
        assert len(gone) == 1
        assert [bytes(m.body) for m in store.query("T", "next")] == [b"x"]
