"""The workloads of the crash sweep: short, deterministic, each with edges of one part of the engine.

Room: tests. None may use a clock, a thread or a random source other than its own seeded one.
"""

from __future__ import annotations

import os
import random
from typing import Final

from harness import Run, Workload, log_messages
from laboratory import lab

from mqfast.config import StoreConfig
from mqfast.sim.simulated_os import CONTENTS_ONLY, KILLED, MIXED, NAMES_ONLY, SHORT_COUNT, STRICT
from mqfast.store.check.repair import repair

__all__ = ["WORKLOADS"]

_SYNC: Final = {"flush_disk_type": "SYNC_FLUSH"}
_POOL: Final = {"transient_store_pool_enable": True}
_BACKGROUND: Final = {"dispatch": "background"}
_SMALL_LOG: Final = {"mapped_file_bytes_commit_log": 8192}
_SMALL_QUEUE: Final = {"mapped_file_bytes_consume_queue": 200}


def _small(run: Run) -> None:
    run.open()
    for _ in range(12):
        run.put()
    run.flush()
    for _ in range(6):
        run.put()
    run.close()


def _large(run: Run) -> None:
    run.open()
    for size in (20_000, 30_000, 5, 50_000, 10_000):
        run.put(size=size)
        lab(run.store).make_next_file()
    run.flush()
    run.put(size=40_000)
    run.close()


def _batch(run: Run) -> None:
    run.open()
    run.put_batch([50] * 8, ["a", "b", "c"])
    run.flush()
    run.put_batch([1500] * 4, ["a", "b"], keys="batch")
    run.put_batch([10, 6000, 10], ["c"])
    run.close()


def _many(run: Run) -> None:
    run.open()
    run.put_many(100)
    run.put_many(300, size=60)
    run.flush()
    run.put_many(40, size=900)
    run.close()


def _keys(run: Run) -> None:
    run.open()
    for i in range(80):
        run.put(keys=f"k{i % 13} unique{i}", size=30)
        if i % 30 == 29:
            run.flush()
            run.flush_queues()
    run.close()


def _keys_slow_clock(run: Run) -> None:
    run.sim.clock(1_600_000_000_000, 900_000)
    _keys(run)


def _roll(run: Run) -> None:
    run.open()
    for i in range(60):
        run.put(size=700, keys=f"k{i}" if i % 5 == 0 else None)
        if i % 20 == 10:
            run.flush_queues()
    run.flush()
    run.close()


def _roll_slow_clock(run: Run) -> None:
    """Minutes pass, so that the checkpoint decides where recovery begins."""
    run.sim.clock(1_600_000_000_000, 5_000_000)
    run.open()
    for i in range(60):
        run.put(size=700, keys=f"k{i}" if i % 5 == 0 else None)
        if i % 15 == 10:
            run.flush_log()
            run.flush_queues()
    run.close()


def _preallocate(run: Run) -> None:
    run.open()
    for _ in range(30):
        run.put(size=900)
        lab(run.store).make_next_file()
    run.close()


def _pool(run: Run) -> None:
    run.open()
    for i in range(40):
        run.put(size=600)
        if i % 7 == 3:
            run.commit()
        if i % 16 == 9:
            run.flush()
    run.close()


def _sync_one(run: Run) -> None:
    run.open()
    for i in range(25):
        run.put(size=300 + 60 * i)
    run.close()


def _sync_many(run: Run) -> None:
    run.open()
    run.put_many(40)
    run.put_batch([200] * 5, ["a", "b"])
    run.put_many(100, size=300)
    run.put()
    run.close()


def _no_wait(run: Run) -> None:
    run.open()
    for i in range(20):
        run.put(size=500, wait_store_ok=i % 4 == 3)
    run.flush()
    run.put(wait_store_ok=False)
    run.close()


def _tickets(run: Run) -> None:
    run.open()
    for _ in range(10):
        m = run._send("t", 0, 400, None)
        ticket = run.store.put_nowait("t", m.body)
        run.note("kept")
        if m.number % 3 == 2:
            assert ticket.wait()
            run.note("durable")
    run.close()


