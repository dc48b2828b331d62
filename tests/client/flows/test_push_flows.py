"""Push consumers, sync and async, on our broker and on Java's of every release: the same code, the same results."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "consumer"))

from consumer_cluster import Hand, in_loop, until

from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.encode import Compressor, Wire, batch_of, new_id
from mqfast.client.producer.producer import Producer
from mqfast.message import Message
from mqfast.remoting.codes import RequestCode

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def hand(cluster_address: str) -> Hand:
    return Hand(cluster_address)


@pytest.fixture
def producer(cluster_address: str) -> Iterator[Producer]:
    with Producer("push-flows", cluster_address, send_timeout_s=10) as one:
        yield one


@pytest.fixture
def topic() -> str:
    return f"pushed-{next(_numbers)}"


def sent(producer: Producer, topic: str, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%05d" % i for i in range(first, first + count)]
    for i, body in enumerate(bodies):
        producer.send(topic, body, tags=("a", "b")[i % 2], keys=body.decode())
    return bodies


def test_messages_come_once_with_all_their_fields(cluster_address: str, producer: Producer, topic: str) -> None:
    bodies = sent(producer, topic, 40)
    big = producer.send(topic, b"abcdefgh" * 2000, tags="a", properties={"colour": "blue"})
    seen: list[Delivery] = []
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first")
    consumer.subscribe(topic, seen.append)
    with consumer:
        until(lambda: len(seen) >= 41, "all messages")
        until(lambda: not any(consumer.lag().values()), "no lag")
        bodies += sent(producer, topic, 20, first=40)
        until(lambda: len(seen) >= 61, "the later ones")
    assert Counter(one.body for one in seen) == Counter([*bodies, b"abcdefgh" * 2000])
    (one,) = [one for one in seen if one.msg_id == big.msg_id]
    assert (one.topic, one.tags, one.properties["colour"]) == (topic, "a", "blue")
    assert one.queue == big.message_queue
    assert one.queue_offset == big.queue_offset
    assert one.offset_msg_id == big.offset_msg_id
    assert len(one.view) < len(one.body)


def test_tags_choose(cluster_address: str, producer: Producer, topic: str) -> None:
    sent(producer, topic, 20)
    seen: list[Delivery] = []
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first")
    consumer.subscribe(topic, seen.append, "b")
    with consumer:
        until(lambda: len(seen) >= 10, "those with the tag")
    assert {one.tags for one in seen} == {"b"}


@pytest.mark.slow
def test_a_failed_message_comes_again_then_dies(cluster_address: str, producer: Producer, topic: str) -> None:
    producer.send(topic, b"poison")
    attempts: list[int] = []
    letters: list[Delivery] = []
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first", max_reconsume_times=1)

    @consumer.on(topic)
    def handle(message: Delivery) -> bool:
        assert message.topic == topic
        attempts.append(message.attempt)
        return False

    reader = PushConsumer(f"{topic}-letters", cluster_address, from_where="first")
    reader.subscribe(f"%DLQ%{topic}-group", letters.append)
    with consumer:
        until(lambda: len(attempts) == 2, "the second attempt, after 10 s")
        with reader:
            until(lambda: letters, "the dead letter")
    assert attempts == [1, 2]
    assert letters[0].body == b"poison"


def test_orderly_keeps_the_order_of_keys(cluster_address: str, producer: Producer, topic: str) -> None:
    for i in range(60):
        producer.send(Message(topic, b"%d" % i, sharding_key=f"customer-{i % 7}", properties={"who": str(i % 7)}))
    seen: list[Delivery] = []
    failed: list[bytes] = []
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first", orderly=True, suspend_s=0.1)

    @consumer.on(topic)
    def handle(message: Delivery) -> bool:
        if message.body == b"21" and not failed:
            failed.append(message.body)
            return False
        seen.append(message)
        return True

    with consumer:
        until(lambda: len(seen) >= 60, "all messages")
    for who in range(7):
        mine = [int(one.body) for one in seen if one.properties["who"] == str(who)]
        assert mine == sorted(mine)
    assert failed == [b"21"]


def test_two_members_share_and_one_takes_over(cluster_address: str, producer: Producer, topic: str) -> None:
    bodies = sent(producer, topic, 8)
    seen: list[Delivery] = []
    members = [PushConsumer(f"{topic}-group", cluster_address, from_where="first") for _ in range(2)]
    for member in members:
        member.subscribe(topic, seen.append)

    def owned(member: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in member.assignment())

    with members[0]:
        until(lambda: len(seen) >= 8, "all by one")
        with members[1]:
            until(lambda: owned(members[0]) and owned(members[1]), "a share for each")
            bodies += sent(producer, topic, 20, first=8)
            until(lambda: len(seen) >= 28, "all by both")
        bodies += sent(producer, topic, 20, first=28)
        until(lambda: len(seen) >= 48, "all by the one that stays")
    assert Counter(one.body for one in seen) == Counter(bodies)


def test_async_for_and_async_handlers(cluster_address: str, topic: str) -> None:
    seen: list[bytes] = []

    async def flow() -> None:
        async with AsyncProducer("push-flows-async", cluster_address, send_timeout_s=10) as producer:
            await producer.send(topic, b"0")
            await asyncio.gather(*(producer.send(topic, b"%d" % i) for i in range(1, 40)))
        async with AsyncPushConsumer(f"{topic}-loop", cluster_address, topics=topic, from_where="first") as consumer:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 40:
                    message.ack()
                    break
        consumer = AsyncPushConsumer(f"{topic}-tasks", cluster_address, from_where="first")
        done = asyncio.Event()

        @consumer.on(topic)
        async def handle(message: Delivery) -> None:
            await asyncio.sleep(0.001)
            seen.append(message.body)
            if len(seen) == 80:
                done.set()

        async with consumer:
            await done.wait()

    in_loop(flow)
    assert Counter(seen) == Counter({b"%d" % i: 2 for i in range(40)})


def test_a_consumer_answers_requests(cluster_address: str, producer: Producer, topic: str) -> None:
    producer.send(topic, b"makes the topic")
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first")
    answered: list[bytes] = []

    @consumer.on(topic)
    def handle(message: Delivery) -> None:
        if message.body == b"ping":
            message.reply_sync(b"pong")
            answered.append(message.body)

    with consumer:
        until(lambda: sum(consumer.assignment().values()) >= 1, "the first message done")
        assert producer.request(Message(topic, b"ping"), timeout_s=20).body == b"pong"
    assert answered == [b"ping"]


def test_a_consumer_of_tasks_answers_requests(cluster_address: str, topic: str) -> None:
    async def flow() -> None:
        consumer = AsyncPushConsumer(f"{topic}-group", cluster_address, from_where="first")

        @consumer.on(topic)
        async def handle(message: Delivery) -> None:
            if message.body == b"ping":
                await message.reply(b"pong")

        async with AsyncProducer("push-flows-ask", cluster_address, send_timeout_s=10) as producer, consumer:
            await producer.send(topic, b"makes the topic")
            assert (await producer.request(Message(topic, b"ping"), timeout_s=30)).body == b"pong"

    in_loop(flow)


def test_the_messages_of_one_record_are_single_messages(cluster_address: str, hand: Hand, topic: str) -> None:
    attributes = "+queue.type=BatchCQ"  # 4.9 does not know it, and stores single messages
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": attributes,
    }  # fmt: skip
    assert hand.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields).code == 0
    sent: list[bytes] = []
    for size in (4, 3):
        batch = [Message(topic, b"%d" % i, keys=f"k{i}") for i in range(len(sent), len(sent) + size)]
        letters = {
            "a": "makers", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": int(time.time() * 1000), "h": 0,
            "i": f"UNIQ_KEY\x01{new_id()}\x02", "j": 0, "k": "false", "m": "true",
        }  # fmt: skip
        body = batch_of(batch, Wire("makers", Compressor(None))).body
        assert hand.ask(RequestCode.SEND_BATCH_MESSAGE, body, **letters).code == 0
        sent += [one.encoded_body() for one in batch]
    seen: list[tuple[int, bytes, int]] = []
    consumer = PushConsumer(f"{topic}-group", cluster_address, from_where="first")

    @consumer.on(topic)
    def handle(message: Delivery) -> bool:
        seen.append((message.queue_offset, message.body, message.attempt))
        return message.body != b"2" or message.attempt > 1

    with consumer:
        until(lambda: len(seen) >= 8, "all messages, and one of them again")
    assert sorted(one for one in seen if one[2] == 1) == [(i, body, 1) for i, body in enumerate(sent)]
    assert [body for _, body, attempt in seen if attempt > 1] == [b"2"]
