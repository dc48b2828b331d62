"""What admins want of clients, through a running broker: offsets reset, what a client says, a message consumed now."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

from mqfast.broker.admin import client_requests
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import ROCKETMQ, RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.util.fastjson import standard

QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
Answer = Callable[[RemotingCommand], RemotingCommand | None]


class Consumer:
    """A client of a group with a connection of its own; it keeps what the broker asks."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self.asked: list[RemotingCommand] = []
        self.heard = asyncio.Event()
        self._answer = answer
        processors = Processors()
        processors.register([220, 221, 307, 309], self._serve, ConcurrencyLimit("consumer"))
        self.remoting = RemotingClient(processors)

    def _serve(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(request)
        self.heard.set()
        return self._answer(request)


@contextlib.asynccontextmanager
async def consumer(
    one: Running, name: str, answer: Answer, *, version: int = 479, serialize: int = 0
) -> AsyncIterator[Consumer]:
    found = Consumer(name, answer)
    body = {
        "clientID": name,
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
    }
    try:
        call = found.remoting.call(
            one.address, 34, {}, json.dumps(body).encode(), version=version, serialize=serialize, timeout_ms=10_000
        )
        assert (await call).code == 0
        yield found
    finally:
        await found.remoting.close()


def offsets_of(body: Any, name: str = "offsetTable") -> dict[int, int]:
    found = json.loads(standard(bytes(body)))[name]
    return {json.loads(key)["queueId"]: offset for key, offset in found.items()}


async def send_five(one: Running) -> None:
    for number in range(5):
        await one.send("T", b"%d" % number, queue_id=0, queues=2)
    one.context.groups.get("g")


def test_a_reset_moves_the_offsets_of_a_group_that_is_away(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_five(one)
        one.context.offsets.commit("g", "T", 0, 2)
        answer = await one.call(222, topic="T", group="g", timestamp=-1, isForce="true", queueId=-1)
        assert answer.code == 0
        assert offsets_of(answer.body) == {0: 5, 1: 0}
        assert bytes(answer.body).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,')
        assert one.context.offsets.get("g", "T", 0) == 5
        answer = await one.call(222, topic="T", group="g", timestamp=0, isForce="true")
        assert offsets_of(answer.body) == {0: 0, 1: 0}
        assert one.context.offsets.get("g", "T", 0) == 0
        answer = await one.call(222, topic="T", group="g", timestamp=-1, isForce="true", queueId=0, offset=3)
        assert offsets_of(answer.body) == {0: 3}
        answer = await one.call(222, topic="T", group="g", timestamp=-1, isForce="true", queueId=0, offset=-1)
        assert offsets_of(answer.body) == {0: 5}

    serve(tmp_path, flow)


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "no"}, 17, "Topic no does not exist"),
        ({"group": "no"}, 26, "Group no does not exist"),
        ({"queueId": 0, "offset": 77}, 1, "Target offset 77 not in consume queue range [0-5]"),
        ({"queueId": 0, "offset": -7}, 1, "Target offset -7 not in consume queue range [0-5]"),
        ({"timestamp": "x"}, 1, "FieldError: field timestamp: expected int, found 'x'"),
    ],
)
def test_a_reset_that_may_not_be_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], code: int, remark: str
) -> None:
    async def flow(one: Running) -> None:
        await send_five(one)
        one.context.offsets.commit("g", "T", 0, 2)
        answer = await one.call(222, **{"topic": "T", "group": "g", "timestamp": -1, "isForce": "true", **fields})
        assert (answer.code, answer.remark) == (code, remark)
        assert one.context.offsets.get("g", "T", 0) == 2

    serve(tmp_path, flow)


