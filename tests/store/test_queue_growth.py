"""Growth of queue files: step and disk use of ``ConsumeQueue.make_room``."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from laboratory import lab, open_still

from mqfast.config import StoreConfig
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore


def falls_to_the_dispatcher(store: MessageStore, os_api: OsApi, count: int, ms_each: int) -> int:
    """Put so many, so many milliseconds after each other; how often did a queue have no room for a unit?"""
    falls, now = 0, 1_700_000_000_000
    for _ in range(count):
        os_api.fix_clock(now := now + ms_each)
        store.put("T", b"")
        if store.log.dispatched < store.log.written:
            falls += 1
            lab(store).step_dispatch()
    assert store.log.dispatched == store.log.written
    return falls


@pytest.mark.parametrize(("ms_each", "falls", "most_blocks"), [(0, 3, 800), (1, 6, 520)])
def test_a_fast_filling_queue_grows_in_large_steps(tmp_path: Path, ms_each: int, falls: int, most_blocks: int) -> None:
    """Each fall leaves the units of all puts to the dispatcher until it has caught up. Blocks are of 512 bytes."""
    os_api = OsApi()
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=8 << 20, mapped_file_bytes_consume_queue=400_000)
    with open_still(tmp_path / "store", config=config, os_api=os_api) as store:
        assert falls_to_the_dispatcher(store, os_api, 6_500, ms_each) == falls
        (file,) = (tmp_path / "store" / "consumequeue" / "T" / "0").iterdir()
        assert 6_500 * 20 <= file.stat().st_blocks * 512 <= most_blocks * 512


def test_a_nearly_full_disk_gives_a_queue_a_small_step(sim: Any) -> None:
    config = StoreConfig.tiny(mapped_file_bytes_commit_log=1 << 20, mapped_file_bytes_consume_queue=400_000)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    for _ in range(409):
        store.put("T", b"")
        lab(store).step_dispatch()
    sim.fault("fallocate", 1, errno.ENOSPC)
    for _ in range(10):
        store.put("T", b"")
        lab(store).step_dispatch()
    sim.heal()
    assert store.max_offset("T", 0) == 419
    store.close()
