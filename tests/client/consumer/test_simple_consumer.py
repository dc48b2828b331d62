"""Simple consumers on brokers of ours: receive, acks, invisible times, several brokers, filters, both faces."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading

import pytest

from mqfast.client import AsyncSimpleConsumer, SimpleConsumer
from mqfast.errors import BrokerError, ClientClosed, ConfigError, UsageError
from mqfast.testing import Broker


def test_messages_are_received_and_acked() -> None:
    with Broker(topics=["T"]) as broker:
        broker.send("T", *(b"%d" % number for number in range(40)))
        with SimpleConsumer("g", broker.namesrv_addr, topics="T", from_where="earliest") as consumer:
            first = consumer.receive(32)
            second = consumer.receive(32)
            assert sorted(message.body for message in (*first, *second)) == sorted(b"%d" % n for n in range(40))
            assert consumer.receive(timeout_s=0) == []
            consumer.ack(first)
            for message in second:
                consumer.ack(message)
            assert (first[0].topic, first[0].attempt) == ("T", 1)
            lags = broker.offset("g", "T")
            assert sum(lags.values()) == 40
            with pytest.raises(UsageError, match="receive"):
                consumer.ack(pickle.loads(pickle.dumps(first[0])))
            with pytest.raises(UsageError, match="max_count"):
                consumer.receive(33)
            with pytest.raises(UsageError, match="invisible_s"):
                consumer.receive(invisible_s=0)
        with pytest.raises(ClientClosed):
            consumer.receive()


def test_a_message_comes_again_after_the_invisible_time() -> None:
    with Broker(topics=["T"]) as broker:
        with SimpleConsumer("g", broker.namesrv_addr, topics="T", from_where="earliest") as consumer:
            broker.send("T", b"m")
            message = consumer.receive(invisible_s=60)[0]
            consumer.change_invisible_time(message, 0.2)
            again = consumer.receive(timeout_s=20)[0]
            assert (again.body, again.topic, again.attempt, again.msg_id) == (b"m", "T", 2, message.msg_id)
            with pytest.raises(BrokerError):
                consumer.change_invisible_time(message, 60)
            consumer.ack(message)  # late: no effect
            consumer.change_invisible_time(again, 0.2)
            third = consumer.receive(timeout_s=20)[0]
            assert third.attempt == 3
            consumer.ack(third)
            assert consumer.receive(timeout_s=0.3) == []


def test_time_of_a_test_passes_for_invisible_messages() -> None:
    with Broker(topics=["T"], virtual_time=True) as broker:
        with broker.simple_consumer(topics="T") as consumer:
            broker.send("T", b"m")
            assert [message.body for message in consumer.receive(invisible_s=3600)] == [b"m"]
            assert broker.clock.advance(3599) == 0
            assert consumer.receive(timeout_s=0) == []
            assert broker.clock.advance(2) == 1
            assert [message.attempt for message in consumer.receive()] == [2]


def test_several_brokers_and_topics_are_waited_for_at_once() -> None:
    with Broker(brokers=2, topics=["A", "B"]) as broker:
        with SimpleConsumer("g", broker.namesrv_addr, topics={"A": "*", "B": "red"}, from_where="earliest") as consumer:
            assert consumer.receive(timeout_s=0.1) == []
            seen = []
            for topic, tags in (("A", "x"), ("B", "red"), ("B", "blue"), ("A", "y")):
                waiting: list[object] = []
                thread = threading.Thread(target=lambda got=waiting: got.extend(consumer.receive(timeout_s=20)))
                if tags != "blue":
                    thread.start()
                broker.send(topic, tags.encode(), tags=tags)
                if tags != "blue":
                    thread.join(30)
                    seen += waiting
            assert [message.body for message in seen] == [b"x", b"red", b"y"]  # type: ignore[attr-defined]
            consumer.ack(seen)  # type: ignore[arg-type]
            consumer.unsubscribe("A")
            consumer.subscribe("B", "blue")
            broker.send("B", b"blue", tags="blue")
            broker.send("A", b"z", tags="z")
            assert {message.body for message in consumer.receive(timeout_s=20)} == {b"blue"}


def test_an_orderly_consumer_gets_a_batch_after_the_acks_of_the_batch_before() -> None:
    with Broker(topics={"T": 1}) as broker:
        broker.send("T", b"0", b"1", b"2")
        with SimpleConsumer("g", broker.namesrv_addr, topics="T", from_where="earliest", orderly=True) as consumer:
            first = consumer.receive(2)
            assert [message.body for message in first] == [b"0", b"1"]
            assert consumer.receive(timeout_s=0) == []
            consumer.ack(first[0])
            consumer.change_invisible_time(first[1], 0.1)
            again = consumer.receive(2, timeout_s=20)
            assert [(message.body, message.attempt) for message in again] == [(b"1", 2), (b"2", 1)]
            consumer.ack(again)
            assert consumer.receive(timeout_s=0) == []


def test_the_asyncio_face() -> None:
    async def flow(address: str) -> None:
        async with AsyncSimpleConsumer("g", address, topics="T", from_where="earliest") as consumer:
            got = await consumer.receive(timeout_s=20)
            assert [message.body for message in got] == [b"m"]
            await consumer.change_invisible_time(got[0], 60)
            await consumer.ack(got)
            task = asyncio.ensure_future(consumer.receive(timeout_s=60))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(ClientClosed):
            await consumer.receive()

    with Broker(topics=["T"]) as broker:
        broker.send("T", b"m")
        asyncio.run(flow(broker.namesrv_addr))


@pytest.mark.parametrize("v2", ["false", "true"])
def test_a_retry_that_the_broker_leaves_in_its_retry_topic(v2: str) -> None:
    config = {"popResponseReturnActualRetryTopic": "true", "enableRetryTopicV2": v2}
    with Broker(topics=["T"], config=config) as broker:
        with SimpleConsumer("g", broker.namesrv_addr, topics="T", from_where="earliest") as consumer:
            broker.send("T", b"m")
            consumer.receive(invisible_s=0.1)
            again = consumer.receive(timeout_s=20, invisible_s=60)[0]
            assert (again.body, again.topic, again.attempt) == (b"m", "T", 2)
            consumer.change_invisible_time(again, 0.1)
            third = consumer.receive(timeout_s=20)[0]
            assert (third.topic, third.attempt) == ("T", 3)
            consumer.ack(third)
            assert consumer.receive(timeout_s=0.3) == []


def test_wrong_arguments_and_a_forgotten_consumer() -> None:
    with pytest.raises(ConfigError, match="no setting is named"):
        SimpleConsumer("g", "127.0.0.1:1", pull_batch=3)
    with pytest.raises(ConfigError, match="from_where"):
        SimpleConsumer("g", "127.0.0.1:1", from_where="middle")  # type: ignore[arg-type]
    with Broker(topics=["T"]) as broker:
        with pytest.warns(ResourceWarning, match="not closed"):
            forget_a_consumer(broker.namesrv_addr)


def forget_a_consumer(address: str) -> None:
    consumer = SimpleConsumer("g", address)
    with pytest.raises(UsageError, match="topics="):
        consumer.receive()
    del consumer
    gc.collect()
