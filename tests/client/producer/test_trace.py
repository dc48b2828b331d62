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
from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ConsumeContext
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.producer.trace import MESSAGE_BYTES_MAX, QUEUE_MAX, TRACE_TOPIC, Tracer
from mqfast.client.producer.transaction import AsyncTransactionProducer, TransactionProducer
from mqfast.client.values import ConsumeStatus
from mqfast.errors import BrokerError, ConfigError, NoRoute
from mqfast.message import Message
from mqfast.testing import Broker

SETTINGS = {"transactionTimeOut": 500, "transactionCheckInterval": 500, "recallMessageEnable": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster"), traceTopicEnable=True, **SETTINGS) as one:
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


def test_consume_trace_records(cluster: BrokerProcess) -> None:
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


def test_push_consumer_writes_trace_records(cluster: BrokerProcess) -> None:
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


def test_invalid_trace_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="trace: expected True, False or the name of a topic"):
        Producer("g", "127.0.0.1:1", trace="a b")


def records_of(address: str, topic: str, kind: str, msg_id: str, count: int = 1) -> list[dict[str, Any]]:
    """The records of a kind about a message, by our own reader, once there are so many; those of queues in no order."""
    end = time.monotonic() + 20
    while True:
        rows = [row for one in traces(address, topic, msg_id) for row in trace_rows(one.body)]
        found = [row for row in rows if row["type"] == kind and row.get("msg_id") == msg_id]
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize("state", ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"])
def test_the_end_of_a_transaction_is_written(cluster: BrokerProcess, state: str) -> None:
    topic = f"ended-{state.lower()}"
    with TransactionProducer("payers", cluster.namesrv, check=lambda message: None, trace=topic) as producer:
        try:
            with producer.transaction(Message("T", b"x", tags="new", keys="k1 k2")) as transaction:
                if state == "UNKNOW":
                    transaction.leave_open()
                if state == "ROLLBACK_MESSAGE":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    (row,) = records_of(cluster.namesrv, topic, "EndTransaction", transaction.msg_id)
    assert row["store_host"].startswith("127.0.0.1:")
    assert abs(row["timestamp"] - time.time() * 1000) < 60_000
    assert {name: row[name] for name in ("region_id", "group", "topic", "tags", "keys", "message_kind")} == {
        "region_id": "DefaultRegion", "group": "payers", "topic": "T", "tags": "new", "keys": "k1 k2",
        "message_kind": "COMMIT",
    }  # fmt: skip
    assert (row["transaction_id"], row["state"], row["from_check"]) == (transaction.msg_id, state, False)
    (half,) = records_of(cluster.namesrv, topic, "Pub", transaction.msg_id)
    assert half["message_kind"] == "HALF"


def test_trace_of_a_transaction_end_after_a_check(cluster: BrokerProcess) -> None:
    async def flow() -> str:
        asked = asyncio.Event()

        async def check(message: Delivery) -> bool:
            asked.set()
            return True

        one = AsyncTransactionProducer("askers", cluster.namesrv, check=check, trace="checked", namespace="tenant")
        async with one as producer, asyncio.timeout(300):
            async with producer.transaction(Message("T", b"x", keys="k")) as transaction:
                transaction.leave_open()
            await asked.wait()
        return transaction.msg_id

    msg_id = asyncio.run(flow())
    rows = records_of(cluster.namesrv, "checked", "EndTransaction", msg_id, 2)
    assert sorted((row["state"], row["from_check"]) for row in rows) == [("COMMIT_MESSAGE", True), ("UNKNOW", False)]
    assert {(row["topic"], row["group"], row["keys"]) for row in rows} == {("T", "askers", "k")}


def test_a_recall_is_written(cluster: BrokerProcess) -> None:
    with Producer("recallers", cluster.namesrv, trace="recalled") as producer:
        result = producer.send("T", b"x", delay_s=600)
        assert result.recall_handle is not None
        assert producer.recall("T", result.recall_handle) == result.msg_id
        with pytest.raises(NoRoute):
            producer.recall("no-such-topic", result.recall_handle)
    rows = records_of(cluster.namesrv, "recalled", "Recall", result.msg_id, 2)
    assert sorted((row["topic"], row["success"]) for row in rows) == [("T", True), ("no-such-topic", False)]
    assert {(row["region_id"], row["group"]) for row in rows} == {("DefaultRegion", "recallers")}


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_pull_consumer_writes_trace_records(cluster: BrokerProcess, face: str) -> None:
    topic, trace = f"handed-out-{face}", f"pull-trace-{face}"
    with Producer("g", cluster.namesrv) as producer:
        result = producer.send(topic, b"x", keys="k")
    if face == "threads":
        with PullConsumer("pullers", cluster.namesrv, topics=topic, from_where="first", trace=trace) as consumer:
            assert [one.msg_id for one in consumer.poll(timeout_s=20)] == [result.msg_id]
    else:

        async def flow() -> None:
            one = AsyncPullConsumer("pullers", cluster.namesrv, topics=topic, from_where="first", trace=trace)
            async with one as consumer:
                assert [one.msg_id for one in await consumer.poll(timeout_s=20)] == [result.msg_id]

        asyncio.run(flow())
    (before,) = records_of(cluster.namesrv, trace, "SubBefore", result.msg_id)
    (after,) = records_of(cluster.namesrv, trace, "SubAfter", result.msg_id)
    assert (before["group"], before["keys"], before["retry_times"]) == ("pullers", "k", 0)
    assert (after["request_id"], after["success"], after["consumed"]) == (before["request_id"], True, "SUCCESS")


def test_a_group_is_written_without_its_namespace_and_messages_of_brokers_without_traces_are_not() -> None:
    with Broker(topics=["tenant%orders"], config={"traceOn": "false", "traceTopicEnable": "true"}) as broker:
        producer = broker.producer("makers", namespace="tenant", trace=True)
        producer.send("orders", b"x")
        seen: list[Delivery] = []
        consumer = broker.consumer("readers", namespace="tenant", trace=True)
        consumer.subscribe("orders", seen.append)
        with consumer:
            broker.wait_until(lambda: seen)
        producer.close()
        rows = [row for one in broker.messages(TRACE_TOPIC) for row in trace_rows(one.body)]
        assert [(row["type"], row["group"]) for row in rows] == [("Pub", "makers")]
