"""Many sends begun at once: they wait together for one route and one connection, without a task for each."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from client.net.raw_server import RawServer

from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Credentials, SendResult
from mqfast.errors import ClientClosed, ClientError, ConnectError, SendFailed
from mqfast.message import Message

COUNT = 300
TASKS_MAX = 20


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


async def all_at_once(address: str, count: int = COUNT, **arguments: Any) -> tuple[list[Any], int]:
    """The end of each send, and the most tasks that there were."""
    most, ends = 0, list[Any]()
    async with AsyncProducer("g", address, **arguments) as producer:
        finished = asyncio.Event()

        def ended(end: Any) -> None:
            nonlocal most
            ends.append(end)
            most = max(most, len(asyncio.all_tasks()))
            if len(ends) == count:
                finished.set()

        for i in range(count):
            producer.send_nowait(Message("T", f"{i}"), on_done=ended)
        most = max(most, len(asyncio.all_tasks()))
        async with asyncio.timeout(30):
            await finished.wait()
        await asyncio.sleep(0)
        assert producer.stats()["in_flight"] == 0
    return ends, most


def test_one_route_and_one_connection_for_all() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        ends, most = asyncio.run(all_at_once(server.address))
        assert all(isinstance(end, SendResult) and end.ok for end in ends)
        assert len({end.msg_id for end in ends}) == COUNT
        assert (server.routes_asked, len(server.connections)) == (1, 1)
        assert sorted(int(request.body) for request in server.requests) == list(range(COUNT))
        assert most < TASKS_MAX


def test_signed_sends_find_their_way_too() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        ends, _ = asyncio.run(all_at_once(server.address, 50, credentials=Credentials("a", "b")))
        assert all(end.ok for end in ends)
        assert server.routes_asked == 1


def test_a_broker_that_refuses_connections_ends_each_with_its_own_error() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        server.broker = nobody()
        ends, most = asyncio.run(all_at_once(server.address))
        assert all(isinstance(end, SendFailed) and not end.maybe_stored for end in ends)
        assert len({end.msg_id for end in ends}) == COUNT
        assert all("3 attempts" in str(end) and server.broker in str(end) for end in ends)
        assert most < TASKS_MAX


def test_without_a_name_server_each_has_its_own_error() -> None:
    ends, most = asyncio.run(all_at_once(nobody()))
    assert all(isinstance(end, ConnectError) and "no name server answered" in str(end) for end in ends)
    assert len({end.msg_id for end in ends}) == COUNT
    assert most < TASKS_MAX


@pytest.mark.parametrize("is_there", [True, False])
def test_each_message_of_a_group_has_its_result_and_is_counted(is_there: bool) -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        if not is_there:
            server.broker = nobody()
        with Producer("g", server.address, retries=0) as producer:
            messages = [Message("T", f"{i}", delay_level=1 if i % 50 == 0 else None) for i in range(COUNT)]
            ends = list(producer.send_many(messages))
            counts = producer.stats()
    assert len({end.msg_id for end in ends}) == COUNT
    assert all(isinstance(end, SendResult if is_there else ClientError) for end in ends)
    assert (counts["sent"], counts["failed"]) == ((COUNT, 0) if is_there else (0, COUNT))
    assert (counts["in_flight"], counts["in_flight_bytes"]) == (0, 0)


def test_no_send_waits_for_a_connection_longer_than_its_time() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server, socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(8)]  # the kernel holds these: one more gets no answer
        try:
            for one in fillers:
                one.setblocking(False)
                one.connect_ex(address)
            server.broker = f"127.0.0.1:{address[1]}"

            async def main() -> float:
                async with AsyncProducer("g", server.address, retries=0, close_timeout_s=0.1) as producer:
                    begin = asyncio.get_running_loop().time()
                    sends = [producer.send(Message("T", b"x"), timeout_s=0.2 + i / 10) for i in range(3)]
                    ends = await asyncio.gather(*sends, return_exceptions=True)
                    assert all(isinstance(end, ConnectError) and "no connection in" in str(end) for end in ends), ends
                    return asyncio.get_running_loop().time() - begin

            assert asyncio.run(main()) < 2.5  # the connection itself is given up after 3 s
        finally:
            for one in fillers:
                one.close()


@pytest.mark.parametrize("has_route", [False, True])
def test_a_close_ends_what_waits(has_route: bool) -> None:
    async def main(address: str) -> list[Any]:
        ends = list[Any]()
        producer = await AsyncProducer("g", address, close_timeout_s=0.2).start()
        for _ in range(20):
            producer.send_nowait(Message("T", b"x"), on_done=ends.append)
        await producer.close()
        for _ in range(100):
            if len(ends) == 20:
                break
            await asyncio.sleep(0.01)
        return ends

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it takes connections and never answers
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        with RawServer(lambda one, request: None) as server:
            ends = asyncio.run(main(server.address if has_route else silent))
    assert len(ends) == 20
    assert all(isinstance(end, ClientError) for end in ends)
    if not has_route:
        assert all(isinstance(end, ClientClosed) and "nothing was sent" in str(end) for end in ends)
