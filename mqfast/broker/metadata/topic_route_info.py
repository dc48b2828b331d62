"""The readable queues of a topic at the other brokers of the cluster, as the name servers list these.

An answer is kept for some seconds, and for longer while no name server answers; then no other request is sent for some
seconds either. Requests for a topic at the same time share an answer. Nothing is requested without a configured name
server. Source: TopicRouteInfoManager.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from mqfast.broker.metadata.topic_manager import READ
from mqfast.errors import FieldError, RemotingError
from mqfast.remoting.bodies import build_tables, decode_body
from mqfast.remoting.codes import RequestCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["TopicRouteInfo"]

_TIMEOUT_MS: Final = 1000
_FRESH_S: Final = 5.0
_TOPICS_MAX: Final = 10_000
_QUEUES_MAX: Final = 65_536


class _QueueData(Struct, rename="camel"):
    broker_name: str = ""
    read_queue_nums: int = 0
    perm: int = 0


class _Route(Struct, rename="camel"):
    queue_datas: list[_QueueData] = field(default_factory=list)


class _Known(NamedTuple):
    until_s: float
    queues: dict[str, int]


class TopicRouteInfo:
    """Routes of topics. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context
        self._known: dict[str, _Known] = {}
        self._requests: dict[str, asyncio.Task[dict[str, int]]] = {}
        self._silent_until_s = 0.0  # no name server has answered

    async def others(self, topic: str) -> dict[str, int]:
        """Return broker name -> count of readable queues, without this broker."""
        known, now_s = self._known.get(topic), time.monotonic()
        if known is not None and now_s < known.until_s:
            return known.queues
        if now_s < self._silent_until_s:
            return {} if known is None else known.queues
        request = self._requests.get(topic)
        if request is None:
            request = self._requests[topic] = asyncio.ensure_future(self._renew(topic))
            request.add_done_callback(lambda _: self._requests.pop(topic, None))
        return await asyncio.shield(request)

    async def _renew(self, topic: str) -> dict[str, int]:
        queues = await self._requested(topic)
        known = self._known.pop(topic, None)  # the oldest answer is the first one of the dict
        if queues is None:
            self._silent_until_s = time.monotonic() + _FRESH_S
            queues = {} if known is None else known.queues
        if len(self._known) >= _TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = _Known(time.monotonic() + _FRESH_S, queues)
        return queues

    async def _requested(self, topic: str) -> dict[str, int] | None:
        """Return the answer of a name server; None if no name server answers."""
        context = self._context
        own: str = context.config["brokerName"]
        for server in context.config.name_servers:
            try:
                answer = await context.client.call(
                    server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout_ms=_TIMEOUT_MS
                )
                route = decode_body(bytes(answer.body), _Route, "route") if answer.code == 0 else _Route()
            except (RemotingError, FieldError, OSError):
                continue
            return {
                data.broker_name: max(0, min(_QUEUES_MAX, data.read_queue_nums))
                for data in route.queue_datas
                if data.perm & READ and data.broker_name != own
            }
        return None


build_tables(__name__)
