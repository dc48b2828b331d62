"""Outcomes of a healthy store, as enums with RocketMQ's names and ordinals.

No outcome is an error: errors are exceptions of ``mqfast.errors``. This module imports no module of the package.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, StrEnum

__all__ = ["BoundaryType", "GetMessageStatus", "LogFlag", "PutMessageStatus", "StoreState"]


class PutMessageStatus(IntEnum):
    """The outcome of a put.

    Source: PutMessageStatus.
    """

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    PUT_TO_REMOTE_BROKER_FAIL = 11
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    WHEEL_TIMER_FLOW_CONTROL = 13
    WHEEL_TIMER_MSG_ILLEGAL = 14
    WHEEL_TIMER_NOT_ENABLE = 15

    @property
    def is_stored(self) -> bool:
        """Return true if the message is in the log, also for the three statuses of a timeout after the append."""
        return self <= PutMessageStatus.SLAVE_NOT_AVAILABLE


class GetMessageStatus(IntEnum):
    """The outcome of a get.

    Source: GetMessageStatus.
    """

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class BoundaryType(IntEnum):
    """The message that a search by time returns if several have the same store time: the first or the last.

    Source: BoundaryType.
    """

    LOWER = 0
    UPPER = 1


class LogFlag(IntFlag):
    """Reasons why a log takes no append. The numbers are those of ``LogFlag`` in store/log/log_state.pxd."""

    CLOSED = 1
    FAILED = 2
    FORKED = 4
    REFUSING = 8
    SLAVE = 16
    WAITING = 64


class StoreState(StrEnum):
    """The four states of a store; a store has exactly one.

    FULL: work waits for disk space; the state ends when there is space. FAILED: latched by a failed flush or write;
    reopen the store.
    """

    OPEN = "open"
    FULL = "full"
    FAILED = "failed"
    CLOSED = "closed"
