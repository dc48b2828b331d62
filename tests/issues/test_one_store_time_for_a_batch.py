"""Each element of a batch read the clock for itself; RocketMQ gives one store time to all."""

from __future__ import annotations

from pathlib import Path

import mqfast
from mqfast import Message


def test_all_elements_share_one_store_time(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        messages = [Message("T", b"x" * 100) for _ in range(3000)]
        for _ in range(60):  # some of these see the millisecond change
            assert len({result.store_timestamp for result in store.put_batch(messages)}) == 1
