"""Producers on our broker and on Java's of every release: what was sent is what is there."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.errors import BrokerError, ClientError, MessageIllegal
from mqfast.message import Message

_numbers = itertools.count(1)
STORED = (SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE)


@pytest.fixture
def topic() -> str:
    return f"sent-{next(_numbers)}"


def found(address: str, result: SendResult) -> Delivery:
    """The message of a result, pulled from its place; a reader may see it a moment after its producer."""
    with PullConsumer("readers", address) as consumer:
        deadline = time.monotonic() + 20
        while True:
            pulled = consumer.pull(result.message_queue, result.queue_offset, max_count=1)
            if pulled.messages or time.monotonic() > deadline:
                return pulled.messages[0]
            time.sleep(0.02)


def all_of(address: str, topic: str, count: int) -> list[Delivery]:
    """All messages of a topic, queue by queue in their order."""
    with PullConsumer("readers", address) as consumer:
        deadline = time.monotonic() + 30
        while True:
            got: list[Delivery] = []
            for queue in consumer.queues(topic):
                at = 0
                while (pulled := consumer.pull(queue, at, max_count=32)).messages:
                    got += pulled.messages
                    at = pulled.next_offset
            if len(got) >= count or time.monotonic() > deadline:
                return got
            time.sleep(0.05)


def test_a_send_says_where_the_message_is(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        result = producer.send(topic, b"42", tags="new", keys="42", properties={"region": "eu"})
        assert result.status in STORED
        message = found(cluster_address, result)
        assert message.body == b"42"
        assert message.tags == "new"
        assert list(message.keys) == ["42"]
        assert message.properties["region"] == "eu"
        assert message.msg_id == result.msg_id
        assert message.offset_msg_id == result.offset_msg_id
        assert (message.topic, message.queue_id) == (topic, result.message_queue.queue_id)
        assert result.transaction_id is None or result.transaction_id == result.msg_id


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_a_large_body_comes_back_whole(cluster_address: str, topic: str, compression: Any) -> None:
    body = b"0123456789abcdef" * 4096
    with Producer("producers", cluster_address, compression=compression) as producer:
        message = found(cluster_address, producer.send(topic, body))
        assert message.body == body
        assert len(message.view) < len(body) / 10


def test_a_text_is_sent_as_utf_8(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        assert found(cluster_address, producer.send(topic, "h\u00e9 \U0001f600")).text() == "h\u00e9 \U0001f600"


def test_queue_selector_and_key_choose_the_queue(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        producer.send(topic, b"first")
        queues = producer.queues(topic)
        assert len(queues) == 4
        assert producer.send(topic, b"x", queue=queues[2]).message_queue == queues[2]
        last: Callable[..., MessageQueue] = lambda given, message: given[-1]  # noqa: E731
        assert producer.send(topic, b"x", selector=last).message_queue == queues[3]
        places = {producer.send(topic, b"x", sharding_key="customer-7").message_queue for _ in range(5)}
        assert places == {queues[1581185528 % 4]}


def test_the_selector_of_a_producer_chooses_for_many_messages_too(cluster_address: str, topic: str) -> None:
    last: Callable[..., MessageQueue] = lambda given, message: given[-1]  # noqa: E731
    with Producer("producers", cluster_address, selector=last) as producer:
        results = list(producer.send_many(Message(topic, f"{i}") for i in range(40)))
        assert {one.message_queue.queue_id for one in results if isinstance(one, SendResult)} == {3}
        assert len(results) == 40

    def broken(given: object, message: Message) -> MessageQueue:
        raise ZeroDivisionError

    with Producer("producers", cluster_address, selector=broken) as producer:
        (error,) = producer.send_many([Message(topic, b"x")])
        assert isinstance(error, ClientError)
        assert "ZeroDivisionError" in str(error)
        assert producer.stats()["in_flight"] == 0


def test_messages_of_one_key_keep_their_order(cluster_address: str, topic: str) -> None:
    keys = ("a", "b", "c")
    with Producer("producers", cluster_address, send_timeout_s=20) as producer:
        producer.send(topic, b"first")
        many = (Message(topic, f"{i}", sharding_key=keys[i % 3]) for i in range(300))
        assert [one for one in producer.send_many(many) if not isinstance(one, SendResult)] == []
    order: dict[str, list[int]] = {}
    for message in all_of(cluster_address, topic, 301):
        if message.body != b"first":
            order.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))
    assert order == {key: list(range(i, 300, 3)) for i, key in enumerate(keys)}


def test_a_batch_is_neighbours_in_one_queue(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        producer.send(topic, b"first")
        result = producer.send_batch([Message(topic, f"{i}", tags=f"t{i}") for i in range(10)])
        assert result.status in STORED
        assert result.msg_id.split(",") == list(result.msg_ids)
        assert len(set(result.msg_ids)) == 10
        got = [found(cluster_address, result._replace(queue_offset=result.queue_offset + i)) for i in range(10)]
        assert [message.body for message in got] == [f"{i}".encode() for i in range(10)]
        assert [message.tags for message in got] == [f"t{i}" for i in range(10)]
        assert [message.msg_id for message in got] == list(result.msg_ids)


def test_many_messages_of_many_topics_have_their_results_in_order(cluster_address: str, topic: str) -> None:
    topics = [f"{topic}-{i}" for i in range(3)]
    with Producer("producers", cluster_address, batch_bytes=2000) as producer:
        many = [Message(topics[i % 3], f"{i}") for i in range(600)]
        results = list(producer.send_many(many))
    assert len(results) == 600
    places: dict[str, str] = {}
    for i, result in enumerate(results):
        assert isinstance(result, SendResult), result
        assert result.message_queue.topic == topics[i % 3]
        places[result.msg_id] = f"{i}"
    assert len(places) == 600
    for one in topics:
        got = all_of(cluster_address, one, 200)
        assert len(got) == 200
        assert all(places[message.msg_id] == message.text() for message in got)


def test_offsets_of_a_batch_are_those_of_its_messages(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        results = [
            one for one in producer.send_many(Message(topic, f"{i}") for i in range(50)) if isinstance(one, SendResult)
        ]
        for i in (0, 7, 49):
            assert found(cluster_address, results[i]).body == f"{i}".encode()
            assert found(cluster_address, results[i]).offset_msg_id == results[i].offset_msg_id


def test_a_delayed_message_comes_later(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        producer.send(topic, b"first")
        begin = time.monotonic()
        assert producer.send(topic, b"later", delay_level=1).status in STORED
        got = all_of(cluster_address, topic, 2)
        assert time.monotonic() - begin >= 0.9
        assert sorted(message.body for message in got) == [b"first", b"later"]


def test_one_way_and_future(cluster_address: str, topic: str) -> None:
    called = threading.Event()
    with Producer("producers", cluster_address) as producer:
        producer.send(topic, b"first")
        msg_id = producer.send_oneway(Message(topic, b"one way"))
        future = producer.send_future(Message(topic, b"future"), on_done=lambda one: called.set())
        result = future.result(20)
        assert found(cluster_address, result).body == b"future"
        assert called.wait(10)
        got = all_of(cluster_address, topic, 3)
        assert {message.msg_id for message in got} >= {msg_id, result.msg_id}


def test_what_lingers_goes_in_batches(cluster_address: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer("producers", cluster_address, linger_ms=20) as producer:
            await producer.send(topic, b"first")
            results = await asyncio.gather(*(producer.send(topic, f"{i}") for i in range(200)))
            assert len({one.msg_id for one in results}) == 200
            by_queue: dict[MessageQueue, list[int]] = {}
            for one in results:
                by_queue.setdefault(one.message_queue, []).append(one.queue_offset)
            assert len(by_queue) == 1  # one request, so one queue
            (offsets,) = by_queue.values()
            assert offsets == list(range(offsets[0], offsets[0] + 200))

    asyncio.run(main())
    assert len(all_of(cluster_address, topic, 201)) == 201


def test_threads_share_a_producer(cluster_address: str, topic: str) -> None:
    results: list[SendResult] = []
    with Producer("producers", cluster_address, send_timeout_s=20) as producer:
        work = lambda: results.extend(producer.send(topic, b"x") for _ in range(50))  # noqa: E731
        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert producer.stats()["sent"] == 400
    assert len({(one.message_queue, one.queue_offset) for one in results}) == 400


def test_everything_async(cluster_address: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer("producers", cluster_address) as producer:
            first = await producer.send(topic, "42", sharding_key="customer-7")
            assert first.message_queue.queue_id == 1581185528 % 4
            many = await asyncio.gather(*(producer.send(topic, f"{i}") for i in range(100)))
            assert len({one.msg_id for one in many}) == 100
            batch = await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
            assert len(batch.msg_ids) == 2
            done: list[Any] = []
            for i in range(100):
                producer.send_nowait(Message(topic, f"{i}"), on_done=done.append)
            assert await producer.flush(20) == 0
            assert len(done) == 100
            assert all(isinstance(one, SendResult) for one in done)
            await producer.send_oneway(Message(topic, b"one way"))
            results = [one async for one in producer.send_many(Message(topic, f"{i}") for i in range(500))]
            assert [isinstance(one, SendResult) for one in results] == [True] * 500
            stats = producer.stats()
            assert (stats["sent"], stats["failed"], stats["in_flight"]) == (1 + 100 + 1 + 100 + 1 + 500, 0, 0)

    asyncio.run(main())
    assert len(all_of(cluster_address, topic, 704)) == 704


def test_a_message_that_is_none_has_its_error_in_its_place_among_many(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        got = list(producer.send_many([Message(topic, b"1"), Message(topic, b""), Message(topic, b"2")]))
        assert [isinstance(end, SendResult) for end in got] == [True, False, True]
        assert isinstance(got[1], MessageIllegal)
        assert "at least one byte" in str(got[1])


def test_what_a_broker_refuses_is_an_error_with_its_code(cluster_address: str, topic: str) -> None:
    with Producer("producers", cluster_address) as producer:
        producer.send(topic, b"first")
        queue = producer.queues(topic)[0]
        with pytest.raises(BrokerError) as caught:
            producer.send(topic, b"x", queue=queue._replace(queue_id=99))
        assert caught.value.code in (1, 29)
        assert caught.value.remark
