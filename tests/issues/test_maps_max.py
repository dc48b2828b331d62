"""``maps_max`` had no effect: a store kept every queue file mapped, until the kernel refused the next mapping."""

from __future__ import annotations

from pathlib import Path

import mqfast


def test_files_that_nobody_uses_are_unmapped(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16}
    with mqfast.open(tmp_path / "store", maxIndexNum=100, maps_max=40, **settings) as store:
        store.put_many("T", [b"x"] * 20_000)
        assert store.max_offset("T", 0) == 20_000
        message = store.get("T", 0, 7)[0]
        store.flush()
        store.log.reap()  # files with unflushed bytes stay mapped
        store._flush.flush_queues()
        # the flush thread may have unmapped some before: then what is left may be as many as are allowed
        assert store.stats()["mapped_files"] <= 40 < len(list(tmp_path.glob("store/consumequeue/T/0/*")))
        assert (bytes(message.body), message.queue_offset) == (b"x", 7)
        for offset in (0, 9_999, 19_999):  # mapped again when asked for
            assert store.get("T", 0, offset, max_count=1)[0].queue_offset == offset
        assert store.put("T", b"y").queue_offset == 20_000
