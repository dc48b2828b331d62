"""Metrics of a running broker for Prometheus: RocketMQ 5.x's own names as its exporter writes them, and ours.

Room: broker. It must never count anything by itself: values are read when they are asked for. Source:
BrokerMetricsManager, DefaultStoreMetricsManager; names and labels as a Java broker 5.5.0 exposes them.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.admin.exposition import CONTENT_TYPE, Exposition
from mqfast.broker.admin.http import Reply
from mqfast.broker.admin.lag import GroupLag, QueueLag, lag_of_all
from mqfast.broker.groups import is_system_group
from mqfast.broker.stats import SIZE_BOUNDS
from mqfast.broker.topics import DLQ_PREFIX, RETRY_PREFIX
from mqfast.remoting.codes import LanguageCode
from mqfast.store.base.results import StoreState

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.processors import Processors

__all__ = ["Metrics"]

_QUEUES_SHOWN: Final = 1000
_Samples = Iterator[tuple[dict[str, object], float | int]]


class Metrics:
    """Makes the answer to a scrape. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, processors: Processors) -> None:
        self._context = context
        self._processors = processors
        self._labels = {
            **_extra_labels(context.config["metricsLabel"]),
            "node_type": "broker",
            "cluster": context.config["brokerClusterName"],
            "node_id": context.config["brokerName"],
        }

    async def scrape(self) -> Reply:
        """/metrics."""
        return Reply(200, CONTENT_TYPE, (await self.exposition()).text())

    async def exposition(self) -> Exposition:
        """All families with their samples."""
        out = Exposition(self._labels)
        groups, queues = await lag_of_all(self._context)
        self._broker(out)
        self._traffic(out)
        self._connections(out)
        self._lag(out, groups)
        self._store(out)
        self._ours(out, queues)
        return out

    def _is_system(self, topic: str, group: str = "") -> bool:
        return self._context.topics.is_system(topic) or (bool(group) and is_system_group(group))

    # --- RocketMQ's names ---

    def _broker(self, out: Exposition) -> None:
        context = self._context
        lanes = self._processors.lanes
        out.family(
            "rocketmq_processor_watermark", "gauge", "Requests that wait for their turn",
            (({"processor": name}, len(lane.waiting)) for name, lane in sorted(lanes.items())),
        )  # fmt: skip
        out.one("rocketmq_broker_permission", "gauge", "Broker permission", context.config["brokerPermission"])
        out.one("rocketmq_topic_number", "gauge", "Topics", len(context.topics.table))
        out.one("rocketmq_consumer_group_number", "gauge", "Consumer groups", len(context.groups.table))

    def _traffic(self, out: Exposition) -> None:
        stats = self._context.stats
        put_labels = {topic: self._topic_labels(topic) for topic in stats.puts}
        out.family(
            "rocketmq_messages_in_total", "counter", "Messages stored for producers",
            ((put_labels[topic], one.count) for topic, one in stats.puts.items()),
        )  # fmt: skip
        out.family(
            "rocketmq_throughput_in_total", "counter", "Bytes stored for producers",
            ((put_labels[topic], one.size) for topic, one in stats.puts.items()),
        )  # fmt: skip
        sizes = ((put_labels[topic], one.sizes, one.size) for topic, one in stats.puts.items())
        out.histogram("rocketmq_message_size", "Sizes of messages stored, bytes", SIZE_BOUNDS, sizes)
        get_labels = {key: self._group_labels(*key) for key in stats.gets}
        out.family(
            "rocketmq_messages_out_total", "counter", "Messages handed to consumers",
            ((get_labels[key], one.count) for key, one in stats.gets.items()),
        )  # fmt: skip
        out.family(
            "rocketmq_throughput_out_total", "counter", "Bytes handed to consumers",
            ((get_labels[key], one.size) for key, one in stats.gets.items()),
        )  # fmt: skip
        dead = ((key.partition("@"), one.count) for key, one in stats.named("SEND_TO_DLQ").items())
        out.family(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages that became dead letters",
            ((self._group_labels(topic, group), count) for (topic, _, group), count in dead),
        )  # fmt: skip

        for name, text, counted in (
            ("rocketmq_commit_messages_total", "Transactions committed", "COMMIT_NUMS"),
            ("rocketmq_rollback_messages_total", "Transactions rolled back", "ROLLBACK_NUMS"),
        ):
            ended = stats.named(counted).items()
            out.family(name, "counter", text, ((self._topic_labels(topic), one.count) for topic, one in ended))

    def _topic_labels(self, topic: str) -> dict[str, object]:
        config = self._context.topics.get(topic)
        kind = "NORMAL" if config is None else config.attributes.get("message.type", "NORMAL")
        return {"topic": topic, "message_type": kind.lower(), "is_system": self._is_system(topic)}

    def _group_labels(self, topic: str, group: str) -> dict[str, object]:
        is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        is_system = self._is_system(topic, group)
        return {"topic": topic, "consumer_group": group, "is_retry": is_retry, "is_system": is_system}

    def _connections(self, out: Exposition) -> None:
        context = self._context
        producers: Counter[tuple[int, int]] = Counter()
        for group in context.producers.groups():
            producers.update((one.language, one.version) for one in context.producers.members(group))
        consumers: Counter[tuple[str, str, int, int]] = Counter()
        for found in context.consumers.groups():
            mode = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}.get(found.consume_type, "pop")
            consumers.update((found.name, mode, one.language, one.version) for one in found.members.values())
        out.family(
            "rocketmq_producer_connections", "gauge", "Producers that are connected",
            (({"language": _language(language), "version": version}, count)
             for (language, version), count in producers.items()),
        )  # fmt: skip
        out.family(
            "rocketmq_consumer_connections", "gauge", "Consumers that are connected",
            (({"consumer_group": group, "consume_mode": mode, "language": _language(language), "version": version,
               "is_system": is_system_group(group)}, count)
             for (group, mode, language, version), count in consumers.items()),
        )  # fmt: skip

    def _lag(self, out: Exposition, groups: list[GroupLag]) -> None:
        rows = [(self._group_labels(one.topic, one.group), one) for one in groups]

        def gauge(name: str, text: str, values: Iterable[int]) -> None:
            out.family(name, "gauge", text, ((labels, value) for (labels, _), value in zip(rows, values, strict=True)))

        gauge("rocketmq_consumer_lag_messages", "Messages that are not consumed yet", (one.messages for one in groups))
        gauge(
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the first message that is not consumed yet",
            (one.late_ms for one in groups),
        )
        gauge(
            "rocketmq_consumer_inflight_messages",
            "Messages that are pulled and not consumed yet",
            (one.in_flight for one in groups),
        )
        gauge(
            "rocketmq_consumer_queueing_latency_milliseconds",
            "Age of the first message that is not pulled yet",
            (one.queueing_ms for one in groups),
        )
        gauge(
            "rocketmq_consumer_ready_messages",
            "Messages that are not pulled yet",
            (one.messages - one.in_flight for one in groups),
        )

    def _store(self, out: Exposition) -> None:
        context = self._context
        log = context.store.log
        local = {"storage_type": "local", "storage_medium": "disk"}
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
            out.family(name, "gauge", text, [(local, value)])

    # --- our names ---

    def _ours(self, out: Exposition, queues: list[QueueLag]) -> None:
        context = self._context
        stats, store = context.stats, context.store.stats()
        self._queue_lag(out, queues)
        out.family(
            "mqfast_registered", "gauge", "1: the name server has registered the broker",
            (({"name_server": name}, int(is_in)) for name, is_in in sorted(context.registration.registered.items())),
        )  # fmt: skip
        out.family(
            "mqfast_store_state", "gauge", "1 for the state of the store",
            (({"state": state.name.lower()}, int(context.store.state is state)) for state in StoreState),
        )  # fmt: skip
        lanes = sorted(self._processors.lanes.items())
        out.family(
            "mqfast_requests_running", "gauge", "Requests that are served now",
            (({"lane": name}, lane.running) for name, lane in lanes),
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
            ("mqfast_held_pulls", "gauge", "Pulls that wait for messages", len(context.hold)),
            ("mqfast_resident_bytes_max", "gauge", "The most memory that the process had", usage.ru_maxrss * 1024),
            ("mqfast_cpu_seconds_total", "counter", "CPU time of the process", usage.ru_utime + usage.ru_stime),
            ("mqfast_start_time_seconds", "gauge", "When the broker started, since the epoch",
             context.started_ms / 1000),
            ("mqfast_scrape_time_seconds", "gauge", "When this was read, since the epoch", time.time()),
        ):  # fmt: skip
            out.one(name, kind, text, value)

        if context.timer is not None:
            timer: dict[str, Any] = context.timer.statistics(context.now_ms())
            for name, text, value in (
                ("mqfast_timer_parked_messages", "Timed messages that are parked", timer["timerCongestNum"]),
                ("mqfast_timer_waiting_messages", "Timed messages that are not parked yet",
                 timer["timerOffsetBehind"]),
                ("mqfast_timer_behind_seconds", "How late timed messages are delivered", timer["timerReadBehind"]),
            ):  # fmt: skip
                out.one(name, "gauge", text, value)

    def _queue_lag(self, out: Exposition, queues: list[QueueLag]) -> None:
        """The queues with the largest lag; all others as one."""
        ranked = sorted(queues, key=lambda one: one.messages, reverse=True)
        shown, rest = ranked[:_QUEUES_SHOWN], ranked[_QUEUES_SHOWN:]
        labels: list[dict[str, object]] = [
            {"group": one.group, "topic": one.topic, "queue": one.queue_id} for one in shown
        ]
        messages: list[float] = [one.messages for one in shown]
        seconds: list[float] = [one.late_ms / 1000 for one in shown]
        if rest:
            labels.append({"group": "other", "topic": "other", "queue": "other"})
            messages.append(sum(one.messages for one in rest))
            seconds.append(max(one.late_ms for one in rest) / 1000)
        for name, text, values in (
            ("mqfast_group_lag_messages", "Messages of a queue that a group has not consumed yet", messages),
            ("mqfast_group_lag_seconds", "Age of the first of them", seconds),
        ):
            out.family(name, "gauge", text, zip(labels, values, strict=True))


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name.lower()
    except ValueError:
        return "other"


def _extra_labels(text: Any) -> dict[str, str]:
    """``name:value,name:value`` of metricsLabel; what has another form is left out, as in RocketMQ."""
    pairs = [one.split(":") for one in str(text).split(",")]
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0].strip().isidentifier()}
