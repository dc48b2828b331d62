"""MessageStore.query and StoreReader.query: the same messages, newest first, over several index files and long chains.

Room: tests of the store.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import mqfast

KEYS = ("Aa", "BB", "k0", "k1", "often")  # Aa and BB have the same hash
SETTINGS = {"mappedFileSizeCommitLog": 1 << 16, "maxHashSlotNum": 2, "maxIndexNum": 16}


def fill(path: Path) -> list[tuple[int, int, set[str]]]:
    """(physical offset, store time, keys) of every message of topic T, in the order of the log."""
    chance = random.Random(33)
    put = []
    with mqfast.open(path, **SETTINGS) as store:
        for number in range(200):
            keys = {"often", chance.choice(KEYS)} - ({"often"} if number % 5 == 0 else set())
            unique = f"u{number % 50}"
            result = store.put(
                "T", b"%d" % number, number % 3, keys=" ".join(sorted(keys)), properties={"UNIQ_KEY": unique}
            )
            put.append((result.physical_offset, result.store_timestamp, keys | {unique}))
            store.put("Other", b"x", keys="often k0")
        store.topics()  # has everything dispatched
        assert store.stats()["index_files"] > 10
    return put


@pytest.mark.parametrize("how", ["closed", "copied while open, recovered"])
def test_store_and_reader_answer_the_newest_first(how: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    put = fill(path)
    if how != "closed":
        with mqfast.open(path, **SETTINGS) as store:
            store.put("T", b"last", keys="often")
            store.flush()
            shutil.copytree(path, tmp_path / "copy")
        path = tmp_path / "copy"
        (path / "checkpoint").unlink()  # the whole log is dispatched again
        with mqfast.open(path, **SETTINGS) as store:
            last = store.query("T", "often", 1)[0]
            put.append((last.physical_offset, last.store_timestamp, {"often"}))
            assert last.body == b"last"
    first, end = put[0][1], put[-1][1]
    with (
        mqfast.open(path, **SETTINGS) as store,
        mqfast.StoreReader(path, max_hash_slot_num=2, max_index_num=16) as reader,
    ):
        for key in (*KEYS, "u7", "none"):
            for begin, last in ((0, 2**63 - 1), (first, end), (end, 2**63 - 1), ((first + end) // 2, end)):
                holders = [place for place, time, keys in put if key in keys and begin <= time <= last][::-1]
                for limit in (1, 2, 7, 32, 64, 1000):
                    asked = ("T", key, limit, begin, last)
                    assert [m.physical_offset for m in store.query(*asked)] == holders[:limit], asked
                    assert [m.physical_offset for m in reader.query(*asked)] == holders[:limit], asked
