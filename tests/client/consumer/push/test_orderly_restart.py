"""Orderly consumers while their broker is started anew: it knows no locks then, and no two members handle one queue."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby

import pytest

from mqfast.client import Delivery, PushConsumer
from mqfast.testing import Broker

QUEUES = 4
CHANGES = 3  # of the member that has a queue: to the one that asked first, back as the shares say, and the last close


@pytest.mark.parametrize("how", ["restart", "kill", "stop"])
def test_after_a_broker_restart_no_two_orderly_members_handle_a_queue(how: str) -> None:
    begun: dict[int, list[tuple[int, int]]] = defaultdict(list)  # queue -> (member, message)
    lock = threading.Lock()

    def member(number: int) -> PushConsumer:
        def handle(message: Delivery) -> None:
            with lock:
                begun[message.queue_id].append((number, int(message.text())))
            time.sleep(0.01)

        consumer = broker.consumer("g", orderly=True, suspend_s=0.1, instance_name=f"member-{number}")
        consumer.subscribe("orders", handle)
        return consumer.start()

    def send(first: int) -> None:
        for number in range(first, first + 200):
            broker.send("orders", str(number), queue_id=number % QUEUES)

    def all_begun(count: int) -> Callable[[], bool]:
        return lambda: len({number for one in list(begun.values()) for _, number in list(one)}) == count

    with Broker(topics={"orders": QUEUES}) as broker:
        members = [member(0)]
        broker.wait_members("g", 1, timeout_s=30)
        send(0)
        broker.wait_until(lambda: sum(map(len, list(begun.values()))) > 20, timeout_s=30)
        if how == "kill":
            broker.kill("broker-a")
        elif how == "stop":
            broker.stop("broker-a")
        broker.restart("broker-a")
        members.append(member(1))  # it may be quicker than the first one to ask for locks
        send(200)
        broker.wait_until(all_begun(400), timeout_s=60)
        for one in members:
            one.close()
    for some in begun.values():
        numbers = [number for _, number in some]
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
        turns = [who for who, _ in groupby(who for who, _ in some)]
        assert len(turns) <= 1 + CHANGES, some


def test_locks_at_another_master_are_doubted() -> None:
    """A route may name another broker as master while the connection to the one before is still there."""
    seen: list[int] = []
    with Broker(topics={"orders": 1}) as broker, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        consumer = broker.consumer("g", orderly=True, suspend_s=0.1)
        consumer.subscribe("orders", lambda message: seen.append(int(message.text())))
        consumer.start()
        broker.send("orders", *map(str, range(10)))
        broker.wait_until(lambda: len(seen) == 10, timeout_s=60)
        engine = consumer._engine
        routes = engine.instance.routes
        broker.wait_until(lambda: routes.get("%RETRY%g") is not None, timeout_s=60)
        for topic in ("%RETRY%g", "orders"):  # the address of a broker is that of any route
            route = routes.get(topic)
            assert route is not None
            moved = route.brokers["broker-a"]._replace(addresses={0: f"127.0.0.1:{nobody.getsockname()[1]}"})
            routes.update(topic, route._replace(brokers={"broker-a": moved}))
        broker.wait_until(lambda: engine.coordinator.locks._doubts["broker-a"] > 0, timeout_s=60)
        broker.send("orders", *map(str, range(10, 20)))  # the route is asked for again where nobody listens
        broker.wait_until(lambda: len(seen) == 20, timeout_s=60)
    assert seen == list(range(20))
