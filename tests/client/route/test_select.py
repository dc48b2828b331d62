"""Which queue a message goes to, and which brokers are avoided: RocketMQ's answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mqfast.client.route.fault import V4, V5, FaultTable, LatencyTable
from mqfast.client.route.select import RoundRobin, by_hash, chosen
from mqfast.client.values import MessageQueue
from mqfast.errors import UsageError
from mqfast.message import Message


def queues(*brokers: str, each: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for broker in brokers for number in range(each)]


def names(picked: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name}{queue.queue_id}" for queue in picked)


def test_round_robin_over_queues() -> None:
    robin = RoundRobin(0)
    assert names([robin.pick(queues("a", "b")) for _ in range(6)]) == "a0 a1 b0 b1 a0 a1"


def test_round_robin_avoids_the_last_broker() -> None:
    robin = RoundRobin(0)
    assert names([robin.pick(queues("a", "b"), "a") for _ in range(4)]) == "b0 b1 b0 b1"
    assert {robin.pick(queues("a"), "a").broker_name for _ in range(4)} == {"a"}


# java.lang.String.hashCode: 1794106052, -2147483648, -1581185528, 1772899 and 0; the queue is |hash % count|.
@pytest.mark.parametrize(
    "key, count, expected",
    [
        ("hello world", 3, 2),
        ("hello world", 4, 0),
        ("hello world", 7, 4),
        ("polygenelubricants", 3, 2),
        ("polygenelubricants", 4, 0),
        ("polygenelubricants", 7, 2),
        ("customer-7", 3, 2),
        ("customer-7", 4, 0),
        ("customer-7", 7, 6),
        ("\U0001f600", 3, 1),
        ("\U0001f600", 4, 3),
        ("\U0001f600", 7, 2),
        ("", 3, 0),
        ("", 4, 0),
        ("", 7, 0),
    ],
)
def test_a_key_chooses_its_queue_by_javas_hash(key: str, count: int, expected: int) -> None:
    assert by_hash(queues("a", each=count), key).queue_id == expected


def test_a_selector_has_to_return_a_queue() -> None:
    message = Message("T", b"x")
    assert chosen(queues("a"), message, lambda given, _: given[1]).queue_id == 1
    with pytest.raises(UsageError, match="selector: expected one of the 2 queues"):
        chosen(queues("a"), message, lambda given, _: 1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "table, latency_ms, avoided_ms",
    [
        *[(V5, ms, 0) for ms in (0, 49, 50, 100, 549)],
        (V5, 550, 2000), (V5, 1799, 2000), (V5, 1800, 5000), (V5, 2999, 5000), (V5, 3000, 6000), (V5, 4999, 6000),
        (V5, 5000, 10000), (V5, 14999, 10000), (V5, 15000, 30000), (V5, 10**6, 30000),
        *[(V4, ms, 0) for ms in (0, 50, 100, 549)],
        (V4, 550, 30000), (V4, 999, 30000), (V4, 1000, 60000), (V4, 2000, 120000), (V4, 3000, 180000),
        (V4, 14999, 180000), (V4, 15000, 600000),
    ],
)  # fmt: skip
def test_the_tables(table: LatencyTable, latency_ms: int, avoided_ms: int) -> None:
    assert table.avoided_after(latency_ms) == avoided_ms


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def table(which: LatencyTable) -> tuple[FaultTable, Clock]:
    clock = Clock()
    return FaultTable(which, clock=clock, source=random.Random(1)), clock


@pytest.mark.parametrize("which, isolated_s", [(V5, 10), (V4, 600)])
def test_a_broker_that_failed_is_avoided_for_a_time(which: LatencyTable, isolated_s: float) -> None:
    faults, clock = table(which)
    faults.update("a", 0.01, isolated=True, reachable=False)
    robin = RoundRobin(0)
    assert {faults.pick(queues("a", "b"), None, robin).broker_name for _ in range(8)} == {"b"}
    assert not faults.is_available("a")
    clock.now += isolated_s
    assert faults.is_available("a")
    assert {faults.pick(queues("a", "b"), None, robin).broker_name for _ in range(8)} == {"a", "b"}


def test_5_never_shortens_the_time_and_4_does() -> None:
    for which, expected in ((V5, False), (V4, True)):
        faults, _ = table(which)
        faults.update("a", 1.0)
        faults.update("a", 0.001)
        assert faults.is_available("a") is expected


def test_5_prefers_reachable_brokers_when_none_is_available() -> None:
    faults, _ = table(V5)
    faults.update("a", 0.0, isolated=True, reachable=False)
    faults.update("b", 2.0)
    robin = RoundRobin(0)
    assert {faults.pick(queues("a", "b"), None, robin).broker_name for _ in range(8)} == {"b"}
    faults.update("b", 0.0, isolated=True, reachable=False)
    assert {faults.pick(queues("a", "b"), None, robin).broker_name for _ in range(8)} == {"a", "b"}


def test_5_does_not_go_to_the_broker_of_the_attempt_before() -> None:
    faults, _ = table(V5)
    robin = RoundRobin(0)
    assert {faults.pick(queues("a", "b"), "a", robin).broker_name for _ in range(8)} == {"b"}
    assert faults.pick(queues("a"), "a", robin).broker_name == "a"


def test_4_takes_a_broker_of_the_better_half_when_none_is_available() -> None:
    faults, _ = table(V4)
    for broker, latency in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)):
        faults.update(broker, latency)
    robin = RoundRobin(0)
    assert {faults.pick(queues("a", "b", "c", "d"), None, robin).broker_name for _ in range(8)} == {"a", "b"}


def test_4_forgets_a_broker_that_the_topic_has_no_more() -> None:
    faults, _ = table(V4)
    for broker, latency in (("gone", 1.0), ("b", 2.0)):
        faults.update(broker, latency)
    assert faults.pick(queues("b"), None, RoundRobin(0)).broker_name == "b"
    assert faults.is_available("gone")


def test_a_filter_that_refuses_all_finds_none() -> None:
    refuse: Callable[[MessageQueue], bool] = lambda queue: False  # noqa: E731
    assert RoundRobin(0).first(queues("a"), refuse) is None
