"""Dispatch with a transient store pool: records that are only in the buffer are dispatched, so that puts put their
units.

The walk: ``mqfast/store/dispatch/dispatch.pyx``. Readers never get an uncommitted record.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from laboratory import bodies, lab, open_still
from store.small_store import (
    POOL,
    still,
)

from mqfast.config import StoreConfig
from mqfast.errors import StoreFailed
from mqfast.store.message_store import MessageStore

# What a record may need beside a unit where its queue has room for one.
NEEDS: dict[str, dict[str, Any]] = {
    "a key": {"keys": "k"},
    "a queue": {"queue_id": 1},
    "a topic": {"topic": "New"},
    "a time": {"topic": "SCHEDULE_TOPIC_XXXX", "properties": {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}},
    "several units": {"properties": {"INNER_MULTI_DISPATCH": "%LMQ%x"}},
}


def pooled(path: Path, **settings: Any) -> MessageStore:
    """A store with a pool and without threads; its first record is committed and dispatched, its queue has room."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    store = still(path, **{**POOL, **light, "mapped_file_bytes_consume_queue": 4000, **settings})
    store.put("T", b"first")
    store.log.commit()
    lab(store).step_dispatch()
    return store


def fall_back(store: MessageStore) -> int:
    """Put until a put leaves its unit to the dispatcher, and commit that; returns how far the log is committed."""
    while store.log.dispatched == store.log.written:
        store.put("T", b"y")
    return store.log.commit()


def units(store: MessageStore, names: list[tuple[str, int]]) -> dict[Any, Any]:
    """(physical offset, size) of every unit of these queues."""
    found = {}
    for name in names:
        queue = lab(store).queues.table.get(*name)
        count = 0 if queue is None else queue.max_offset
        found[name] = [queue.unit(at)[:2] for at in range(count)] if queue is not None else []
    return found


def test_records_with_keys_are_dispatched_after_the_interval_commit(tmp_path: Path) -> None:
    """Else it would commit a few bytes for each of them."""
    with pooled(tmp_path / "store") as store:
        store.put("T", b"for the dispatcher", keys="k")
        store.put("T", b"plain")
        committed = store.log.commit()
        store.put("T", b"in the buffer only")
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.committed == committed < store.log.written
        store.log.commit()
        store.put("T", b"in the buffer only")
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.written > store.log.committed


def test_puts_put_their_units_while_the_commit_lags(tmp_path: Path) -> None:
    with pooled(tmp_path / "store") as store:
        for number in range(198):  # 200 units fill the file: the next one is left to the dispatcher
            store.put("T", str(number).encode())
        store.log.commit()
        lab(store).step_dispatch()
        committed = fall_back(store)
        store.put("T", b"in the buffer only")
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.written > store.log.committed == committed
        store.put("T", b"by its put")
        assert store.log.dispatched == store.log.written > store.log.committed == committed
        assert bodies(store)[-2:] == [b"in the buffer only", b"by its put"]


def test_uncommitted_records_are_dispatched_from_the_buffer(tmp_path: Path) -> None:
    """A commit of it would take as long as it takes to put as much again."""
    with pooled(tmp_path / "store", mapped_file_bytes_consume_queue=400) as store:
        committed = fall_back(store)
        for _ in range(30):  # of 20 units a file: room has to be made on the way
            store.put("T", b"z" * 1000)
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.written > store.log.committed == committed
        store.put("T", b"by its put")
        assert store.log.dispatched == store.log.written > store.log.committed == committed
        assert len(bodies(store)) == store.put_count


def test_a_put_without_room_for_its_unit_wakes_the_dispatcher_before_the_commit(tmp_path: Path) -> None:
    """Where nothing is committed for 200 ms, puts would leave their units to it for as long."""
    with pooled(tmp_path / "store", mapped_file_bytes_consume_queue=400) as store:
        committed = store.log.committed
        assert not store.log.is_behind()
        while store.log.dispatched == store.log.written:
            store.put("T", b"y")
        assert store.log.is_behind()
        assert lab(store).step_dispatch() == 1
        assert store.log.dispatched == store.log.written > store.log.committed == committed
        assert not store.log.is_behind()
        store.put("T", b"for the dispatcher", keys="k")  # its index entry is for readers: not before the commit
        assert not store.log.is_behind()


def test_a_log_that_failed_does_not_keep_the_dispatcher_awake(sim: Any) -> None:
    config = StoreConfig.tiny(**POOL, mapped_file_bytes_commit_log=1 << 20, mapped_file_bytes_consume_queue=400)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    store.put("T", b"first")
    store.log.commit()
    lab(store).step_dispatch()
    while store.log.dispatched == store.log.written:
        store.put("T", b"y")
    sim.fault("pwrite", 1, errno.EIO)
    with pytest.raises(StoreFailed):
        store.log.commit()
    dispatched = store.log.dispatched
    assert lab(store).step_dispatch() == 0
    assert not store.log.is_behind()
    assert store.log.dispatched == dispatched < store.log.written
    sim.heal()
    store.close()


