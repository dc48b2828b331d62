"""A bound producer wrote KEYS before TAGS, a general put of the same message TAGS before KEYS. A broker's map of 128
buckets has TAGS first.
"""

from __future__ import annotations

from pathlib import Path

import mqfast
from mqfast import Message


def test_equal_messages_have_equal_properties(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 16) as store:
        store.producer("T", 0, "tag").put(b"", "key")
        store.put("T", b"", tags="tag", keys="key")
        store.put("T", b"", tags="tag", keys=["key"], flag=1)
        store.put_message(Message("T", b"", properties={"KEYS": "key", "TAGS": "tag"}))
        assert [m.properties_bytes for m in store.get("T", 0, 0)] == [b"TAGS\x01tag\x02KEYS\x01key\x02"] * 4
        assert [len(store.query("T", "key")), len(store.get("T", 0, 0, tags="tag"))] == [4, 4]
