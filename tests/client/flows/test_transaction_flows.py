"""Transactions, request and reply, and recall, on our broker and on Java's of every release."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import BrokerProcess

from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.producer.request_reply import reply_message
from mqfast.client.producer.transaction import AsyncTransactionProducer, TransactionProducer
from mqfast.client.values import TransactionStatus
from mqfast.errors import ConfigError, MessageIllegal, SendTimeout, UsageError
from mqfast.message import Message

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"in-transaction-{next(_numbers)}"


def never(message: Delivery) -> bool:
    raise AssertionError("no broker has to ask")


def bodies(address: str, topic: str, count: int, wait_s: float = 20.0) -> list[bytes]:
    """What a topic has, once it has so many messages or the time is over."""
    with PullConsumer("readers", address) as consumer:
        deadline = time.monotonic() + wait_s
        while True:
            found: list[bytes] = []
            for queue in consumer.queues(topic):
                pulled: Sequence[Delivery] = consumer.pull(queue, 0, max_count=32).messages
                found += [message.body for message in pulled]
            if len(found) >= count or time.monotonic() > deadline:
                return sorted(found)
            time.sleep(0.05)


def test_a_block_that_ends_commits_and_one_that_raises_rolls_back(cluster_address: str, topic: str) -> None:
    with TransactionProducer("payments", cluster_address, check=never) as producer:
        producer.send(topic, b"plain")
        with producer.transaction(Message(topic, b"committed", keys="42")) as transaction:
            assert transaction.transaction_id
            assert transaction.msg_id == transaction.result.msg_id
        with pytest.raises(RuntimeError, match="no money"), producer.transaction(Message(topic, b"rolled back")):
            raise RuntimeError("no money")
        with producer.transaction(Message(topic, b"second")):
            pass
    assert bodies(cluster_address, topic, 3) == [b"committed", b"plain", b"second"]


@pytest.mark.parametrize(
    "outcome, there",
    [(True, True), (TransactionStatus.COMMIT, True), (False, False), (TransactionStatus.ROLLBACK, False)],
)
def test_the_outcome_of_a_function_ends_the_transaction(
    cluster_address: str, topic: str, outcome: bool | TransactionStatus, there: bool
) -> None:
    seen: list[tuple[bytes, str]] = []

    def local(message: Message, argument: str) -> bool | TransactionStatus:
        seen.append((bytes(message.encoded_body()), argument))  # type: ignore[arg-type]
        return outcome

    with TransactionProducer("payments", cluster_address, check=never) as producer:
        producer.send(topic, b"plain")
        assert producer.send_in_transaction(Message(topic, b"x"), local, "argument").ok
        producer.send_in_transaction(Message(topic, b"y"), lambda message, argument: True)
    assert seen == [(b"x", "argument")]
    assert bodies(cluster_address, topic, 3 if there else 2) == [b"plain", *([b"x"] if there else []), b"y"]


def test_transactions_async(cluster_address: str, topic: str) -> None:
    async def check(message: Delivery) -> bool:
        raise AssertionError("no broker has to ask")

    async def local(message: Message, argument: object) -> bool:
        return argument == "yes"

    async def main() -> None:
        async with AsyncTransactionProducer("payments", cluster_address, check=check) as producer:
            await producer.send(topic, b"plain")
            async with producer.transaction(Message(topic, b"committed")):
                pass
            with pytest.raises(RuntimeError):
                async with producer.transaction(Message(topic, b"rolled back")):
                    raise RuntimeError("no money")
            await producer.send_in_transaction(Message(topic, b"local"), local, "yes")
            await producer.send_in_transaction(Message(topic, b"not local"), local, "no")

    asyncio.run(main())
    assert bodies(cluster_address, topic, 3) == [b"committed", b"local", b"plain"]


def test_a_delayed_message_cannot_be_in_a_transaction(cluster_address: str, topic: str) -> None:
    with TransactionProducer("payments", cluster_address, check=never) as producer:
        with (
            pytest.raises(MessageIllegal, match="without delay"),
            producer.transaction(Message(topic, b"x", delay_level=1)),
        ):
            raise AssertionError("the block is not run")


@pytest.mark.parametrize("arguments", [{"check": None}, {"check": never, "check_threads": 0}])
def test_a_check_that_is_none_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="check"):
        TransactionProducer("g", "127.0.0.1:1", **arguments)  # type: ignore[arg-type]


# -- a broker that asks ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that asks for the end of a transaction early."""
    work: Path = tmp_path_factory.mktemp("impatient")
    with BrokerProcess(work, transactionTimeOut=200, transactionCheckInterval=300) as one:
        yield one


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_broker_asks_for_what_was_left_open(impatient: BrokerProcess, topic: str, face: str) -> None:
    """The first answer is an error, the second one unknown: the broker asks until it hears an outcome."""
    asked: list[str] = []

    def check(message: Delivery) -> TransactionStatus | bool | None:
        assert message.topic == topic
        asked.append(f"{message.body.decode()} {message.msg_id}")
        if message.body == b"no":
            return False
        times = len([one for one in asked if one.startswith("yes")])
        if times == 1:
            raise RuntimeError("the database is away")
        return None if times == 2 else True

    async def check_async(message: Delivery) -> TransactionStatus | bool | None:
        return check(message)

    ids: list[str] = []
    group = f"asked-{face}"
    if face == "sync":
        with TransactionProducer(group, impatient.namesrv, check=check) as producer:
            producer.send(topic, b"plain")
            with producer.transaction(Message(topic, b"yes")) as transaction:
                transaction.leave_open()
                ids.append(transaction.msg_id)
            producer.send_in_transaction(Message(topic, b"no"), lambda message, argument: 1 // 0 > 0)
            found = bodies(impatient.namesrv, topic, 2, 40)
    else:

        async def main() -> list[bytes]:
            async with AsyncTransactionProducer(group, impatient.namesrv, check=check_async) as producer:
                await producer.send(topic, b"plain")
                async with producer.transaction(Message(topic, b"yes")) as transaction:
                    transaction.leave_open()
                    ids.append(transaction.msg_id)
                async with producer.transaction(Message(topic, b"no")) as transaction:
                    transaction.leave_open()
                return await asyncio.to_thread(bodies, impatient.namesrv, topic, 2, 40)

        found = asyncio.run(main())
    assert found == [b"plain", b"yes"]
    assert [one for one in asked if one.startswith("yes")][:3] == [f"yes {ids[0]}"] * 3


# -- request and reply, recall -----------------------------------------------------------------------------------------


def replier(address: str, topic: str, stop: threading.Event, count: int) -> None:
    """Answers every message of a topic that asks for it."""
    offsets: dict[object, int] = {}
    with PullConsumer("repliers", address) as consumer, Producer("repliers", address) as producer:
        while count and not stop.is_set():
            for queue in consumer.queues(topic):
                pulled = consumer.pull(queue, offsets.get(queue, 0), max_count=8)
                offsets[queue] = pulled.next_offset
                for message in pulled.messages:
                    if "REPLY_TO_CLIENT" in message.properties:
                        producer.send(reply_message(message, b"answer to " + message.body))
                        count -= 1
            time.sleep(0.01)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_request_gets_its_answer(cluster_address: str, topic: str, face: str) -> None:
    stop = threading.Event()
    with Producer("askers", cluster_address, send_timeout_s=10) as producer:
        producer.send(topic, b"first")
        thread = threading.Thread(target=replier, args=(cluster_address, topic, stop, 3), daemon=True)
        thread.start()
        try:
            if face == "sync":
                for i in range(3):
                    answer = producer.request(Message(topic, f"{i}" * 3000), timeout_s=20)
                    assert answer.body == b"answer to " + f"{i}".encode() * 3000
            else:

                async def main() -> list[bytes]:
                    async with AsyncProducer("askers", cluster_address) as one:
                        asked = (one.request(Message(topic, f"{i}"), timeout_s=20) for i in range(3))
                        return [answer.body for answer in await asyncio.gather(*asked)]

                assert asyncio.run(main()) == [f"answer to {i}".encode() for i in range(3)]
        finally:
            stop.set()
            thread.join(20)


def test_a_request_that_nobody_answers(cluster_address: str, topic: str) -> None:
    with Producer("askers", cluster_address) as producer:
        begin = time.monotonic()
        with pytest.raises(SendTimeout, match=r"no answer in 0\.5 s to the request that is in MessageQueue"):
            producer.request(Message(topic, b"x"), timeout_s=0.5)
        assert time.monotonic() - begin < 10


def test_a_message_that_asks_for_nothing_cannot_be_answered(cluster_address: str, topic: str) -> None:
    with Producer("askers", cluster_address) as producer, PullConsumer("readers", cluster_address) as consumer:
        result = producer.send(topic, b"x")
        deadline = time.monotonic() + 20
        while not (found := consumer.pull(result.message_queue, result.queue_offset).messages):
            assert time.monotonic() < deadline
        with pytest.raises(UsageError, match="a message that asks for no answer"):
            reply_message(found[0], b"y")


def test_a_timed_message_is_called_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, recallMessageEnable=True) as cluster:
        with Producer("later", cluster.namesrv) as producer:
            producer.send("reminders", b"first")
            result = producer.send("reminders", b"wake up", delay_s=3)
            assert result.recall_handle
            assert producer.recall("reminders", result.recall_handle) == result.msg_id
            producer.send("reminders", b"in time", delay_s=3)
            assert bodies(cluster.namesrv, "reminders", 2) == [b"first", b"in time"]
            for wrong in ("", "x", "bm90IGE=", 5):
                with pytest.raises(UsageError, match="recall_handle: expected that of a SendResult"):
                    producer.recall("reminders", wrong)  # type: ignore[arg-type]


def test_a_local_transaction_that_is_no_function_is_refused_before_anything_is_sent() -> None:
    nothing: Any = 3
    with TransactionProducer("g", "127.0.0.1:1", check=lambda message: None) as producer:
        with pytest.raises(UsageError, match="local: expected a function, found 3"):
            producer.send_in_transaction(Message("T", b"x"), nothing)
