"""The admin part of a broker: all requests of admins, and metrics and probes over HTTP.

The handlers are in the files beside this one. Codes: 12, 17, 18, 21, 25, 26, 28, 33, 45, 200-202, 207, 208, 215, 222,
223, 225, 300, 303, 305-307, 309, 314-317, 321, 328, 329, 343, 345, 351-353, 400-402, 907, 2001-2004. Source:
AdminBrokerProcessor, QueryMessageProcessor, QueryAssignmentProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mqfast.broker.admin.client_requests import ClientRequests
from mqfast.broker.admin.consume_progress import Progress
from mqfast.broker.admin.group_requests import GroupRequests
from mqfast.broker.admin.query import Query
from mqfast.broker.admin.queue_assignment import Assignment
from mqfast.broker.admin.runtime_info import RuntimeInfo
from mqfast.broker.admin.settings_requests import SettingsRequests
from mqfast.broker.admin.topic_requests import TopicRequests
from mqfast.broker.metrics.health import Health
from mqfast.broker.metrics.http_server import HttpServer
from mqfast.broker.metrics.metrics import Metrics
from mqfast.remoting.processors import ConcurrencyLimit, Processors

if TYPE_CHECKING:
    from mqfast.broker.parts import BrokerContext

__all__ = ["Admin"]

_log = logging.getLogger("mqfast.broker")


class Admin:
    """Serves admins. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context
        self._processors: Processors
        self._starting: asyncio.Task[None] | None = None

    def register(self, processors: Processors) -> None:
        """Register all handlers; queries and admin requests have separate concurrency limits."""
        context = self._context
        self._processors = processors
        query, admin = ConcurrencyLimit("query", queue_max=20_000), ConcurrencyLimit("admin", queue_max=10_000)
        Query(context).register(processors, query)
        RuntimeInfo(context, processors).register(processors, admin)
        for requests in (TopicRequests, GroupRequests, Progress, ClientRequests, SettingsRequests, Assignment):
            requests(context).register(processors, admin)

    def start(self) -> None:
        """Serve metrics and probes over HTTP if ``metricsExporterType`` is PROM."""
        config = self._context.config
        exporter_type = str(config["metricsExporterType"]).strip().upper()
        if config.serves_metrics:
            self._starting = asyncio.ensure_future(self._serve_http())
        elif exporter_type != "DISABLE":
            _log.warning(
                "metricsExporterType: expected DISABLE or PROM, found %s: no metrics are served", exporter_type
            )

    async def _serve_http(self) -> None:
        context, config = self._context, self._context.config
        metrics, health = Metrics(context, self._processors), Health(context)
        routes = {
            "/metrics": metrics.scrape,
            "/live": health.live,
            "/ready": health.ready,
            "/health": health.health,
        }
        server = HttpServer(routes, logger=_log)
        host, port = config["metricsPromExporterHost"] or "127.0.0.1", config["metricsPromExporterPort"]
        try:
            await server.start(host, port)
        except (OSError, OverflowError) as error:
            _log.warning("metricsPromExporterPort: no metrics are served: %s:%d: %s", host, port, error)
            return
        context.http = server
        _log.info("metrics and probes: http://%s:%d/metrics", *server.address)

    async def stop(self) -> None:
        """Stop serving."""
        if self._starting is not None:
            await self._starting
        if self._context.http is not None:
            await self._context.http.stop()
            self._context.http = None
