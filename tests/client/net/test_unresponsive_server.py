"""A server that is gone without a word: a firewall that drops the connection, a host without power.

Nothing ends such a connection for many minutes. The first request that expires on it is lost; the next one must go over
a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from client.net.raw_server import Connection, RawServer
from waiting import until

from mqfast.client.net.asyncio_driver import AsyncioDriver
from mqfast.client.net.connection_pool import BlockingConnectionPool
from mqfast.client.net.request_steps import Request
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


def ask(address: str, name: str, timeout_s: float = 2 * LIMIT_S) -> Request:
    return Request(address, 310, {"name": name}, b"", timeout_s)


@pytest.mark.parametrize("timeout_s", [1.2, 0.3])  # short calls count together
def test_a_sync_caller_goes_on_over_a_new_connection(timeout_s: float) -> None:
    mute, connection_pool, found = Mute(), BlockingConnectionPool(), list[Any]()

    def is_answered(server: RawServer) -> bool:
        with contextlib.suppress(CallTimeout):
            return connection_pool.request(ask(server.address, "lost", timeout_s)) is not None
        return False

    with RawServer(mute) as server:
        slow = threading.Thread(
            target=lambda: found.append(connection_pool.request(ask(server.address, "slow"))), daemon=True
        )
        slow.start()
        until(lambda: mute.held)
        until(lambda: is_answered(server))
        mute.release("slow")  # not gone after all: who waits there still gets the answer
        slow.join(LIMIT_S)
        assert [one.ext_fields["name"] for one in found] == ["slow"]
        until(lambda: server.connections[0].sock.fileno() == -1)
    connection_pool.close()


@pytest.mark.parametrize("timeout_s", [1.2, 0.3])
def test_next_request_uses_a_new_connection_after_an_unresponsive_server(timeout_s: float) -> None:
    mute = Mute()

    async def is_answered(driver: AsyncioDriver, server: RawServer) -> bool:
        with contextlib.suppress(CallTimeout):
            return await driver.request(ask(server.address, "lost", timeout_s)) is not None
        return False

    async def main(server: RawServer) -> None:
        client = RemotingClient()
        driver = AsyncioDriver(client)
        slow = asyncio.create_task(driver.request(ask(server.address, "slow")))
        await asyncio.to_thread(until, lambda: mute.held)
        async with asyncio.timeout(LIMIT_S):
            while not await is_answered(driver, server):
                pass
        mute.release("slow")
        found = await slow
        assert found is not None
        assert found.ext_fields["name"] == "slow"
        await asyncio.to_thread(until, lambda: server.connections[0].sock.fileno() == -1)
        await client.close()

    with RawServer(mute) as server:
        asyncio.run(main(server))
