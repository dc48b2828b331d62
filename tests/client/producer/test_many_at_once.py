"""Many sends begun at once: they wait together for one route and one connection, without a task for each."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from typing import Any

import pytest
from client.net.raw_server import Connection, RawServer
from waiting import LIMIT_S
from waiting import until_async as until

from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Credentials, SendResult
from mqfast.errors import ClientClosed, ClientError, ConnectError, SendFailed, SendTimeout
from mqfast.message import Message
from mqfast.remoting.command import RemotingCommand, encode
from mqfast.remoting.settings import RemotingSettings

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
        async with asyncio.timeout(LIMIT_S):
            await finished.wait()
        await asyncio.sleep(0)
        assert producer.stats()["in_flight"] == 0
    return ends, most


def test_many_sends_share_a_route_request_and_a_connection() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        ends, most = asyncio.run(all_at_once(server.address, send_timeout_s=LIMIT_S))
        assert all(isinstance(end, SendResult) and end.ok for end in ends)
        assert len({end.msg_id for end in ends}) == COUNT
        assert (server.routes_asked, len(server.connections)) == (1, 1)
        assert sorted(int(request.body) for request in server.requests) == list(range(COUNT))
        assert most < TASKS_MAX


def test_signed_sends_find_their_way_too() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        signed = {"credentials": Credentials("a", "b"), "send_timeout_s": LIMIT_S}
        ends, _ = asyncio.run(all_at_once(server.address, 50, **signed))
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
        with Producer("g", server.address, retries=0, send_timeout_s=LIMIT_S) as producer:
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
def test_close_ends_waiting_sends(has_route: bool) -> None:
    async def main(address: str) -> list[Any]:
        ends = list[Any]()
        producer = await AsyncProducer("g", address, close_timeout_s=0.2).start()
        for _ in range(20):
            producer.send_nowait(Message("T", b"x"), on_done=ends.append)
        await producer.close()
        await until(lambda: len(ends) == 20)
        return ends

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it takes connections and never answers
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        with RawServer(lambda one, request: None) as server:
            ends = asyncio.run(main(server.address if has_route else silent))
    assert len(ends) == 20
    assert all(isinstance(end, ClientError) for end in ends)
    if not has_route:
        assert all(isinstance(end, ClientClosed) and "nothing was sent" in str(end) for end in ends)


def test_close_ends_waiting_sends_of_an_in_order_queue() -> None:
    count = 1000

    async def main(server: RawServer) -> list[Any]:
        ends = list[Any]()
        # No message may end by its time before the last one is in flight.
        producer = await AsyncProducer("g", server.address, send_timeout_s=600, close_timeout_s=0.2).start()
        many = (Message("T", b"x", sharding_key="k", delay_level=1) for _ in range(count))

        async def read() -> None:
            async for end in producer.send_many(many):
                ends.append(end)

        reading = asyncio.create_task(read())
        await until(lambda: producer.stats()["in_flight"] == count and server.requests)
        await producer.close()
        await reading
        assert producer.stats()["in_flight"] == 0
        return ends

    with RawServer(lambda one, request: None) as server:
        ends = asyncio.run(main(server))
        assert len(server.requests) == 1
    assert len(ends) == count
    assert all(isinstance(end, ClientClosed) for end in ends)
    assert sum("nothing was sent" in str(end) for end in ends) == count - 1
    assert len({end.msg_id for end in ends}) == count


def test_a_send_begun_at_the_end_of_another_takes_no_connection_that_is_given_up() -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if one.number > 0 or bytes(request.body) == b"first":
            one.answer(request)
        elif bytes(request.body) == b"cut":
            one.send(b"\x00\x01\x00\x00" + encode(request.response(0))[4:])  # its length says 64 KiB

    async def main(address: str) -> list[Any]:
        ends, finished = list[Any](), asyncio.Event()
        async with AsyncProducer("g", address, retries=0, send_timeout_s=1.5, close_timeout_s=0.1) as producer:

            def ended(end: Any) -> None:
                ends.append(end)
                if len(ends) == 1:
                    producer.send_nowait(Message("T", b"again"), on_done=ended)
                else:
                    finished.set()

            await producer.send("T", b"first")
            with pytest.raises(SendTimeout):
                await producer.send("T", b"cut")
            producer.send_nowait(Message("T", b"behind it"), on_done=ended)
            async with asyncio.timeout(LIMIT_S):
                await finished.wait()
        return ends

    with RawServer(serve) as server:
        ends = asyncio.run(main(server.address))
        assert [bytes(request.body) for request in server.requests] == [b"first", b"cut", b"behind it", b"again"]
    assert isinstance(ends[0], SendTimeout)
    assert ends[1].ok


def test_a_message_whose_time_is_over_when_its_route_is_known_is_not_sent() -> None:
    def names(one: Connection, request: RemotingCommand) -> bool:
        time.sleep(1.2)
        if request.ext_fields["topic"] != "T":
            return False  # the topic that brokers copy is there
        one.answer(request, 17)
        return True

    async def main(address: str) -> None:
        async with AsyncProducer("g", address, send_timeout_s=2.0, close_timeout_s=0.1) as producer:
            with pytest.raises(SendTimeout, match="nothing was stored") as caught:
                await producer.send("T", b"x")
            assert not caught.value.maybe_stored
            assert caught.value.msg_id

    with RawServer(lambda one, request: one.answer(request)) as server:
        server.names = names
        asyncio.run(main(server.address))
        assert server.routes_asked == 2
        assert server.requests == []


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_time_of_its_own_holds_where_sends_wait_for_others(face: str) -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if bytes(request.body) == b"patient":
            time.sleep(0.5)
            one.answer(request)

    def sync(address: str) -> None:
        with Producer("slow", address, linger_ms=1, send_timeout_s=600, close_timeout_s=0.1) as slow:
            assert slow.queues("T")
            with Producer("quick", address, linger_ms=1, send_timeout_s=0.2, close_timeout_s=0.1) as quick:
                assert quick.send("T", b"patient", timeout_s=20).ok
            with pytest.raises(SendTimeout, match="may be stored"):
                slow.send("T", b"hasty", timeout_s=0.2)

    async def main(address: str) -> None:
        async with AsyncProducer("slow", address, linger_ms=1, send_timeout_s=600, close_timeout_s=0.1) as slow:
            assert (await slow.send("T", b"patient")).ok  # its route is known from here on
            async with AsyncProducer("quick", address, linger_ms=1, send_timeout_s=0.2, close_timeout_s=0.1) as quick:
                assert (await quick.send("T", b"patient", timeout_s=20)).ok
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(SendTimeout, match="may be stored"):
                    await slow.send("T", b"hasty", timeout_s=0.2)

    with RawServer(serve) as server:
        if face == "sync":
            sync(server.address)
        else:
            asyncio.run(main(server.address))


def test_a_send_that_waits_for_others_ends_though_the_loop_stands_still() -> None:
    stands, may_go = threading.Event(), threading.Event()

    def on_done(future: object) -> None:
        stands.set()
        may_go.wait(30)

    with RawServer(lambda one, request: one.answer(request)) as server:
        with (
            Producer("h", server.address) as other,
            Producer("g", server.address, linger_ms=1, send_timeout_s=0.5) as producer,
        ):
            assert other.queues("T")
            producer.send_future(Message("T", b"x"), on_done=on_done)
            assert stands.wait(20)
            try:
                with pytest.raises(SendTimeout, match="may be stored") as caught:
                    producer.send("T", b"x")
            finally:
                may_go.set()
    assert caught.value.maybe_stored
    assert caught.value.msg_id


def test_sends_in_order_that_all_fail_at_once_have_an_end_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request fits on the connection any more: each of a thousand sends to one queue ends as it begins."""
    calls_max, count = 100, 1000
    few = functools.partial(RemotingSettings, calls_max=calls_max)
    monkeypatch.setattr("mqfast.client.net.instance.RemotingSettings", few)
    for name in ("HEARTBEAT_S", "ROUTE_S"):  # no answer of these gives room
        monkeypatch.setattr(f"mqfast.client.net.instance.{name}", 600.0)

    async def main(server: RawServer) -> None:
        failed = list[Any]()
        async with AsyncProducer("g", server.address, retries=0, send_timeout_s=600, close_timeout_s=0.1) as producer:
            producer.send_nowait(Message("T", b"the route, the connection"))
            instance = producer._instance
            assert instance is not None
            async with asyncio.timeout(LIMIT_S):
                while not (server.requests and instance.is_registered_at(server.address)):
                    await asyncio.sleep(0.01)
            for _ in range(calls_max):
                producer.send_nowait(Message("T", b"x"), on_done=failed.append)
            await asyncio.sleep(0)  # a send that ends within its start tells so in the next turn of the loop
            assert len(failed) == 1
            many = (Message("T", b"x", sharding_key="k", delay_level=1) for _ in range(count))
            ends = [end async for end in producer.send_many(many)]
            assert len(ends) == count
            assert all(isinstance(end, SendFailed) and not end.maybe_stored for end in ends)
            assert producer.stats()["in_flight"] == calls_max

    with RawServer(lambda one, request: None) as server:
        asyncio.run(main(server))
