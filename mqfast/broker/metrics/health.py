"""Is the broker well? Asked by probes over HTTP: /live, /ready and /health.

Room: broker. It must never say that all is well when a send would fail. Source: none in RocketMQ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mqfast.broker.metadata.topic_manager import WRITE
from mqfast.broker.metrics.http_server import HttpResponse
from mqfast.store.base.results import StoreState

if TYPE_CHECKING:
    from mqfast.broker.parts import BrokerContext

__all__ = ["Health"]


class Health:
    """Answers probes: 200 or 503, and why. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def live(self) -> HttpResponse:
        """The event loop turns."""
        return _reply([])

    async def ready(self) -> HttpResponse:
        """The broker serves, and clients can find it."""
        return _reply(self.not_ready())

    async def health(self) -> HttpResponse:
        """The same, and sends are stored."""
        return _reply([*self.not_ready(), *self.not_writable()])

    def not_ready(self) -> list[str]:
        """Why clients do not get served."""
        context = self._context
        found = []
        if context.stopping:
            found.append("the broker stops")
        if context.store.state is StoreState.CLOSED:
            found.append("the store is closed")
        registered = context.registration.registered
        if context.config.name_servers and not any(registered.values()):
            found.append("no name server has registered the broker")
        return found

    def not_writable(self) -> list[str]:
        """Why a send would be refused."""
        context = self._context
        found = []
        if not context.config["brokerPermission"] & WRITE:
            found.append("brokerPermission has no write bit")
        state = context.store.state
        if state is StoreState.FAILED:
            found.append("a write or sync of the store failed; it needs a restart")
        if state is StoreState.FULL:
            found.append("the disk is full")
        if context.replicas.no_master is not None:
            found.append(context.replicas.no_master)
        if context.config["startAcceptSendRequestTimeStamp"] > context.now_ms():
            found.append("startAcceptSendRequestTimeStamp lies ahead")
        return found


def _reply(reasons: list[str]) -> HttpResponse:
    body = {"status": "failing" if reasons else "ok", "reasons": reasons}
    return HttpResponse(503 if reasons else 200, "application/json", json.dumps(body).encode() + b"\n")