@pytest.mark.parametrize("need", NEEDS)
def test_a_record_of_the_buffer_that_needs_more_than_its_unit(tmp_path: Path, need: str) -> None:
    with pooled(tmp_path / "store", mapped_file_bytes_consume_queue=400) as store:
        fall_back(store)
        store.put("T", b"before")
        given = {"topic": "T", **NEEDS[need]}
        result = store.put(given.pop("topic"), b"needs more", **given)
        store.put("T", b"behind")
        lab(store).step_dispatch()
        while store.log.dispatched < store.log.written:
            store.log.commit()
            assert lab(store).step_dispatch() > 0
        ours = bodies(store)
        assert ours[-1] == b"behind"
        assert b"before" in ours
        assert bytes(store.log.message(result.physical_offset).body) == b"needs more"
        if need == "a key":
            assert [m.body for m in store.query("T", "k")] == [b"needs more"]
        if need == "several units":
            assert lab(store).queues.table.get("%LMQ%x", 0).max_offset == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(30))
def test_any_order_gives_the_units_of_a_store_without_a_pool(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    small = {"mapped_file_bytes_consume_queue": 400, "mapped_file_bytes_commit_log": 16384}
    names = [("T", 0), ("T", 1), ("U", 0)]
    with pooled(tmp_path / "pooled", **small) as ours, still(tmp_path / "plain", **small) as plain:
        plain.put("T", b"first")
        for _ in range(chance.randrange(20, 400)):
            topic, queue_id = chance.choices(names, (8, 1, 1))[0]
            options: dict[str, Any] = {"keys": f"k{chance.randrange(5)}"} if chance.random() < 0.1 else {}
            body = b"x" * chance.choice((3, 40, 900))
            ours.put(topic, body, queue_id=queue_id, **options)
            plain.put(topic, body, queue_id=queue_id, **options)
            if chance.random() < 0.1:
                ours.log.commit()
            if chance.random() < 0.1:
                lab(ours).step_dispatch()
            if chance.random() < 0.02:
                ours.flush()
        ours.log.commit()
        lab(ours).step_dispatch()
        lab(plain).step_dispatch()
        assert ours.log.dispatched == ours.log.written == plain.log.written
        assert units(ours, names) == units(plain, names)
        for key in range(5):
            found = [m.physical_offset for m in ours.query("T", f"k{key}")]
            assert found == [m.physical_offset for m in plain.query("T", f"k{key}")]


def test_a_commit_that_fails_in_between_latches_and_is_no_damage(sim: Any) -> None:
    config = StoreConfig.tiny(**POOL, mapped_file_bytes_commit_log=1 << 20)
    store = open_still(os.path.join(sim.root, "s"), config=config, os_api=sim.os_api)
    store.put("T", b"first")
    store.log.commit()
    lab(store).step_dispatch()
    committed = fall_back(store)
    store.put("T", b"y")
    store.put("T", b"a key", keys="k")  # has to be read from the file
    sim.fault("pwrite", 1, errno.EIO)
    lab(store).step_dispatch()
    assert store.log.error_number == errno.EIO
    assert store.log.committed == committed <= store.log.dispatched < store.log.written
    assert lab(store).dispatcher.error is None
    sim.heal()
    store.close()


@pytest.mark.parametrize("pool", [{}, POOL], ids=["mapped", "pool"])
def test_with_sync_flush_a_put_without_room_does_not_bring_the_dispatcher_beyond_the_flush(
    tmp_path: Path, pool: dict[str, Any]
) -> None:
    """Readers may not see what is not durable, so the dispatcher waits for it as well."""
    with still(tmp_path / "store", flush_disk_type="SYNC_FLUSH", mapped_file_bytes_consume_queue=400, **pool) as store:
        store.put("T", b"first")
        lab(store).step_dispatch()
        while store.log.dispatched == store.log.written:
            store.put("T", b"y")
        assert len(bodies(store)) == store.put_count  # a reader dispatched what that put left, and made room
        store.put("T", b"not durable yet", keys="k", wait_store_ok=False)  # a key is left to the dispatcher
        assert store.log.dispatched == store.log.flushed < store.log.written
        assert not store.log.is_behind()
        assert lab(store).step_dispatch() == 0
        assert store.log.dispatched == store.log.flushed < store.log.written
        store.flush()
        lab(store).step_dispatch()
        assert store.log.dispatched == store.log.written
