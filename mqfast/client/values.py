"""The argument and result types of clients: statuses, queues, credentials, results.

No imports beyond the standard library, and no I/O. Source: the classes of the same names in RocketMQ's client and
common.
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
    """Numbers of RocketMQ, printed as names."""

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


class SendStatus(_NamedEnum):
    """The result of a send. With every status the master has stored the message. Source: SendStatus."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    """The flush to disk was not confirmed in time."""
    FLUSH_SLAVE_TIMEOUT = 2
    """No slave confirmed the message in time."""
    SLAVE_NOT_AVAILABLE = 3
    """There is no slave."""


class ConsumeStatus(_NamedEnum):
    """The result of a handler. Source: ConsumeConcurrentlyStatus."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class TransactionStatus(_NamedEnum):
    """The state of a local transaction. Source: LocalTransactionState."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2
    """The broker checks the transaction again later."""


class PullStatus(_NamedEnum):
    """The result of a pull. Source: PullStatus."""

    FOUND = 0
    NO_NEW_MSG = 1
    NO_MATCHED_MSG = 2
    OFFSET_ILLEGAL = 3


class MessageQueue(NamedTuple):
    """A queue of a topic; queues compare by topic, broker and id, as in Java. Source: MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


class Credentials(NamedTuple):
    """The credentials of a client; ``repr`` shows no secret. Source: SessionCredentials."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


@final
class SendResult(NamedTuple):
    """The result of a send. Source: SendResult.

    Attributes:
        status: SEND_OK, or the confirmation that is missing.
        msg_id: the unique id of the client, equal for all attempts of a send.
        offset_msg_id: the id of the broker: broker address and physical offset.
        message_queue: the queue of the message.
        queue_offset: the offset in that queue.
        transaction_id, recall_handle, region_id: None if the broker returns none.
        msg_ids: the unique ids of a batch; for a single message a sequence of length 1.
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
        """Return whether the status is SEND_OK."""
        return self.status == SendStatus.SEND_OK

    @property
    def offset(self) -> int:
        """Return the queue offset, with the name of rocketmq-client-python."""
        return self.queue_offset


class ResetPlan(NamedTuple):
    """The effect of an offset reset on a queue.

    Attributes: ``now`` and ``to``: queue offsets; ``skipped``: messages that the group will not consume; ``replayed``:
    messages that are delivered again.
    """

    queue: MessageQueue
    now: int
    to: int
    skipped: int
    replayed: int


class Retry(Exception):
    """Raise in a handler: deliver the message again.

    Args: delay_level: RocketMQ's delay level, 0 for the broker's schedule, -1 for the dead-letter queue at once.
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
"""A body; text is encoded as UTF-8."""
Address: TypeAlias = str | Sequence[str]
"""Name servers: ``"a:9876;b:9876"`` or a list."""
When: TypeAlias = datetime | int
"""A time: a datetime (without zone: local time), or milliseconds since the epoch."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(when: When) -> int:
    """Convert a time to milliseconds since the epoch. Raises: UsageError."""
    if isinstance(when, datetime):
        return round((when.astimezone(UTC) - _EPOCH).total_seconds() * 1000)
    if not is_whole(when):
        raise ClientUsageError(f"moment: expected a datetime or milliseconds since the epoch, found {when!r}")
    return when
