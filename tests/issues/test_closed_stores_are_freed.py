"""A store that had taken a message stayed in memory after it was closed: it and its last producer held each other, and
neither lets the garbage collector cut it.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.message import Message
from mqfast.store.log.commit_log import CommitLog
from mqfast.store.queues.consume_queue import ConsumeQueue

POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3}


def _use(path: Path, settings: dict[str, Any]) -> weakref.ref[mqfast.MessageStore]:
    with mqfast.open(path, mappedFileSizeCommitLog=1 << 20, **settings) as store:
        store.put("T", b"a", tags="A")
        store.put("T", b"b", keys="k")
        producer = store.producer("T", 1)
        producer.put(b"c")
        producer.put_many([b"d", b"e"])
        store.put_batch([Message("T", b"f"), Message("U", b"g")])
        store.put_nowait("T", b"h").wait(60)
        assert len(store.get("T", 0, 0)) == 4
        assert len(store.query("T", "k")) == 1
        assert len(store.consumer("group", "T").poll()) > 0
        store.stats()
        store.delete_topic("U")
    return weakref.ref(store)


@pytest.mark.parametrize("settings", [{}, POOL], ids=["mmap", "pool"])
def test_nothing_of_a_closed_store_is_left(tmp_path: Path, settings: dict[str, Any]) -> None:
    gc.collect()
    before = [sum(type(o) is kind for o in gc.get_objects()) for kind in (CommitLog, ConsumeQueue)]
    store = _use(tmp_path / "store", settings)
    gc.collect()
    assert store() is None
    assert [sum(type(o) is kind for o in gc.get_objects()) for kind in (CommitLog, ConsumeQueue)] == before
