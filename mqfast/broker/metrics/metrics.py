"""Metrics of a running broker for Prometheus: RocketMQ 5.x's names as written by its exporter, and own names.

Values are read at a scrape, and nothing is counted here; a scrape yields to the event loop. Names and labels are those
of a Java broker 5.5.0. Source: BrokerMetricsManager, DefaultStoreMetricsManager.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast.broker.metadata.subscription_group_manager import is_system_group
from mqfast.broker.metadata.topic_manager import DLQ_PREFIX, RETRY_PREFIX
from mqfast.broker.metrics.broker_stats import SIZE_BOUNDS
from mqfast.broker.metrics.consumer_lag import GroupLag, GroupQueueLag, lag_of_all
from mqfast.broker.metrics.http_server import HttpResponse
from mqfast.broker.metrics.prometheus_text import CONTENT_TYPE, Exposition
from mqfast.ha.slave import FollowState
from mqfast.remoting.codes import LanguageCode
from mqfast.remoting.latency import BOUNDS_MS
from mqfast.store.base.results import StoreState

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pop.pop_service import PopService
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.broker.replication.replica_manager import ReplicaManager
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.broker.transaction.open_transactions import OpenTransactions
    from mqfast.ha.master import SlaveProgress
    from mqfast.remoting.processors import Processors

__all__ = ["Metrics"]

_QUEUES_SHOWN: Final = 1000
_AT_ONCE: Final = 256
_LAG: Final[tuple[tuple[str, str, Callable[[GroupLag], int]], ...]] = (
    ("rocketmq_consumer_lag_messages", "Messages that are not consumed yet", lambda lag: lag.messages),
    (
        "rocketmq_consumer_lag_latency_milliseconds",
        "Age of the first message that is not consumed yet",
        lambda lag: lag.late_ms,
    ),
    (
        "rocketmq_consumer_inflight_messages",
        "Messages that are pulled and not consumed yet",
        lambda lag: lag.in_flight,
    ),
    (
        "rocketmq_consumer_queueing_latency_milliseconds",
        "Age of the first message that is not pulled yet",
        lambda lag: lag.queueing_ms,
    ),
    ("rocketmq_consumer_ready_messages", "Messages that are not pulled yet", lambda lag: lag.messages - lag.in_flight),
)
_SLAVES: Final[tuple[tuple[str, str, Callable[[SlaveProgress], int]], ...]] = (
    (
        "mqfast_slave_behind_bytes",
        "Bytes of the log that a slave did not acknowledge",
        lambda slave: slave.behind_bytes,
    ),
    (
        "mqfast_slave_behind_milliseconds",
        "Age of the first message that a slave did not acknowledge",
        lambda slave: slave.behind_ms,
    ),
    ("mqfast_slave_silent_milliseconds", "Since the last report of a slave", lambda slave: slave.silent_ms),
)
_Key = TypeVar("_Key")


async def _each(keys: list[_Key], make: Callable[[_Key], str]) -> dict[_Key, str]:
    """Return key -> text; yields to the event loop regularly."""
    texts: dict[_Key, str] = {}
    for number, key in enumerate(keys):
        texts[key] = make(key)
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    return texts


class Metrics:
    """Creates the response to a scrape. Thread: that of the event loop."""

    def __init__(
        self,
        context: BrokerContext,
        processors: Processors,
        replicas: ReplicaManager,
        long_polling: LongPolling,
        timers: BrokerTimers,
        open_transactions: OpenTransactions,
        pop: PopService,
    ) -> None:
        self._pop = pop
        self._context = context
        self._processors = processors
        self._replica_manager = replicas
        self._long_polling = long_polling
        self._timers = timers
        self._open_transactions = open_transactions
        self._scraping = asyncio.Lock()
        self._labels = {
            **_extra_labels(context.config["metricsLabel"]),
            "node_type": "broker",
            "cluster": context.config["brokerClusterName"],
            "node_id": context.config["brokerName"],
        }

    async def scrape(self) -> HttpResponse:
        """Answer /metrics; scrapes run one after the other."""
        async with self._scraping:
            return HttpResponse(200, CONTENT_TYPE, (await self.exposition()).text())

    async def exposition(self) -> Exposition:
        """Return all families with samples."""
        out = Exposition(self._labels)
        groups, queues = await lag_of_all(self._context, self._pop.in_flight_counts())
        await self._broker(out)
        await self._traffic(out)
        await self._calls(out)
        await self._connections(out)
        await self._lag(out, groups)
        await self._store(out)
        await self._queue_lag(out, queues)
        await self._ours(out)
        await self._timer(out)
        await self._replicas(out)
        return out

    def _is_system(self, topic: str, group: str = "") -> bool:
        return self._context.topics.is_system(topic) or (bool(group) and is_system_group(group))

    # --- RocketMQ's names ---

    async def _broker(self, out: Exposition) -> None:
        context = self._context
        lanes = self._processors.lanes
        await out.family(
            "rocketmq_processor_watermark", "gauge", "Requests that wait for their turn",
            ((out.labels({"processor": name}), len(lane.waiting)) for name, lane in sorted(lanes.items())),
        )  # fmt: skip
        await out.metric("rocketmq_broker_permission", "gauge", "Broker permission", context.config["brokerPermission"])
        await out.metric("rocketmq_topic_number", "gauge", "Topics", len(context.topics.table))
        await out.metric("rocketmq_consumer_group_number", "gauge", "Consumer groups", len(context.groups.table))

    async def _traffic(self, out: Exposition) -> None:
        stats = self._context.stats
        puts = list(stats.puts.items())  # a copy: other tasks run in between
        put_labels = await _each([topic for topic, _ in puts], lambda topic: self._topic_labels(out, topic))
        await out.family(
            "rocketmq_messages_in_total", "counter", "Messages stored for producers",
            ((put_labels[topic], series.count) for topic, series in puts),
        )  # fmt: skip
        await out.family(
            "rocketmq_throughput_in_total", "counter", "Bytes stored for producers",
            ((put_labels[topic], series.size) for topic, series in puts),
        )  # fmt: skip
        sizes = ((put_labels[topic], series.sizes, series.size) for topic, series in puts)
        await out.histogram("rocketmq_message_size", "Sizes of messages stored, bytes", SIZE_BOUNDS, sizes)
        gets = list(stats.gets.items())
        get_labels = await _each([key for key, _ in gets], lambda key: self._group_labels(out, *key))
        await out.family(
            "rocketmq_messages_out_total", "counter", "Messages handed to consumers",
            ((get_labels[key], series.count) for key, series in gets),
        )  # fmt: skip
        await out.family(
            "rocketmq_throughput_out_total", "counter", "Bytes handed to consumers",
            ((get_labels[key], series.size) for key, series in gets),
        )  # fmt: skip
        dead = [(key.partition("@"), series.count) for key, series in stats.named("SEND_TO_DLQ").items()]
        await out.family(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages that became dead letters",
            ((self._group_labels(out, topic, group), count) for (topic, _, group), count in dead),
        )  # fmt: skip
        for name, text, counted in (
            ("rocketmq_commit_messages_total", "Transactions committed", "COMMIT_NUMS"),
            ("rocketmq_rollback_messages_total", "Transactions rolled back", "ROLLBACK_NUMS"),
        ):
            ended = [(topic, series.count) for topic, series in stats.named(counted).items()]
            samples = ((self._topic_labels(out, topic), count) for topic, count in ended)
            await out.family(name, "counter", text, samples)
        open_transactions = await self._open_transactions.count_by_topic()
        await out.family(
            "rocketmq_half_messages", "gauge", "Half messages of transactions that are open",
            ((out.labels({"topic": topic}), count) for topic, count in open_transactions.items()),
        )  # fmt: skip

    async def _calls(self, out: Exposition) -> None:
        """Add RocketMQ's histogram of remote calls."""
        if self._context.latencies is None:
            return
        rows = self._context.latencies.rows()
        samples = (
            (out.labels({"protocol_type": "remoting", **outcome._asdict()}), row.counts, row.sum_ms)
            for outcome, row in rows
        )
        await out.histogram(
            "rocketmq_rpc_latency_milliseconds", "How long requests took until they were answered", BOUNDS_MS, samples
        )

    def _topic_labels(self, out: Exposition, topic: str) -> str:
        config = self._context.topics.get(topic)
        kind = "NORMAL" if config is None else config.attributes.get("message.type", "NORMAL")
        return out.labels({"topic": topic, "message_type": kind.lower(), "is_system": self._is_system(topic)})

    def _group_labels(self, out: Exposition, topic: str, group: str) -> str:
        is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        is_system = self._is_system(topic, group)
        return out.labels({"topic": topic, "consumer_group": group, "is_retry": is_retry, "is_system": is_system})

    async def _connections(self, out: Exposition) -> None:
        context = self._context
        producers: Counter[tuple[int, int]] = Counter()
        for group in context.producers.groups():
            producers.update((member.language, member.version) for member in context.producers.members(group))
        consumers: Counter[tuple[str, str, int, int]] = Counter()
        for consumer_group in context.consumers.groups():
            mode = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}.get(consumer_group.consume_type, "pop")
            consumers.update(
                (consumer_group.name, mode, member.language, member.version)
                for member in consumer_group.members.values()
            )
        await out.family(
            "rocketmq_producer_connections", "gauge", "Producers that are connected",
            ((out.labels({"language": _language(language), "version": version}), count)
             for (language, version), count in producers.items()),
        )  # fmt: skip
        await out.family(
            "rocketmq_consumer_connections", "gauge", "Consumers that are connected",
            ((out.labels({"consumer_group": group, "consume_mode": mode, "language": _language(language),
                          "version": version, "is_system": is_system_group(group)}), count)
             for (group, mode, language, version), count in consumers.items()),
        )  # fmt: skip

    async def _lag(self, out: Exposition, groups: list[GroupLag]) -> None:
        keys = [(group_lag.topic, group_lag.group) for group_lag in groups]
        labels = await _each(keys, lambda key: self._group_labels(out, *key))
        for name, text, value_of in _LAG:
            samples = ((labels[key], value_of(group_lag)) for key, group_lag in zip(keys, groups, strict=True))
            await out.family(name, "gauge", text, samples)

    async def _store(self, out: Exposition) -> None:
        context = self._context
        log = context.store.log
        local = out.labels({"storage_type": "local", "storage_medium": "disk"})
        first_ms = context.engine.earliest_message_time()
        kept_ms = max(0, context.now_ms() - first_ms) if first_ms > 0 else 0
        for name, text, value in (
            ("rocketmq_storage_size_bytes", "Bytes of the log", log.written - max(0, log.min_offset)),
            ("rocketmq_storage_flush_behind_bytes", "Bytes that are not flushed yet", log.written - log.flushed),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Bytes that are in no queue yet",
                context.engine.dispatch_behind_bytes,
            ),
            ("rocketmq_storage_message_reserve_time_milliseconds", "Age of the first message of the log", kept_ms),
        ):
            await out.family(name, "gauge", text, [(local, value)])

    # --- our names ---

    async def _ours(self, out: Exposition) -> None:
        context = self._context
        stats, store = context.stats, context.store.stats()
        registered = sorted(context.registration.registered.items())
        await out.family(
            "mqfast_registered", "gauge", "1: the name server has registered the broker",
            ((out.labels({"name_server": name}), int(is_in)) for name, is_in in registered),
        )  # fmt: skip
        await out.family(
            "mqfast_store_state", "gauge", "1 for the state of the store",
            ((out.labels({"state": state.name.lower()}), int(context.store.state is state)) for state in StoreState),
        )  # fmt: skip
        lanes = sorted(self._processors.lanes.items())
        await out.family(
            "mqfast_requests_running", "gauge", "Requests that are served now",
            ((out.labels({"lane": name}), lane.running) for name, lane in lanes),
        )  # fmt: skip
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for name, kind, text, value in (
            ("mqfast_flush_failed", "gauge", "1: a sync failed, the store takes no more messages",
             int(context.store.state is StoreState.FAILED)),
            ("mqfast_disk_used_ratio", "gauge", "How full the fullest filesystem of the store is",
             store["disk_used_percent"] / 100),
            ("mqfast_put_failures_total", "counter", "Messages that could not be stored", stats.failures),
            ("mqfast_put_time_max_milliseconds", "gauge", "The longest put since the start", stats.put_time_max_ms),
            ("mqfast_syncs_total", "counter", "Syncs of the log", store["sync_calls"]),
            ("mqfast_synced_bytes_total", "counter", "Bytes of the log that were synced", store["synced_bytes"]),
            ("mqfast_deleted_log_files_total", "counter", "Log files that retention deleted",
             store["deleted_log_files"]),
            ("mqfast_dropped_unread_messages_total", "counter", "Messages deleted before a group had read them",
             store["dropped_unread_messages"]),
            ("mqfast_store_warnings", "gauge", "Warnings of the store", len(store["warnings"])),
            ("mqfast_mapped_files", "gauge", "Files that are mapped into memory", store["mapped_files"]),
            ("mqfast_queues", "gauge", "Queues of the store", store["queues"]),
            ("mqfast_held_pulls", "gauge", "Pulls that wait for messages", len(self._long_polling)),
            ("mqfast_pop_held_requests", "gauge", "POP requests that wait for messages", len(self._pop.waiters)),
            ("mqfast_pop_messages_in_flight", "gauge", "Delivered messages of POP without an ack",
             self._pop.in_flight.messages),
            ("mqfast_pop_redelivered_total", "counter", "Messages of POP that were stored again for a group",
             self._pop.revive.redelivered),
            ("mqfast_resident_bytes_max", "gauge", "The most memory that the process had", usage.ru_maxrss * 1024),
            ("mqfast_cpu_seconds_total", "counter", "CPU time of the process", usage.ru_utime + usage.ru_stime),
            ("mqfast_start_time_seconds", "gauge", "When the broker started, since the epoch",
             context.started_ms / 1000),
            ("mqfast_scrape_time_seconds", "gauge", "When this was read, since the epoch", time.time()),
        ):  # fmt: skip
            await out.metric(name, kind, text, value)

    async def _timer(self, out: Exposition) -> None:
        service = self._timers.service
        if service is None:
            return
        statistics: dict[str, Any] = service.statistics(self._context.now_ms())
        for name, text, value in (
            ("mqfast_timer_parked_messages", "Timed messages that are parked", statistics["timerCongestNum"]),
            (
                "mqfast_timer_waiting_messages",
                "Timed messages that are not parked yet",
                statistics["timerOffsetBehind"],
            ),
            ("mqfast_timer_behind_seconds", "How late timed messages are delivered", statistics["timerReadBehind"]),
        ):
            await out.metric(name, "gauge", text, value)

    async def _replicas(self, out: Exposition) -> None:
        """Add metrics of replication, which RocketMQ does not have."""
        replicas = self._replica_manager
        following = replicas.following
        if following is not None:
            await out.family(
                "mqfast_following", "gauge", "1 for what this slave does",
                ((out.labels({"state": state.lower()}), int(following.state is state)) for state in FollowState),
            )  # fmt: skip
            silent_ms = 0 if following.silent_ms is None else following.silent_ms
            for name, text, value in (
                ("mqfast_following_behind_bytes", "Bytes that this slave lacks of its master's log",
                 following.behind_bytes),
                ("mqfast_following_behind_milliseconds", "Since when it lacks a byte", following.behind_ms),
                ("mqfast_following_silent_milliseconds", "Since the last byte of its master", silent_ms),
            ):  # fmt: skip
                await out.metric(name, "gauge", text, value)
            return
        slaves = [(out.labels({"slave": slave.address}), slave) for slave in replicas.slaves]
        await out.metric("mqfast_slaves", "gauge", "Slaves that are connected", len(slaves))
        in_sync = replicas.in_sync()
        await out.metric("mqfast_slaves_in_sync", "gauge", "Slaves that are near the end of the log", in_sync)
        for name, text, value_of in _SLAVES:
            await out.family(name, "gauge", text, ((labels, value_of(slave)) for labels, slave in slaves))

    async def _queue_lag(self, out: Exposition, queues: list[GroupQueueLag]) -> None:
        """Add the queues with the largest lag, and all other queues as a sum."""
        ranked = sorted(queues, key=lambda queue_lag: queue_lag.messages, reverse=True)
        shown, rest = ranked[:_QUEUES_SHOWN], ranked[_QUEUES_SHOWN:]
        labels = [
            out.labels({"group": queue_lag.group, "topic": queue_lag.topic, "queue": queue_lag.queue_id})
            for queue_lag in shown
        ]
        messages: list[float] = [queue_lag.messages for queue_lag in shown]
        seconds: list[float] = [queue_lag.late_ms / 1000 for queue_lag in shown]
        if rest:
            labels.append(out.labels({"group": "other", "topic": "other", "queue": "other"}))
            messages.append(sum(queue_lag.messages for queue_lag in rest))
            seconds.append(max(queue_lag.late_ms for queue_lag in rest) / 1000)
        for name, text, values in (
            ("mqfast_group_lag_messages", "Messages of a queue that a group has not consumed yet", messages),
            ("mqfast_group_lag_seconds", "Age of the first of them", seconds),
        ):
            await out.family(name, "gauge", text, zip(labels, values, strict=True))


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name.lower()
    except ValueError:
        return "other"


def _extra_labels(text: Any) -> dict[str, str]:
    """Parse ``name:value,name:value`` of metricsLabel; invalid parts are omitted, as in RocketMQ."""
    pairs = [part.split(":") for part in str(text).split(",")]
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0].strip().isidentifier()}
