"""A get at the tail returns although the queue grows between its two looks at the queue's end.

With a pool or a sync flush the end that readers may see is looked up after the end of the units. A unit that was put in
between made the get look for ever for a place behind the end that it had read first.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import mqfast

MESSAGES = 60_000
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3, "commitIntervalCommitLog": 1}


@pytest.mark.parametrize("mode", [POOL, {"flushDiskType": "SYNC_FLUSH"}], ids=["pool", "sync"])
def test_get_returns_while_the_queue_grows(tmp_path: Path, mode: dict[str, Any]) -> None:
    with mqfast.open(
        tmp_path / "store", mappedFileSizeCommitLog=4 << 20, message_index_enable=False, dispatch="background", **mode
    ) as store:
        seen: list[int] = []

        def read() -> None:
            offset = 0
            while offset < MESSAGES:
                found = store.get("T", 0, offset, 100_000, 1 << 30)
                seen.append(len(found))
                offset += len(found)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(MESSAGES // 100):
            store.put_many("T", [b"x" * 20] * 100)
        reader.join()
    assert sum(seen) == MESSAGES
    assert len(seen) > 100, "the reader was to look many times while the queue grew"
