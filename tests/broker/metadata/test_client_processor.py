"""Clients over loopback: heartbeats, the list of a group, change notices, locks, and what ends with a connection."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "remoting"))

from captures import captures
from waiting import until_async as eventually

from mqfast.broker.metadata.client_manager.client_processor import ClientProcessor
from mqfast.broker.metadata.client_manager.consumer_manager import ConsumerManager
from mqfast.broker.metadata.client_manager.producer_manager import ProducerManager
from mqfast.broker.metadata.client_manager.queue_locks import QueueLocks
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Client:
    """One client with one connection; ``told`` are the groups of its notices."""

    def __init__(self, world: World, name: str) -> None:
        self.told: list[str] = []
        self.name = name
        self._world = world
        processors = Processors()
        processors.register([40], self._notice, ConcurrencyLimit("notices"))
        self.remoting = RemotingClient(processors)

    def _notice(self, channel: Channel, request: RemotingCommand) -> None:
        self.told.append(request.ext_fields["consumerGroup"])

    async def call(self, code: int, body: Any = None, **fields: Any) -> RemotingCommand:
        raw = b"" if body is None else json.dumps(body).encode()
        return await self.remoting.call(
            "{}:{}".format(*self._world.server.address), code, fields, raw, timeout_ms=20_000
        )

    async def heartbeat(self, *groups: str, producer: str = "p") -> RemotingCommand:
        consumers = [{"groupName": g, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for g in groups]
        body = {"clientID": self.name, "consumerDataSet": consumers, "producerDataSet": [{"groupName": producer}]}
        return await self.call(34, body)


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.locks = QueueLocks(self.clock)
        self.processor = ClientProcessor(
            ConsumerManager(self.clock),
            ProducerManager(self.clock),
            self.locks,
            is_group_allowed=lambda data: data.group_name != "forbidden",
        )
        processors = Processors()
        self.processor.register(processors)
        self.server = RemotingServer(processors, on_closed=self.processor.channel_closed)
        self.clients: list[Client] = []

    def client(self, name: str) -> Client:
        self.clients.append(Client(self, name))
        return self.clients[-1]


def play(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World()
        await world.server.start()
        try:
            await asyncio.wait_for(main(world), 300)
        finally:
            for client in world.clients:
                await client.remoting.close()
            await world.server.stop(0.2)

    asyncio.run(whole())


def test_members_are_listed_and_notified_of_changes() -> None:
    async def main(world: World) -> None:
        one, two = world.client("one"), world.client("two")
        answer = await one.heartbeat("g")
        assert answer.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        await eventually(lambda: one.told == ["g"], "the newcomer is told")
        await one.heartbeat("g")
        await two.heartbeat("g", "forbidden")
        await eventually(lambda: (one.told, two.told) == (["g", "g"], ["g"]), "both are told")
        assert json.loads((await one.call(38, consumerGroup="g")).body) == {"consumerIdList": ["one", "two"]}
        none = await one.call(38, consumerGroup="forbidden")
        assert (none.code, none.remark) == (1, "no consumer for this group, forbidden")
        await two.call(35, clientID="two", consumerGroup="g", producerGroup="p")
        await eventually(lambda: one.told == ["g", "g", "g"], "one is told that two has left")
        assert json.loads((await one.call(38, consumerGroup="g")).body) == {"consumerIdList": ["one"]}
        assert (await one.call(38)).code == 1

    play(main)


def test_the_end_of_a_connection_is_the_end_of_its_memberships() -> None:
    async def main(world: World) -> None:
        one, two = world.client("one"), world.client("two")
        await one.heartbeat("g")
        await two.heartbeat("g", producer="q")
        await two.remoting.close()
        await eventually(lambda: one.told == ["g", "g", "g"], "one is told")
        assert json.loads((await one.call(38, consumerGroup="g")).body) == {"consumerIdList": ["one"]}
        gone = await one.call(204, producerGroup="q")
        assert (gone.code, gone.remark) == (1, "the producer group[q] not exist")

    play(main)


def test_silent_clients_are_closed_and_their_locks_forgotten() -> None:
    async def main(world: World) -> None:
        one, two = world.client("one"), world.client("two")
        await one.heartbeat("g")
        queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
        await one.call(41, {"clientId": "one", "consumerGroup": "g", "mqSet": [queue]})
        assert world.locks.is_orderly("g")
        world.clock.now += 120_001
        await two.heartbeat("g")
        world.processor.scan()
        await eventually(lambda: len(world.server.channels) == 1, "the silent one is closed")
        await eventually(lambda: two.told[-1:] == ["g"], "the other is told")
        assert json.loads((await two.call(38, consumerGroup="g")).body) == {"consumerIdList": ["two"]}
        assert not world.locks.is_orderly("g")

    play(main)


def test_admins_see_connected_clients() -> None:
    async def main(world: World) -> None:
        one = world.client("one")
        await one.heartbeat("g")
        (channel,) = world.server.channels
        connection = {
            "clientAddr": "{}:{}".format(*channel.peer),
            "clientId": "one",
            "language": "JAVA",
            "version": 479,
        }
        assert json.loads((await one.call(204, producerGroup="p")).body) == {"connectionSet": [connection]}
        assert json.loads((await one.call(203, consumerGroup="g")).body) == {
            "connectionSet": [connection],
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionTable": {
                "T": {
                    "classFilterMode": False, "codeSet": None, "expressionType": "TAG", "subString": "*",
                    "subVersion": 0, "tagsSet": None, "topic": "T",
                }
            },
        }  # fmt: skip
        offline = await one.call(203, consumerGroup="none")
        assert (offline.code, offline.remark) == (206, "the consumer group[none] not online")

    play(main)


@pytest.mark.parametrize("name", ["5.3.3-json", "5.3.3-rocketmq", "4.9.7-json"])
def test_locks_of_captured_clients_are_granted_as_they_were(name: str) -> None:
    """Of the flow with two ordered consumers; a queue that both want is granted to one, as it was."""

    async def main(world: World) -> None:
        client, asked, compared = world.client("c"), {}, 0
        for capture in captures(name):
            (command,) = FrameDecoder().feed(capture.frame)
            if capture.flow != "orderly-lock-unlock" or capture.peer != "broker":
                continue
            if command.code in (41, 42) and not command.is_response:
                answer = await client.call(command.code, json.loads(command.body))
                asked[capture.connection, command.opaque] = answer
            elif command.is_response and (capture.connection, command.opaque) in asked:
                answer = asked.pop((capture.connection, command.opaque))
                assert answer.code == command.code
                if command.body:
                    mine, theirs = (json.loads(one.body)["lockOKMQSet"] for one in (answer, command))
                    assert sorted(mine, key=str) == sorted(theirs, key=str)
                    compared += 1
        assert compared >= 3

    play(main)


def test_a_client_of_5_x_leaves_its_subscriptions_out_while_they_are_the_same() -> None:
    def heartbeat(fingerprint: int, *topics: str, left_out: bool = False) -> dict[str, Any]:
        data = {"groupName": "g", "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics]}
        return {
            "clientID": "one", "consumerDataSet": [data], "producerDataSet": [],
            "heartbeatFingerprint": fingerprint, "withoutSub": left_out,
        }  # fmt: skip

    async def main(world: World) -> None:
        one = world.client("one")
        first = await one.call(34, heartbeat(7, "T"))
        assert first.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
        again = await one.call(34, heartbeat(7, left_out=True))
        assert again.ext_fields["IS_SUB_CHANGE"] == "false"
        known = json.loads((await one.call(203, consumerGroup="g")).body)["subscriptionTable"]
        assert list(known) == ["T"]
        changed = await one.call(34, heartbeat(8, left_out=True))
        assert changed.ext_fields["IS_SUB_CHANGE"] == "true"
        await one.call(34, heartbeat(8, "T", "U"))
        known = json.loads((await one.call(203, consumerGroup="g")).body)["subscriptionTable"]
        assert sorted(known) == ["T", "U"]

    play(main)


def test_a_client_of_5_x_must_send_subscriptions_that_the_broker_lost() -> None:
    def heartbeat(name: str, *topics: str) -> dict[str, Any]:
        data = {"groupName": "g", "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics]}
        return {
            "clientID": name, "consumerDataSet": [data], "producerDataSet": [],
            "heartbeatFingerprint": 7, "withoutSub": not topics,
        }  # fmt: skip

    async def main(world: World) -> None:
        one, two = world.client("one"), world.client("two")
        await one.call(34, heartbeat("one", "T"))
        assert (await one.call(34, heartbeat("one"))).ext_fields["IS_SUB_CHANGE"] == "false"
        await one.call(35, clientID="one", consumerGroup="g")  # as the end of its connection, or of the broker
        for client in (one, two):
            assert (await client.call(34, heartbeat(client.name))).ext_fields["IS_SUB_CHANGE"] == "true"
        assert (await two.call(34, heartbeat("two", "T"))).ext_fields["IS_SUB_CHANGE"] == "false"
        assert (await one.call(34, heartbeat("one"))).ext_fields["IS_SUB_CHANGE"] == "false"

    play(main)
