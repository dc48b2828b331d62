"""POP over remoting: 200050 to 200055 and 200151, as headers and codes around ``PopService``.

Source: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, NotificationProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.broker.pop.pop_service import PopService

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.processors import Processors

__all__ = ["PopProcessor"]


class PopProcessor:
    """Serves the requests of POP consumers.

    Attributes: ``service``: for the gRPC server as well.
    Thread: that of the event loop.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.service: Final = PopService(context)

    def register(self, processors: Processors) -> None:
        """Register the handlers."""

    def start(self) -> None:
        """Start redelivery."""

    async def stop(self) -> None:
        """Answer held requests, and stop redelivery."""
