"""A broker that tells the name servers an address which this client cannot reach: ``address_map``, and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from running import BrokerProcess

from mqfast.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Delivery,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from mqfast.client.route.address_map import checked_map, hint, reached_at
from mqfast.errors import ClientError, ConfigError

INNER = "192.0.2.1"  # an address of documents: nobody has it
HERE = {INNER: "127.0.0.1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("inner"), brokerIP1=INNER) as one:
        yield one


def test_clients_of_threads_connect_to_where_the_address_is(cluster: BrokerProcess) -> None:
    consumer = PushConsumer("servers", cluster.namesrv, from_where="first", address_map=HERE)
    consumer.subscribe("questions", lambda message: message.reply_sync(b"to " + message.body) and None)
    with Producer("askers", cluster.namesrv, address_map=HERE) as producer, consumer:
        result = producer.send("orders", b"42")
        assert producer.send_future(Message("orders", b"43")).result(10).ok
        assert producer.request(Message("questions", b"you"), timeout_s=20).body == b"to you"
    with PullConsumer("readers", cluster.namesrv, topics="orders", from_where="first", address_map=HERE) as puller:
        found: list[bytes] = []
        end = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < end:
            found += [message.body for message in puller.poll(1.0)]
    assert sorted(found) == [b"42", b"43"]
    with AdminClient(cluster.namesrv, address_map=HERE) as admin:
        (message,) = admin.find("orders", msg_id=result.offset_msg_id)  # the id has the broker's own address
        assert message.body == b"42"
        assert message.store_host.startswith(f"{INNER}:")


def test_clients_of_a_loop_do_too(cluster: BrokerProcess) -> None:
    async def flow() -> None:
        async with asyncio.timeout(300):
            seen = asyncio.Event()
            consumer = AsyncPushConsumer("loop-readers", cluster.namesrv, from_where="first", address_map=HERE)

            @consumer.on("loop-orders")
            async def handle(message: Delivery) -> None:
                seen.set()

            async with AsyncProducer("loop-senders", cluster.namesrv, address_map=HERE) as producer, consumer:
                assert (await producer.send("loop-orders", b"42")).ok
                await seen.wait()
            arguments: dict[str, Any] = {"topics": "loop-orders", "from_where": "first", "address_map": HERE}
            async with AsyncPullConsumer("loop-pullers", cluster.namesrv, **arguments) as puller:
                assert [message.body for message in await puller.poll(20.0)] == [b"42"]
            async with AsyncAdminClient(cluster.namesrv, address_map=HERE) as admin:
                assert "loop-orders" in await admin.topics()

    asyncio.run(flow())


def test_error_of_an_unreachable_broker_names_address_map(cluster: BrokerProcess) -> None:
    said = "address that broker .* told the name servers: set brokerIP1 .* address_map="
    with Producer("near", cluster.namesrv, address_map=HERE) as near:
        near.send("orders", b"41")  # makes the topic: a consumer has its route
    arguments: dict[str, Any] = {"send_timeout_s": 0.5, "retries": 0, "close_timeout_s": 0.5}
    with Producer("far", cluster.namesrv, **arguments) as producer:
        with pytest.raises(ClientError, match=said):
            producer.send("orders", b"42")
        with pytest.raises(ClientError, match=said):
            producer.send_future(Message("orders", b"42")).result(10)
    consumer = PushConsumer("far", cluster.namesrv, topics="orders", close_timeout_s=0.5)
    with consumer:
        end = time.monotonic() + 30
        while "brokerIP1" not in str(consumer.stats()["why_nothing"]):
            assert time.monotonic() < end, consumer.stats()["why_nothing"]
            time.sleep(0.02)


def test_only_an_address_that_may_be_wrong_has_a_hint() -> None:
    near = ("127.0.0.1:9876",)
    assert hint("127.0.0.1:10911", near, "a") == ""  # beside the name server
    assert hint("127.0.0.1:10911", ("localhost:9876",), "a") == ""
    assert hint("8.8.8.8:10911", near, "a") == ""
    assert "broker a" in hint("172.17.0.2:10911", near, "a")
    assert "broker a" in hint("127.0.0.1:10911", ("10.0.0.1:9876",), "a")
    assert "broker a" in hint("rocketmq-broker:10911", near, "a")


def test_the_whole_address_goes_before_the_host_in_the_order_of_the_map() -> None:
    pairs = checked_map({"10.0.0.1:10911": "127.0.0.1:1", "10.0.0.1": "10.9.9.9", "[::1]:5": "[::2]:6"})
    assert reached_at(pairs, "10.0.0.1:10911") == ("127.0.0.1", 1)
    assert reached_at(pairs, "10.0.0.1:10912") == ("10.9.9.9", 10912)
    assert reached_at(pairs, "[::1]:5") == ("::2", 6)
    assert reached_at(pairs, "10.0.0.2:10911") == ("10.0.0.2", 10911)


@pytest.mark.parametrize(
    "wrong, match",
    [
        ("a:1", "address_map: expected a mapping of addresses, found str"),
        ({"a:1": "b"}, "address_map, 'a:1': expected host:port, found 'b'"),
        ({"a": "b:1"}, "address_map, 'a': expected host:port, found 'a'"),
        ({"a:x": "b:1"}, "expected host:port, found 'a:x'"),
        ({"a": 5}, "address_map: expected host:port or host as text, found 5"),
        ({"": "b"}, "address_map: expected host:port or host as text, found ''"),
    ],
)
def test_invalid_address_map_is_refused(wrong: Any, match: str) -> None:
    for make in (Producer, PushConsumer, PullConsumer):
        with pytest.raises(ConfigError, match=match):
            make("g", "127.0.0.1:1", address_map=wrong)
    with pytest.raises(ConfigError, match=match):
        AdminClient("127.0.0.1:1", address_map=wrong)
