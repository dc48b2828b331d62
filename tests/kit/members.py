"""A consumer as far as brokers and administrators know consumers, and messages as a producer sends messages.

Room: tests. The member pulls nothing, and notes the requests of brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from waiting import until

from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.route.name_servers import parse_addresses
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["Member", "ask", "member", "send", "until"]


def ask(address: str, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
    """Send a request over a new connection."""

    async def run() -> RemotingCommand:
        client = RemotingClient()
        try:
            texts = {name: str(value) for name, value in fields.items()}
            return await client.call(address, code, texts, body, timeout_ms=10_000)
        finally:
            await client.close()

    return asyncio.run(run())


def send(address: str, topic: str, *bodies: bytes, queue_id: int = 0, **properties: str) -> list[str]:
    """Send messages by 310 in turn. Returns: the offset ids."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    ids = []
    for body in bodies:
        answer = ask(
            address, RequestCode.SEND_MESSAGE_V2, body, a="makers", b=topic, c="TBW102", d=4, e=queue_id, f=0,
            g=round(time.time() * 1000), h=0, i=text, j=0, k="false", m="false",
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        ids.append(answer.ext_fields["msgId"])
    return ids


class Member:
    """A member of a group that subscribes to a topic. Attributes: asked: (code, fields, body) of brokers;
    is_silent: no request is answered.
    """

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.client_id = ""
        self.asked: list[tuple[int, dict[str, Any], bytes]] = []
        self.is_silent = False

    def heartbeat(self) -> dict[str, Any]:
        subscription = {
            "topic": self.topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": [],
            "expressionType": "TAG", "classFilterMode": False,
        }  # fmt: skip
        return {
            "groupName": self.group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": [subscription],
        }  # fmt: skip

    def topics(self) -> Iterable[str]:
        return (self.topic,)

    async def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Note the request of a broker; 307 and 309 get an answer."""
        self.asked.append((request.code, dict(request.ext_fields), bytes(request.body or b"")))
        if self.is_silent:
            return None
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            subscription = encode_body(self.heartbeat()["subscriptionDataSet"][0]).decode()
            queue = f'{{"brokerName":"broker-x","queueId":0,"topic":"{self.topic}"}}'
            parts = [
                f'"mqTable":{{{queue}:{{"commitOffset":7,"droped":false}}}}',
                '"properties":{"PROP_CLIENT_VERSION":"mqfast"}',
                f'"subscriptionSet":[{subscription}]',
                f'"statusTable":{{"{self.topic}":{{"consumeOKTPS":1.5}}}}',
                '"jstack":"one thread"',
            ]
            text = "{" + ",".join(parts) + "}"
            return request.response(body=text.encode())
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            result = {"order": False, "autoCommit": True, "consumeResult": 1, "remark": None, "spentTimeMills": 5}
            return request.response(body=encode_body(result))
        return None


@contextlib.asynccontextmanager
async def member(namesrv: str, group: str, topic: str) -> AsyncIterator[Member]:
    """A member that the brokers of the topic know."""
    settings = InstanceSettings(parse_addresses(namesrv), instance_name=f"member-{group}")
    instance = ClientInstance.shared(settings, asyncio.get_running_loop())
    await instance.acquire()
    known = Member(group, topic)
    known.client_id = instance.client_id
    for code in (220, 307, 309):
        instance.serve(code, group, known.answer)
    try:
        instance.add_consumer(group, known)
        route = await instance.driver.run(instance.route(topic, timeout_s=10))
        await instance.heartbeat()
        assert all(instance.is_registered_at(place.addresses[0]) for place in route.brokers.values())
        yield known
        await instance.remove_consumer(group, known)
    finally:
        await instance.release()
