"""Metrics of clients for Prometheus, by the names of RocketMQ's 5.x clients.

No request goes to a broker: gauges are read from the clients at each scrape. Source: the histograms and gauges of the
rocketmq-clients projects, with times in milliseconds.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    text = f"mqfast.contrib.metrics needs {error.name}: pip install 'mqfast[metrics]'"
    raise ModuleNotFoundError(text, name=error.name) from None

from mqfast.client.hooks import ClientHook, ConsumeContext, SendContext
from mqfast.client.values import ConsumeStatus

__all__ = ["MetricsHook"]

_SEND_MS: Final = (1.0, 5.0, 10.0, 20.0, 50.0, 200.0, 500.0)
_AWAIT_MS: Final = (1.0, 5.0, 20.0, 100.0, 1000.0, 5000.0, 10_000.0)
_PROCESS_MS: Final = (1.0, 5.0, 10.0, 100.0, 1000.0, 10_000.0, 60_000.0)


class _Client(Protocol):
    @property
    def group(self) -> str: ...

    def stats(self) -> Mapping[str, Any]: ...


class MetricsHook(ClientHook):
    """Hook with metrics, for any client; ``watch`` adds the gauges.

        metrics = MetricsHook()
        producer = metrics.watch(Producer("g", hooks=[metrics]))

    Args: registry: by default the global one. Raises: ValueError where the registry has these metrics already.
    Thread: any.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def histogram(name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        of_group = ["topic", "consumer_group"]
        self._send = histogram(
            "rocketmq_send_cost_time", "Time of a send, ms", ["topic", "producer_group", "invocation_status"], _SEND_MS
        )
        self._latency = histogram(
            "rocketmq_delivery_latency", "From the store of the broker to this client, ms", of_group, _SEND_MS
        )
        self._await = histogram("rocketmq_await_time", "From the pull to the handler, ms", of_group, _AWAIT_MS)
        self._process = histogram(
            "rocketmq_process_time", "Time of a handler, ms", [*of_group, "invocation_status"], _PROCESS_MS
        )
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        registry.register(_Gauges(self._clients))

    def watch(self, client: Any) -> Any:
        """Show gauges of a producer or push consumer for the lifetime of the client. Returns: the client."""
        self._clients.add(client)
        return client

    def after_send(self, context: SendContext) -> None:
        """Record the end of a send."""
        status = "success" if context.error is None else "failure"
        self._send.labels(context.message.topic, context.group, status).observe(context.seconds * 1000)

    def before_consume(self, context: ConsumeContext) -> None:
        """Record the begin of a handler."""
        now_s = time.time()
        for message in context.messages:
            labels = message.topic, context.group
            came_s = message.arrived_s or now_s
            self._latency.labels(*labels).observe(max(0.0, came_s * 1000 - message.store_timestamp))
            self._await.labels(*labels).observe(max(0.0, now_s - came_s) * 1000)

    def after_consume(self, context: ConsumeContext) -> None:
        """Record the end of a handler."""
        if context.operation == "receive":
            return
        status = "success" if context.status is ConsumeStatus.CONSUME_SUCCESS and context.error is None else "failure"
        self._process.labels(context.messages[0].topic, context.group, status).observe(context.seconds * 1000)


class _Gauges(Collector):
    """Gauges of the clients, read at each scrape."""

    def __init__(self, clients: Iterable[_Client]) -> None:
        self._clients = clients

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        by_topic = ["topic", "consumer_group"]
        messages = GaugeMetricFamily("rocketmq_consumer_cached_messages", "Messages in the client", labels=by_topic)
        size = GaugeMetricFamily("rocketmq_consumer_cached_bytes", "Bytes in the client", labels=by_topic)
        behind = GaugeMetricFamily("mqfast_client_lag_messages", "Messages not done, of its queues", labels=by_topic)
        flying = GaugeMetricFamily("mqfast_client_in_flight", "Sends on their way", labels=["producer_group"])
        again = CounterMetricFamily("mqfast_client_retries", "Sends tried again", labels=["producer_group"])
        sums: dict[tuple[int, str, str], float] = {}
        families = messages, size, behind, flying, again

        def add(family: int, value: float, first: str, second: str = "") -> None:
            key = family, first, second
            sums[key] = sums.get(key, 0) + value

        for client in list(self._clients):
            try:
                stats = client.stats()
            except Exception:  # closed or not started: no gauges
                continue
            if "in_flight" in stats:
                add(3, stats["in_flight"], client.group)
                add(4, stats["retried"], client.group)
            for queue, counts in stats.get("queues", {}).items():
                add(0, counts["cached"], queue.topic, client.group)
                add(1, counts["cached_bytes"], queue.topic, client.group)
                add(2, counts["behind"] or 0, queue.topic, client.group)
        for (family, first, second), value in sums.items():
            families[family].add_metric([first, second] if second else [first], value)
        return families
