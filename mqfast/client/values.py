"""The values that users of a client give and get: statuses, queues, credentials, results.

Room: client. It must never import a library beyond the standard one, and never do I/O. Source: the classes of the same
names in RocketMQ's client and common.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias, final

from mqfast.errors import ClientUsageError
from mqfast.util.validate import is_whole

__all__ = [
    "Address",
    "Body",
    "ConsumeStatus",
    "Credentials",
    "MessageQueue",
    "PullStatus",
    "ResetPlan",
    "Retry",
    "SendResult",
    "SendStatus",
    "TransactionStatus",
    "When",
    "milliseconds",
]


class _NamedEnum(IntEnum):
    """Numbers of RocketMQ that print as their names."""

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


class SendStatus(_NamedEnum):
    """How a message was stored. All four mean that the master has it. Source: SendStatus."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    """The disk did not confirm it in time."""
    FLUSH_SLAVE_TIMEOUT = 2
    """No slave confirmed it in time."""
    SLAVE_NOT_AVAILABLE = 3
    """There is no slave."""


class ConsumeStatus(_NamedEnum):
    """What became of a message. Source: ConsumeConcurrentlyStatus."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class TransactionStatus(_NamedEnum):
    """What a producer says of its local transaction. Source: LocalTransactionState."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2
    """The broker asks again later."""


class PullStatus(_NamedEnum):
    """What a pull found. Source: PullStatus."""

    FOUND = 0
    NO_NEW_MSG = 1
    NO_MATCHED_MSG = 2
    OFFSET_ILLEGAL = 3


class MessageQueue(NamedTuple):
    """One queue of a topic; queues compare by topic, broker and id, as Java's do. Source: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


class Credentials(NamedTuple):
    """Whom a client says that it is; ``repr`` shows no secret. Source: SessionCredentials."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


@final
class SendResult(NamedTuple):
    """What became of one send; see the attributes. Source: SendResult.

    Attributes:
        status: SEND_OK, or what the broker could not confirm.
        msg_id: the unique id that the client made; equal over all attempts of a send.
        offset_msg_id: the broker's id, which holds its address and the physical offset.
        message_queue: the queue that has the message.
        queue_offset: the message's place in it.
        transaction_id, recall_handle, region_id: None where the broker says none.
        msg_ids: the unique ids of a batch; of a single message one.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = None
    msg_ids: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """Is the status SEND_OK?"""
        return self.status == SendStatus.SEND_OK

    @property
    def offset(self) -> int:
        """The queue offset, by the name that rocketmq-client-python has for it."""
        return self.queue_offset


class ResetPlan(NamedTuple):
    """What a reset of an offset would do to one queue.

    Attributes: ``now`` and ``to``: queue offsets; ``skipped``: messages that nobody will see; ``replayed``: messages
    that come again.
    """

    queue: MessageQueue
    now: int
    to: int
    skipped: int
    replayed: int


class Retry(Exception):
    """Raised in a handler: deliver the message again.

    Args: delay_level: RocketMQ's delay level, 0 for the broker's schedule, -1 for the dead letters at once.
        reason: for the log.
    """

    def __init__(self, delay_level: int = 0, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_level = delay_level
        self.reason = reason

    def __repr__(self) -> str:
        return f"Retry(delay_level={self.delay_level!r}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[type[Retry], tuple[int, str]]:
        return Retry, (self.delay_level, self.reason)


Body: TypeAlias = bytes | bytearray | memoryview | str
"""A body; text goes as UTF-8."""
Address: TypeAlias = str | Sequence[str]
"""Name servers: ``"a:9876;b:9876"`` or a list."""
When: TypeAlias = datetime | int
"""A moment: a datetime (without zone: local time), or milliseconds since the epoch."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(when: When) -> int:
    """A moment in milliseconds since the epoch. Raises: UsageError."""
    if isinstance(when, datetime):
        return round((when.astimezone(UTC) - _EPOCH).total_seconds() * 1000)
    if not is_whole(when):
        raise ClientUsageError(f"moment: expected a datetime or milliseconds since the epoch, found {when!r}")
    return when
