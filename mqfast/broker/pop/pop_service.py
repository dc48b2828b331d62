"""PopService: POP, acks, change of the invisible time, dead letters and notifications, for remoting and gRPC.

Callers check the rights of their client first, and pass a request on once. No answer comes before its record is stored:
a check-point before the messages, an ack record before the ack. Source: PopMessageProcessor, AckMessageProcessor,
ChangeInvisibleTimeProcessor, NotificationProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqfast.broker.pop.pop_result import ANY_QUEUE, PopRequest, PopResult
from mqfast.broker.pop.receipt_handle import ReceiptHandle
from mqfast.errors import CallRefused

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["PopService"]


class PopService:
    """The POP of a broker; ``Parts.pop.service``. Thread: that of the event loop.

    A cancelled ``pop`` or ``notification`` waits no longer. A ``pop`` that has taken messages is not cancelled: their
    invisible time runs.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def pop(self, request: PopRequest) -> PopResult:
        """Return messages and store their check-points; wait for messages if there are none.

        Raises: CallRefused with RocketMQ's code and text: no permission (16), unknown topic (17), unknown group (26),
        a filter that cannot be parsed (23), numbers out of range (29), a system topic or a disabled timer (1).
        """
        raise NotImplementedError

    async def ack(self, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Store that a message is consumed. A message that is unknown, or acked already, is no error.

        Args: topic: the topic of the request, or the retry topic.
        Raises: CallRefused for an unknown topic (17), a wrong queue (13), an offset out of range (208), a handle of
        another broker (29), a failed put.
        """
        raise NotImplementedError

    async def ack_batch(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> list[CallRefused | None]:
        """Store several acks with as few records as possible; return the refusal of each handle, None if acked."""
        raise NotImplementedError

    async def change_invisible_time(
        self, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int, *, is_suspend: bool = False
    ) -> ReceiptHandle:
        """Make a message due after ``invisible_ms`` from now, and return the new handle; the old one is acked.

        Args: is_suspend: the redelivery does not count as a failed attempt.
        Raises: as ``ack``; the offset after the last message is out of range (208).
        """
        raise NotImplementedError

    async def forward_to_dead_letter_queue(
        self, group: str, topic: str, handle: ReceiptHandle, physical_offset: int | None = None
    ) -> None:
        """Store a message in the dead letter topic of the group, and ack the message.

        Args: physical_offset: from the client's handle; compared with that of the message; None: not compared.
        Raises: as ``ack``; a physical offset of another message (29); the message is gone (22).
        """
        raise NotImplementedError

    async def notification(self, group: str, topic: str, queue_id: int = ANY_QUEUE, wait_ms: int = 0) -> bool:
        """Return True if a POP of the group would find messages now, or within ``wait_ms``."""
        raise NotImplementedError
