"""``max_mapped_files`` had no effect: a store kept every queue file mapped, until the kernel refused a mapping."""

from __future__ import annotations

import shutil
from pathlib import Path

from laboratory import lab
from store.small_store import eventually

import mqfast


def test_files_that_nobody_uses_are_unmapped(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16}
    with mqfast.open(tmp_path / "store", maxIndexNum=100, max_mapped_files=40, **settings) as store:
        store.put_many("T", [b"x"] * 20_000)
        assert store.max_offset("T", 0) == 20_000
        message = store.get("T", 0, 7)[0]
        store.flush()
        store.log.reap()  # files with unflushed bytes stay mapped
        lab(store).flush_queues()
        # Files that the flush thread syncs meanwhile stay mapped; this thread unmaps them when the sync is done.
        assert eventually(lambda: store.stats()["mapped_files"] <= 40)
        assert len(list(tmp_path.glob("store/consumequeue/T/0/*"))) > 40
        assert (bytes(message.body), message.queue_offset) == (b"x", 7)
        for offset in (0, 9_999, 19_999):  # mapped again when asked for
            assert store.get("T", 0, offset, max_count=1)[0].queue_offset == offset
        assert store.put("T", b"y").queue_offset == 20_000


def test_queues_that_are_written_to_are_unmapped_as_well(tmp_path: Path) -> None:
    """Each kept the file of its next unit mapped: with more queues than the kernel allows mappings every put failed."""
    settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16}
    with mqfast.open(tmp_path / "store", maxIndexNum=100, max_mapped_files=40, **settings) as store:
        for turn in range(6):  # more than a file of each
            for number in range(100):
                store.put_many(f"T{number}", [b"%d" % number] * 5)
            assert len(store.topics()) == 100  # all is dispatched
            if turn % 2:
                store.flush()
                lab(store).flush_queues()
            # A sync of the flush thread under way holds the files of all queues that have new units.
            assert eventually(lambda: store.stats()["mapped_files"] <= 60)
        check(store)
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    (tmp_path / "killed" / "checkpoint").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "killed" / "consumequeue")
    for name in ("store", "killed"):  # closed, and rebuilt from the log
        with mqfast.open(tmp_path / name, maxIndexNum=100, max_mapped_files=40, **settings) as store:
            assert eventually(lambda: store.stats()["mapped_files"] <= 60)
            check(store)
            assert store.put("T7", b"7").queue_offset == 30


def check(store: mqfast.MessageStore) -> None:
    for number in range(100):
        found = store.get(f"T{number}", 0, 0, 32)
        assert [bytes(message.body) for message in found] == [b"%d" % number] * 30
