"""An event loop that is closed while a message waits for the disk: no traceback in the log, and the others are told."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import mqfast


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_nothing_is_logged_and_other_waiters_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", "mapped_file_bytes_commit_log": 1 << 20}
    with caplog.at_level(logging.DEBUG, "mqfast"), mqfast.open(tmp_path / "store", **settings) as store:
        told: list[object] = []
        for _ in range(30):
            loop = asyncio.new_event_loop()
            task = loop.create_task(store.aput("T", b"x"))
            loop.run_until_complete(asyncio.sleep(0))
            if how == "cancelled":
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            loop.close()
            store.put_nowait("T", b"y").add_done_callback(told.append)
        assert store.flush(60)
        assert asyncio.run(store.aput("T", b"z")).status.name == "PUT_OK"
        assert store.max_offset("T", 0) == 61
    assert len(told) == 30
    errors = [record for record in caplog.records if record.name.startswith("mqfast") and record.levelno > logging.INFO]
    assert errors == []
