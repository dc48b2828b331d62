"""What a slave has of its master besides the log: offsets, delays, the timer, modes; and what it may claim of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from broker.two_brokers import as_slave, end_of, name_server, pull, run, until
from running import Running, running_broker

from mqfast.remoting.codes import RequestCode
from mqfast.schedule.timer.checkpoint import TimerCheckpoint, load_checkpoint

LEVELS = {"messageDelayLevel": "1s 2s"}


def timed(in_ms: int) -> str:
    return f"TIMER_DELIVER_MS\x01{time.time_ns() // 1_000_000 + in_ms}\x02"


def checkpoint_of(one: Running) -> TimerCheckpoint:
    store = one.context.store
    return load_checkpoint(store.log.door, store.paths.timer_check) or TimerCheckpoint()


async def delivered(one: Running, topic: str) -> int:
    return await asyncio.to_thread(one.context.store.max_offset, topic, 0)


@contextlib.asynccontextmanager
async def gate(port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port that leads to another one once its event is set; before, connections end at once."""
    is_open = asyncio.Event()
    copies: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_open.is_set():
            writer.close()
            return
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        copies.update(asyncio.ensure_future(one) for one in (copy(reader, outer), copy(inner, writer)))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], is_open
    server.close()
    for one in copies:
        one.cancel()
    await asyncio.gather(*copies, return_exceptions=True)


def test_a_timed_message_is_delivered_once_also_by_a_slave_that_becomes_the_master(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
                assert (await master.send("T", b"near", properties=timed(1500))).code == 0
                assert (await master.send("T", b"far", properties=timed(3_600_000))).code == 0
                async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                    await until(lambda: master.context.store.max_offset("T", 0) == 1)
                    await until(lambda: checkpoint_of(slave).master_queue_offset == 2)
                    kept = checkpoint_of(slave)
                    assert kept.is_of_master
                    assert (kept.flushed, kept.queue_offset) == (0, 0)
                    assert kept.read_ms <= checkpoint_of(master).read_ms
                    near = slave.context.store.get("T", 0, 0)[0]
                    await until(lambda: checkpoint_of(slave).read_ms > near.born_timestamp)
                    await until(lambda: end_of(slave) == end_of(master))
            an_hour = 3_600_000
            now_ms = lambda: time.time_ns() // 1_000_000 + an_hour  # noqa: E731
            async with running_broker(tmp_path / "s", now_ms=now_ms) as former_slave:
                await until(lambda: former_slave.context.store.max_offset("T", 0) == 2)
                found = former_slave.context.store.get("T", 0, 0)
                assert [bytes(one.body) for one in found] == [b"near", b"far"]
                assert await delivered(former_slave, "rmq_sys_wheel_timer") == 2

    run(flow)


def test_a_slave_claims_nothing_that_its_log_does_not_have(tmp_path: Path) -> None:
    """The tables come over another connection than the log, and may be ahead of it."""

    async def flow() -> None:
        async with (
            name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "m", namesrvAddr=namesrv, **LEVELS) as master,
            gate(master.context.replicas.port) as (port, opens),
        ):
            for number in range(3):
                assert (await master.send("T", b"%d" % number)).code == 0
            assert (await pull(master, "T")).code == 0  # the group is made
            committed = await master.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="T", queueId=0, commitOffset=3
            )
            assert committed.code == 0
            assert (await master.send("T", b"later", properties="DELAY\x011\x02")).code == 0
            await until(lambda: master.context.store.max_offset("T", 0) == 4)
            await until(lambda: master.context.tables.delays.offsets() == {1: 1})
            settings = as_slave(namesrv, haMasterAddress=f"127.0.0.1:{port}", **LEVELS)
            async with running_broker(tmp_path / "s", **settings) as slave:
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.offsets.get("readers", "T", 0) >= 0)
                assert slave.context.offsets.get("readers", "T", 0) == 0  # the master consumed 3
                assert slave.context.tables.delays.offsets() == {}
                opens.set()
                await until(lambda: end_of(slave) == end_of(master))
                await until(lambda: slave.context.tables.delays.offsets() == {1: 1})
                await until(lambda: slave.context.offsets.get("readers", "T", 0) == 3)

    run(flow)


def test_a_slave_has_modes_and_what_is_deleted_at_the_master_goes(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            for topic in ("T", "U"):
                await master.send(topic, b"x")
            body = json.dumps({"topic": "T", "consumerGroup": "g", "mode": "PULL"}).encode()
            assert (await master.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body)).code == 0
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                await until(lambda: "U" in slave.context.tables.topics)

                async def modes() -> bytes:
                    return bytes((await slave.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)

                async with asyncio.timeout(30):
                    while b'"consumerGroup":"g"' not in await modes():
                        await asyncio.sleep(0.05)
                assert (await master.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="U")).code == 0
                await until(lambda: "U" not in slave.context.tables.topics)

    run(flow)
