"""Requests of brokers to a client, dispatched to the producer or consumer of the group.

A request about an unknown group is refused. Source: ClientRemotingProcessor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["CODES", "BrokerRequests", "Handler"]

Handler = Callable[[Channel, RemotingCommand], "RemotingCommand | Awaitable[RemotingCommand | None] | None"]
"""Serves one request in the loop; None: no response, or, for a request without a group, "not for me"."""

CODES: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)


class BrokerRequests:
    """The handlers of each code and group.

    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[int, str | None], list[Handler]] = {}
        self.processors = Processors()
        self.processors.register(CODES, self._dispatch, ConcurrencyLimit("broker requests"))

    def serve(self, code: int, group: str | None, handler: Handler) -> None:
        """Serve a code for a group; with group None each request of that code whose header names no group of this
        client.
        """
        self._handlers.setdefault((int(code), group), []).append(handler)

    def serve_all(self, group: str, handlers: Mapping[int, Handler]) -> None:
        """Serve these codes for a group."""
        for code, handler in handlers.items():
            self.serve(code, group, handler)

    def unserve_all(self, group: str, handlers: Mapping[int, Handler]) -> None:
        """Remove these handlers of a group."""
        for handler in handlers.values():
            self.unserve(group, handler)

    def unserve(self, group: str | None, handler: Handler) -> None:
        """Remove this handler."""
        for (code, owner), handlers in list(self._handlers.items()):
            if owner == group and handler in handlers:
                handlers.remove(handler)
                if not handlers:
                    del self._handlers[code, owner]

    async def _dispatch(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        fields = request.ext_fields
        group = fields.get("consumerGroup") or fields.get("group")
        named = tuple(self._handlers.get((request.code, group), ())) if group else ()
        for handler in named or tuple(self._handlers.get((request.code, None), ())):
            outcome = handler(channel, request)
            answer = outcome if outcome is None or isinstance(outcome, RemotingCommand) else await outcome
            if answer is not None or named:
                return answer
        if group and not named:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        return None
