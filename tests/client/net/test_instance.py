"""The instance that clients share, beside a real name server and broker: routes, heartbeats, requests of brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from client.net.raw_server import Connection, RawServer
from running import BrokerProcess

from mqfast.client.admin.async_admin_client import AsyncAdminClient
from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.net import io_thread
from mqfast.client.net.connection_pool import BlockingConnectionPool
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.net.request_steps import Request, RequestSteps
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.route.name_servers import parse_addresses
from mqfast.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConfigError,
    ConnectError,
    NoRoute,
    RequestTimeout,
    UsageError,
)
from mqfast.message import Message
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand


class Owner:
    """A producer as far as the instance knows one."""

    def heartbeat(self) -> dict[str, Any]:
        return {"groupName": "makers"}

    def topics(self) -> Iterable[str]:
        return ("orders",)


def in_loop(flow: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(300):
            await flow()

    asyncio.run(run())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(tmp_path_factory.mktemp("instance")) as one:
        yield one


def test_route_is_fetched_once_and_a_default_route_has_four_queues(cluster: BrokerProcess) -> None:
    async def flow() -> None:
        settings = InstanceSettings(parse_addresses(cluster.namesrv))
        instance = ClientInstance.shared(settings, asyncio.get_running_loop())
        assert ClientInstance.shared(settings, asyncio.get_running_loop()) is instance
        await instance.acquire()
        try:
            with pytest.raises(NoRoute, match=cluster.namesrv):
                await instance.driver.run(instance.route("unheard"))
            route = await instance.driver.run(instance.publish_route("unheard", copied_topic="TBW102", queues=4))
            queues = instance.routes.publish_queues("unheard")
            assert [one.queue_id for one in queues] == [0, 1, 2, 3]
            assert route.is_default
            address = instance.routes.address(queues[0].broker_name)
            assert address is not None
            assert instance.routes.read_address(queues[0].broker_name, 7) == (0, address)
            with pytest.raises(StopIteration):  # from the table: nothing is asked
                next(instance.route("unheard"))
        finally:
            await instance.release()

    in_loop(flow)


def test_heartbeats_register_a_client_until_it_closes(cluster: BrokerProcess) -> None:
    async def flow() -> None:
        instance = ClientInstance.shared(InstanceSettings(parse_addresses(cluster.namesrv)), asyncio.get_running_loop())
        await instance.acquire()
        owner = Owner()
        instance.add_producer("makers", owner)
        await instance.driver.run(instance.publish_route("orders", copied_topic="TBW102", queues=4))
        address = next(iter(instance.routes.brokers.values())).addresses[0]
        await instance.heartbeat()
        assert instance.is_registered_at(address)
        asking = RemotingClient()
        fields = {"producerGroup": "makers"}
        answer = await asking.call(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
        assert instance.client_id.encode() in answer.body
        assert b"PYTHON" in answer.body
        await instance.remove_producer("makers", owner)
        answer = await asking.call(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
        assert instance.client_id.encode() not in (answer.body or b"")
        await asking.close()
        await instance.release()

    in_loop(flow)


def test_a_consumer_that_is_closed_while_it_starts_serves_nothing() -> None:
    may_answer = threading.Event()

    def names(one: Connection, request: RemotingCommand) -> bool:
        return request.ext_fields["topic"] == "held" and not may_answer.wait(20)

    async def flow(server: RawServer) -> None:
        async with AsyncProducer("g", server.address) as producer:  # the instance stays
            await producer.send("T", b"x")
            instance = producer._instance
            assert instance is not None
            tells = list(instance.routes.on_change)
            consumer = AsyncPushConsumer("closing", server.address, topics="held")
            starting = asyncio.create_task(consumer.start())
            async with asyncio.timeout(300):
                while server.routes_asked < 2:
                    await asyncio.sleep(0.005)
            await consumer.close()
            may_answer.set()
            await starting
            assert instance.routes.on_change == tells
            assert instance.requests._handlers == {}

    with RawServer(lambda one, request: one.answer(request)) as server:
        server.names = names
        in_loop(lambda: flow(server))


def test_a_second_consumer_of_a_group_is_another_client() -> None:
    async def flow() -> None:
        settings, loop = InstanceSettings(("127.0.0.1:1",)), asyncio.get_running_loop()
        first = ClientInstance.shared(settings, loop, consumer_group="g")
        first.add_consumer("g", Owner())
        second = ClientInstance.shared(settings, loop, consumer_group="g")
        assert second.client_id != first.client_id
        assert ClientInstance.shared(settings, loop, consumer_group="h") is first
        with pytest.raises(ClientError, match="already"):
            first.add_consumer("g", Owner())

    in_loop(flow)


def test_name_servers_that_are_away_are_named() -> None:
    async def flow() -> None:
        settings = InstanceSettings(parse_addresses(["127.0.0.1:1", "127.0.0.1:2"]))
        instance = ClientInstance.shared(settings, asyncio.get_running_loop())
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:[12].*127\.0\.0\.1:[12]"):
            await instance.driver.run(instance.route("orders", timeout_s=5))

    in_loop(flow)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1;b:2", ("a:1", "b:2")),
        ("a:1,b:2; a:1;", ("a:1", "b:2")),
        (["a", "b:2"], ("a:9876", "b:2")),
        ("http://host/nsaddr", ("http://host/nsaddr",)),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_addresses_as_users_write_them(given: Any, expected: tuple[str, ...]) -> None:
    assert parse_addresses(given) == expected


@pytest.mark.parametrize("given", ["", ";", "a:b", "a:99999", [1], 7, "http://h;a:1", "a:1 b:1"])
def test_addresses_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigError, match="namesrv_addr"):
        parse_addresses(given)


def test_the_variable_of_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert parse_addresses(None) == ("a:1", "b:2")
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        parse_addresses(None)


def test_io_thread_is_shared_and_stops(tmp_path: Path) -> None:
    first = io_thread.shared()
    assert io_thread.shared() is first

    async def inside() -> str:
        with pytest.raises(ClientError, match="for ever"):
            first.call(asyncio.sleep(0), 1)
        return "done"

    assert first.call(inside(), 10) == "done"
    with pytest.raises(ClientError, match="within"):
        first.call(asyncio.sleep(60), 0.01)
    first.stop()
    assert not first.is_alive
    assert io_thread.shared() is not first


def test_a_client_of_another_event_loop_says_so_and_closes_at_once(cluster: BrokerProcess) -> None:
    producer = AsyncProducer("g", cluster.namesrv)
    pull = AsyncPullConsumer("loops-pull", cluster.namesrv, topics="T")
    push = AsyncPushConsumer("loops-push", cluster.namesrv, topics="T")
    admin = AsyncAdminClient(cluster.namesrv)

    async def many() -> list[Any]:
        return [one async for one in producer.send_many([Message("T", b"x")])]

    async def nowait() -> None:
        producer.send_nowait(Message("T", b"x"))

    async def first() -> None:
        assert (await producer.send("T", b"x")).ok
        await pull.poll(0.01)
        await push.start()
        assert await admin.topics()

    async def second() -> None:
        for work in (
            producer.send("T", b"x"), many(), nowait(), producer.request(Message("T", b"x")), producer.flush(),
            pull.poll(1), push.start(), admin.topics(),
        ):  # fmt: skip
            with pytest.raises(UsageError, match="another event loop"):
                await work
        async with asyncio.timeout(1.0):
            for one in (producer, pull, push, admin):
                await one.close()

    asyncio.run(first())
    asyncio.run(second())


class AddressServer(BaseHTTPRequestHandler):
    """Says where the name servers are, once it is told."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.answer else 503)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *args: object) -> None:
        pass


