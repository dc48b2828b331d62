"""A master and a slave as brokers with a name server: one log, one set of tables, reads without the master."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from running import Running, broker_config, running_broker

from mqfast.broker.broker import Broker
from mqfast.errors import ConfigError
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.codes import RequestCode


@contextlib.asynccontextmanager
async def name_server(tmp_path: Path) -> AsyncIterator[str]:
    config = NamesrvConfig()
    config.take({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
    server = NameServer(config)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def end_of(one: Running) -> int:
    return one.context.store.engine.raw.end


def run(flow: Callable[[], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await flow()

    asyncio.run(whole())


def as_slave(namesrv: str, **more: Any) -> dict[str, Any]:
    settings = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": namesrv, "registerNameServerPeriod": 10_000}
    return {**settings, "haSendHeartbeatInterval": 200, **more}


async def pull(one: Running, topic: str, offset: int = 0) -> Any:
    return await one.call(
        RequestCode.PULL_MESSAGE,
        consumerGroup="readers", topic=topic, queueId=0, queueOffset=offset, maxMsgNums=32, sysFlag=4, commitOffset=0,
        suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
    )  # fmt: skip


def test_a_slave_has_messages_topics_groups_and_offsets(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            answer = await master.send("T", b"first")
            assert answer.code == 0
            assert (await pull(master, "T")).code == 0  # the group is made
            await master.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="T", queueId=0, commitOffset=1
            )
            async with running_broker(tmp_path / "s", **as_slave(namesrv, slaveReadEnable=True)) as slave:
                await until(lambda: end_of(slave) == end_of(master))
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.offsets.get("readers", "T", 0) == 1)
                await until(lambda: slave.context.store.max_offset("T", 0) == 1)
                found = await pull(slave, "T")
                assert (found.code, b"first" in bytes(found.body)) == (0, True)
                refused = await slave.send("T", b"no")
                assert refused.code == 14
                status = await master.call(907)
                assert b'"inSyncSlaveNums":1' in status.body
                route = await master.client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                assert slave.address.encode() in route.body
                assert master.address.encode() in route.body
                await master.broker.stop()
                found = await pull(slave, "T")
                assert (found.code, b"first" in bytes(found.body)) == (0, True)

    run(flow)


def test_a_slave_that_is_not_read_from_names_the_master_and_the_same_offset(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            await master.send("T", b"first")
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.store.max_offset("T", 0) == 1)
                found = await pull(slave, "T")
                assert found.code == 20
                assert found.ext_fields["suggestWhichBrokerId"] == "0"
                assert found.ext_fields["nextBeginOffset"] == "0"

    run(flow)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_sync_master_answers_when_its_slave_has_the_message(tmp_path: Path, flush: str) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 1000, "flushDiskType": flush}
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv, **settings) as master:
                alone = await master.send("T", b"alone")
                assert alone.code == 11  # SLAVE_NOT_AVAILABLE
                assert alone.ext_fields["queueOffset"] == "0"
                assert (await master.send("T", b"waits not", properties="WAIT\x01false\x02")).code == 0
                async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                    await until(lambda: end_of(slave) == end_of(master))
                    await until(lambda: master.context.replicas.in_sync() == 1)
                    for number in range(20):
                        assert (await master.send("T", b"%d" % number)).code == 0
                        assert end_of(slave) == end_of(master)

    run(flow)


def test_a_slave_that_does_not_confirm_in_time(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 50}
        async with running_broker(tmp_path / "m", **settings) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", master.context.replicas.port)
            writer.write(bytes(8))  # a slave that reports once, and never again
            await until(lambda: master.context.replicas.in_sync() == 1)
            assert (await master.send("T", b"x")).code == 12  # FLUSH_SLAVE_TIMEOUT
            writer.close()

    run(flow)


def test_a_slave_needs_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brokerId: expected at least 1 for a slave"):
        Broker(broker_config(tmp_path, brokerRole="SLAVE"))
    with pytest.raises(ConfigError, match="haMasterAddress"):
        run(lambda: Broker(broker_config(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="x")).start())
