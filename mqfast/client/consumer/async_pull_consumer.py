"""AsyncPullConsumer: PullConsumer in the running event loop, without a thread and without blocking calls.

Source: as ``pull_consumer.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mqfast.client.consumer.call import AsyncCalls, Work
from mqfast.client.consumer.pull.pull_base import PullConsumerBase
from mqfast.client.consumer.pull.settings import new_subscription
from mqfast.client.delivery import Delivery
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientClosed, MqfastError

__all__ = ["AsyncPullConsumer"]

T = TypeVar("T")
_LOOK_AGAIN_S: Final = 5.0
_log = logging.getLogger("mqfast.client.consumer")


class AsyncPullConsumer(PullConsumerBase, AsyncCalls):
    """Messages on demand in an event loop: arguments, methods and rules of ``PullConsumer``.

        async with AsyncPullConsumer("report", topics="orders") as consumer:
            async for message in consumer:
                print(message.body)

    A cancelled ``poll`` or loop hands out no message: the next poll or loop gets the messages.

    Thread: that of the event loop in which it was started.
    """

    def _set_up(self) -> None:
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None, all_handed_out=kind is None)

    async def start(self) -> Self:
        """Join the group and begin to pull; the first other call does the same.

        Raises: ConnectError, SubscriptionError, ClientClosed.
        """
        self._check_open()
        if not self._is_started:
            async with self._starting:
                if not self._is_started:
                    await self._engine.start(lambda: self._is_closed)
                    self._loop = asyncio.get_running_loop()
                    self._is_started = True
        self._engine.parts.instance.check_here()
        return self

    async def close(self, timeout_s: float | None = None) -> None:
        """Leave the group; with auto commit, commit all messages that were handed out."""
        await self._close(timeout_s, all_handed_out=True)

    async def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_started and self._loop is not asyncio._get_running_loop():
            _log.warning("group %s: closed outside of its event loop: messages may come again", self._settings.group)
        elif self._is_started:
            limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    await self._engine.close(all_handed_out=all_handed_out)
            except (MqfastError, TimeoutError) as error:
                _log.warning("group %s: the pull consumer did not end in order in %g s: %s", self.group, limit_s, error)

    def __del__(self) -> None:
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        warnings.warn(f"pull consumer of group {self.group} was not closed", ResourceWarning, stacklevel=2, source=self)
        loop, engine = self._loop, self._engine
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: loop.create_task(engine.close(all_handed_out=False)))

    async def _run(self, work: Work[T]) -> T:
        try:
            await self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return await work.coroutine

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
