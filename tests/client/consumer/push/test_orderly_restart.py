"""Orderly consumers while their broker is started anew: it knows no locks then, and no two members handle one queue."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from mqfast.client import Delivery, PushConsumer
from mqfast.testing import Broker

QUEUES = 4


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_no_two_members_handle_a_queue_at_once(how: str) -> None:
    seen: dict[int, list[int]] = defaultdict(list)
    running: Counter[int] = Counter()
    overlaps: list[int] = []
    lock = threading.Lock()

    def handle(message: Delivery) -> None:
        with lock:
            running[message.queue_id] += 1
            if running[message.queue_id] > 1:
                overlaps.append(int(message.text()))
        time.sleep(0.01)
        with lock:
            seen[message.queue_id].append(int(message.text()))
            running[message.queue_id] -= 1

    def member(number: int) -> PushConsumer:
        consumer = broker.consumer("g", orderly=True, suspend_s=0.1, instance_name=f"member-{number}")
        consumer.subscribe("orders", handle)
        return consumer.start()

    def send(first: int) -> None:
        for number in range(first, first + 200):
            broker.send("orders", str(number), queue_id=number % QUEUES)

    def all_seen(count: int) -> Callable[[], bool]:
        return lambda: len({number for numbers in list(seen.values()) for number in list(numbers)}) == count

    with Broker(topics={"orders": QUEUES}) as broker:
        members = [member(0)]
        broker.wait_members("g", 1, timeout_s=30)
        send(0)
        broker.wait_until(lambda: sum(map(len, list(seen.values()))) > 20, timeout_s=30)
        if how == "kill":
            broker.kill("broker-a")
        broker.restart("broker-a")
        members.append(member(1))  # it may be quicker than the first one to ask for locks
        send(200)
        broker.wait_until(all_seen(400), timeout_s=60)
        for one in members:
            one.close()
    assert len(overlaps) <= QUEUES, overlaps  # a handler may have been at work when its queue went
    for numbers in seen.values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
