"""What name servers are told of a broker's topics: a new one leaves the others as they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from running import broker_config, running_broker

from mqfast.broker.server import Broker
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand


@contextlib.asynccontextmanager
async def name_server(tmp_path: Path, **settings: str) -> AsyncIterator[NameServer]:
    config = NamesrvConfig()
    config.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json"), **settings}, "test")
    server = NameServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(flow: Callable[[], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(300):
            await flow()

    asyncio.run(whole())


def test_a_single_topic_registration_keeps_the_others_with_deleteTopicWithBrokerRegistration(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path, deleteTopicWithBrokerRegistration="true") as server:
            namesrv = "{}:{}".format(*server.address)
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
                for topic in ("first", "second"):
                    assert (await master.send(topic, b"x")).code == 0
                for topic in ("first", "second"):
                    route = await master.client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                    assert route.code == 0
                    assert b'"writeQueueNums":4' in route.body

    run(flow)


def test_a_name_server_without_217_gets_a_full_registration(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as server:
            namesrv = "{}:{}".format(*server.address)
            asked = []

            def refuse(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                asked.append(request.ext_fields["topic"])
                return request.response(3, remark=" request type 217 not supported")  # as one of 4.9 does

            lane = next(iter(server.processors.lanes.values()))
            server.processors.register([RequestCode.REGISTER_TOPIC_IN_NAMESRV], refuse, lane)
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
                assert (await master.send("first", b"x")).code == 0
                assert asked == ["first"]
                route = await master.client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "first"})
                assert route.code == 0

    run(flow)


@pytest.mark.parametrize("has_a_new_topic", [False, True])
def test_a_restarted_name_server_gets_a_full_registration_soon(tmp_path: Path, has_a_new_topic: bool) -> None:
    """Not only with the next registration by the clock, a minute later here."""

    async def flow() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with name_server(tmp_path) as server:
                host, port = server.address
                settings: dict[str, Any] = {"namesrvAddr": f"{host}:{port}", "registerNameServerPeriod": 60_000}
                master = await stack.enter_async_context(running_broker(tmp_path / "m", **settings))
                assert (await master.send("before", b"x")).code == 0
                assert "before" in server.tables.topics()
            async with name_server(tmp_path, listenPort=str(port)) as server:
                wanted = {"before"}
                if has_a_new_topic:
                    assert (await master.send("new", b"x")).code == 0
                    wanted.add("new")
                async with asyncio.timeout(300):
                    while not wanted <= set(server.tables.topics()):
                        await asyncio.sleep(0.02)

    run(flow)


def test_a_start_that_is_given_up_registers_nothing_any_more(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as server:
            namesrv = "{}:{}".format(*server.address)
            asked: list[Channel] = []

            def give_up(channel: Channel, request: RemotingCommand) -> None:
                asked.append(channel)
                starting.cancel()  # before the answer

            lane = next(iter(server.processors.lanes.values()))
            server.processors.register([RequestCode.REGISTER_BROKER], give_up, lane)
            broker = Broker(broker_config(tmp_path / "m", namesrvAddr=namesrv))
            starting = asyncio.ensure_future(broker.start())
            with pytest.raises(asyncio.CancelledError):
                await starting
            told = broker.context.registration.registration_version
            broker.context.registration.register_soon()  # as its clock would
            assert broker.context.registration.registration_version == told == 1
            while not asked[0].is_closed:
                await asyncio.sleep(0.001)

    run(flow)
