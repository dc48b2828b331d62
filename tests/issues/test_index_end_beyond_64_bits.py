"""An index file whose damaged head says the largest offset there is: opening the store raised OverflowError.

Found by ``python -m tests.damage --small`` (seed 5013438).
"""

from __future__ import annotations

from pathlib import Path

import mqfast

SETTINGS = {"mapped_file_bytes_commit_log": 4096, "max_hash_slot_num": 8, "max_index_num": 20}


def test_the_store_opens_and_finds_by_key(tmp_path: Path) -> None:
    with mqfast.open(tmp_path, **SETTINGS) as store:
        for i in range(4):
            store.put("T", b"%d" % i, keys=f"k{i}")
    (index,) = (tmp_path / "index").iterdir()
    data = bytearray(index.read_bytes())
    data[24:32] = (2**63 - 1).to_bytes(8, "big")
    index.write_bytes(data)
    with mqfast.open(tmp_path, **SETTINGS) as store:
        store.put("T", b"new", keys="new")
        assert [bytes(message.body) for message in store.query("T", "k1")] == [b"1"]
        assert [bytes(message.body) for message in store.query("T", "new")] == [b"new"]
