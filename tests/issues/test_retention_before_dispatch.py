"""Retention removed log files whose records had no queue units yet; the queue then stood at lower offsets than its
records, and the next message got an offset far behind its unit.
"""

from __future__ import annotations

import os
from pathlib import Path

from laboratory import lab
from other_thread import in_another_thread

import mqfast

SMALL = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200, "maxHashSlotNum": 16, "maxIndexNum": 100}


def test_a_log_file_goes_only_when_it_is_dispatched(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", fileReservedTime=1, deleteWhen="00;01;02;03;04", **SMALL) as store:
        with lab(store).dispatcher.locked():  # as if dispatch were slow

            def put() -> None:
                for i in range(40):
                    store.put("T", b"x" * 400, keys=f"k{i}")
                store.flush()

            in_another_thread(put)
            store.log.reap()
            for path in (tmp_path / "store/commitlog").iterdir():
                os.utime(path, (0, 0))
            lab(store).retention_at_any_hour()
            assert store.retention.run_once(store.os_api.now_ms()) == 0
        assert store.max_offset("T", 0) == 40
        lab(store).retention_at_any_hour()
        assert store.retention.run_once(store.os_api.now_ms()) >= 3
        first = store.min_offset("T", 0)
        assert [m.record_queue_offset for m in store.get("T", 0, first, max_count=40)] == list(range(first, 40))
        assert store.put("T", b"next").queue_offset == 40
        assert bytes(store.get("T", 0, 40)[0].body) == b"next"
