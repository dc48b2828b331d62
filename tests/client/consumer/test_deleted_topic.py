"""A topic that is deleted and made again while consumers run: it is another one, and none of its messages is passed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mqfast.testing import Broker

QUEUES = 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": QUEUES}) as one:
        yield one


def made_again(broker: Broker) -> list[str]:
    """The topic is deleted, stays away for a moment, and comes back with more messages than it had consumed before."""
    with broker.admin() as admin:
        admin.delete_topic("orders")
        time.sleep(2.5)  # longer than a consumer waits after a failed pull
        admin.create_topic("orders", queues=QUEUES)
    bodies = [f"new {number}" for number in range(30)]
    for number, body in enumerate(bodies):
        broker.send("orders", body, queue_id=number % QUEUES)
    return bodies


def old(broker: Broker) -> list[str]:
    bodies = [f"old {number}" for number in range(20)]
    for number, body in enumerate(bodies):
        broker.send("orders", body, queue_id=number % QUEUES)
    return bodies


@pytest.mark.parametrize("arguments", [{}, {"orderly": True}, {"from_where": "last"}], ids=["usual", "orderly", "last"])
def test_a_push_consumer_begins_anew(broker: Broker, arguments: dict[str, object]) -> None:
    seen: list[str] = []
    consumer = broker.consumer("billing", **arguments)
    consumer.subscribe("orders", lambda message: seen.append(message.text()))
    with consumer:
        broker.wait_members("billing", 1, timeout_s=30)
        before = old(broker)
        broker.wait_until(lambda: set(seen) >= set(before), timeout_s=30)
        broker.wait_consumed("billing", "orders", timeout_s=30)
        bodies = made_again(broker)
        broker.wait_until(lambda: set(seen) >= set(bodies), timeout_s=60)
    assert sorted(one for one in seen if one.startswith("new")) == sorted(bodies)


def test_a_pull_consumer_begins_anew(broker: Broker) -> None:
    seen: list[str] = []
    with broker.puller("report", topics="orders") as puller:

        def has(bodies: list[str]) -> bool:
            seen.extend(message.text() for message in puller.poll(timeout_s=0.2))
            return set(seen) >= set(bodies)

        before = old(broker)
        broker.wait_until(lambda: has(before), timeout_s=30)
        puller.commit()
        bodies = made_again(broker)
        broker.wait_until(lambda: has(bodies), timeout_s=60)
    assert sorted(one for one in seen if one.startswith("new")) == sorted(bodies)