def _config(run: Run) -> None:
    run.open()
    for i in range(6):
        run.put(f"topic{i}", queue_id=i)
        lab(run.store).persist_topics()
    run.store.topic_table.ensure("topic1", 16)
    run.store.topic_table.persist()
    run.close()


def _offsets(run: Run) -> None:
    run.open()
    for i in range(10):
        run.put()
        run.offsets("g", "t", 0, i)
        if i % 4 == 0:
            run.offsets("h", "t", 0, i // 2)
    run.close()


def _retention(run: Run) -> None:
    run.open()
    for i in range(70):
        run.put(size=600, keys=f"k{i}")
        if i % 12 == 11:
            run.flush_log()
            run.flush_queues()
            run.retain()
    run.close()


def _delete(run: Run) -> None:
    run.open()
    for i in range(20):
        run.put(f"t{i % 3}", queue_id=i % 2)
    run.flush()
    run.offsets("g", "t1", 0, 3)
    run.delete_topic("t1")
    run.put("t2")
    run.put("t0")
    run.close()


def _delete_and_make_again(run: Run) -> None:
    run.open()
    for i in range(12):
        run.put(f"t{i % 2}")
    run.reput()
    run.delete_topic("t1")
    for i in range(10):
        run.put(f"t{i % 2}")
        if i % 4 == 3:
            run.flush_log()
            run.flush_queues()
    run.delete_topic("t1")
    run.put("t1")
    run.flush()
    run.put("t1")
    run.close()


def _reopen(run: Run) -> None:
    run.open()
    for i in range(10):
        run.put(keys=f"k{i}")
    run.close()
    run.open()
    run.put()
    run.close()
    run.open()
    run.close()
    run.open()
    run.put(size=5000)
    run.close()


def _close_empty(run: Run) -> None:
    run.open()
    run.close()
    run.open()
    run.put()
    run.close()


def _close_dirty(run: Run) -> None:
    run.open()
    for i in range(30):
        run.put(f"t{i % 4}", queue_id=i % 3, keys=f"k{i}", size=400)
    run.offsets("g", "t0", 0, 1)
    run.close()


def _light(run: Run) -> None:
    run.open()
    for i in range(15):
        run.put(properties={"INNER_MULTI_DISPATCH": f"%LMQ%a,%LMQ%b{i % 2}"} if i % 3 else None)
        if i == 8:
            run.flush()
            run.flush_queues()
    run.close()


def _batch_queue(run: Run) -> None:
    run.open()
    run.store.topic_table.ensure("bq", 2, attributes={"queue.type": "BatchCQ"})
    run.store.topic_table.persist()
    for i in range(45):
        run.put("bq", size=60)
        if i == 20:
            run.flush()
            run.flush_queues()
    run.close()


def _version_2(run: Run) -> None:
    run.open()
    for i in range(12):
        run.put("%RETRY%" + "v" * 180, keys=f"k{i}")
    run.flush()
    run.put("%RETRY%" + "v" * 180)
    run.close()


def _many_queues(run: Run) -> None:
    run.open()
    for i in range(40):
        run.put(f"topic{i % 8}", queue_id=i % 3, size=40)
        if i == 20:
            run.flush_queues()
    run.flush()
    run.close()


def _one_sync_for_many_queues(run: Run) -> None:
    run.open()
    lab(run.store).queues.many = 3
    for i in range(30):
        run.put(f"topic{i % 4}", queue_id=i % 3, size=40)
        if i in (4, 20):
            run.flush_queues()
    run.flush()
    run.close()


def _queue_roll(run: Run) -> None:
    run.open()
    for i in range(45):
        run.put(size=20)
        if i % 11 == 10:
            run.flush_queues()
    run.flush()
    run.close()


def _properties(run: Run) -> None:
    run.open()
    for i in range(15):
        run.put(tags=f"tag{i % 3}", properties={"a": "b" * (i + 1), "UNIQ_KEY": f"u{i}"})
    run.flush()
    run.put()
    run.close()


def _background(run: Run) -> None:
    run.open()
    for i in range(40):
        run.put(keys=f"k{i}", size=200)
        if i % 9 == 8:
            run.reput()
        if i % 14 == 13:
            run.flush_queues()
            run.flush()
    run.close()


def _killed_then_flushed(run: Run) -> None:
    """What a killed process left in the page cache is durable once flush() of the next one returned."""
    run.open()
    for _ in range(25):
        run.put(size=500)
    run.commit_if_pooled()
    run.abandon()
    run.survivors()
    run.open()
    run.flush()
    run.put()
    run.flush_queues()
    run.abandon()
    run.survivors()
    run.open()
    run.close()


def _no_fallocate(run: Run) -> None:
    run.sim.fault("fallocate", 1, 95, True)
    run.open()
    for _ in range(25):
        run.put(size=900)
    run.flush()
    run.close()


def _short_writes(run: Run) -> None:
    run.sim.fault("pwrite", 1, SHORT_COUNT, True)
    run.open()
    for i in range(25):
        run.put(size=900, keys=f"k{i}")
        run.commit()
    run.flush()
    run.offsets("g", "t", 0, 1)
    run.close()


def _random_steps(seed: int):  # type: ignore[no-untyped-def]
    def steps(run: Run) -> None:
        rng = random.Random(seed)
        run.sim.clock(1_600_000_000_000, rng.choice((100, 50_000, 2_000_000)))
        run.open()
        for i in range(50):
            dice = rng.random()
            if dice < 0.55:
                keys = f"k{i}" if rng.random() < 0.4 else None
                run.put(f"t{rng.randrange(3)}", rng.choice((10, 100, 900, 3000)), rng.randrange(2), keys)
            elif dice < 0.62:
                run.put_many(rng.randrange(1, 12), size=rng.choice((20, 400)))
            elif dice < 0.67:
                run.put_batch([rng.randrange(4, 500) for _ in range(rng.randrange(1, 6))], ["t0", "t1"])
            elif dice < 0.72:
                run.flush()
            elif dice < 0.76:
                run.close()
                run.open()
            elif dice < 0.79:
                run.commit_if_pooled()
                run.abandon()
                run.survivors()
                run.open()
            else:
                run.services(rng)
        run.close()

    return steps


def _recovery_of(mode: int, seed: int):  # type: ignore[no-untyped-def]
    """A store that lost its power; then recovery under the eyes of the sweep."""

    def before(run: Run) -> None:
        run.sim.clock(1_600_000_000_000, 1_500_000)
        run.open()
        rng = random.Random(seed)
        for i in range(60):
            run.put(f"t{i % 2}", size=300, keys=f"k{i}" if i % 2 else None)
            if i % 8 == 7:
                run.services(rng)
        run.power_cut(mode, seed)

    return before


def _recover(run: Run) -> None:
    run.open()
    run.put("t0", keys="new")
    run.flush()
    run.close()


def _repair_before(run: Run) -> None:
    """A closed store with a damaged log and a damaged queue."""
    run.open()
    for i in range(40):
        run.put(f"t{i % 2}", size=400, keys=f"k{i}")
    run.close()
    log = os.path.join(run.path, "commitlog", "0" * 20)
    at = log_messages(run.path)[14].physical_offset
    with open(log, "r+b") as file:
        file.seek(at + 90)
        file.write(b"damage")
    run.restart()
    del run.sent[14:]
    run.notes[:] = [*[("send", None)] * 14]
    run.note("durable")


def _repair(run: Run) -> None:
    repair(run.path, config=StoreConfig.tiny(**run.workload.settings), os_api=run.os_api)
    run.open()
    run.put("t0", keys="new")
    run.flush()
    run.close()


WORKLOADS: Final[dict[str, Workload]] = {
    w.name: w
    for w in (
        Workload("put-small", _small),
        Workload("put-large", _large, {"max_message_bytes": 60_000}),
        Workload("put-batch", _batch, _SMALL_LOG),
        Workload("put-many", _many),
        Workload("keys-index-roll", _keys),
        Workload("keys-slow-clock", _keys_slow_clock),
        Workload("keys-index-safe", _keys_slow_clock, {"message_index_safe": True}),
        Workload("no-index", _roll, {**_SMALL_LOG, "message_index_enable": False}),
        Workload("roll", _roll, _SMALL_LOG),
        Workload("roll-slow-clock", _roll_slow_clock, _SMALL_LOG),
        Workload("roll-sync-slow-clock", _roll_slow_clock, {**_SMALL_LOG, **_SYNC}),
        Workload("preallocate", _preallocate, _SMALL_LOG),
        Workload("warm-locked", _preallocate, {**_SMALL_LOG, "warm_mapped_file_enable": True}),
        Workload("pool-async", _pool, {**_POOL, **_SMALL_LOG}),
        Workload("pool-sync", _pool, {**_POOL, **_SYNC, **_SMALL_LOG}),
        Workload("pool-background", _pool, {**_POOL, **_BACKGROUND, **_SMALL_LOG}),
        Workload("pool-roll-slow-clock", _roll_slow_clock, {**_POOL, **_SMALL_LOG}),
        Workload("sync-one", _sync_one, {**_SYNC, **_SMALL_LOG}),
        Workload("sync-many", _sync_many, {**_SYNC, **_SMALL_LOG}),
        Workload("sync-no-wait", _no_wait, {**_SYNC, **_SMALL_LOG}),
        Workload("sync-tickets", _tickets, _SYNC),
        Workload("sync-background", _sync_one, {**_SYNC, **_BACKGROUND, **_SMALL_LOG}),
        Workload("config-save", _config),
        Workload("consumer-offsets", _offsets),
        Workload("retention", _retention, {**_SMALL_LOG, "retention_bytes": 16384}),
        Workload("topic-delete", _delete),
        Workload("topic-made-again", _delete_and_make_again),
        Workload("reopen-clean", _reopen, _SMALL_LOG),
        Workload("close-empty", _close_empty),
        Workload("close-dirty", _close_dirty, _SMALL_LOG),
        Workload("light-queues", _light, {"enable_lmq": True, "enable_multi_dispatch": True}),
        Workload("batch-queue", _batch_queue),
        Workload("version-2", _version_2),
        Workload("property-crc", _properties, {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}),
        Workload("properties", _properties),
        Workload("many-queues", _many_queues, _SMALL_QUEUE),
        Workload("one-sync-for-many-queues", _one_sync_for_many_queues, _SMALL_QUEUE),
        Workload("queue-roll", _queue_roll, _SMALL_QUEUE),
        Workload("dispatch-background", _background, {**_BACKGROUND, **_SMALL_LOG}),
        Workload("killed-then-flushed", _killed_then_flushed, _SMALL_LOG),
        Workload("killed-then-flushed-sync", _killed_then_flushed, {**_SMALL_LOG, **_SYNC}),
        Workload("killed-then-flushed-pool", _killed_then_flushed, {**_SMALL_LOG, **_POOL}),
        Workload("no-fallocate", _no_fallocate, _SMALL_LOG),
        Workload("short-writes", _short_writes, {**_SMALL_LOG, **_POOL}),
        *(
            Workload(f"random-{i}", _random_steps(i), settings)
            for i, settings in enumerate(
                (
                    _SMALL_LOG,
                    {**_SMALL_LOG, **_SYNC},
                    {**_SMALL_LOG, **_POOL},
                    {**_SMALL_LOG, **_BACKGROUND, **_SMALL_QUEUE},
                    {**_SMALL_LOG, **_POOL, **_SYNC, **_BACKGROUND},
                    {**_SMALL_QUEUE, "message_index_safe": True},
                )
            )
        ),
        *(
            Workload(f"recovery-{name}{number}", _recover, {**_SMALL_LOG, **settings}, _recovery_of(mode, number))
            for name, mode in (
                ("kill", KILLED),
                ("strict", STRICT),
                ("mixed", MIXED),
                ("names", NAMES_ONLY),
                ("bytes", CONTENTS_ONLY),
            )
            for number, settings in enumerate(({}, _SYNC, _BACKGROUND))
            if name == "mixed" or number == 0
        ),
        Workload("repair", _repair, {}, _repair_before),
    )
}
