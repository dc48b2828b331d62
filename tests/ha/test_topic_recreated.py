"""A topic that the master deleted and made anew: its slave has the new messages at the master's queue offsets.

RocketMQ's slave keeps the old units, and gives new messages none until their offsets have passed the old ones.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from ha.pairs import SIZES, as_slave, following, serving, until

import mqfast
from mqfast.store.check.verify import verify

QUEUES = 3


def put(store: mqfast.MessageStore, what: str, count: int) -> None:
    for number in range(count):
        for queue_id in range(QUEUES):
            store.put("T", f"{what}{number}".encode(), queue_id=queue_id)
        store.put("other", b"x")


def queues_of(store: mqfast.MessageStore) -> list[list[tuple[int, bytes]]]:
    return [
        [(one.record_queue_offset, bytes(one.body)) for one in store.get("T", queue_id, 0, max_count=100)]
        for queue_id in range(QUEUES)
    ]


@pytest.mark.parametrize("how", ["follows", "was away", "is new"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_slave_has_the_queue_offsets_of_a_recreated_topic(tmp_path: Path, how: str, count: int) -> None:
    async def level(master: mqfast.MessageStore, slave: mqfast.MessageStore) -> None:
        await until(lambda: slave.engine.raw.end == master.engine.raw.end)

    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as master, as_slave(tmp_path / "s") as slave:
            async with serving(master) as served:
                put(master, "old", 3)
                if how == "follows":
                    with following(slave, served.port):
                        await level(master, slave)
                        master.delete_topic("T")
                        put(master, "new", count)
                        await level(master, slave)
                else:
                    if how == "was away":
                        with following(slave, served.port):
                            await level(master, slave)
                        slave.consumer_offsets.commit("g", "T", 1, 3)
                        slave.consumer_offsets.commit("g", "other", 0, 3)
                    master.delete_topic("T")
                    put(master, "new", count)
                    with following(slave, served.port):
                        await level(master, slave)
            expected = [[(number, f"new{number}".encode()) for number in range(count)]] * QUEUES
            assert queues_of(master) == expected
            await until(lambda: slave.max_offset("other", 0) == master.max_offset("other", 0))
            assert queues_of(slave) == expected
            if how == "was away":
                offsets = slave.consumer_offsets
                assert (offsets.get("g", "T", 1), offsets.get("g", "other", 0)) == (0, 3), "nothing new is passed over"

    asyncio.run(flow())
    assert verify(str(tmp_path / "s"), config=mqfast.StoreConfig(**SIZES)).state == "clean"
    for role in ("SLAVE", "ASYNC_MASTER"):
        with mqfast.open(tmp_path / "s", broker_role=role, **SIZES) as store:
            assert [[body for _, body in queue] for queue in queues_of(store)] == [
                [f"new{number}".encode() for number in range(count)]
            ] * QUEUES
    shutil.rmtree(tmp_path / "s" / "consumequeue")  # made anew from the log
    with mqfast.open(tmp_path / "s", **SIZES) as store:
        assert [len(queue) for queue in queues_of(store)] == [count] * QUEUES
        assert store.put("T", b"next", queue_id=1).queue_offset == count
