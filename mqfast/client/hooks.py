"""What an application hears of every send and every consumption: hooks, and how they are called.

Room: client. It must never let a hook's exception out, and costs nothing where there is no hook. Source:
SendMessageHook, ConsumeMessageHook.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.values import ConsumeStatus, MessageQueue, SendResult
from mqfast.message import Message

if TYPE_CHECKING:
    from mqfast.client.delivery import Delivery

__all__ = ["ClientHook", "ConsumeContext", "SendContext", "tell"]

_log = logging.getLogger("mqfast.client.hooks")


class SendContext:
    """One send. Attributes: queue, result, error and seconds are there after it; ``state`` is the hook's own;
    ``is_half``: the first message of a transaction.
    """

    __slots__ = ("error", "group", "is_half", "message", "queue", "result", "seconds", "state")

    def __init__(self, message: Message, group: str) -> None:
        self.message = message
        self.group = group
        self.is_half = False
        self.queue: MessageQueue | None = None
        self.result: SendResult | None = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.state: dict[Any, Any] = {}


class ConsumeContext:
    """One call of a handler. Attributes: error and seconds are there after it; ``state`` is the hook's own.

    ``operation`` is "process", or "receive" where a pull consumer hands out messages, whose end nobody says.
    """

    __slots__ = ("error", "group", "messages", "operation", "seconds", "state", "status")

    def __init__(self, messages: Sequence[Delivery], group: str, operation: str = "process") -> None:
        self.messages = messages
        self.group = group
        self.operation = operation
        self.status = ConsumeStatus.CONSUME_SUCCESS
        self.error: Exception | None = None
        self.seconds = 0.0
        self.state: dict[Any, Any] = {}


class ClientHook:
    """Subclass what you need; an exception in a hook is logged, never passed on.

    Thread: the thread or loop of the send or the handler.
    """

    def before_send(self, context: SendContext) -> None:
        """A message is about to be sent."""

    def after_send(self, context: SendContext) -> None:
        """A send has ended, well or not."""

    def before_consume(self, context: ConsumeContext) -> None:
        """A handler is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """A handler has ended, well or not."""


def tell(hooks: Sequence[ClientHook], what: str, context: SendContext | ConsumeContext) -> None:
    """Call one method of every hook."""
    for hook in hooks:
        try:
            getattr(hook, what)(context)
        except BaseException as error:
            if is_passed_on(error):
                raise
            _log.exception("hook %s.%s failed", type(hook).__name__, what)
