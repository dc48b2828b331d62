"""An answer that has come reaches its caller, whatever ends the connection behind it; else it would wait for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest
from client.net.raw_server import Connection, RawServer

from mqfast.errors import ConnectionLost
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand, encode
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.settings import RemotingSettings

ANSWERED, LOST, BIG = 1, 2, 77


async def calls(client: RemotingClient, server: RawServer) -> None:
    lost = asyncio.ensure_future(client.call(server.address, LOST, timeout_ms=600_000))
    answered = asyncio.ensure_future(client.call(server.address, ANSWERED, timeout_ms=600_000))
    async with asyncio.timeout(300):
        answer = await answered
        assert answer.ext_fields == {"a": "b"}
        with pytest.raises(ConnectionLost):
            await lost
    await client.close()


def test_an_answer_before_a_frame_that_is_too_much() -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if request.code == ANSWERED:
            begun = b"\x00\x08\x00\x00\x00\x00\x00\x02{}" + bytes(5000)
            one.send(encode(request.response(0, {"a": "b"})) + begun)

    async def main(server: RawServer) -> None:
        await calls(RemotingClient(None, RemotingSettings(buffered_bytes_max=1000)), server)

    with RawServer(serve) as server:
        asyncio.run(main(server))


def test_an_answer_behind_a_request_whose_answer_the_peer_does_not_read() -> None:
    may_cut = threading.Event()

    def serve(one: Connection, request: RemotingCommand) -> None:
        if request.code == ANSWERED:
            one.send(encode(RemotingCommand(BIG, opaque=7)) + encode(request.response(0, {"a": "b"})))
            assert may_cut.wait(20)
            one.cut()

    def big(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        may_cut.set()
        return request.response(0, None, bytes(8 << 20))

    async def main(server: RawServer) -> None:
        processors = Processors()
        processors.register([BIG], big, ConcurrencyLimit("big"))
        settings = RemotingSettings(write_high_bytes=1000, write_low_bytes=100)
        await calls(RemotingClient(processors, settings), server)

    with RawServer(serve) as server:
        asyncio.run(main(server))
