"""A cluster of ours as a process, with what tests of consumers do to it without a producer or an admin client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from running import BrokerProcess
from waiting import until

from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.route.name_servers import parse_addresses
from mqfast.client.route.route_table import TopicRoute, decode_route
from mqfast.client.values import MessageQueue
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand

WAIT_S = 30.0
BROKER_NAME = "broker-a"


def a_cluster(work: Path, **settings: Any) -> BrokerProcess:
    """A name server and a broker of a known name."""
    return BrokerProcess(work, brokerName=BROKER_NAME, brokerIP1="127.0.0.1", **settings)


async def instance_of(cluster: BrokerProcess, **settings: Any) -> ClientInstance:
    """An instance of this loop, in use."""
    made = ClientInstance.shared(
        InstanceSettings(parse_addresses(cluster.namesrv), **settings), asyncio.get_running_loop()
    )
    await made.acquire()
    return made


def in_loop(flow: Callable[[], Awaitable[None]]) -> None:
    """Run a flow, for a minute at most."""

    async def run() -> None:
        async with asyncio.timeout(300):
            await flow()

    asyncio.run(run())


class Hand:
    """Asks the one broker of a cluster directly, from a thread without a loop.

    Attributes: namesrv, broker: addresses; broker_name.
    """

    def __init__(self, cluster: BrokerProcess | str) -> None:
        self.namesrv = cluster if isinstance(cluster, str) else cluster.namesrv
        self.cluster = cluster
        route = asyncio.run(self._route())
        (place,) = route.brokers.values()
        self.broker_name, self.broker = place.name, place.addresses[0]

    async def _route(self) -> TopicRoute:
        client = RemotingClient()
        try:
            fields = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
            answer = await client.call(self.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, timeout_ms=10_000)
            return decode_route("TBW102", bytes(answer.body))
        finally:
            await client.close()

    def ask(self, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
        async def once() -> RemotingCommand:
            client = RemotingClient()
            try:
                texts = {name: str(value) for name, value in fields.items()}
                return await client.call(self.broker, code, texts, body, timeout_ms=10_000)
            finally:
                await client.close()

        return asyncio.run(once())

    def queue(self, topic: str, number: int = 0) -> MessageQueue:
        return MessageQueue(topic, self.broker_name, number)

    def send(self, topic: str, *bodies: bytes, queue_id: int = 0, properties: str = "", queues: int = 4) -> list[int]:
        """Send to one queue; the topic is made at need. Returns: queue offsets, once all can be pulled."""

        async def all_of_them() -> list[int]:
            client, offsets = RemotingClient(), []
            try:
                for body in bodies:
                    letters = {
                        "a": "makers", "b": topic, "c": "TBW102", "d": str(queues), "e": str(queue_id), "f": "0",
                        "g": str(int(time.time() * 1000)), "h": "0", "i": properties, "j": "0", "k": "false",
                        "m": "false",
                    }  # fmt: skip
                    answer = await client.call(self.broker, RequestCode.SEND_MESSAGE_V2, letters, body)
                    assert answer.code == 0, answer.remark
                    offsets.append(int(answer.ext_fields["queueOffset"]))
            finally:
                await client.close()
            return offsets

        found = asyncio.run(all_of_them())
        until(lambda: not found or self.max_offset(topic, queue_id) > found[-1], "dispatch")
        return found

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        return int(self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id).ext_fields["offset"])

    def make_group(self, group: str) -> None:
        body = f'{{"groupName":"{group}","consumeEnable":true,"consumeBroadcastEnable":true}}'
        assert self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body.encode()).code == 0

    def offset(self, group: str, queue: MessageQueue) -> int:
        """The group's offset at the broker, -1 where there is none."""
        answer = self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=queue.topic, queueId=queue.queue_id,
            setZeroIfNotFound="false",
        )  # fmt: skip
        return int(answer.ext_fields["offset"]) if answer.code == 0 else -1

    def members(self, group: str) -> int:
        """How many members the broker knows."""
        answer = self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
        return len(json.loads(bytes(answer.body))["consumerIdList"]) if answer.code == 0 else 0
