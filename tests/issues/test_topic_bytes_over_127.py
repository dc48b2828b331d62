"""A retry topic of few characters but more than 127 bytes was stored as version 1: its length read as negative, and
neither dispatch nor recovery got past the record.
"""

from __future__ import annotations

from pathlib import Path

import mqfast


def test_such_a_topic_is_stored_as_version_2(tmp_path: Path) -> None:
    topic = "%RETRY%" + "é" * 74
    settings = {"mappedFileSizeCommitLog": 4096, "maxHashSlotNum": 16, "maxIndexNum": 100}
    with mqfast.open(tmp_path / "store", **settings) as store:
        store.put(topic, b"body")
        store.put("T", b"behind it")
    with mqfast.open(tmp_path / "store", **settings) as store:
        assert bytes(store.get(topic, 0, 0)[0].body) == b"body"
        assert bytes(store.get("T", 0, 0)[0].body) == b"behind it"
