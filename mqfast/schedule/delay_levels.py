"""The delay levels of ``messageDelayLevel``: which messages are parked, in which queue, and for how long.

No message is stored here: the caller of a put applies the result. Source: HookUtils.handleScheduleMessage,
ScheduleMessageService.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mqfast import properties as names
from mqfast.errors import MessageIllegal
from mqfast.store.reader.timer_files import TIMER_TOPIC
from mqfast.util.java_text import java_number

__all__ = ["BROKER_TOPICS", "SCHEDULE_TOPIC", "DelayLevels", "QueuePosition", "real_place"]

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BROKER_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_mqfast_writes",
    }
)  # fmt: skip
"""Topics that only the broker writes, and whose records the broker executes. Source:
TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET, which lacks the topic of the timer."""
_UNKNOWN_LEVEL_MS: Final = 1000
_MARK: Final = names.DELAY.encode() + b"\x01"
_TIMED: Final = (names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
_TRANSACTION_MASK: Final = 12
_COMMITTED: Final = 8


class QueuePosition(NamedTuple):
    """The topic, queue and property string with which a message is stored."""

    topic: str
    queue_id: int
    properties: bytes


def real_place(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue that a parked message is for.

    Returns: None if the properties lack them, or name a topic that only the broker writes: no message is delivered
        there,
    whatever the origin of the properties.
    """
    topic, queue = properties.get(names.REAL_TOPIC), java_number(properties.get(names.REAL_QID, ""))
    return None if not topic or topic in BROKER_TOPICS or queue is None or queue < 0 else (topic, queue)


class DelayLevels:
    """The levels of a broker, from 1 on.

    Args: delays_ms: the delay of each level; see ``StoreConfig.delay_levels_ms``.
    Thread: any.
    """

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self.delays_ms: Final = tuple(delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level; 1 s for an unknown level, as in RocketMQ."""
        return self.delays_ms[level - 1] if 0 < level <= len(self.delays_ms) else _UNKNOWN_LEVEL_MS

    def park(self, topic: str, queue_id: int, properties: bytes, sys_flag: int = 0) -> QueuePosition | None:
        """Return where a message with a delay level (DELAY above 0) is parked; None without a delay level.

        A level above the last level becomes the last level. REAL_TOPIC and REAL_QID store the destination; properties
        of the timer are removed, since the level has precedence. A prepared or rolled back transaction is never parked.
        Raises: MessageIllegal for a DELAY that is no number.
        """
        if _MARK not in properties or sys_flag & _TRANSACTION_MASK not in (0, _COMMITTED):
            return None
        pairs = names.decode(properties)
        level = java_number(pairs.get(names.DELAY, "0"))
        if level is None:
            raise MessageIllegal(f"property DELAY: expected a whole number, found {pairs[names.DELAY]!r}")
        if level <= 0:
            return None
        for name in _TIMED:
            pairs.pop(name, None)
        if level > len(self.delays_ms):
            level = len(self.delays_ms)
            pairs[names.DELAY] = str(level)
        pairs[names.REAL_TOPIC] = topic
        pairs[names.REAL_QID] = str(queue_id)
        return QueuePosition(SCHEDULE_TOPIC, level - 1, names.encode(pairs))
