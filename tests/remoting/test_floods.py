"""A server under bad clients: memory stays bounded, and a client that behaves is answered.

The server is a process of its own, so that its memory can be seen. Counts are bounded; nothing leaves this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand, encode

pytestmark = pytest.mark.slow
ROUTE = encode(RemotingCommand(206))


class Server:
    """``mqfast namesrv`` as a process."""

    def __init__(self, work: Path) -> None:
        self.log = work / "log"
        command = [sys.executable, "-m", "mqfast.cli", "namesrv", "-p", "0", f"kvConfigPath={work}/kv.json"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        found = re.search(r"NAMESRV_ADDR=(\S+):(\d+)", self.process.stdout.readline())
        assert found, self.log.read_text()
        self.host, self.port = found[1], int(found[2])

    @property
    def mib(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), 30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(200) == 0
    assert "Traceback" not in started.log.read_text()


def beside(server: Server, bad: Callable[[], Coroutine[Any, Any, None]]) -> list[float]:
    """Seconds that a client's calls took while others misbehave; each of them is answered."""

    async def main() -> list[float]:
        client, took = RemotingClient(), []
        task = asyncio.create_task(bad())
        try:
            while not task.done() or len(took) < 20:
                began = time.perf_counter()
                answer = await client.call(f"{server.host}:{server.port}", 206, timeout_ms=30_000)
                assert answer.code == 0
                took.append(time.perf_counter() - began)
                await asyncio.sleep(0.002)
            await task
        finally:
            await client.close()
        return took

    return asyncio.run(main())


async def garbage_sender(server: Server, data: bytes) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        await asyncio.wait_for(reader.read(), 300)
    writer.close()


def test_garbage_from_many_connections(server: Server) -> None:
    rng = random.Random(5)
    kinds = [
        lambda: rng.randbytes(rng.randint(8, 4000)),
        lambda: struct.pack(">II", 1 << 30, 8) + b"x" * 100,
        lambda: struct.pack(">II", 4 + (1 << 20), 1 << 20) + b"[" * (1 << 20),
        lambda: struct.pack(">II", 200, 196) + b'{"a":' * 39 + b" ",
        lambda: b"\x16\x03\x01" + rng.randbytes(200),
        lambda: ROUTE + b"GET / HTTP/1.1\r\n\r\n",
    ]

    async def bad() -> None:
        for _ in range(20):
            await asyncio.gather(*(garbage_sender(server, kinds[i % len(kinds)]()) for i in range(30)))

    before = server.mib
    took = beside(server, bad)
    assert server.mib - before < 32
    assert max(took) < 10
    lines = [line for line in server.log.read_text().splitlines() if "closed: " in line]
    assert 1 <= len(lines) < 60


def test_thousands_of_connects(server: Server) -> None:
    async def bad() -> None:
        for _ in range(3000):
            with contextlib.suppress(OSError):
                server.connect().close()
            await asyncio.sleep(0)

    before = server.mib
    beside(server, bad)
    assert server.mib - before < 32


def test_slow_writers_hold_no_more_than_they_sent(server: Server) -> None:
    """300 connections say that they send 16 MiB, and send some bytes of it."""
    head = struct.pack(">II", (16 << 20) - 4, 2) + b"{}"
    held = [server.connect() for _ in range(300)]

    async def bad() -> None:
        for one in held:
            one.sendall(head)
        for _ in range(20):
            for one in held:
                one.sendall(b"x")
            await asyncio.sleep(0.01)

    before = server.mib
    beside(server, bad)
    assert server.mib - before < 64
    for one in held:
        one.close()


def test_slow_readers_of_large_answers(server: Server) -> None:
    """A list of 20,000 topics (some 200 KiB) is asked for 400 times by each of 10 clients that do not read."""
    names = [f"topic-{number}" for number in range(20_000)]
    table = ",".join(f'"{name}":{{"topicName":"{name}"}}' for name in names)
    body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{table}}}}}}}'.encode()
    header = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "haServerAddr": "h:2", "brokerId": 0}
    broker = server.connect()
    broker.sendall(encode(RemotingCommand(103, header, body)))
    assert broker.recv(100)
    held = [server.connect() for _ in range(10)]

    async def bad() -> None:
        for one in held:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.send(ROUTE * 400)
            await asyncio.sleep(0.05)

    before = server.mib
    beside(server, bad)
    assert server.mib - before < 96  # unbounded it would be 800
    for one in (*held, broker):
        one.close()
