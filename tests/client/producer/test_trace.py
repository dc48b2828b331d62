"""The trace topic: what our clients write there is what RocketMQ's tools, and our AdminClient, read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from running import BrokerProcess

from mqfast.client.admin.trace_data import trace_rows
from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ConsumeContext
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.producer.trace import MESSAGE_BYTES_MAX, QUEUE_MAX, TRACE_TOPIC, Tracer
from mqfast.client.values import ConsumeStatus
from mqfast.errors import BrokerError, ConfigError, NoRoute


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster"), traceTopicEnable=True) as one:
        yield one


def traces(address: str, topic: str, wanted: str) -> list[Delivery]:
    """The messages of a trace topic, once one of them has a text."""
    with PullConsumer("trace-readers", address) as consumer:
        deadline = time.monotonic() + 20
        while True:
            found: list[Delivery] = []
            try:
                queues = consumer.queues(topic)
            except NoRoute:  # the topic is made by the first trace
                queues = ()
            for queue in queues:
                at = 0
                while (pulled := consumer.pull(queue, at, max_count=32)).messages:
                    found += pulled.messages
                    at = pulled.next_offset
            if any(wanted in one.text() for one in found) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


def pub_of(address: str, topic: str, msg_id: str) -> tuple[Delivery, list[str]]:
    for message in traces(address, topic, msg_id):
        for record in message.text().split("\x02"):
            fields = record.split("\x01")
            if msg_id in fields:
                return message, fields
    raise AssertionError(f"no trace of {msg_id}")


def test_a_send_is_written_when_its_producer_is_closed(cluster: BrokerProcess) -> None:
    with Producer("g", cluster.namesrv, trace=True) as producer:
        result = producer.send("T", b"12345", tags="new", keys="k1 k2")
        plain = producer.send("T", b"x", delay_level=1)
    message, fields = pub_of(cluster.namesrv, TRACE_TOPIC, result.msg_id)
    assert fields[0] == "Pub"
    assert abs(int(fields[1]) - time.time() * 1000) < 60_000
    assert fields[2:10] == ["DefaultRegion", "g", "T", result.msg_id, "new", "k1 k2", fields[8], "5"]
    assert fields[8].startswith("127.0.0.1:")
    assert int(fields[10]) >= 0
    assert fields[11:] == ["0", result.offset_msg_id, "true"]
    assert {result.msg_id, "k1", "k2"} <= set(message.keys)
    _, fields = pub_of(cluster.namesrv, TRACE_TOPIC, plain.msg_id)
    assert (fields[6], fields[7], fields[11]) == ("null", "null", "3")


def test_our_own_reader_understands_it(cluster: BrokerProcess) -> None:
    with Producer("g", cluster.namesrv, trace=True) as producer:
        result = producer.send("T", b"12345", keys="k")
    message, _ = pub_of(cluster.namesrv, TRACE_TOPIC, result.msg_id)
    rows: list[Any] = [row for row in trace_rows(message.body) if row.get("msg_id") == result.msg_id]
    assert rows
    assert (rows[0]["topic"], rows[0]["group"], rows[0]["body_bytes"], rows[0]["success"]) == ("T", "g", 5, True)


def test_a_failed_send_and_another_topic(cluster: BrokerProcess) -> None:
    async def main() -> str:
        async with AsyncProducer("g", cluster.namesrv, trace="my-trace") as producer:
            result = await producer.send("T", b"x")
            with pytest.raises(BrokerError) as caught:
                await producer.send("T", b"x", queue=result.message_queue._replace(queue_id=99))
            return str(caught.value.msg_id)

    msg_id = asyncio.run(main())
    _, fields = pub_of(cluster.namesrv, "my-trace", msg_id)
    assert fields[12:] == ["null", "false"]


def test_twenty_records_are_sent_at_once(cluster: BrokerProcess) -> None:
    with Producer("g", cluster.namesrv, trace="twenty") as producer:
        results = [producer.send("T", b"x") for _ in range(20)]
        assert pub_of(cluster.namesrv, "twenty", results[-1].msg_id)


def test_what_is_consumed_is_written_by_the_same_hook(cluster: BrokerProcess) -> None:
    with Producer("g", cluster.namesrv) as producer:
        result = producer.send("consumed", b"x", keys="k")
    (message,) = traces(cluster.namesrv, "consumed", "x")

    async def main() -> None:
        address = (cluster.namesrv,)
        instance = ClientInstance.shared(InstanceSettings(address), asyncio.get_running_loop())
        await instance.acquire()
        tracer = Tracer("readers", "consumed-trace", "CONSUME")
        tracer.begin(instance)
        for status, error in (
            (ConsumeStatus.CONSUME_SUCCESS, None),
            (ConsumeStatus.RECONSUME_LATER, None),
            (ConsumeStatus.RECONSUME_LATER, RuntimeError("no")),
        ):
            context = ConsumeContext([message], "readers")
            tracer.before_consume(context)
            context.status, context.error, context.seconds = status, error, 0.007
            tracer.after_consume(context)
        await tracer.close(10)
        await instance.release()

    asyncio.run(main())
    text = "".join(one.text() for one in traces(cluster.namesrv, "consumed-trace", result.msg_id))
    records = [record.split("\x01") for record in text.split("\x02") if record]
    assert [record[0] for record in records] == ["SubBefore", "SubAfter"] * 3
    before, after = records[0], records[1]
    assert before[2:] == ["DefaultRegion", "readers", after[1], result.msg_id, "0", "k"]
    assert after[2:7] == [result.msg_id, "7", "true", "k", "0"]
    assert after[8] == "readers"
    assert [record[6] for record in records[1::2]] == ["0", "4", "2"]


def test_a_push_consumer_writes_what_it_consumes(cluster: BrokerProcess) -> None:
    with Producer("g", cluster.namesrv) as producer:
        result = producer.send("pushed", b"x", keys="k")
    handled = threading.Event()
    consumer = PushConsumer("pushers", cluster.namesrv, from_where="first", trace="pushed-trace")
    consumer.subscribe("pushed", lambda message: handled.set())
    with consumer:
        assert handled.wait(30)
    text = "".join(one.text() for one in traces(cluster.namesrv, "pushed-trace", result.msg_id))
    records = [record.split("\x01") for record in text.split("\x02") if record]
    assert [record[0] for record in records] == ["SubBefore", "SubAfter"]
    assert records[0][5] == records[1][2] == result.msg_id
    assert records[1][4] == "true"


def test_records_are_cut_into_messages_and_dropped_where_there_are_too_many() -> None:
    tracer = Tracer("g", TRACE_TOPIC, "PRODUCE")
    tracer._instance = object()  # type: ignore[assignment]
    tracer._asked = True
    for i in range(QUEUE_MAX + 5):
        tracer._add("T" if i % 2 else "U", [f"{i}"], f"{i}\x01{'x' * 200}\x02")
    assert tracer.dropped == 5
    messages = tracer._messages()
    assert all(len(str(one.body)) <= MESSAGE_BYTES_MAX for one in messages)
    assert sum(str(one.body).count("\x02") for one in messages) == QUEUE_MAX
    assert len(messages) > 2


def test_trace_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="trace: expected True, False or the name of a topic"):
        Producer("g", "127.0.0.1:1", trace="a b")
