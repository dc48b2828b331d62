"""Replies (324, 325): pushed to the producer that asked (326), stored, and refused with RocketMQ's words.

The requesting client, the replying client and the broker are real connections.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from event_loop import run
from running import Running, running_broker

from mqfast import properties as names
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

TOPIC = "DefaultCluster_REPLY_TOPIC"


class Requester:
    """A producer that asked: what is pushed to it, and what it answers."""

    def __init__(self, code: int = 0) -> None:
        self.pushed: list[RemotingCommand] = []
        self.code = code
        self.processors = Processors()
        self.processors.register([RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT], self._push, ConcurrencyLimit("push"))

    def _push(self, _channel: object, request: RemotingCommand) -> RemotingCommand:
        self.pushed.append(request)
        return request.response(self.code)

    async def join(self, one: Running, client_id: str = "asker") -> None:
        body = {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": "askers"}]}
        assert (await one.call(RequestCode.HEART_BEAT, json.dumps(body).encode())).code == 0


def header(client_id: str | None = "asker", **more: Any) -> dict[str, str]:
    """The letters of 325."""
    pairs = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": 3000, "UNIQ_KEY": "U", "REPLY_TO_CLIENT": client_id}
    letters = {
        "a": "repliers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_005, "h": 9,
        "i": names.encode(pairs).decode(), "j": 0, "k": "false", "m": "false", **more,
    }  # fmt: skip
    return {name: str(value) for name, value in letters.items()}


async def reply(one: Running, body: bytes = b"answer", **more: Any) -> RemotingCommand:
    """A reply over a connection of its own, as that of a consumer."""
    client = RemotingClient()
    try:
        return await client.call(one.address, 325, header(**more), body, timeout_ms=20_000)
    finally:
        await client.close()


def test_reply_is_pushed_to_the_requesting_producer_and_stored(tmp_path: Path) -> None:
    async def flow() -> None:
        asker = Requester()
        async with running_broker(tmp_path, processors=asker.processors) as one:
            await asker.join(one)
            answer = await reply(one)
            assert (answer.code, answer.remark) == (0, None)
            (pushed,) = asker.pushed
            assert bytes(pushed.body) == b"answer"
            fields = dict(pushed.ext_fields)
            pairs = names.decode(fields.pop("properties").encode())
            assert int(pairs.pop("PUSH_REPLY_TIME")) <= one.context.now_ms()
            assert pairs == {
                "MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": "3000", "UNIQ_KEY": "U",
                "REPLY_TO_CLIENT": "asker", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
            }  # fmt: skip
            host, _, port = fields.pop("bornHost").rpartition(":")
            assert (host, port.isdigit()) == ("127.0.0.1", True)
            assert int(fields.pop("storeTimestamp")) > 1_700_000_000_005
            assert fields == {
                "producerGroup": "repliers", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
                "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000005", "flag": "9", "reconsumeTimes": "0",
                "unitMode": "false", "storeHost": one.context.address,
            }  # fmt: skip
            (stored,) = one.context.store.get(TOPIC, 0, 0)
            assert answer.ext_fields == {
                "msgId": stored.message_id, "queueId": "0", "queueOffset": "0", "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }  # fmt: skip
            assert bytes(stored.body) == b"answer"
            assert (stored.flag, stored.born_timestamp) == (9, 1_700_000_000_005)
            assert "PUSH_REPLY_TIME" not in stored.properties
            assert stored.properties["CORRELATION_ID"] == "c-1"

    run(flow())


def test_reply_by_the_long_field_names_of_324(tmp_path: Path) -> None:
    async def flow() -> None:
        asker = Requester()
        async with running_broker(tmp_path, processors=asker.processors) as one:
            await asker.join(one)
            letters = header()
            long_names = {
                "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
                "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i",
            }  # fmt: skip
            answer = await one.call(324, b"go", **{name: letters[letter] for name, letter in long_names.items()})
            assert answer.code == 0
            assert bytes(asker.pushed[0].body) == b"go"

    run(flow())


def test_reply_is_not_stored_with_storeReplyMessageEnable_false(tmp_path: Path) -> None:
    async def flow() -> None:
        asker = Requester()
        async with running_broker(tmp_path, storeReplyMessageEnable=False, processors=asker.processors) as one:
            await asker.join(one)
            answer = await reply(one, e=-1)
            assert answer.code == 0
            assert (answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == ("0", "0")
            assert len(asker.pushed) == 1
            assert one.context.store.max_offset(TOPIC, 0) == 0

    run(flow())


@pytest.mark.parametrize("is_stored", [True, False])
def test_reply_that_cannot_be_pushed_gets_an_error(tmp_path: Path, is_stored: bool) -> None:
    async def flow() -> None:
        asker = Requester(code=1)
        settings = {"storeReplyMessageEnable": is_stored}
        async with running_broker(tmp_path, processors=asker.processors, **settings) as one:
            await asker.join(one)
            for more, words in (
                ({}, "push reply message to askerfail."),
                ({"client_id": "stranger"}, "push reply message fail, channel of <stranger> not found."),
                ({"client_id": None}, "reply message properties[REPLY_TO_CLIENT] is null"),
            ):
                answer = await reply(one, **more)
                assert (answer.code, answer.remark) == (1, words)
                assert ("msgId" in answer.ext_fields) is is_stored
            assert one.context.store.max_offset(TOPIC, 0) == (3 if is_stored else 0)

    run(flow())


def test_reply_to_a_disconnected_client_gets_an_error(tmp_path: Path) -> None:
    async def flow() -> None:
        asker = Requester()
        async with running_broker(tmp_path, processors=asker.processors) as one:
            await asker.join(one)
            await one.client.close()
            while one.context.producers.channel_of("asker") is not None:
                await asyncio.sleep(0.005)
            answer = await reply(one)
            assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <asker> not found.")

    run(flow())


def test_unresponsive_client_delays_no_reply_to_others(tmp_path: Path) -> None:
    async def flow() -> None:
        silent = Processors()
        came = asyncio.Event()
        silent.register(
            [RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT], lambda _channel, _request: came.set(), ConcurrencyLimit("push")
        )
        async with running_broker(tmp_path, processors=silent) as one:
            await Requester().join(one)
            waiting = asyncio.ensure_future(reply(one))
            await came.wait()
            assert (await one.send("T", b"x")).code == 0
            await one.client.close()  # the end of the connection ends the wait
            answer = await waiting
            assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")

    run(flow())


def test_replies_to_a_client_that_does_not_read_are_bounded(tmp_path: Path) -> None:
    async def flow() -> None:
        deaf = Processors()
        came = asyncio.Event()

        def pushed(channel: Channel, _request: RemotingCommand) -> None:
            assert channel._transport is not None
            asyncio.get_running_loop().call_soon(channel._transport.pause_reading)
            came.set()

        deaf.register([RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT], pushed, ConcurrencyLimit("push"))
        async with running_broker(tmp_path, processors=deaf, storeReplyMessageEnable=False) as one:
            await Requester().join(one)
            waiting = [asyncio.ensure_future(reply(one))]
            await came.wait()
            # More than both sockets hold: 40 MiB.
            waiting += [asyncio.ensure_future(reply(one, bytes(1 << 20))) for _ in range(40)]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            asker = one.context.producers.channel_of("asker")
            assert isinstance(asker, Channel)
            assert asker.unsent_bytes < 10 << 20
            answer = done.pop().result()
            assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
            await one.client.close()  # the end of the connection ends the wait
            assert {answer.code for answer in await asyncio.gather(*waiting)} == {1}

    run(flow())


def test_replies_are_checked_as_sends_are(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for more, code in (
                ({"b": "bad topic"}, ResponseCode.INVALID_PARAMETER),
                ({"b": "SELF_TEST_TOPIC"}, ResponseCode.NO_PERMISSION),
                ({"b": "none", "c": "none"}, ResponseCode.TOPIC_NOT_EXIST),
                ({"e": 5}, ResponseCode.INVALID_PARAMETER),
            ):
                assert (await reply(one, **more)).code == code

    run(flow())


def test_a_compressed_reply_is_stored_as_compressed(tmp_path: Path) -> None:
    async def flow() -> None:
        asker = Requester()
        async with running_broker(tmp_path, processors=asker.processors) as one:
            await asker.join(one)
            assert (await reply(one, b"zipped", f=0x301)).code == 0
            assert asker.pushed[0].ext_fields["sysFlag"] == str(0x301)
            assert one.context.store.get(TOPIC, 0, 0)[0].sys_flag == 0x301

    run(flow())
