"""Flow control of push consumers: what a consumer has of a queue at once, by count, bytes and span of offsets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from push_tools import Hand, a_cluster, queue_of, until
from running import BrokerProcess

from mqfast.client import PushConsumer
from mqfast.client.delivery import Delivery

COUNT = 60
KIB = 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with a_cluster(tmp_path_factory.mktemp("limits")) as one:
        yield one


@pytest.fixture(scope="module")
def hand(cluster: BrokerProcess) -> Hand:
    return Hand(cluster)


# The limit, and what of a queue may be cached with it: the limit itself and the rest of the last pull.
@pytest.mark.parametrize(
    "name, limit, cached_max",
    [("count", {"max_cached_messages": 8}, 8 + 3), ("bytes", {"max_cached_bytes": 8 * KIB}, 8 + 3)],
)
def test_flow_control_limits_the_cached_messages_of_a_queue(
    cluster: BrokerProcess, hand: Hand, name: str, limit: dict[str, Any], cached_max: int
) -> None:
    topic = f"limit-{name}"
    hand.send(topic, *[b"%04d" % number + bytes(KIB) for number in range(COUNT)])
    go, done, most = threading.Event(), [], 0
    consumer = PushConsumer(f"{name}-group", cluster.namesrv, from_where="first", threads=1, pull_batch=4, **limit)

    def handle(message: Delivery) -> None:
        nonlocal most
        go.wait(30)
        most = max(most, consumer.stats()["cached_messages"])
        done.append(message.queue_offset)

    consumer.subscribe(topic, handle)
    with consumer:
        state = lambda: consumer.stats()["queues"].get(queue_of(topic, 0), {"state": ""})  # noqa: E731
        until(lambda: state()["state"] == "flow control", "flow control")
        assert 8 <= state()["cached"] <= cached_max
        if name == "bytes":
            assert state()["cached_bytes"] >= 8 * KIB
        assert "flow control" in str(consumer.stats()["why_nothing"])
        go.set()
        until(lambda: len(done) == COUNT, "all messages")
    assert sorted(done) == list(range(COUNT))
    assert most <= cached_max


def test_flow_control_by_span_holds_the_pulls_behind_a_slow_message(cluster: BrokerProcess, hand: Hand) -> None:
    topic, span = "limit-span", 10
    hand.send(topic, *[b"%d" % number for number in range(COUNT)])
    go, done = threading.Event(), []

    def handle(message: Delivery) -> None:
        if message.body == b"0":
            go.wait(30)
        done.append(message.queue_offset)

    consumer = PushConsumer("span-group", cluster.namesrv, from_where="first", threads=4, pull_batch=4, max_span=span)
    consumer.subscribe(topic, handle)
    with consumer:
        state = lambda: consumer.stats()["queues"].get(queue_of(topic, 0), {"state": ""})  # noqa: E731
        until(lambda: state()["state"] == "flow control" and len(done) >= span, "flow control")
        until(lambda: len(done) + 1 == state()["pull_offset"], "all but the slow one")
        assert span < state()["pull_offset"] <= span + 1 + 2 * 4
        assert consumer.assignment()[queue_of(topic, 0)] == 0  # nothing is committed past the slow message
        go.set()
        until(lambda: len(done) == COUNT, "all messages")
    assert sorted(done) == list(range(COUNT))
