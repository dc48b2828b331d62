"""What brokers and strangers may tell a name server: limits on topics, brokers and bytes, and nobody waits for long."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand


class World:
    """A name server and one client."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.client = RemotingClient()
        self.address = "{}:{}".format(*server.address)

    async def call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        return await self.client.call(self.address, code, fields, body, timeout_ms=30_000)

    async def register(self, name: str, topics: list[str], version: int = 1, **more: Any) -> RemotingCommand:
        return await self.call(RequestCode.REGISTER_BROKER, {**who(name), **more}, body_of(topics, version))

    async def has_route(self, topic: str) -> bool:
        return (await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})).code == 0


def who(name: str) -> dict[str, Any]:
    return {
        "brokerName": name, "brokerAddr": f"192.0.2.1:{zlib.crc32(name.encode()) % 60_000 + 1}", "clusterName": "c",
        "haServerAddr": "", "brokerId": 0,
    }  # fmt: skip


def body_of(topics: list[str], version: int = 1) -> bytes:
    table = {topic: {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicName": topic} for topic in topics}
    told = {"dataVersion": {"counter": version, "timestamp": 1, "stateVersion": 0}, "topicConfigTable": table}
    return msgspec.json.encode({"filterServerList": [], "topicConfigSerializeWrapper": told})


@contextlib.asynccontextmanager
async def name_server(tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    config = NamesrvConfig()
    config.update(
        {"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json"), **{k: str(v) for k, v in settings.items()}},
        "test",
    )
    server = NameServer(config)
    await server.start()
    world = World(server)
    try:
        yield world
    finally:
        await world.client.close()
        await server.stop()


def play(tmp_path: Path, flow: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(300), name_server(tmp_path, **settings) as world:
            await flow(world)

    asyncio.run(run())


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def test_a_registration_above_a_limit_is_refused_and_names_the_setting(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        assert (await world.register("a", names("t", 100))).code == 0
        refused = await world.register("b", names("t", 101))
        assert refused.code == 1
        assert "at most 100 topics (registrationTopicsMax)" in (refused.remark or "")
        packed = zlib.compress(bytes(200_000))
        refused = await world.call(RequestCode.REGISTER_BROKER, {**who("b"), "compressed": "true"}, packed)
        assert "at most 100000 bytes when unpacked (registrationBytesMax)" in (refused.remark or "")
        refused = await world.call(RequestCode.REGISTER_BROKER, who("b"), b" " * 100_001)
        assert "at most 100000 bytes (registrationBytesMax)" in (refused.remark or "")
        refused = await world.register("x" * 300, names("t", 2))
        assert "at most 255 characters" in (refused.remark or "")
        assert list(world.server.tables.groups()) == ["a"]

    play(tmp_path, flow, registrationTopicsMax=100, registrationBytesMax=100_000)


def test_topics_of_all_brokers_have_a_limit_and_those_that_are_known_stay(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        assert (await world.register("a", names("a", 60))).code == 0
        refused = await world.register("b", names("b", 60))
        assert (refused.code, "topicsMax=100" in (refused.remark or "")) == (1, True)
        assert (await world.register("a", names("a", 60), 2)).code == 0  # nothing new
        assert (await world.register("b", names("b", 40))).code == 0
        queues = msgspec.json.encode({"queueDatas": [{"brokerName": "a", "perm": 6}]})
        refused = await world.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "one more"}, queues)
        assert (refused.code, "topicsMax=100" in (refused.remark or "")) == (1, True)
        assert await world.has_route("a59")
        assert await world.has_route("b39")
        await world.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "a0"})
        taken = await world.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "one more"}, queues)
        assert taken.code == 0
        await world.call(RequestCode.UNREGISTER_BROKER, who("b"))
        assert (await world.register("c", names("c", 40))).code == 0

    play(tmp_path, flow, topicsMax=100)


def test_a_registration_above_brokersMax_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        for name in names("lone", 10):
            assert (await world.register(name, ["t"])).code == 1  # a first registration has all topics
        assert world.server.tables.groups() == {}
        assert world.server.tables.clusters() == {}
        for name in names("b", 3):
            assert (await world.register(name, names("t", 2))).code == 0
        refused = await world.register("b3", names("t", 2))
        assert (refused.code, "brokersMax=3" in (refused.remark or "")) == (1, True)
        assert (await world.register("b1", names("t", 2), 2)).code == 0
        await world.call(RequestCode.UNREGISTER_BROKER, who("b0"))
        assert (await world.register("b3", names("t", 2))).code == 0

    play(tmp_path, flow, brokersMax=3)


def test_a_broker_of_many_topics_registers_while_others_are_served(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        topics = names("t", 20_000)
        other = RemotingClient()
        assert (await other.call(world.address, RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        registering = asyncio.ensure_future(world.register("a", topics))
        served = 0
        while not registering.done():
            await other.call(world.address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=30_000)
            served += 1
        assert (await registering).code == 0
        assert served > 5
        assert await world.has_route("t19999")
        await other.close()

    play(tmp_path, flow)


def test_requests_after_a_registration_are_served_after_it(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        topics = names("t", 10_000)
        queues = msgspec.json.encode({"queueDatas": [{"brokerName": "a", "perm": 6}]})
        answers = await asyncio.gather(
            world.register("a", topics),
            world.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "new"}, queues),
            world.register("a", ["t0", "t1"], 2),
        )
        assert [answer.code for answer in answers] == [0, 0, 0]
        assert await world.has_route("new")
        version = world.server.tables.data_version("c", who("a")["brokerAddr"])
        assert version is not None
        assert version.counter == 2
        await asyncio.gather(world.register("a", topics, 3), world.call(RequestCode.UNREGISTER_BROKER, who("a")))
        assert world.server.tables.groups() == {}
        lost = asyncio.ensure_future(world.register("b", topics))
        await asyncio.sleep(0)
        await world.client.close()
        await asyncio.wait([lost])
        world.client = RemotingClient()
        while world.server.processors.running:
            await asyncio.sleep(0.001)
        assert world.server.tables.groups() == {}  # nobody would say that it is gone

    play(tmp_path, flow)


def test_values_of_admins_have_a_limit(tmp_path: Path) -> None:
    async def flow(world: World) -> None:
        fields = {"namespace": "n", "key": "k", "value": "v" * 900_000}
        assert (await world.call(RequestCode.PUT_KV_CONFIG, fields)).code == 0
        refused = await world.call(RequestCode.PUT_KV_CONFIG, {**fields, "key": "k2"})
        assert (refused.code, "at most 1048576 bytes" in (refused.remark or "")) == (1, True)
        assert (await world.call(RequestCode.GET_KV_CONFIG, fields)).code == 0

    play(tmp_path, flow)
