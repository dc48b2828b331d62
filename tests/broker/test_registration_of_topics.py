"""What name servers are told of a broker's topics: a new one leaves the others as they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from running import broker_config, running_broker

from mqfast.broker.broker import Broker
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand


@contextlib.asynccontextmanager
async def name_server(tmp_path: Path, **settings: str) -> AsyncIterator[NameServer]:
    config = NamesrvConfig()
    config.take({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json"), **settings}, "test")
    server = NameServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(flow: Callable[[], Any]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await flow()

    asyncio.run(whole())


def test_a_new_topic_leaves_the_others_where_a_name_server_deletes_what_is_not_named(tmp_path: Path) -> None:
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


def test_a_name_server_that_does_not_know_the_request_is_told_everything(tmp_path: Path) -> None:
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


def test_a_name_server_that_forgot_the_broker_is_told_everything_with_the_next_topic(tmp_path: Path) -> None:
    """As one does that was started anew: not only with the next registration by the clock, half a minute later."""

    async def flow() -> None:
        async with name_server(tmp_path) as server:
            namesrv = "{}:{}".format(*server.address)
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv, registerNameServerPeriod=60_000) as master:
                assert (await master.send("before", b"x")).code == 0
                who = {"brokerName": "broker-a", "brokerAddr": master.context.address, "brokerId": "0"}
                fields = {**who, "clusterName": "DefaultCluster"}
                assert (await master.client.call(namesrv, RequestCode.UNREGISTER_BROKER, fields)).code == 0
                assert "before" not in server.tables.topics()
                assert (await master.send("new", b"x")).code == 0
                async with asyncio.timeout(40):
                    while not {"before", "new"} <= set(server.tables.topics()):
                        await asyncio.sleep(0.02)

    run(flow)


def test_other_name_servers_in_the_settings_count_at_once(tmp_path: Path) -> None:
    """Not only with the next registration by the clock; and one that the settings no longer name is forgotten."""

    async def flow() -> None:
        async with name_server(tmp_path) as old, name_server(tmp_path / "new") as new:
            before, after = ("{}:{}".format(*server.address) for server in (old, new))
            async with running_broker(tmp_path / "m", namesrvAddr=before, registerNameServerPeriod=60_000) as master:
                assert (await master.send("orders", b"x")).code == 0
                code, body = RequestCode.UPDATE_BROKER_CONFIG, f"namesrvAddr={after}".encode()
                assert (await master.client.call(master.address, code, {}, body)).code == 0
                registered = master.context.registration.registered
                async with asyncio.timeout(20):  # the answer awaits it, but only for half a second
                    while registered != {after: True}:
                        await asyncio.sleep(0.02)
                route = await master.client.call(after, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                assert route.code == 0

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
            told = broker.context.registration.tellings
            broker.context.registration.tell()  # as its clock would
            assert broker.context.registration.tellings == told == 1
            while not asked[0].is_closed:
                await asyncio.sleep(0.001)

    run(flow)
