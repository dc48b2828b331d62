"""A broker under bad clients: memory stays bounded, and a client that behaves has every message stored and read.

The broker is a process of its own, so that its memory can be seen. What is counted are rounds of the client that
behaves, never how long they took: that is for ``make bench-broker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from running import BrokerProcess, Running, serve

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode

pytestmark = pytest.mark.slow
SEND = {
    "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "", "j": "0",
    "k": "false",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
    "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
ROUNDS = 30
BAD_MIB = 64


def pull(offset: int, **more: str) -> dict[str, str]:
    return {**PULL, "queueOffset": str(offset), **more}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as started:
        yield started
        assert started.end() == 0
        assert "Traceback" not in started.log.read_text()


def mib(broker: BrokerProcess) -> float:
    return float(psutil.Process(broker.process.pid).memory_info().rss) / 2**20


def connect(broker: BrokerProcess) -> socket.socket:
    host, port = broker.address
    return socket.create_connection((host, port), 60)


async def behave(client: RemotingClient, address: str, number: int) -> None:
    """A pull that waits is answered by the message that is sent then."""
    body = b"message %d" % number
    held = asyncio.ensure_future(client.call(address, 11, pull(number), timeout_ms=120_000))
    stored = await client.call(address, 310, SEND, body, timeout_ms=60_000)
    assert (stored.code, stored.ext_fields["queueOffset"]) == (0, str(number))
    found = await held
    assert found.code == 0
    assert body in bytes(found.body)


def beside(broker: BrokerProcess, bad: Callable[[], Coroutine[Any, Any, None]], allowed_mib: float = BAD_MIB) -> int:
    """Rounds of the client that behaves while others misbehave; at least ROUNDS."""

    async def main() -> int:
        client, rounds = RemotingClient(), 0
        address = "{}:{}".format(*broker.address)
        try:
            await behave(client, address, rounds)
            before, most = mib(broker), 0.0
            task = asyncio.create_task(bad())
            while not task.done() or rounds < ROUNDS:
                rounds += 1
                await behave(client, address, rounds)
                most = max(most, mib(broker) - before)
            await task
            assert most < allowed_mib
        finally:
            await client.close()
        return rounds

    return asyncio.run(asyncio.wait_for(main(), 300))


def test_thousands_of_connects(broker: BrokerProcess) -> None:
    """Some end at once, some with a reset, some stay without a byte."""
    kept: list[socket.socket] = []

    async def bad() -> None:
        for number in range(3000):
            one = connect(broker)
            if number % 6 == 0:
                kept.append(one)
                continue
            if number % 3 == 0:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
            await asyncio.sleep(0)

    beside(broker, bad)
    for one in kept:
        one.close()


def test_requests_that_come_byte_by_byte(broker: BrokerProcess) -> None:
    """Three hundred clients send a message so slowly that it is not whole for long; each is stored in the end."""
    frame = encode(RemotingCommand(310, {**SEND, "b": "Slow"}, b"x" * 500, opaque=7))
    slow = [connect(broker) for _ in range(300)]

    async def bad() -> None:
        for one in slow:
            one.sendall(frame[:-20])
        for at in range(len(frame) - 20, len(frame) - 1):
            for one in slow:
                one.sendall(frame[at : at + 1])
            await asyncio.sleep(0)

    beside(broker, bad)
    for one in slow:
        one.sendall(frame[-1:])
    for one in slow:
        decoder, found = FrameDecoder(), []
        while not found:
            found = decoder.feed(one.recv(10_000))
        assert (found[0].code, found[0].opaque) == (0, 7)
        one.close()


def test_frames_that_never_end(broker: BrokerProcess) -> None:
    """They say that they have 16 MiB: what is kept is what came."""
    head = struct.pack(">II", (16 << 20) - 4, 2) + b"{}"
    held = [connect(broker) for _ in range(300)]

    async def bad() -> None:
        for _ in range(20):
            for one in held:
                one.sendall(head)
            await asyncio.sleep(0)

    beside(broker, bad)
    for one in held:
        one.close()


def test_readers_that_do_not_read(broker: BrokerProcess) -> None:
    """Twenty clients ask for some 60 MB each, and read nothing."""

    async def fill() -> None:
        client = RemotingClient()
        address = "{}:{}".format(*broker.address)
        for _ in range(32):
            assert (await client.call(address, 310, {**SEND, "b": "Large"}, b"x" * 8000)).code == 0
        await client.close()

    asyncio.run(fill())
    request = encode(RemotingCommand(11, pull(0, topic="Large", consumerGroup="idlers")))
    held = [connect(broker) for _ in range(20)]

    async def bad() -> None:
        for one in held:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.send(request * 240)
            await asyncio.sleep(0)

    beside(broker, bad, allowed_mib=128)
    for one in held:
        one.close()


def test_clients_that_vanish_while_their_pulls_wait(tmp_path: Path) -> None:
    """Their pulls are forgotten, their members too; the pulls of the one that stays are answered."""

    async def flow(one: Running) -> None:
        await behave(one.client, one.address, 0)
        heartbeat = b'{"clientID":"%d","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}]}'
        for round_ in range(1, 6):
            gone = []
            for number in range(100):
                _, writer = await asyncio.open_connection(*one.broker.address)
                writer.write(encode(RemotingCommand(34, {}, heartbeat % number)))
                writer.write(b"".join(encode(RemotingCommand(11, pull(round_), opaque=n)) for n in range(5)))
                gone.append(writer)
            while len(one.parts.long_polling) < 500:
                await asyncio.sleep(0)
            for number, writer in enumerate(gone):
                if number % 2:
                    writer.transport.abort()
                else:
                    writer.close()
            await behave(one.client, one.address, round_)
            while len(one.parts.long_polling) or one.context.consumers.group("g") is not None:
                await asyncio.sleep(0)

    serve(tmp_path, flow)
