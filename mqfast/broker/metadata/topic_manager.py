"""Topics of a broker: names, permissions, those that the broker itself needs, those that a send makes.

Room: broker. It must never do I/O but through the table of the store; whoever has to register a change is told by
``on_change``. Source: TopicConfigManager, TopicValidator.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.metadata.config_persistence import AtOnce, ConfigPersister
from mqfast.schedule.delay_levels import BROKER_TOPICS, SCHEDULE_TOPIC
from mqfast.store.meta.metadata import TopicConfig, TopicTable
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
"""Where batches that are stored as a whole are noted; see ``broker/once``."""
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
"""Messages of other topics wait in these; REAL_TOPIC says whose they are."""
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED: Final = "^[%|a-zA-Z0-9_-]+$"
_TOPIC_MAX, _GROUP_MAX, _RETRY_OR_DLQ_MAX = 127, 120, 255


def retry_topic(group: str) -> str:
    """The topic of a group's messages that are to be consumed again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return DLQ_PREFIX + group


def is_of_the_broker(topic: str) -> bool:
    """Say whether the broker alone writes this topic. Clients never do: the records say what the broker is to do.

    RocketMQ takes what a client sends to ``rmq_sys_`` topics, the timer's among them.
    """
    return topic in BROKER_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Does the topic belong to the broker? Source: TopicValidator.isSystemTopic."""
    return topic in _SYSTEM or topic.startswith(SYSTEM_PREFIX)


def illegal_topic(topic: str) -> str | None:
    """What is wrong with a topic's name, in RocketMQ's words; None: it is legal."""
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
    """What is wrong with a group's name, in RocketMQ's words; None: it is legal."""
    if not group.strip():
        return "The specified group is blank."
    if _LEGAL.fullmatch(group) is None:
        return f"The specified group: {group}, contains illegal characters, allowing only {_ALLOWED}"
    if len(group) > _GROUP_MAX:
        return f"The specified group: {group}, is longer than group max length: {_GROUP_MAX}"
    return None


class TopicManager:
    """All topics of a broker, in the store's own table (``config/topics.json``).

    Args: changes: puts the table on disk, and lets the answer to the present request wait for that.
    Attributes: ``on_change``: called with the topics that came or changed. ``on_leaving``: called with a topic that is
        being deleted, once no send finds it and before its queues are gone.
    Thread: that of the event loop.
    """

    def __init__(
        self, table: TopicTable, config: BrokerConfig, delay_levels: int, changes: ConfigPersister | None = None
    ) -> None:
        self.table: Final = table
        self._changes: Final[ConfigPersister] = changes or AtOnce()
        self.on_change: Callable[[list[str]], object] = lambda _topics: None
        self.on_leaving: Callable[[str], object] = lambda _topic: None
        self._config = config
        self._delay_levels = delay_levels
        self._leaving: set[str] = set()

    def ensure_system_topics(self) -> bool:
        """Make the topics that the broker needs where they are not there. Returns: is there one to persist?"""
        made = False
        for name, queues, perm in self._system_topics():
            if name not in self.table:
                self.table.put(name, self.raw(name, queues, perm))
                made = True
        return made

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
        """The broker's own topics (305)."""
        return sorted({*_SYSTEM, *(name for name, _, _ in self._system_topics())} - {TIMER_TOPIC})

    def is_system(self, topic: str) -> bool:
        """Does the topic belong to RocketMQ or to this broker? Source: TopicValidator.isSystemTopic."""
        if is_system_topic(topic):
            return True
        cluster, broker = self._config["brokerClusterName"], self._config["brokerName"]
        return topic in (cluster, broker, f"{cluster}_REPLY_TOPIC", self._config["msgTraceTopicName"])

    @staticmethod
    def raw(name: str, queues: int, perm: int, *, sys_flag: int = 0, filter_type: str = "SINGLE_TAG") -> dict[str, Any]:
        """The JSON object of a topic."""
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
        """A topic, or None."""
        return self.table.get(topic)

    def put(self, raw: dict[str, Any]) -> None:
        """Set a topic (17), persist the table soon, register the change."""
        self.table.put(raw["topicName"], raw)
        self._changed([raw["topicName"]])

    @contextlib.asynccontextmanager
    async def leaving(self, topic: str) -> AsyncIterator[None]:
        """Take a topic out of the table (215), persist it, register what is left; then the caller deletes the queues.

        No send makes the topic again until that has ended: its message would be stored in a topic that nobody knows.
        After a failure of the caller the topic is there as before. Raises: StorageError.
        """
        found = self.get(topic)
        self.table.delete(topic)
        self._leaving.add(topic)
        try:
            self._changed([])
            self.on_leaving(topic)
            await self._changes.settled()
            yield
        except BaseException:
            if found is not None:
                self.put(found.raw)
            raise
        finally:
            self._leaving.discard(topic)

    @property
    def is_full(self) -> bool:
        """Are there so many topics that no send makes another one?"""
        return len(self.table) >= int(self._config["maxAutoCreatedTopics"])

    def create_for_send(self, topic: str, template: str, queues: int, sys_flag: int) -> TopicConfig | None:
        """Make a topic that a producer sends to, after its template; None where the template does not allow it.

        Source: createTopicInSendMessageMethod.
        """
        found = self.get(topic)
        if found is not None:
            self._changes.wait_for(topic, self.table)
            return found
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
        """A topic that the broker itself needs, as %RETRY% and %DLQ%; made where it is not there.

        Source: createTopicInSendMessageBackMethod.
        """
        found = self.get(topic)
        if found is not None:
            self._changes.wait_for(topic, self.table)
            return found
        raw = self.raw(topic, queues, perm, sys_flag=sys_flag)
        self.put(raw)
        return TopicConfig(topic, raw)

    def permission_changed(self) -> None:
        """The broker's own permission is another one: register all topics anew."""
        self.table.touch()
        self._changed([])

    def is_written(self, topic: str) -> bool:
        """Is the topic on disk? Else the answer to the present request waits for that."""
        return not self._changes.wait_for(topic, self.table)

    def _changed(self, topics: list[str]) -> None:
        self._changes.made(self.table, topics)
        self.on_change(topics)
