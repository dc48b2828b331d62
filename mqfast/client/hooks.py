"""Hooks before and after every send and every consumption.

Exceptions of hooks are logged. No overhead without hooks. Source:
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

__all__ = ["ClientHook", "ConsumeContext", "SendContext", "call_hooks"]

_log = logging.getLogger("mqfast.client.hooks")


class SendContext:
    """A send. Attributes: queue, result, error and seconds are set after the send; ``state`` is free for hooks;
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
    """A call of a handler. Attributes: error and seconds are set after the call; ``state`` is free for hooks.

    ``operation`` is "process", or "receive" for messages of a pull consumer, which have no end of processing.
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
    """The base of hooks: override the needed methods; an exception of a hook is logged, never raised.

    Thread: the thread or loop of the send or the handler.
    """

    def before_send(self, context: SendContext) -> None:
        """Process the begin of a send."""

    def after_send(self, context: SendContext) -> None:
        """Process the end of a send, with or without an error."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Process the begin of a handler."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Process the end of a handler, with or without an error."""


def call_hooks(hooks: Sequence[ClientHook], what: str, context: SendContext | ConsumeContext) -> None:
    """Call a method of every hook."""
    for hook in hooks:
        try:
            getattr(hook, what)(context)
        except BaseException as error:
            if is_passed_on(error):
                raise
            _log.exception("hook %s.%s failed", type(hook).__name__, what)
