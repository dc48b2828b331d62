"""Producers of transactions and requests: several of a group, brokers that are slow to know them, threads that end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mqfast.client import AsyncProducer, AsyncTransactionProducer, ClientHook, Message, Producer, TransactionProducer
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import SendContext
from mqfast.errors import ClientError
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

SOON = {"transactionTimeOut": "200", "transactionCheckInterval": "200"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"paid": 2, "questions": 2}, config=SOON) as one:
        yield one


class Checks:
    """A check that says yes. Attributes: asked: the bodies; threads: their names."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, message: Delivery) -> bool:
        self.threads.add(threading.current_thread())
        self.asked.append(message.text())
        return True


def leave_open(producer: TransactionProducer, body: str) -> None:
    with producer.transaction(Message("paid", body)) as transaction:
        transaction.leave_open()


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_transaction_check_reaches_the_remaining_producer_of_the_group(broker: Broker, first_to_close: int) -> None:
    checks = Checks()
    producers = [TransactionProducer("pay", broker.namesrv_addr, check=checks).start() for _ in range(2)]
    leave_open(producers[0], "of the first")
    leave_open(producers[1], "of the second")
    producers.pop(first_to_close).close()
    with producers[0]:
        broker.wait_for("paid", 2, timeout_s=30)
        asked = set(checks.asked)
        leave_open(producers[0], "later")
        broker.wait_for("paid", 3, timeout_s=30)
    assert asked <= set(checks.asked)
    assert "later" in checks.asked


DIES = """
import os, sys
from mqfast import Message, TransactionProducer

producer = TransactionProducer("pay", sys.argv[1], check=lambda message: None)
with producer.transaction(Message("paid", b"42", keys="42")) as transaction:
    print(transaction.msg_id, flush=True)
    os._exit(9)
"""


@pytest.mark.parametrize("face", ["threads", "loop"])
def test_transaction_check_reaches_a_new_producer_before_its_first_send(face: str) -> None:
    """Its predecessor has died between the half message and the end; brokers make no topics by themselves."""
    checks = Checks()
    with Broker(topics={"paid": 2}, config=SOON, auto_create_topics=False) as broker:
        command = [sys.executable, "-c", DIES, broker.namesrv_addr]
        dead = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert dead.returncode == 9, dead.stderr
        broker.assert_nothing_sent("paid")

        async def in_loop() -> None:
            async with AsyncTransactionProducer("pay", broker.namesrv_addr, check=checks):
                await asyncio.to_thread(broker.wait_for, "paid", 1, timeout_s=30)

        if face == "loop":
            asyncio.run(in_loop())
        else:
            with TransactionProducer("pay", broker.namesrv_addr, check=checks):
                broker.wait_for("paid", 1, timeout_s=30)
        (message,) = broker.assert_sent("paid", body=b"42", times=1)
    assert message.msg_id == dead.stdout.strip()
    assert set(checks.asked) == {"42"}  # again where the answer takes longer than the interval of checks


def test_the_threads_of_checks_end_with_their_producer(broker: Broker) -> None:
    checks = Checks()
    producer = TransactionProducer("pay", broker.namesrv_addr, check=checks, check_threads=3)
    with producer:
        for number in range(6):
            leave_open(producer, str(number))
        broker.wait_for("paid", 6, timeout_s=30)
        assert checks.threads
    for thread in checks.threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("face", ["threads", "loop"])
def test_master_without_heartbeat_does_not_delay_requests(broker: Broker, face: str) -> None:
    """The send itself goes well, and in its time; so does the next one, which does not wait for the heartbeat again."""

    async def in_loop() -> list[float]:
        took = []
        arguments: dict[str, Any] = {"send_timeout_s": 2.0, "close_timeout_s": 1.0}
        async with AsyncTransactionProducer("pay", broker.namesrv_addr, check=Checks(), **arguments) as producer:
            for number in range(3):
                begin = time.monotonic()
                async with producer.transaction(Message("paid", str(number))):
                    pass
                took.append(time.monotonic() - begin)
                await asyncio.sleep(2.5)  # the heartbeat has failed, after its 3 s
        return took

    def in_threads() -> list[float]:
        took = []
        arguments: dict[str, Any] = {"send_timeout_s": 2.0, "close_timeout_s": 1.0}
        with TransactionProducer("pay", broker.namesrv_addr, check=Checks(), **arguments) as producer:
            for number in range(3):
                begin = time.monotonic()
                with producer.transaction(Message("paid", str(number))):
                    pass
                took.append(time.monotonic() - begin)
                time.sleep(2.5)
        return took

    with broker.faults.lose_requests(only=[RequestCode.HEART_BEAT]):
        took = in_threads() if face == "threads" else asyncio.run(in_loop())
    broker.wait_for("paid", 3, timeout_s=30)
    assert took[0] < 60
    assert took[2] < took[0]


def test_error_of_a_request_without_reply(broker: Broker) -> None:
    with (
        broker.faults.lose_requests(only=[RequestCode.HEART_BEAT]),
        Producer("ask", broker.namesrv_addr, close_timeout_s=1.0) as producer,
        pytest.raises(ClientError, match=r"questions: no answer in 1.5 s to the request that is in .*msg_id") as caught,
    ):
        producer.send(Message("questions", b"first"))  # so that the time of the request is not that of the route
        producer.request(Message("questions", b"?"), timeout_s=1.5)
    assert isinstance(caught.value, TimeoutError)


class Recorder(ClientHook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext]] = []

    def before_send(self, context: SendContext) -> None:
        self.seen.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        self.seen.append(("after", context))


@pytest.mark.parametrize("face", ["threads", "loop"])
def test_hooks_get_requests(broker: Broker, face: str) -> None:
    hook = Recorder()
    consumer = broker.consumer("servers")
    consumer.subscribe("questions", lambda message: message.reply_sync(b"to " + message.body) and None)

    async def in_loop(body: bytes, timeout_s: float) -> bytes:
        async with AsyncProducer("ask", broker.namesrv_addr, hooks=[hook]) as producer:
            return (await producer.request(Message("questions", body), timeout_s=timeout_s)).body

    def in_threads(body: bytes, timeout_s: float) -> bytes:
        with Producer("ask", broker.namesrv_addr, hooks=[hook]) as producer:
            return producer.request(Message("questions", body), timeout_s=timeout_s).body

    def ask(body: bytes, timeout_s: float) -> bytes:
        return in_threads(body, timeout_s) if face == "threads" else asyncio.run(in_loop(body, timeout_s))

    with consumer:
        assert ask(b"you", 20.0) == b"to you"
    (before, context), (after, same) = hook.seen
    assert (before, after, same) == ("before", "after", context)
    assert context.error is None
    assert context.result is not None
    assert context.result.message_queue.topic == "questions"
    hook.seen.clear()
    with pytest.raises(ClientError) as caught:
        ask(b"nobody is there", 0.3)
    assert [what for what, _ in hook.seen] == ["before", "after"]
    assert hook.seen[1][1].error is caught.value


def test_a_plain_check_serves_a_producer_of_a_loop(broker: Broker) -> None:
    async def flow() -> None:
        checks = Checks()
        async with AsyncTransactionProducer("pay", broker.namesrv_addr, check=checks) as producer:
            async with producer.transaction(Message("paid", b"42")) as transaction:
                transaction.leave_open()
            await producer.send_in_transaction(Message("paid", b"43"), lambda message, argument: argument, True)
            await asyncio.to_thread(broker.wait_for, "paid", 2, timeout_s=30)
        assert "42" in checks.asked  # as well as 43 where its end takes longer than the time-out of transactions

    asyncio.run(flow())
