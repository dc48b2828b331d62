"""RocketMQ's own names among the properties of an application: refused with what to use, left out when forwarding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mqfast import properties as names
from mqfast.client import AsyncProducer, Message, Producer, TransactionProducer
from mqfast.client.delivery import Delivery
from mqfast.errors import MessageIllegal
from mqfast.testing import Broker

NOBODY = "127.0.0.1:1"
STRING_HASH_SET = (
    "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG",
    "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
    "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK",
    "POP_CK_OFFSET", "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID",
    "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE",
    "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "__BORNHOST", "BORN_TIMESTAMP",
)  # fmt: skip
"""MessageConst.STRING_HASH_SET of 5.3.3."""
MORE = ("TIMER_DELAY_MS", "INNER_NUM", "INNER_BASE", "__SHARDINGKEY", "DLQ_ATTEMPTS", "__RMQ.TRANSIENT.TOPIC_SYS_FLAG")


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    with Producer("g", NOBODY) as one:
        yield one


@pytest.mark.parametrize("name", [*STRING_HASH_SET, *MORE])
def test_a_name_of_rocketmq_is_refused(name: str, producer: Producer) -> None:
    with pytest.raises(MessageIllegal, match=f"found '{name}', which is RocketMQ's own"):
        producer.send("t", b"x", properties={"colour": "red", name: "1"})


@pytest.mark.parametrize(
    "name, instead",
    [
        ("DELAY", "use delay_level="), ("TAGS", "use tags="), ("KEYS", "use keys="),
        ("TIMER_DELIVER_MS", "deliver_at="),
        ("TIMER_DELAY_SEC", "delay_s="), ("__SHARDINGKEY", "sharding_key="), ("TRAN_MSG", "a TransactionProducer"),
        ("WAIT", "wait_store_ok=False"), ("TTL", "request"), ("REAL_TOPIC", "clients and brokers alone set it"),
    ],
)  # fmt: skip
def test_error_of_a_reserved_name_has_the_alternative(name: str, instead: str, producer: Producer) -> None:
    with pytest.raises(MessageIllegal, match=instead):
        producer.send("t", b"x", properties={name: "1"})


def test_every_way_to_send_refuses_them(producer: Producer) -> None:
    message = Message("t", b"x", properties={"TRAN_MSG": "true"})
    ready = Message("t", b"x", properties=names.encode({"TRAN_MSG": "true"}))
    for one in (message, ready):
        for send in (producer.send, producer.send_oneway, producer.send_future, producer.request):
            with pytest.raises(MessageIllegal, match="TRAN_MSG"):
                send(one)
        with pytest.raises(MessageIllegal, match="TRAN_MSG"):
            producer.send_batch([one])

    async def main() -> None:
        async with AsyncProducer("h", NOBODY) as other:
            with pytest.raises(MessageIllegal, match="TRAN_MSG"):
                await other.send(message)

    asyncio.run(main())


def test_encoded_bodies_allow_properties_without_a_header_field(producer: Producer) -> None:
    given = names.encode({"TAGS": "a", "KEYS": "k", "WAIT": "false", "__SHARDINGKEY": "s", "colour": "red"})
    with Broker(topics={"t": 1}) as broker:
        broker.producer().send(Message("t", b"x", properties=given))
        (found,) = broker.wait_for("t")
    assert (found.tags, list(found.keys), found.user_properties) == ("a", ["k"], {"colour": "red"})


def test_a_message_of_a_transaction_that_was_retried_is_forwarded_whole() -> None:
    """With all of its properties a copy was acknowledged as a half message, and never came."""
    seen: list[Delivery] = []
    with Broker(topics={"a": 1, "b": 1, "c": 1}) as broker:
        forwarder = broker.producer("forwarder")

        def forward(message: Delivery) -> Any:
            if message.attempt == 1:
                return False  # it comes again, by the retry topic
            seen.append(message)
            forwarder.send(Message.from_delivery(message, "b"))
            forwarder.send("c", message.body, properties=message.user_properties)
            with pytest.raises(MessageIllegal, match="from_delivery"):
                forwarder.send("c", message.body, properties=message.properties)
            return True

        consumer = broker.consumer("c", from_where="first")
        consumer.subscribe("a", forward)
        consumer.start()
        given: dict[str, Any] = {
            "tags": "t",
            "keys": ["k1", "k2"],
            "properties": {"colour": "red"},
            "sharding_key": "s",
        }
        with (
            TransactionProducer("orders", broker.namesrv_addr, check=lambda message: None) as transactions,
            transactions.transaction(Message("a", b"body", flag=7, **given)),
        ):
            pass
        (copied,) = broker.wait_for("b", timeout_s=60)
        (plain,) = broker.wait_for("c", timeout_s=60)
    assert (copied.body, copied.tags, list(copied.keys), copied.flag) == (b"body", "t", ["k1", "k2"], 7)
    assert copied.user_properties == plain.user_properties == {"colour": "red"}
    assert copied.properties["__SHARDINGKEY"] == "s"
    assert "TRAN_MSG" not in copied.properties
    assert "RETRY_TOPIC" not in copied.properties
    assert copied.msg_id != seen[0].msg_id
