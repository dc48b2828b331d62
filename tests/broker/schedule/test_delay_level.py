"""Delay levels through a running broker: sends wait and come, over restarts; what cannot be parked is refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from event_loop import run
from running import running_broker

import mqfast
from mqfast.remoting.codes import ResponseCode
from mqfast.store.meta.tables import ConfigTables

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Shifted:
    """The wall clock, moved by a test."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms


def test_delayed_send_is_delivered_when_due(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, messageDelayLevel="1s 2s") as one:
            began = time.monotonic()
            answer = await one.send("T", b"later", queue_id=1, properties="DELAY\x011\x02TAGS\x01A")
            assert answer.code == 0
            assert answer.ext_fields["queueId"] == "1"
            assert (await one.send("T", b"now", queue_id=1)).code == 0
            store = one.context.store
            while store.max_offset("T", 1) < 2:
                await asyncio.sleep(0.005)
            assert time.monotonic() - began >= 0.99
            now, later = store.get("T", 1, 0)
            parked = store.get(SCHEDULE, 0, 0)[0]
            assert (bytes(now.body), bytes(later.body)) == (b"now", b"later")
            assert later.store_timestamp - parked.store_timestamp >= 1000
            assert later.properties_bytes == parked.properties_bytes

    run(flow())


def test_messages_of_a_removed_delay_level_are_warned_of_and_delivered_once_the_level_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Shifted()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock, messageDelayLevel="1s 2s 60s") as one:
            for level in (2, 3, 3):
                assert (await one.send("T", b"%d" % level, properties=f"DELAY\x01{level}\x02")).code == 0
        assert "messageDelayLevel has" not in caplog.text
        clock.shift_ms = 61_000
        async with running_broker(tmp_path, now_ms=clock, messageDelayLevel="1s 2s") as one:
            assert "2 messages wait in delay level 3 and are not delivered" in caplog.text
            while one.context.store.max_offset("T", 0) < 1:
                await asyncio.sleep(0.005)
        async with running_broker(tmp_path, now_ms=clock, messageDelayLevel="1s 2s 60s") as one:
            while one.context.store.max_offset("T", 0) < 3:
                await asyncio.sleep(0.005)
        caplog.clear()
        async with running_broker(tmp_path, now_ms=clock, messageDelayLevel="1s 2s"):
            assert "messageDelayLevel has" not in caplog.text

    run(flow())


def test_delayed_messages_survive_a_restart_and_are_delivered_once(tmp_path: Path) -> None:
    clock = Shifted()

    async def first() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            for i in range(20):
                assert (await one.send("T", b"%d" % i, properties="DELAY\x012\x02")).code == 0

    async def second() -> None:
        clock.shift_ms = 6000
        async with running_broker(tmp_path, now_ms=clock) as one:
            while one.context.store.max_offset("T", 0) < 20:
                await asyncio.sleep(0.005)

    async def third() -> None:
        clock.shift_ms = 60_000
        async with running_broker(tmp_path, now_ms=clock) as one:
            await one.send("T", b"end")

    for part in (first, second, third):
        run(part())
    with mqfast.open(tmp_path) as store:
        assert [bytes(m.body) for m in store.get("T", 0, 0, max_count=99)] == [*(b"%d" % i for i in range(20)), b"end"]


def test_progress_is_written_while_the_broker_runs(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"messageDelayLevel": "1s", "flushDelayOffsetInterval": 20, "flushConsumerOffsetInterval": 3_600_000}
        async with running_broker(tmp_path, **settings) as one:
            await one.send("T", b"x", properties="DELAY\x011\x02")
            while ConfigTables.load(tmp_path).delays.get(1) == 0:
                await asyncio.sleep(0.05)
            assert one.context.store.max_offset("T", 0) == 1

    run(flow())


def test_delayed_message_that_cannot_be_parked_is_refused(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for properties in ("DELAY\x01soon\x02", "DELAY\x011\x02x\x01" + "y" * 32_640):
                answer = await one.send("T", b"x", properties=properties)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert one.context.store.max_offset(SCHEDULE, 0) == 0

    run(flow())


def test_event_loop_serves_requests_while_many_delayed_messages_are_due(tmp_path: Path) -> None:
    clock = Shifted()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            context = one.context
            assert (await one.send("U", b"x")).code == 0  # the connection is there
            for _ in range(20_000):
                context.engine.put_encoded(
                    SCHEDULE.encode(),
                    17,
                    b"x",
                    b"DELAY\x0118\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
                    wait=False,
                )
            clock.shift_ms = 7_300_000
            while context.store.max_offset("T", 0) == 0:
                await asyncio.sleep(0)
            assert (await one.send("U", b"x")).code == 0
            assert context.store.max_offset("T", 0) < 20_000
            while context.store.max_offset("T", 0) < 20_000:
                await asyncio.sleep(0)

    run(flow())
