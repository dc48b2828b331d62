"""Clocks that are set while clients work: those of the brokers, and that of the client's own machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from mqfast.client import Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from mqfast.client.delivery import Delivery
from mqfast.testing import Broker

HOUR_S = 3600.0
JUMPS = (HOUR_S, -HOUR_S)
CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 4, "in-order": 4}, config=CHECKS) as one:
        yield one


@pytest.fixture
def far_broker() -> Iterator[Broker]:
    """A broker in another process, whose clock is another one."""
    with Broker(topics={"orders": 4, "in-order": 4}, config=CHECKS, process=True) as one:
        yield one


class Work:
    """Clients of all kinds at work: what was sent, and what came."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.producer = broker.producer("makers")
        self.payer = TransactionProducer("payers", broker.namesrv_addr, check=lambda message: True)
        self.sent: list[bytes] = []
        self.seen: list[bytes] = []
        self.in_order: list[int] = []
        self.failed_once: set[bytes] = set()
        self.consumer = broker.consumer("readers")
        self.orderly = broker.consumer("orderly-readers", orderly=True)
        self.puller = broker.puller("pullers", topics="orders", auto_commit_s=0.2)
        self.pulled: list[bytes] = []

        @self.consumer.on("orders")
        def handle(message: Delivery) -> bool:
            if message.body.endswith(b"0") and message.body not in self.failed_once:
                self.failed_once.add(message.body)
                return False
            self.seen.append(message.body)
            return True

        @self.orderly.on("in-order")
        def keep(message: Delivery) -> None:
            self.in_order.append(int(message.body))

    def some(self, count: int = 20) -> None:
        """Messages by every way, and all of them have come."""
        first = len(self.sent)
        for i in range(first, first + count):
            body = b"%d" % i
            if i % 3 == 0:
                self.producer.send_future(Message("orders", body)).result(20)
            elif i % 3 == 1:
                self.producer.send("orders", body)
            else:
                with self.payer.transaction(Message("orders", body)) as transaction:
                    if i % 2:
                        transaction.leave_open()
            self.sent.append(body)
            self.producer.send(Message("in-order", str(i), sharding_key="one"))
        self._broker.wait_until(lambda: Counter(self.seen) >= Counter(self.sent), timeout_s=60)
        self._broker.wait_until(lambda: len(self.in_order) >= len(self.sent), timeout_s=60)
        end = time.monotonic() + 60
        while len(self.pulled) < len(self.sent) and time.monotonic() < end:
            self.pulled += [message.body for message in self.puller.poll(timeout_s=0.5)]

    def __enter__(self) -> Work:
        self.consumer.start()
        self.orderly.start()
        self.puller.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.payer.close()

    def check(self) -> None:
        assert Counter(self.seen) == Counter(self.sent)
        assert Counter(self.pulled) == Counter(self.sent)
        assert self.in_order == list(range(len(self.sent)))


def test_the_clocks_of_brokers_are_set(broker: Broker) -> None:
    with Work(broker) as work:
        work.some()
        for seconds in JUMPS:
            with broker.faults.clock_jump(seconds):
                work.some(12)
            work.some(6)
        work.check()


@pytest.mark.parametrize("seconds", JUMPS)
def test_the_clock_of_the_clients_is_set(far_broker: Broker, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    broker = far_broker
    now, now_ns = time.time, time.time_ns
    with Work(broker) as work:
        work.some()
        monkeypatch.setattr(time, "time", lambda: now() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(seconds * 1e9))
        begun = time.monotonic()
        work.some()
        new: list[Any] = []
        later = PushConsumer("later", broker.namesrv_addr, from_where="first")
        later.subscribe("orders", new.append)
        with later, Producer("later", broker.namesrv_addr) as producer:
            producer.send("orders", b"%d" % len(work.sent))
            work.sent.append(b"%d" % len(work.sent))
            broker.wait_until(lambda: len(new) == len(work.sent), timeout_s=60)
        work.in_order.append(len(work.in_order))  # the one that has no twin in order
        work.some(6)
        assert time.monotonic() - begun < 150
        work.check()


def test_a_subscription_that_changes_after_the_clock_went_back_is_taken(
    far_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep the subscription of the higher version, which is a time of the client's."""
    broker = far_broker
    now, now_ns = time.time, time.time_ns
    with PullConsumer("changing", broker.namesrv_addr, from_where="first", auto_commit_s=None) as consumer:
        consumer.subscribe("orders", "a")
        broker.send("orders", "1", tags="a")
        assert [one.text() for one in consumer.poll(timeout_s=20)] == ["1"]
        monkeypatch.setattr(time, "time", lambda: now() - HOUR_S)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - int(HOUR_S * 1e9))
        consumer.subscribe("orders", "b")
        broker.send("orders", "2", tags="b")
        found: list[str] = []
        broker.wait_until(lambda: found.extend(one.text() for one in consumer.poll(timeout_s=0.2)) or "2" in found)
    seen: list[str] = []
    push = broker.consumer("changing-push")
    push.subscribe("orders", lambda message: seen.append(message.text()), "a")
    monkeypatch.undo()
    with push:
        broker.wait_until(lambda: "1" in seen, timeout_s=20)
        monkeypatch.setattr(time, "time", lambda: now() - HOUR_S)
        push.subscribe("orders", lambda message: seen.append(message.text()), "b")
        broker.send("orders", "3", tags="b")
        broker.wait_until(lambda: "3" in seen, timeout_s=40)
