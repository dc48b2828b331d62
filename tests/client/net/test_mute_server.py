"""A server that is gone without a word: a firewall that drops the connection, a host without power.

Nothing ends such a connection for many minutes. The first request that expires on it is lost; the next one must go over
a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from client.net.raw_server import Connection, RawServer

from mqfast.client.net.aio_shell import AioShell
from mqfast.client.net.lane import Lanes
from mqfast.client.net.steps import Ask
from mqfast.errors import CallTimeout
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand, encode

LIMIT_S = 30.0


class Mute:
    """Nothing of what is asked over its first connection is answered, but for what ``release`` answers later."""

    def __init__(self) -> None:
        self.held: list[tuple[Connection, RemotingCommand]] = []

    def __call__(self, one: Connection, request: RemotingCommand) -> None:
        if one.number == 0:
            self.held.append((one, request))
        else:
            one.send(encode(request.response(0, dict(request.ext_fields))))

    def release(self, name: str) -> None:
        for one, request in self.held:
            if request.ext_fields["name"] == name:
                one.send(encode(request.response(0, dict(request.ext_fields))))


def ask(address: str, name: str, timeout_s: float = 2 * LIMIT_S) -> Ask:
    return Ask(address, 310, {"name": name}, b"", timeout_s)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("timeout_s", [1.2, 0.3])  # short calls count together
def test_a_sync_caller_goes_on_over_a_new_connection(timeout_s: float) -> None:
    mute, lanes, found = Mute(), Lanes(), list[Any]()

    def is_answered(server: RawServer) -> bool:
        with contextlib.suppress(CallTimeout):
            return lanes.ask(ask(server.address, "lost", timeout_s)) is not None
        return False

    with RawServer(mute) as server:
        slow = threading.Thread(target=lambda: found.append(lanes.ask(ask(server.address, "slow"))), daemon=True)
        slow.start()
        until(lambda: mute.held)
        until(lambda: is_answered(server))
        mute.release("slow")  # not gone after all: who waits there still gets the answer
        slow.join(LIMIT_S)
        assert [one.ext_fields["name"] for one in found] == ["slow"]
        until(lambda: server.connections[0].sock.fileno() == -1)
    lanes.close()


@pytest.mark.parametrize("timeout_s", [1.2, 0.3])
def test_a_task_goes_on_over_a_new_connection(timeout_s: float) -> None:
    mute = Mute()

    async def is_answered(shell: AioShell, server: RawServer) -> bool:
        with contextlib.suppress(CallTimeout):
            return await shell.ask(ask(server.address, "lost", timeout_s)) is not None
        return False

    async def main(server: RawServer) -> None:
        client = RemotingClient()
        shell = AioShell(client)
        slow = asyncio.create_task(shell.ask(ask(server.address, "slow")))
        await asyncio.to_thread(until, lambda: mute.held)
        async with asyncio.timeout(LIMIT_S):
            while not await is_answered(shell, server):
                pass
        mute.release("slow")
        found = await slow
        assert found is not None
        assert found.ext_fields["name"] == "slow"
        await asyncio.to_thread(until, lambda: server.connections[0].sock.fileno() == -1)
        await client.close()

    with RawServer(mute) as server:
        asyncio.run(main(server))