def test_clients_are_notified_of_a_client_side_reset(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_five(one)
        fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": "false"}
        answer = await one.call(222, **fields)
        assert (answer.code, answer.remark) == (1, "THe consumer group <g> not exist")
        one.context.offsets.commit("g", "T", 0, 4)
        one.context.offsets.commit("g", "T", 1, 0)
        answer = await one.call(222, **fields)
        assert answer.code == 206
        assert answer.remark == "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 0"
        async with consumer(one, "c", lambda _: None) as client:
            answer = await one.call(222, **{**fields, "timestamp": -1})
            assert offsets_of(answer.body) == {0: 4, 1: 0}, "without force a group only goes back"
            await client.heard.wait()
            client.heard.clear()
            answer = await one.call(222, **{**fields, "isForce": "true", "timestamp": -1})
            assert offsets_of(answer.body) == {0: 5, 1: 0}
            await client.heard.wait()
            told = client.asked[-1]
            assert (told.code, told.is_oneway) == (220, True)
            assert (told.ext_fields["topic"], told.ext_fields["group"]) == ("T", "g")
            assert offsets_of(told.body) == {0: 5, 1: 0}

    serve(tmp_path, flow, useServerSideResetOffset=False)


def test_consumer_status_is_requested_from_clients(tmp_path: Path) -> None:
    def says(offset: int) -> Answer:
        body = f'{{"messageQueueTable":{{{QUEUE}:{offset}}}}}'
        return lambda request: request.response(body=body.encode())

    async def flow(one: Running) -> None:
        await send_five(one)
        answer = await one.call(223, topic="T", group="g")
        assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [g]")
        async with (
            consumer(one, "c", says(3)),
            consumer(one, "d", says(4)),
            consumer(one, "e", lambda request: request.response(1)),
        ):
            found = json.loads(standard(bytes((await one.call(223, topic="T", group="g")).body)))["consumerTable"]
            assert {name: list(table.values()) for name, table in found.items()} == {"c": [3], "d": [4]}
            one_only = json.loads(standard(bytes((await one.call(223, topic="T", group="g", clientAddr="d")).body)))
            assert set(one_only["consumerTable"]) == {"d"}

    serve(tmp_path, flow)


@pytest.mark.parametrize("serialize", [0, ROCKETMQ])
def test_the_running_info_of_a_client_is_forwarded_to_the_admin(tmp_path: Path, serialize: int) -> None:
    table = f'{{"mqTable":{{{QUEUE}:{{"locked":true}}}}}}'.encode()

    def running(request: RemotingCommand) -> RemotingCommand:
        return request.response(body=table, remark="well")

    async def flow(one: Running) -> None:
        async with consumer(one, "c", running, serialize=serialize) as client:
            answer = await one.call(307, consumerGroup="g", clientId="c", jstackEnable="true")
            assert (answer.code, answer.remark) == (0, "well")
            assert bytes(answer.body) == table
            assert client.asked[0].ext_fields["jstackEnable"] == "true"
        answer = await one.call(307, consumerGroup="g", clientId="c")
        assert (answer.code, answer.remark) == (1, "The Consumer <g> <c> not online")

    serve(tmp_path, flow)


def test_a_silent_or_disconnected_client_does_not_block_the_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "_CALL_MS", 300)

    async def flow(one: Running) -> None:
        async with consumer(one, "c", lambda _: None) as client:
            answer = await one.call(307, consumerGroup="g", clientId="c")
            assert answer.code == 207
            assert str(answer.remark).startswith("consumer <g> <c> Timeout:")
            client.heard.clear()
            waiting = asyncio.ensure_future(one.call(307, consumerGroup="g", clientId="c"))
            await client.heard.wait()
            assert (await one.call(351, topic="TBW102")).code == 0, "others are served meanwhile"
            await client.remoting.close()
            assert (await waiting).code in (1, 207)

    serve(tmp_path, flow)


def test_an_old_client_is_not_asked(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        async with consumer(one, "c", lambda _: None, version=40):
            answer = await one.call(307, consumerGroup="g", clientId="c")
            assert answer.code == 1
            assert "Version <40> too low" in str(answer.remark)

    serve(tmp_path, flow)


def test_a_message_is_consumed_now(tmp_path: Path) -> None:
    def consumed(request: RemotingCommand) -> RemotingCommand:
        return request.response(body=b'{"consumeResult":"CR_SUCCESS"}')

    async def flow(one: Running) -> None:
        sent = await one.send("T", b"hello")
        message_id = sent.ext_fields["msgId"]
        async with consumer(one, "c", consumed) as client:
            answer = await one.call(309, consumerGroup="g", clientId="c", msgId=message_id, topic="T")
            assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'
            asked = client.asked[0]
            assert b"hello" in bytes(asked.body)
            assert int.from_bytes(bytes(asked.body)[:4], "big") == len(asked.body), "one whole record"
            fields = asked.ext_fields
            assert (fields["brokerName"], fields["topicSysFlag"], fields["groupSysFlag"]) == ("broker-a", "0", "0")
            for wrong in ("zz", "", message_id[:16] + "7" * 16):
                answer = await one.call(309, consumerGroup="g", clientId="c", msgId=wrong)
                assert answer.code == 1
                assert str(answer.remark).startswith(f"msgId {wrong!r}:")
            assert len(client.asked) == 1

    serve(tmp_path, flow)


def test_all_producers(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        body = {"clientID": "p1", "producerDataSet": [{"groupName": "a"}, {"groupName": "b"}]}
        assert (await one.call(34, json.dumps(body).encode())).code == 0
        found = json.loads((await one.call(328)).body)["data"]
        assert set(found) == {"a", "b"}
        (row,) = found["a"]
        assert row["clientId"] == "p1"
        assert row["remoteIP"].startswith("/127.0.0.1:")
        assert row["language"] == "JAVA"
        assert {"lastUpdateTimestamp", "version"} < set(row)

    serve(tmp_path, flow)
