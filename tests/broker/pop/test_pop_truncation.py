"""POP after a truncation: a former master whose log is cut forgets what only the cut part of its log proves."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from broker.two_brokers import as_slave, end_of, name_server, run, until
from running import Running, broker_config, running_broker

from mqfast.broker.pop.check_point import REVIVE_GROUP, revive_topic
from mqfast.ha.promotion import carry_out, plan_promotion

sys.path.append(str(Path(__file__).resolve().parent))

from popping import INVISIBLE_MS, MovedClock, ack, messages, pop

REVIVE = revive_topic("DefaultCluster")
RETRY = "%RETRY%g_T"
MASTER: dict[str, Any] = {"haAllowedAddresses": "127.0.0.1", "haSendHeartbeatInterval": 200}


def start_of(one: Running, topic: str) -> int:
    """Return where the first record of a topic begins in the log."""
    return int(one.context.engine.unit_at(topic, 0, 0).physical_offset)


async def cut(path: Path, clock: MovedClock, topic: str) -> None:
    """Cut the log of a store before the first record of a topic, as a slave does."""
    async with running_broker(path, now_ms=clock, brokerRole="SLAVE", brokerId=1) as slave:
        replicas, end = slave.parts.replicas, start_of(slave, topic)
        slave.parts.pop.service.before_truncation(end)
        await asyncio.to_thread(slave.context.engine.raw.truncate_to, end)
        replicas._on_truncated(end)


def test_a_retry_that_is_cut_comes_again(tmp_path: Path) -> None:
    """The progress of the revive topic has passed a check-point, whose retry is in the part of the log that is cut."""

    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock) as master:
            await master.send("T", b"once")
            assert len(messages(await pop(master))) == 1
        clock.ahead_ms += INVISIBLE_MS
        async with running_broker(tmp_path, now_ms=clock) as master:  # the check-point comes before the retry
            await until(lambda: master.context.store.max_offset(RETRY, 0) == 1)
            await until(lambda: master.context.offsets.get(REVIVE_GROUP, REVIVE, 0) == 0)
            assert start_of(master, REVIVE) < start_of(master, RETRY)
        await cut(tmp_path, clock, RETRY)
        async with running_broker(tmp_path, now_ms=clock) as again:
            assert again.context.store.max_offset(REVIVE, 0) == 1
            assert [got.body for got in messages(await pop(again, wait_ms=10_000))] == [b"once"]

    run(flow)


def test_a_message_whose_check_point_only_the_lost_master_had_comes_again(tmp_path: Path) -> None:
    """The group of the lost master is unknown to the next one, so no later table lowers its offset."""

    async def flow() -> None:
        clock, a, b = MovedClock(), tmp_path / "a", tmp_path / "b"
        async with name_server(tmp_path) as namesrv:
            async with running_broker(a, now_ms=clock, namesrvAddr=namesrv, **MASTER) as old:
                await old.send("T", b"kept")
                async with running_broker(b, now_ms=clock, **as_slave(namesrv)) as slave:
                    known = slave.context.store.engine.raw
                    await until(lambda: known.master_flushed_offset == known.end == end_of(old))
                assert [got.body for got in messages(await pop(old))] == [b"kept"]
                assert old.context.offsets.get("g", "T", 0) == 1
            config = broker_config(b).store_config()
            carry_out(plan_promotion(str(b), config), config)
            async with running_broker(b, now_ms=clock, namesrvAddr=namesrv, **MASTER) as new:
                await new.send("U", b"of the next master")
                async with running_broker(a, now_ms=clock, **as_slave(namesrv, haTruncateDiverged=True)) as back:
                    await until(lambda: back.context.store.max_offset("U", 0) == 1)
            clock.ahead_ms += INVISIBLE_MS
            async with running_broker(a, now_ms=clock) as again:
                assert [got.body for got in messages(await pop(again, wait_ms=10_000))] == [b"kept"]

    run(flow)


@pytest.mark.parametrize("is_acked", [False, True])
def test_a_late_ack_of_a_cut_message_acks_no_other(tmp_path: Path, is_acked: bool) -> None:
    """Orderly POP keeps a batch beside the log; other messages follow at the offsets of that batch."""

    async def flow() -> None:
        clock = MovedClock()
        async with running_broker(tmp_path, now_ms=clock) as master:
            await master.send("T", b"cut")
            late = messages(await pop(master, order="true"))
            assert [got.body for got in late] == [b"cut"]
            if is_acked:
                assert (await ack(master, late[0].handle)).code == 0
        await cut(tmp_path, clock, "T")
        async with running_broker(tmp_path, now_ms=clock) as again:
            await again.send("T", b"other")
            await ack(again, late[0].handle)
            assert [got.body for got in messages(await pop(again, wait_ms=10_000, order="true"))] == [b"other"]

    run(flow)
