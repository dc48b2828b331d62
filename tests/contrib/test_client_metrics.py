"""Metrics of clients, with prometheus-client and a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

prometheus_client = pytest.importorskip("prometheus_client", reason="needs prometheus-client: pip install mqfast[test]")

from mqfast.client import Delivery  # noqa: E402
from mqfast.contrib.metrics import MetricsHook  # noqa: E402
from mqfast.errors import ClientError  # noqa: E402
from mqfast.testing import Broker  # noqa: E402


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}) as broker:
        yield broker


def test_sends_handlers_and_queues_have_metrics(broker: Broker) -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = MetricsHook(registry)

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(name, labels)
        return found

    with metrics.watch(broker.producer("p", hooks=[metrics], send_timeout_s=0.5, retries=0)) as producer:
        for number in range(3):
            producer.send("orders", str(number))
        with broker.faults.lose_answers(times=1), pytest.raises(ClientError):
            producer.send("orders", b"3")
        of_group = {"topic": "orders", "producer_group": "p"}
        assert value("rocketmq_send_cost_time_count", **of_group, invocation_status="success") == 3
        assert value("rocketmq_send_cost_time_count", **of_group, invocation_status="failure") == 1
        assert value("rocketmq_send_cost_time_sum", **of_group, invocation_status="failure") >= 400  # type: ignore[operator]
        assert value("mqfast_client_in_flight", producer_group="p") == 0
        assert value("mqfast_client_retries_total", producer_group="p") == 0
    consumer = metrics.watch(broker.consumer("c", hooks=[metrics], max_reconsume_times=0))

    @consumer.on("orders")
    def bill(message: Delivery) -> bool:
        return message.body != b"1"

    with consumer:
        broker.wait_consumed("c", "orders")
        group = {"topic": "orders", "consumer_group": "c"}
        assert value("rocketmq_process_time_count", **group, invocation_status="success") == 3
        assert value("rocketmq_process_time_count", **group, invocation_status="failure") == 1
        for name in ("rocketmq_delivery_latency", "rocketmq_await_time"):
            assert value(f"{name}_count", **group) == 4
            assert value(f"{name}_sum", **group) < 60_000  # type: ignore[operator]
        for name in ("rocketmq_consumer_cached_messages", "rocketmq_consumer_cached_bytes"):
            broker.wait_until(lambda name=name: value(name, **group) == 0)
        broker.wait_until(lambda: value("mqfast_client_lag_messages", **group) == 0)
    text = prometheus_client.generate_latest(registry).decode()
    assert 'rocketmq_send_cost_time_bucket{invocation_status="success",le="1.0"' in text


def test_cached_messages_of_a_slow_handler_have_metrics(broker: Broker) -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = MetricsHook(registry)
    broker.send("orders", b"1", b"22", b"333")
    consumer = metrics.watch(broker.consumer("c", topics="orders", hooks=[metrics]))
    with consumer:
        first = next(iter(consumer))
        labels = {"topic": "orders", "consumer_group": "c"}
        broker.wait_until(
            lambda: registry.get_sample_value("rocketmq_consumer_cached_messages", labels) == 3, timeout_s=20
        )
        assert registry.get_sample_value("rocketmq_consumer_cached_bytes", labels) >= 3 * first.store_size
        broker.wait_until(lambda: registry.get_sample_value("mqfast_client_lag_messages", labels) == 3, timeout_s=20)