def test_next_start_repeats_a_failed_address_server_request(cluster: BrokerProcess) -> None:
    class Late(AddressServer):
        pass

    with HTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        producer = Producer("g", url)
        for _ in range(2):
            with pytest.raises(ConnectError, match=r"no addresses of name servers: .* a name server is host:port"):
                producer.send("T", b"x")
        Late.answer = cluster.namesrv.encode()
        assert producer.send("T", b"x").ok
        instance = producer._instance
        assert instance is not None
        assert {task.get_name() for task in instance._tasks} >= {"mqfast address server", "mqfast routes"}
        producer.close()
        server.shutdown()


def test_the_address_of_a_broker_is_no_name_server(cluster: BrokerProcess) -> None:
    address = f"{cluster.address[0]}:{cluster.address[1]}"
    with Producer("g", address) as producer, pytest.raises(BrokerError, match="found a broker's") as caught:
        producer.send("T", b"x")
    assert caught.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "expected the address of a name server (its usual port is 9876)" in str(caught.value)
    assert address in str(caught.value)


def test_a_server_that_does_not_answer_is_an_error_of_clients() -> None:
    def asking(address: str) -> RequestSteps[object]:
        return (yield Request(address, 1, timeout_s=1.0))

    async def flow() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        instance = ClientInstance.shared(InstanceSettings((address,)), asyncio.get_running_loop())
        connection_pool = BlockingConnectionPool()
        with pytest.raises(RequestTimeout) as by_loop:
            await instance.driver.run(asking(address))
        with pytest.raises(RequestTimeout) as by_thread:
            await asyncio.to_thread(connection_pool.run, asking(address))
        for caught in (by_loop, by_thread):
            assert isinstance(caught.value, ClientError)
            assert isinstance(caught.value, CallTimeout)
            assert isinstance(caught.value, TimeoutError)
        connection_pool.close()
        await instance.remoting.close()
        server.close()

    in_loop(flow)


# In a process of its own: pytest keeps what it has logged of tasks.
_UNCLOSED = """
import asyncio, gc, sys, weakref
from mqfast.client.producer.async_producer import AsyncProducer

async def flow():
    producer = await AsyncProducer("g", sys.argv[1]).start()
    assert (await producer.send("T", b"x")).ok

loop = asyncio.new_event_loop()
reference = weakref.ref(loop)
loop.run_until_complete(flow())
loop.close()
del loop
gc.collect()
print(reference())
"""


def test_a_loop_whose_client_was_never_closed_is_freed() -> None:
    with RawServer(lambda one, request: one.answer(request)) as server:
        done = subprocess.run([sys.executable, "-c", _UNCLOSED, server.address], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr
