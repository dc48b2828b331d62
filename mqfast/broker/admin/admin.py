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
from mqfast.broker.admin.consume_progress import ConsumeProgress
from mqfast.broker.admin.group_requests import GroupRequests
from mqfast.broker.admin.query import Query
from mqfast.broker.admin.queue_assignment import QueueAssignment
from mqfast.broker.admin.runtime_info import RuntimeInfo
from mqfast.broker.admin.settings_requests import SettingsRequests
from mqfast.broker.admin.topic_requests import TopicRequests
from mqfast.broker.metrics.health import Health
from mqfast.broker.metrics.http_server import HttpServer
from mqfast.broker.metrics.metrics import Metrics
from mqfast.remoting.processors import ConcurrencyLimit, Processors

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.pop.pop_service import PopService
    from mqfast.broker.pull.long_polling import LongPolling
    from mqfast.broker.replication.replica_manager import ReplicaManager
    from mqfast.broker.schedule.delay_level import Delays
    from mqfast.broker.schedule.timer import BrokerTimers
    from mqfast.broker.transaction.open_transactions import OpenTransactions

__all__ = ["Admin"]

_log = logging.getLogger("mqfast.broker")


class Admin:
    """Serves admins.

    Attributes: ``http``: the server of metrics and probes while it runs.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        context: BrokerContext,
        processors: Processors,
        *,
        replicas: ReplicaManager,
        long_polling: LongPolling,
        delays: Delays,
        timers: BrokerTimers,
        open_transactions: OpenTransactions,
        pop: PopService,
    ) -> None:
        self.http: HttpServer | None = None
        self._context: Final = context
        self._query = Query(context)
        self._requests = (
            RuntimeInfo(context, processors, replicas, timers),
            TopicRequests(context, long_polling),
            GroupRequests(context),
            ConsumeProgress(context, delays),
            ClientRequests(context),
            SettingsRequests(context),
            QueueAssignment(context),
        )
        self._metrics = Metrics(context, processors, replicas, long_polling, timers, open_transactions, pop)
        self._health = Health(context, replicas)
        self._starting: asyncio.Task[None] | None = None

    def register(self, processors: Processors) -> None:
        """Register all handlers; queries and admin requests have separate concurrency limits."""
        query, admin = ConcurrencyLimit("query", queue_max=20_000), ConcurrencyLimit("admin", queue_max=10_000)
        self._query.register(processors, query)
        for requests in self._requests:
            requests.register(processors, admin)

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
        config, health = self._context.config, self._health
        routes = {
            "/metrics": self._metrics.scrape,
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
        self.http = server
        _log.info("metrics and probes: http://%s:%d/metrics", *server.address)

    async def stop(self) -> None:
        """Stop serving."""
        if self._starting is not None:
            await self._starting
        if self.http is not None:
            await self.http.stop()
            self.http = None
