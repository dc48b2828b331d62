"""Health probes over HTTP: /live, /ready and /health.

The result is never "ok" if a send would fail. Source: none in RocketMQ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mqfast.broker.metadata.topic_manager import WRITE
from mqfast.broker.metrics.http_server import HttpResponse
from mqfast.store.base.results import StoreState

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.replication.replica_manager import ReplicaManager

__all__ = ["Health"]


class Health:
    """Answers probes: 200 or 503, with reasons. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager) -> None:
        self._context = context
        self._replicas = replicas

    async def live(self) -> HttpResponse:
        """Answer /live: the event loop runs."""
        return _reply([])

    async def ready(self) -> HttpResponse:
        """Answer /ready: the broker serves, and clients can find the broker."""
        return _reply(self.not_ready())

    async def health(self) -> HttpResponse:
        """Answer /health: ready, and sends are stored."""
        return _reply([*self.not_ready(), *self.not_writable()])

    def not_ready(self) -> list[str]:
        """Return the reasons why clients are not served."""
        context = self._context
        reasons = []
        if context.stopping.is_set():
            reasons.append("the broker stops")
        if context.store.state is StoreState.CLOSED:
            reasons.append("the store is closed")
        registered = context.registration.registered
        if context.config.name_servers and not any(registered.values()):
            reasons.append("no name server has registered the broker")
        return reasons

    def not_writable(self) -> list[str]:
        """Return the reasons why a send would be refused."""
        context = self._context
        reasons = []
        if not context.config["brokerPermission"] & WRITE:
            reasons.append("brokerPermission has no write bit")
        state = context.store.state
        if state is StoreState.FAILED:
            reasons.append("a write or sync of the store failed; it needs a restart")
        if state is StoreState.FULL:
            reasons.append("the disk is full")
        if self._replicas.no_master is not None:
            reasons.append(self._replicas.no_master)
        if context.config["startAcceptSendRequestTimeStamp"] > context.now_ms():
            reasons.append("startAcceptSendRequestTimeStamp lies ahead")
        return reasons


def _reply(reasons: list[str]) -> HttpResponse:
    body = {"status": "failing" if reasons else "ok", "reasons": reasons}
    return HttpResponse(503 if reasons else 200, "application/json", json.dumps(body).encode() + b"\n")
