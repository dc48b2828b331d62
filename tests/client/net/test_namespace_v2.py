"""A namespace of version 2 is in the header of every request of every client, and under its signature."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from mqfast.client import (
    AdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from mqfast.client.delivery import Delivery
from mqfast.client.values import TransactionStatus
from mqfast.errors import ConfigError
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import is_signed_with
from mqfast.testing import Broker
from mqfast.testing.fault_injection import Asked

TENANT = {"nsd": "true", "ns": "tenant"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}, config={"transactionTimeOut": "100", "transactionCheckInterval": "100"}) as one:
        yield one


def named(asked: Asked) -> dict[str, str]:
    return {name: asked.fields[name] for name in TENANT if name in asked.fields}


def codes_of(broker: Broker) -> set[int]:
    """The codes of what was asked, once it is sure that each request names the tenant."""
    asked = broker.requests()
    assert [one for one in asked if named(one) != TENANT] == []
    return {one.code for one in asked}


def test_sync_clients_send_namespace_v2_in_every_request(broker: Broker) -> None:
    asked_for_end = threading.Event()

    def check(message: Delivery) -> TransactionStatus:
        asked_for_end.set()
        return TransactionStatus.COMMIT

    with Producer("makers", broker.namesrv_addr, namespace_v2="tenant") as producer:
        producer.send("orders", b"1")
        producer.send_oneway(Message("orders", b"2"))
        producer.send_future(Message("orders", b"3")).result(10)
        producer.send_batch([Message("orders", b"4"), Message("orders", b"5")])
        list(producer.send_many([Message("orders", b"6")]))
    with TransactionProducer("payers", broker.namesrv_addr, check=check, namespace_v2="tenant") as producer:
        with producer.transaction(Message("orders", b"7")) as transaction:
            transaction.leave_open()
        assert asked_for_end.wait(20)
        broker.wait_for("orders", 7, timeout_s=20)
    handled: list[Delivery] = []
    consumer = PushConsumer("readers", broker.namesrv_addr, from_where="first", orderly=True, namespace_v2="tenant")
    consumer.subscribe("orders", handled.append)
    with consumer:
        broker.wait_until(lambda: len(handled) == 7, timeout_s=20)
    puller = PullConsumer("pullers", broker.namesrv_addr, topics="orders", from_where="first", namespace_v2="tenant")
    with puller:
        assert puller.poll(timeout_s=20)
        puller.commit()
    with AdminClient(broker.namesrv_addr, namespace_v2="tenant") as admin:
        assert "orders" in admin.topics()
    wanted = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.END_TRANSACTION, RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE, RequestCode.LOCK_BATCH_MQ, RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    }  # fmt: skip
    assert codes_of(broker) >= wanted


def test_clients_of_a_loop_name_it_and_see_topics_as_they_are(broker: Broker) -> None:
    async def flow() -> None:
        address = broker.namesrv_addr
        async with AsyncProducer("makers", address, namespace_v2="tenant") as producer:
            result = await producer.send("orders", b"1")
            assert result.message_queue.topic == "orders"
            producer.send_nowait(Message("orders", b"2"))
        handled = asyncio.Event()
        consumer = AsyncPushConsumer("readers", address, from_where="first", namespace_v2="tenant")

        async def handle(message: Delivery) -> None:
            assert message.topic == "orders"
            handled.set()

        consumer.subscribe("orders", handle)
        async with consumer, asyncio.timeout(300):
            await handled.wait()
        pull = AsyncPullConsumer("pullers", address, topics="orders", from_where="first", namespace_v2="tenant")
        async with pull:
            assert await pull.poll(timeout_s=20)

    asyncio.run(flow())
    assert {RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE} <= codes_of(broker)


def test_it_is_signed(broker: Broker) -> None:
    one = Credentials("me", "secret")
    with Producer("makers", broker.namesrv_addr, namespace_v2="tenant", credentials=one) as producer:
        producer.send("orders", b"signed")
    (asked,) = broker.requests(RequestCode.SEND_MESSAGE_V2)
    assert named(asked) == TENANT
    request = RemotingCommand(asked.code, dict(asked.fields), asked.body)
    assert is_signed_with(request, "secret")
    assert not is_signed_with(RemotingCommand(asked.code, {**asked.fields, "ns": "other"}, asked.body), "secret")


def test_no_namespace_v2_fields_without_the_setting(broker: Broker) -> None:
    with Producer("makers", broker.namesrv_addr, namespace="old") as producer:
        producer.send("orders", b"1")
    assert [one for one in broker.requests() if named(one)] == []


def test_both_kinds_may_be_used_at_once(broker: Broker) -> None:
    with Producer("makers", broker.namesrv_addr, namespace="old", namespace_v2="tenant") as producer:
        producer.send("orders", b"1")
    (asked,) = broker.requests(RequestCode.SEND_MESSAGE_V2)
    assert (asked.fields["b"], asked.fields["a"]) == ("old%orders", "old%makers")
    assert named(asked) == TENANT


def test_java_name_and_invalid_values_of_namespace_v2() -> None:
    settings = {"producerGroup": "g", "namesrvAddr": "127.0.0.1:1", "namespaceV2": "tenant"}
    assert Producer.from_java(settings)._settings.namespace_v2 == "tenant"
    for wrong in ("", 7):
        with pytest.raises(ConfigError, match="namespace_v2: expected a text, found"):
            Producer("g", "127.0.0.1:1", namespace_v2=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="namespace_v2: expected a text, found"):
            AdminClient("127.0.0.1:1", namespace_v2=wrong)  # type: ignore[arg-type]
