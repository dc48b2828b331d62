"""The admin part of a broker: all requests of admins.

Room: broker. It must never serve a request itself: the files beside it do. Codes: 12, 17, 18, 21, 25, 26, 28, 33, 45,
200-202, 207, 208, 215, 222, 223, 225, 300, 303, 305-307, 309, 314-317, 321, 323, 328, 329, 343, 345, 351-353, 400-402,
2001-2004. Source: AdminBrokerProcessor, QueryMessageProcessor, QueryAssignmentProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.broker.admin.assignment import Assignment
from mqfast.broker.admin.client_requests import ClientRequests
from mqfast.broker.admin.group_requests import GroupRequests
from mqfast.broker.admin.progress import Progress
from mqfast.broker.admin.query import Query
from mqfast.broker.admin.runtime_info import RuntimeInfo
from mqfast.broker.admin.settings_requests import SettingsRequests
from mqfast.broker.admin.topic_requests import TopicRequests
from mqfast.remoting.processors import Lane, Processors

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["Admin"]


class Admin:
    """Serves admins. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context

    def register(self, processors: Processors) -> None:
        """Queries and admin requests have a lane each."""
        context = self._context
        query, admin = Lane("query", queue_max=20_000), Lane("admin", queue_max=10_000)
        Query(context).register(processors, query)
        RuntimeInfo(context, processors).register(processors, admin)
        for kind in (TopicRequests, GroupRequests, Progress, ClientRequests, SettingsRequests, Assignment):
            kind(context).register(processors, admin)

    def start(self) -> None:
        """Nothing runs by the clock."""

    async def stop(self) -> None:
        """Nothing runs by the clock."""
