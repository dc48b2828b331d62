"""The topics of a broker: names, permissions, system topics, and topics created by a send.

No I/O except through the table of the store; ``on_change`` is called for changes that must be registered. Source:
TopicConfigManager, TopicValidator.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.metadata.config_persistence import AtOnce, ConfigPersister
from mqfast.schedule.delay_levels import BROKER_TOPICS, SCHEDULE_TOPIC
from mqfast.store.meta.metadata import TopicConfig, TopicConfigTable
from mqfast.store.reader.timer_files import TIMER_TOPIC

__all__ = [
    "AUTO_CREATE_TOPIC", "DLQ_PREFIX", "HALF_TOPIC", "OP_TOPIC", "RETRY_PREFIX", "SCHEDULE_TOPIC", "TIMER_TOPIC",
    "CHECK_MAX_TIME_TOPIC", "PARKED", "TopicManager", "illegal_group", "illegal_topic", "is_of_the_broker",
    "is_system_topic",
    "dlq_topic", "retry_topic",
]  # fmt: skip

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
AUTO_CREATE_TOPIC: Final = "TBW102"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
ENDS_TOPIC: Final = "rmq_sys_mqfast_writes"
"""The topic with the ends of idempotent batches; see ``broker/idempotence``."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SYSTEM_PREFIX: Final = "rmq_sys_"
PRIORITY, READ, WRITE, INHERIT = 8, 4, 2, 1

_SYSTEM: Final = frozenset(
    {
        AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, OP_TOPIC, CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, "CHECKPOINT_TOPIC",
    }
)  # fmt: skip
PARKED: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC})
"""Topics with parked messages of other topics; the property REAL_TOPIC has the destination."""
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED: Final = "^[%|a-zA-Z0-9_-]+$"
_TOPIC_MAX, _GROUP_MAX, _RETRY_OR_DLQ_MAX = 127, 120, 255


def retry_topic(group: str) -> str:
    """Return the topic with messages that a group consumes again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def is_of_the_broker(topic: str) -> bool:
    """Return True if only the broker writes this topic. Clients must not: the broker executes its records.

    RocketMQ accepts what a client sends to ``rmq_sys_`` topics, the timer's among them.
    """
    return topic in BROKER_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return True if the topic belongs to the broker. Source: TopicValidator.isSystemTopic."""
    return topic in _SYSTEM or topic.startswith(SYSTEM_PREFIX)


def illegal_topic(topic: str) -> str | None:
    """Return the error of a topic's name, in RocketMQ's words; None for a legal name."""
    if not topic.strip():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(topic) is None:
        return f"The specified topic: {topic}, contains illegal characters, allowing only {_ALLOWED}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > _RETRY_OR_DLQ_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
                f"{_RETRY_OR_DLQ_MAX}"
            )
    elif len(topic) > _TOPIC_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {_TOPIC_MAX}"
    return None


def illegal_group(group: str) -> str | None:
    """Return the error of a group's name, in RocketMQ's words; None for a legal name."""
    if not group.strip():
        return "The specified group is blank."
    if _LEGAL.fullmatch(group) is None:
        return f"The specified group: {group}, contains illegal characters, allowing only {_ALLOWED}"
    if len(group) > _GROUP_MAX:
        return f"The specified group: {group}, is longer than group max length: {_GROUP_MAX}"
    return None


