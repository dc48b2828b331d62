"""POP and power cuts: no message in flight is lost, and nothing on the disk is ahead of the log."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import pytest
from running import running_broker

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "pull"))

from popping import INVISIBLE_MS, StandingClock, ack, messages, pop
from pulling import run
from waiting import until_async as until

from mqfast.errors import FlushError
from mqfast.testing import Broker

IS_WHOLE = bool(os.environ.get("MQFAST_WHOLE"))
# Only the writes of offsets and of the timer's files sync the log.
LAZY = {
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": "600000",
    "flushCommitLogThoroughInterval": "600000",
}
SELDOM = {"flushConsumerOffsetInterval": "600000", "timerFlushIntervalMs": "600000"}
LONG_S = 3600


@pytest.mark.parametrize("seed", range(40) if IS_WHOLE else [1])
def test_no_message_that_survives_a_power_cut_is_lost(seed: int) -> None:
    """The offsets are written at random moments: a message in the log was acked, or comes again."""
    rng = random.Random(seed)
    acked: set[bytes] = set()
    count = 0
    config = {**LAZY, "flushConsumerOffsetInterval": str(rng.choice((15, 40, 200)))}
    with Broker(topics={"T": 2}, virtual_time=True, config=config) as broker:
        for _ in range(6 if IS_WHOLE else 3):
            with broker.simple_consumer(topics="T") as consumer:
                for _ in range(rng.randrange(1, 5)):
                    more = rng.randrange(1, 6)
                    broker.send("T", *(b"%d" % number for number in range(count, count + more)))
                    count += more
                    for message in consumer.receive(rng.choice((1, 4, 16)), invisible_s=10, timeout_s=0):
                        if rng.random() < 0.4:
                            consumer.ack(message)
                            acked.add(message.body)
                    time.sleep(rng.choice((0, 0.02)))
                    broker.clock.advance(rng.choice((0.1, 5, 11)))
                    time.sleep(rng.choice((0, 0.02)))
            broker.kill(power_loss=True)
            broker.restart()
        missing = {message.body for message in broker.messages("T")} - acked
        deadline_s = time.monotonic() + 300
        with broker.simple_consumer(topics="T") as consumer:
            while missing:
                assert time.monotonic() < deadline_s, f"lost: {sorted(missing)}"
                got = consumer.receive(32, invisible_s=LONG_S, timeout_s=0)
                missing -= {message.body for message in got}
                consumer.ack(got)
                broker.clock.advance(1)


def test_an_orderly_ack_of_a_message_that_a_power_cut_took_passes_no_other_message() -> None:
    with Broker(topics={"T": 1}, config={**LAZY, **SELDOM}) as broker:
        with broker.simple_consumer(topics="T", orderly=True) as consumer:
            assert consumer.receive(timeout_s=0) == []
            broker.restart()  # the group's offset is on the disk
            broker.send("T", b"lost")
            lost = consumer.receive(timeout_s=20, invisible_s=LONG_S)
            assert [message.body for message in lost] == [b"lost"]
            broker.kill(power_loss=True)
            broker.restart()
            broker.send("T", b"kept")
            consumer.ack(lost)
            assert [message.body for message in consumer.receive(timeout_s=20)] == [b"kept"]


def test_a_batch_of_orderly_pop_is_written_once_its_messages_are_durable(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **SELDOM) as running:
            await running.send("T", b"m")
            await pop(running, order="true")
            running.parts.pop.service.store_orders()
            name = tmp_path / "config" / "consumerOrderInfo.json"

            def fail() -> None:
                raise FlushError(5, "flush failed")

            with pytest.raises(FlushError):
                running.context.tables.persist(before_offsets=fail)
            assert not name.exists()
            await asyncio.to_thread(running.context.tables.persist, running.context.store.flush)
            assert b"T@g" in name.read_bytes()

    run(flow())


def test_a_redelivery_is_synced_at_once_where_readers_see_durable_messages_only(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {**LAZY, **SELDOM, "flushDiskType": "SYNC_FLUSH"}
        async with running_broker(tmp_path, **settings) as running:
            await running.send("T", b"m")
            assert len(messages(await pop(running, invisibleTime=1))) == 1
            again = messages(await pop(running, wait_ms=5_000))
            assert [got.message.reconsume_times for got in again] == [1]
            assert (await ack(running, again[0].handle)).code == 0

    run(flow())


def test_acks_that_are_not_synced_yet_count_after_a_restart(tmp_path: Path) -> None:
    """With SYNC_FLUSH readers see what the timer has delivered after the next sync only."""

    async def flow() -> None:
        clock = StandingClock()
        settings = {**LAZY, **SELDOM, "flushDiskType": "SYNC_FLUSH"}
        async with running_broker(tmp_path, now_ms=clock, **settings) as running:
            await running.send("T", b"m")
            (got,) = messages(await pop(running))
            assert (await ack(running, got.handle)).code == 0
        clock.ms += INVISIBLE_MS - 100  # the second of the check-point is over, that of the ack is not
        async with running_broker(tmp_path, now_ms=clock, **settings) as running:
            revive = running.parts.pop.service.revive
            await until(lambda: revive.scan(time.monotonic() + LONG_S) and revive.has_foreign)
            clock.ms += 2_600  # the end of a second
            timer = running.parts.timers.service
            assert timer is not None
            while timer.delivered_until_ms < clock():
                timer.run_once(clock())
            revive.run_once(clock() + 1_000)  # before the sync: the ack is not readable
            assert revive.redelivered == 0
            await until(lambda: revive.scan(time.monotonic() + LONG_S) and not revive.has_foreign)
            assert revive.redelivered == 0

    run(flow())
