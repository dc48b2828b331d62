"""AsyncSimpleConsumer: SimpleConsumer in the running event loop, without a thread and without blocking calls.

Source: as ``simple_consumer.py``.
"""

from __future__ import annotations

from mqfast.client.consumer.on_demand import AsyncOnDemandConsumer
from mqfast.client.consumer.simple.simple_base import SimpleConsumerBase

__all__ = ["AsyncSimpleConsumer"]


class AsyncSimpleConsumer(AsyncOnDemandConsumer, SimpleConsumerBase):
    """Messages on demand by POP in an event loop: arguments, methods and rules of ``SimpleConsumer``.

        async with AsyncSimpleConsumer("report", topics="orders") as consumer:
            for message in await consumer.receive():
                print(message.body)
                await consumer.ack(message)

    Messages of a cancelled ``receive`` come again after the invisible time.

    Thread: that of the event loop of ``start``.
    """

    async def close(self, timeout_s: float | None = None) -> None:
        """Leave the group. Messages without an ack come again after the invisible time."""
        await self._close(timeout_s, all_handed_out=True)