class TopicManager:
    """The topics of a broker, in the store's table (``config/topics.json``).

    Args: changes: persists the table, and delays the response to the current request until then.
    Attributes: ``on_change``: called with created and changed topics, an empty list for all topics. ``on_delete``:
        called with a topic that is being deleted, after the topic is closed to sends and before its queues are deleted.
    Thread: that of the event loop.
    """

    def __init__(
        self, table: TopicConfigTable, config: BrokerConfig, delay_levels: int, changes: ConfigPersister | None = None
    ) -> None:
        self.table: Final = table
        self._changes: Final[ConfigPersister] = changes or AtOnce()
        self.on_change: Final[list[Callable[[list[str]], object]]] = []
        self.on_delete: Final[list[Callable[[str], object]]] = []
        self._config = config
        self._delay_levels = delay_levels
        self._leaving: set[str] = set()

    def ensure_system_topics(self) -> bool:
        """Create missing topics that the broker needs. Returns: True if the table must be persisted."""
        is_changed = False
        for name, queues, perm in self._system_topics():
            if name not in self.table:
                self.table.put(name, self.raw(name, queues, perm))
                is_changed = True
        return is_changed

    def _system_topics(self) -> Iterable[tuple[str, int, int]]:
        config = self._config
        cluster, broker = config["brokerClusterName"], config["brokerName"]
        yield SELF_TEST_TOPIC, 1, READ | WRITE
        if config["autoCreateTopicEnable"]:
            yield AUTO_CREATE_TOPIC, config["defaultTopicQueueNums"], INHERIT | READ | WRITE
        yield BENCHMARK_TOPIC, 1024, READ | WRITE
        yield cluster, 16, INHERIT | (READ | WRITE if config["clusterTopicEnable"] else 0)
        yield broker, 1, INHERIT | (READ | WRITE if config["brokerTopicEnable"] else 0)
        yield OFFSET_MOVED_TOPIC, 1, READ | WRITE
        yield SCHEDULE_TOPIC, self._delay_levels, READ | WRITE
        if config["traceTopicEnable"]:
            yield config["msgTraceTopicName"], 1, READ | WRITE
        yield f"{cluster}_REPLY_TOPIC", 1, READ | WRITE
        yield f"rmq_sys_REVIVE_LOG_{cluster}", config["reviveQueueNum"], READ | WRITE
        yield f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, INHERIT
        yield HALF_TOPIC, 1, READ | WRITE
        yield OP_TOPIC, 1, READ | WRITE
        yield TIMER_TOPIC, 1, READ | WRITE

    def system_topics(self) -> list[str]:
        """Return the broker's own topics (305)."""
        return sorted({*_SYSTEM, *(name for name, _, _ in self._system_topics())} - {TIMER_TOPIC})

    def is_system(self, topic: str) -> bool:
        """Return True if the topic belongs to RocketMQ or to this broker. Source: TopicValidator.isSystemTopic."""
        if is_system_topic(topic):
            return True
        cluster, broker = self._config["brokerClusterName"], self._config["brokerName"]
        return topic in (cluster, broker, f"{cluster}_REPLY_TOPIC", self._config["msgTraceTopicName"])

    @staticmethod
    def raw(name: str, queues: int, perm: int, *, sys_flag: int = 0, filter_type: str = "SINGLE_TAG") -> dict[str, Any]:
        """Return the JSON object of a topic."""
        return {
            "attributes": {},
            "order": False,
            "perm": perm,
            "readQueueNums": queues,
            "topicFilterType": filter_type,
            "topicName": name,
            "topicSysFlag": sys_flag,
            "writeQueueNums": queues,
        }

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic, or None."""
        return self.table.get(topic)

    def put(self, raw: dict[str, Any]) -> None:
        """Set a topic (17), persist the table soon, register the change."""
        self.table.put(raw["topicName"], raw)
        self._changed([raw["topicName"]])

    @contextlib.asynccontextmanager
    async def leaving(self, topic: str) -> AsyncIterator[None]:
        """Remove a topic from the table (215), persist and register that; then the caller deletes the queues.

        Until the end no send creates the topic again: its message would be stored in an unknown topic. After a failure
        of the caller the topic is restored. Raises: StorageError.
        """
        config = self.get(topic)
        self.table.delete(topic)
        self._leaving.add(topic)
        try:
            self._changed([])
            for notify in self.on_delete:
                notify(topic)
            await self._changes.settled()
            yield
        except BaseException:
            if config is not None:
                self.put(config.raw)
            raise
        finally:
            self._leaving.discard(topic)

    @property
    def is_full(self) -> bool:
        """Return True if the number of topics forbids the creation of a topic by a send."""
        return len(self.table) >= int(self._config["maxAutoCreatedTopics"])

    def create_for_send(self, topic: str, template: str, queues: int, sys_flag: int) -> TopicConfig | None:
        """Create a topic for a send, from its template; None if the template does not allow that.

        Source: createTopicInSendMessageMethod.
        """
        existing = self.get(topic)
        if existing is not None:
            self._changes.wait_for(topic, self.table)
            return existing
        default = self.get(template)
        if topic in self._leaving or default is None or not default.perm & INHERIT or self.is_full:
            return None
        if template == AUTO_CREATE_TOPIC and not self._config["autoCreateTopicEnable"]:
            return None
        raw = self.raw(
            topic,
            max(0, min(queues, default.write_queue_nums)),
            default.perm & ~INHERIT,
            sys_flag=sys_flag,
            filter_type=str(default.raw.get("topicFilterType", "SINGLE_TAG")),
        )
        self.put(raw)
        return TopicConfig(topic, raw)

    def ensure(self, topic: str, queues: int, perm: int = READ | WRITE, sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker itself needs, such as %RETRY% and %DLQ%; created if missing.

        Source: createTopicInSendMessageBackMethod.
        """
        existing = self.get(topic)
        if existing is not None:
            self._changes.wait_for(topic, self.table)
            return existing
        raw = self.raw(topic, queues, perm, sys_flag=sys_flag)
        self.put(raw)
        return TopicConfig(topic, raw)

    def permission_changed(self) -> None:
        """Register all topics again after a change of the broker's permission."""
        self.table.touch()
        self._changed([])

    def is_written(self, topic: str) -> bool:
        """Return True if the topic is on disk; else the response to the current request waits for that."""
        return not self._changes.wait_for(topic, self.table)

    def _changed(self, topics: list[str]) -> None:
        self._changes.made(self.table, topics)
        self.notify_changed(topics)

    def notify_changed(self, topics: list[str]) -> None:
        """Call ``on_change``: these topics have changed in the table; all topics where none is named."""
        for notify in self.on_change:
            notify(topics)
