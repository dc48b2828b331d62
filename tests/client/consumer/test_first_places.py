"""A new group reads what is sent once its start has returned, also in queues that are found later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from mqfast import AsyncPullConsumer, MessageQueue, Producer, PullConsumer, PushConsumer
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

LIMIT_S = 120.0
ASKED_AT_START = (RequestCode.GET_MAX_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET)


@pytest.fixture(autouse=True)
def own_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", str(tmp_path))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer("sender", broker.namesrv_addr) as one:
        yield one


def test_a_broadcasting_push_consumer_gets_what_is_sent_right_after_its_start(
    broker: Broker, producer: Producer
) -> None:
    producer.send("push_at_once", b"before")
    found: list[bytes] = []
    consumer = PushConsumer("push_at_once_readers", broker.namesrv_addr, model="broadcasting")
    consumer.subscribe("push_at_once", lambda message: found.append(message.body))
    with broker.faults.slow(0.2, only=ASKED_AT_START):
        consumer.start()
    try:
        sent = sorted(producer.send("push_at_once", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: sorted(found) == sent)
        found.clear()
        producer.send("push_too", b"before")
        with broker.faults.slow(0.2, only=ASKED_AT_START):
            consumer.subscribe("push_too", lambda message: found.append(message.body))
        sent = sorted(producer.send("push_too", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: sorted(found) == sent)
    finally:
        consumer.close()


def test_a_broadcasting_push_consumer_gets_the_first_messages_of_a_topic_that_is_made_later(
    broker: Broker, producer: Producer
) -> None:
    found: list[bytes] = []
    consumer = PushConsumer("push_later_readers", broker.namesrv_addr, model="broadcasting")
    consumer.subscribe("push_later", lambda message: found.append(message.body))
    consumer.start()
    try:
        sent = sorted(producer.send("push_later", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: sorted(found) == sent)
    finally:
        consumer.close()


def test_a_broadcasting_pull_consumer_gets_what_is_sent_right_after_its_start(
    broker: Broker, producer: Producer
) -> None:
    producer.send("pull_at_once", b"before")
    found: list[bytes] = []

    def poll() -> None:
        found.extend(message.body for message in consumer.poll(0.1))

    consumer = PullConsumer("pull_at_once_readers", broker.namesrv_addr, topics="pull_at_once", model="broadcasting")
    with broker.faults.slow(0.2, only=ASKED_AT_START):
        consumer.start()
    with consumer:
        sent = sorted(producer.send("pull_at_once", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: poll() or sorted(found) == sent)
        found.clear()
        consumer.subscribe("pull_later")  # nobody knows that topic yet
        sent = sorted(producer.send("pull_later", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: poll() or sorted(found) == sent)


def test_a_pull_consumer_gets_what_is_sent_right_after_its_queues_are_given(broker: Broker, producer: Producer) -> None:
    producer.send("given", b"before")
    queues = [MessageQueue(*queue) for queue in producer.queues("given")]
    found: list[bytes] = []

    def poll() -> None:
        found.extend(message.body for message in consumer.poll(0.1))

    with PullConsumer("given_readers", broker.namesrv_addr, model="broadcasting") as consumer:
        with broker.faults.slow(0.2, only=ASKED_AT_START):
            consumer.assign(queues)
        sent = sorted(producer.send("given", b"%d" % i) and b"%d" % i for i in range(8))
        until(lambda: poll() or sorted(found) == sent)


def test_a_broadcasting_start_does_not_wait_for_a_broker_that_answers_no_offset(
    broker: Broker, producer: Producer
) -> None:
    producer.send("no_place", b"before")
    found: list[bytes] = []
    consumer = PushConsumer("no_place_readers", broker.namesrv_addr, model="broadcasting")
    consumer.subscribe("no_place", lambda message: found.append(message.body))
    with broker.faults.answer(1, "no", only=ASKED_AT_START):
        consumer.start()
        sent = sorted(producer.send("no_place", b"%d" % i) and b"%d" % i for i in range(8))
    try:
        until(lambda: {*sent} <= {*found})  # from the time of the start, though the places were asked for later
    finally:
        consumer.close()


def test_a_seek_holds_where_the_first_offset_of_the_queue_is_answered_together_with_it(
    broker: Broker, producer: Producer
) -> None:
    """The group's own start, 0 here, was noted behind the seek, and old messages came."""
    broker.create_topic("seek_at_once", queues=1)
    producer.send("seek_at_once", b"before")

    async def flow(number: int) -> list[bytes]:
        group = f"seek_at_once_{number}"
        async with AsyncPullConsumer(group, broker.namesrv_addr, auto_commit_s=None) as consumer:
            (queue,) = await consumer.queues("seek_at_once")
            end = (await consumer.pull(queue, 0, max_count=1)).max_offset
            await consumer.assign([queue])
            await consumer.seek(queue, end)
            await asyncio.to_thread(producer.send, "seek_at_once", b"%d" % number)
            return [message.body for message in await consumer.poll(timeout_s=LIMIT_S)]

    for number in range(10):
        assert asyncio.run(flow(number)) == [b"%d" % number]
