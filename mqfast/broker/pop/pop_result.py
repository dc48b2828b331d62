"""Requests and results of POP, for the remoting and the gRPC server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mqfast.broker.pop.receipt_handle import ReceiptHandle

__all__ = ["ANY_QUEUE", "PopRequest", "PopResult", "PopStatus", "PoppedMessage"]

ANY_QUEUE = -1


class PopStatus(Enum):
    """The outcome of a POP. FULL: the number of waiting requests is at its limit."""

    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"
    FULL = "FULL"


@dataclass(slots=True, kw_only=True)
class PopRequest:
    """A request for messages, as an admitted caller makes it.

    Attributes: ``topic``: never a retry topic, which is read together with the topic; ``queue_id``: ANY_QUEUE for all
        queues; ``max_count``: 1 to 32; ``invisible_ms``: the time in which no other consumer gets the messages;
        ``wait_ms``: the longest wait for a message; 0: no wait; ``from_max``: a new group begins at the end of a
        queue; ``expression_type``: TAG or SQL92; ``expression``: None and ``*`` match all; ``is_orderly``: messages
        of a queue in order, the next batch after the acks of the previous batch; ``attempt_id``: a repeated orderly
        request with the same id gets the same batch; ``check_rights``: called after a wait, raises CallRefused.
    """

    group: str
    topic: str
    queue_id: int = ANY_QUEUE
    max_count: int = 32
    invisible_ms: int = 60_000
    wait_ms: int = 0
    from_max: bool = True
    expression_type: str | None = "TAG"
    expression: str | None = None
    is_orderly: bool = False
    attempt_id: str | None = None
    check_rights: Callable[[], object] | None = None


class PoppedMessage(NamedTuple):
    """A delivered message.

    Attributes: ``record``: the stored record; that of a retry has the original topic and the property POP_CK;
        ``handle``: for ack and change of the invisible time; ``physical_offset``: of the record in the log;
        ``reconsume_times``: earlier deliveries; of orderly POP as well, although a record does not count these.
    """

    record: bytes | memoryview
    handle: ReceiptHandle
    physical_offset: int
    reconsume_times: int


@dataclass(slots=True)
class PopResult:
    """The result of a POP; the check-points of the messages are stored.

    Attributes: ``rest``: messages that remain in the queues that were read; ``revive_queue_id``: of all messages;
        ``start_offset_info``, ``message_offset_info``, ``order_count_info``: texts for RocketMQ's remoting clients.
    """

    status: PopStatus
    pop_time: int = 0
    invisible_ms: int = 0
    revive_queue_id: int = 0
    rest: int = 0
    messages: list[PoppedMessage] = field(default_factory=list)
    start_offset_info: str = ""
    message_offset_info: str = ""
    order_count_info: str = ""
