"""A message that its broker does not take back (36) is published to the retry topic by the consumer; none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqfast.client import Message, Producer, PushConsumer, Retry
from mqfast.client.delivery import Delivery
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.testing import Broker

BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}) as one:
        yield one


def failing(broker: Broker, group: str, times: int = 1, error: Exception | None = None, **more: Any) -> Any:
    """A consumer whose handler fails so often with each message, and what it has seen."""
    seen: list[Delivery] = []
    consumer = broker.consumer(group, **more)

    @consumer.on("orders")
    def handle(message: Delivery) -> None:
        seen.append(message)
        if message.attempt <= times:
            raise error or ValueError("later")

    return consumer, seen


def test_a_published_retry_has_all_fields_of_the_message(broker: Broker) -> None:
    consumer, seen = failing(broker, "billing", times=2)
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
        sent = broker.producer().send(
            Message("orders", b"42" * 4000, tags="new", keys="a b", flag=7, properties={"colour": "blue"})
        )
        broker.wait_until(lambda: len(seen) == 3, timeout_s=20)
        broker.wait_consumed("billing", timeout_s=20)
    assert [one.attempt for one in seen] == [1, 2, 3]
    first, second, third = seen
    for again in (second, third):
        assert (again.topic, again.body, again.tags, list(again.keys), again.flag) == (
            first.topic, first.body, "new", ["a", "b"], 7,
        )  # fmt: skip
        assert again.properties["colour"] == "blue"
        assert again.msg_id == sent.msg_id
        assert again.properties["ORIGIN_MESSAGE_ID"] == sent.msg_id
        assert again.properties["RETRY_TOPIC"] == "orders"
        assert again.queue.topic == "%RETRY%billing"
    published = [one for one in broker.requests(SEND) if one.fields["b"] == "%RETRY%billing"]
    assert [(one.fields["a"], one.fields["j"]) for one in published] == [("CLIENT_INNER_PRODUCER", n) for n in "12"]
    assert all(f"DELAY\x01{level}\x02" in one.fields["i"] for level, one in zip((3, 4), published, strict=True))
    assert broker.dead_letters("billing") == []


def test_published_retries_are_counted_and_end_in_the_dead_letter_queue(broker: Broker) -> None:
    consumer, seen = failing(broker, "mortal", times=99, max_reconsume_times=2)
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
        broker.send("orders", b"poison")
        broker.wait_for("%DLQ%mortal", 1, timeout_s=20)
    assert [one.attempt for one in seen] == [1, 2, 3]
    (dead,) = broker.dead_letters("mortal")
    assert dead.body == b"poison"


@pytest.mark.parametrize("orderly", [False, True])
def test_delay_level_minus_1_goes_to_the_dead_letter_queue_at_once(broker: Broker, orderly: bool) -> None:
    consumer, seen = failing(broker, "strict", times=99, error=Retry(delay_level=-1), orderly=orderly)
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
        broker.send("orders", b"poison")
        broker.wait_for("%DLQ%strict", 1, timeout_s=20)
        broker.wait_consumed("strict", timeout_s=20)
    assert len(seen) == 1


def test_the_delay_that_the_handler_chose_is_kept(broker: Broker) -> None:
    consumer, seen = failing(broker, "patient", error=Retry(delay_level=5))
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
        broker.send("orders", b"1")
        broker.wait_until(lambda: len(seen) == 2, timeout_s=20)
    (published,) = [one for one in broker.requests(SEND) if one.fields["b"] == "%RETRY%patient"]
    assert "DELAY\x015\x02" in published.fields["i"]


def test_the_namespace_is_in_names_on_the_wire_and_not_in_messages_of_handlers() -> None:
    with Broker(topics=["tenant%orders"]) as broker:
        consumer, seen = failing(broker, "billing", namespace="tenant")
        with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
            broker.producer(namespace="tenant").send("orders", b"1")
            broker.wait_until(lambda: len(seen) == 2, timeout_s=20)
        assert [one.topic for one in seen] == ["orders", "orders"]
        assert broker.messages("%RETRY%tenant%billing")[0].properties["RETRY_TOPIC"] == "tenant%orders"


def test_the_message_of_a_transaction_is_no_half_message_again(broker: Broker) -> None:
    from mqfast.client import TransactionProducer

    consumer, seen = failing(broker, "payers")
    with (
        broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]),
        consumer,
        TransactionProducer("makers", broker.namesrv_addr, check=lambda message: None) as producer,
    ):
        with producer.transaction(Message("orders", b"paid")):
            pass
        broker.wait_until(lambda: len(seen) == 2, timeout_s=20)
    assert [one.body for one in seen] == [b"paid", b"paid"]


def test_a_retry_is_published_to_another_broker_if_the_own_broker_is_down() -> None:
    with Broker(topics={"orders": 1}, brokers=2) as broker:
        has_it, may_fail = threading.Event(), threading.Event()
        seen: list[Delivery] = []
        consumer = broker.consumer("movers")

        @consumer.on("orders")
        def handle(message: Delivery) -> bool:
            seen.append(message)
            if message.attempt > 1:
                return True
            has_it.set()
            may_fail.wait(30)
            return False

        with consumer:
            broker.send("orders", b"42", broker="broker-a")
            assert has_it.wait(20)
            broker.kill("broker-a")
            may_fail.set()
            broker.wait_until(lambda: len(seen) == 2, timeout_s=30)
        assert [(one.body, one.queue.broker_name) for one in seen] == [(b"42", "broker-a"), (b"42", "broker-b")]


def test_a_message_that_no_broker_accepts_is_retried_in_the_consumer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqfast.client.consumer.push.dispatcher.AGAIN_S", 0.05)
    seen: list[tuple[int, str]] = []
    consumer = broker.consumer("keepers")

    @consumer.on("orders")
    def handle(message: Delivery) -> bool:
        seen.append((message.attempt, message.queue.topic))
        return len(seen) > 3

    broker.send("orders", b"kept")
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK, SEND]), consumer:
        broker.wait_until(lambda: len(seen) == 4, timeout_s=20)
        broker.wait_consumed("keepers", timeout_s=20)
    assert seen == [(attempt, "orders") for attempt in (1, 2, 3, 4)]


def test_a_message_that_was_not_sent_back_before_close_comes_to_the_next_member(broker: Broker) -> None:
    consumer, seen = failing(broker, "heirs", times=99)
    broker.send("orders", b"left")
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK, SEND]), consumer:
        broker.wait_until(lambda: seen)
        broker.wait_until(lambda: broker.requests(BACK))
    later: list[Delivery] = []
    heir = PushConsumer("heirs", broker.namesrv_addr)
    heir.subscribe("orders", later.append)
    with heir:
        broker.wait_until(lambda: later, timeout_s=20)
    assert later[0].body == b"left"


def test_the_largest_message_comes_again(broker: Broker) -> None:
    body = b"x" * (4 << 20)
    consumer, seen = failing(broker, "large")
    with broker.faults.answer(ResponseCode.SYSTEM_ERROR, only=[BACK]), consumer:
        with Producer("makers", broker.namesrv_addr, compress_over_bytes=None) as producer:
            producer.send("orders", body)
        broker.wait_until(lambda: len(seen) == 2, timeout_s=30)
    assert [one.body == body for one in seen] == [True, True]
