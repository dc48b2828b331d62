"""Clients of mqfast.testing.Broker: the example of the design, consumers while the time is moved, over a reset."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from mqfast.client import Delivery
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}) as broker:
        yield broker


def test_the_example(broker: Broker) -> None:
    with broker.producer() as producer:
        producer.send("orders", b"42")
    broker.wait_for("orders", body=b"42", timeout_s=60)
    broker.clock.advance(timedelta(hours=2))
    with broker.faults.lose_answers(times=1):
        broker.send("orders", "43")
    broker.kill(power_loss=True)
    broker.restart()
    broker.assert_sent("orders", body="43", times=1)


def test_a_group_consumes_everything_once(broker: Broker) -> None:
    seen: list[bytes] = []
    consumer = broker.consumer("billing", topics="orders")

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        seen.append(message.body)

    with consumer:
        broker.wait_members("billing", 1, timeout_s=60)
        broker.send("orders", *map(str, range(10)))
        broker.wait_consumed("billing", "orders", timeout_s=60)
        broker.wait_consumed("billing", timeout_s=60)
    assert sorted(seen) == [str(number).encode() for number in range(10)]
    broker.assert_consumed_once("billing", "orders")
    assert sum(broker.offset("billing", "orders").values()) == 10
    broker.wait_members("billing", 0, timeout_s=60)


def test_a_send_with_a_lost_response_reaches_the_consumer(broker: Broker) -> None:
    with broker.producer() as producer:
        producer.send("orders", b"41")
        with broker.faults.lose_answers(times=1), pytest.raises(TimeoutError):
            producer.send("orders", b"42", timeout_s=1)
    broker.assert_sent("orders", body=b"42", times=1)


def test_all_retries_happen_while_the_time_is_moved() -> None:
    with Broker(topics={"orders": 1}, virtual_time=True) as broker:
        tries: list[tuple[int, float]] = []
        start_ms = broker.clock.now_ms()
        consumer = broker.consumer("billing")

        @consumer.on("orders")
        def bill(message: Delivery) -> None:
            tries.append((message.reconsume_times, (broker_ms() - start_ms) / 1000))
            raise ValueError("never")

        def broker_ms() -> int:
            return broker.clock.now_ms()

        with consumer:
            broker.send("orders", "42")
            broker.wait_until(lambda: tries, timeout_s=30)
            broker.wait_until(broker.scheduled, timeout_s=30)
            broker.clock.advance(timedelta(hours=5))
            assert [number for number, _ in tries] == list(range(17))
            # RocketMQ's schedule: 10 s, 30 s, 1 m, ... 2 h.
            steps = [round(after[1] - before[1]) for before, after in itertools.pairwise(tries)]
            assert steps == [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
            broker.wait_until(lambda: broker.dead_letters("billing"), timeout_s=30)
        (dead,) = broker.dead_letters("billing")
        assert dead.body == b"42"


def test_retries_take_no_time(broker: Broker) -> None:
    tries: list[int] = []
    done = threading.Event()
    consumer = broker.consumer("billing")

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times < 3:
            raise ValueError("not yet")
        done.set()

    with consumer:
        broker.send("orders", "42")
        assert done.wait(30)
        broker.wait_consumed("billing", timeout_s=30)
    assert tries == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="sent back"):
        broker.assert_consumed_once("billing", "orders")


@pytest.mark.parametrize("turn", range(4))
def test_the_end_of_a_wait_is_behind_the_retries(broker: Broker, turn: int) -> None:
    """A message that was sent back is on its way for a moment, where no queue has it."""
    broker.send("orders", *(str(number) for number in range(8)), queue_id=0)
    calls: list[list[str]] = []
    consumer = broker.consumer(f"billing-{turn}")

    @consumer.on("orders", batch=16)
    def bill(messages: list[Delivery]) -> int | None:
        calls.append([message.text() for message in messages])
        return 1 if len(calls) == 1 else None  # the first two are done

    with consumer:
        broker.wait_consumed(f"billing-{turn}", "orders", timeout_s=30)
        found = Counter(body for call in calls for body in call)
    assert found == Counter(str(number) for number in range(8)) + Counter(calls[0][2:])


def test_a_consumer_of_the_session_survives_a_reset(broker: Broker) -> None:
    from mqfast.client import PushConsumer

    seen: list[bytes] = []
    consumer = PushConsumer("billing", broker.namesrv_addr, from_where="first")

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        seen.append(message.body)

    with consumer:
        broker.send("orders", "1", "2", "3")
        broker.wait_until(lambda: len(seen) == 3, timeout_s=30)
        for _ in range(2):
            broker.reset()
            seen.clear()
            broker.send("orders", "4", "5")
            broker.wait_until(lambda: sorted(seen) == [b"4", b"5"], timeout_s=30)


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"orderly": True}, {"model": "broadcasting"}])
def test_clients_of_a_broker_go_on_over_a_reset(arguments: dict[str, Any], process: bool) -> None:
    with Broker(topics={"orders": 2}, process=process) as broker:
        seen: list[str] = []
        consumer, puller, producer = broker.consumer("billing", **arguments), broker.puller("audit"), broker.producer()
        pulled: list[str] = []
        consumer.subscribe("orders", lambda message: seen.append(message.text()))
        consumer.start()
        puller.subscribe("orders")

        def of(round_: int, texts: list[str]) -> list[str]:
            return sorted(text for text in texts if text.startswith(f"{round_}-"))

        for round_ in range(4):
            sent = [f"{round_}-{number}" for number in range(5 + round_)]
            for text in sent:
                producer.send("orders", text)
            producer.send("made-by-a-send", text)

            def all_came(round_: int = round_, wanted: int = len(sent)) -> bool:
                pulled.extend(message.text() for message in puller.poll(0.05))
                return min(len(of(round_, seen)), len(of(round_, pulled))) >= wanted

            broker.wait_until(all_came, timeout_s=60)
            assert of(round_, seen) == of(round_, pulled) == sent
            if round_ == 2:  # messages that consumers may have fetched, and nobody has done
                broker.send("orders", *(["on its way"] * 20))
            broker.reset()
        assert broker.messages("orders") == []


def test_a_pull_without_a_group_is_not_notified_of_a_reset(broker: Broker) -> None:
    fields = {
        "consumerGroup": "TOOLS_CONSUMER", "topic": "orders", "queueId": 0, "maxMsgNums": 1, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip

    async def flow() -> None:
        client = RemotingClient()
        channel = await client.channel(broker.addresses["broker-a"])
        for _ in range(2):
            broker.send("orders", *map(str, range(5)), queue_id=0)
            pull = {name: str(value) for name, value in {**fields, "queueOffset": 3}.items()}
            answer = await channel.call(RequestCode.PULL_MESSAGE, pull)
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "4")
            broker.reset()
        await client.close()

    asyncio.run(flow())


@pytest.mark.parametrize("seconds", [0.0, 0.05])
@pytest.mark.parametrize("arguments", [{}, {"orderly": True}])
def test_duplicate_deliveries_reach_a_push_consumer(broker: Broker, arguments: dict[str, Any], seconds: float) -> None:
    """A consumer leaves out what its handler has: the second one comes when the first one is done."""
    seen: list[str] = []
    consumer = broker.consumer("billing", **arguments)

    @consumer.on("orders")
    def bill(message: Delivery) -> None:
        time.sleep(seconds)
        seen.append(message.text())

    sent = [str(number) for number in range(8)]
    with broker.faults.duplicate_deliveries(every=1), consumer:
        for text in sent:
            broker.send("orders", text)
        broker.wait_until(lambda: len(seen) >= 16, timeout_s=60)
        broker.wait_consumed("billing", "orders", timeout_s=60)
        assert Counter(seen) == Counter(sent * 2)
    with pytest.raises(AssertionError, match="delivered twice"):
        broker.assert_consumed_once("billing", "orders")


@pytest.mark.parametrize("name", ["broadcasting", "puller"])
def test_duplicate_deliveries_reach_every_broadcasting_consumer(broker: Broker, name: str) -> None:
    seen: list[list[str]] = [[], []]
    sent = [str(number) for number in range(8)]
    with broker.faults.duplicate_deliveries():
        for place, texts in enumerate(seen):
            if name == "puller":
                puller = broker.puller(f"audit-{place}")
                puller.subscribe("orders")
                continue
            consumer = broker.consumer("audit", model="broadcasting", instance_name=f"reader-{place}")
            consumer.subscribe("orders", lambda message, texts=texts: texts.append(message.text()))
            consumer.start()
        broker.send("orders", *sent)

        def all_came() -> bool:
            if name == "puller":
                for texts, puller in zip(seen, broker._clients, strict=True):
                    texts.extend(message.text() for message in puller.poll(0.05))
            return all(len(texts) >= 16 for texts in seen)

        broker.wait_until(all_came, timeout_s=60)
    assert [Counter(texts) for texts in seen] == [Counter(sent * 2)] * 2


def test_order_by_key(broker: Broker) -> None:
    broker.send("orders", "1", "2", sharding_key="customer-7", queue_id=0)
    broker.assert_in_order("orders")
    broker.send("orders", "3", sharding_key="customer-7", queue_id=1)
    with pytest.raises(AssertionError, match="'customer-7' in queues 0 and 1"):
        broker.assert_in_order("orders")
