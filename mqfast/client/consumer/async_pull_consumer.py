"""AsyncPullConsumer: PullConsumer in the running event loop, without a thread and without blocking calls.

Source: as ``pull_consumer.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from mqfast.client.consumer.on_demand import AsyncOnDemandConsumer
from mqfast.client.consumer.pull.pull_base import PullConsumerBase
from mqfast.client.consumer.pull.settings import new_subscription
from mqfast.client.delivery import Delivery
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientClosed

__all__ = ["AsyncPullConsumer"]

_LOOK_AGAIN_S: Final = 5.0


class AsyncPullConsumer(AsyncOnDemandConsumer, PullConsumerBase):
    """Messages on demand in an event loop: arguments, methods and rules of ``PullConsumer``.

        async with AsyncPullConsumer("report", topics="orders") as consumer:
            async for message in consumer:
                print(message.body)

    A cancelled ``poll`` or loop hands out no message: the next poll or loop gets the messages.

    Thread: that of the event loop in which it was started.
    """

    async def close(self, timeout_s: float | None = None) -> None:
        """Leave the group; with auto commit, commit all messages that were handed out."""
        await self._close(timeout_s, all_handed_out=True)

    # --- which queues ---

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Add or replace the subscription of a topic. Raises: UsageError, SubscriptionError, ConnectError."""
        self._check_open()
        wanted = new_subscription(topic, tags, sql, self._settings.namespace)
        if self._is_started:
            await self._engine.subscribe(wanted)
        else:
            self._engine.subscriptions[wanted.topic] = wanted

    def assignment(self) -> Mapping[MessageQueue, int]:
        """Return queue of this member -> offset of the next message that is handed out; -1: not known yet."""
        self._check_open()
        return self._engine.positions()

    # --- messages ---

    async def poll(self, timeout_s: float = 5.0, max_count: int = 32) -> Sequence[Delivery]:
        """Wait for the next messages; acknowledge the messages of earlier polls.
        Raises: OffsetMoved, Refused, ClientClosed.
        """
        self._check_poll(timeout_s, max_count)
        await self.start()
        cache, loop = self._engine.cache, asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        cache.acknowledge()
        while not (messages := cache.poll(max_count)):
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                break
            await self._engine.wait(remaining_s)
        refusal = None if messages else self._engine.refusal(has_waited=timeout_s > 0)
        if refusal is not None:
            raise refusal
        return self._call_hooks(messages)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Iterate over messages until the consumer is closed; the request for the next message acknowledges a message.

        Raises (while looping): OffsetMoved, Refused.
        """
        await self.start()
        cache = self._engine.cache
        cache.rewind()
        before: Delivery | None = None
        while True:
            try:
                message = cache.next(before)
            except ClientClosed:
                return
            before = message
            if message is not None:
                self._call_hooks((message,))
                yield message
            elif not await self._engine.wait(_LOOK_AGAIN_S):
                refusal = self._engine.refusal()
                if refusal is not None:
                    raise refusal

    def stats(self) -> Mapping[str, Any]:
        """Return queues, offsets, counts of cached messages, and errors."""
        return self._engine.stats() if self._is_started else {"group": self.group}
