"""AsyncPullConsumer: PullConsumer in the running event loop; it starts no thread.

A face over ``pull/engine.py``. It must never block the loop. Source: as ``pull_consumer.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self

from mqfast.client.consumer.pull.settings import new_subscription
from mqfast.client.consumer.pull_consumer import PullArguments
from mqfast.client.consumer.pull_request import PullAnswer
from mqfast.client.delivery import Delivery
from mqfast.client.values import MessageQueue, When, milliseconds
from mqfast.errors import ClientClosed, MqfastError

__all__ = ["AsyncPullConsumer"]

_LOOK_AGAIN_S: Final = 5.0
_log = logging.getLogger("mqfast.client.consumer")


class AsyncPullConsumer(PullArguments):
    """Messages on demand in an event loop: the arguments, methods and rules of ``PullConsumer``.

        async with AsyncPullConsumer("report", topics="orders") as consumer:
            async for message in consumer:
                print(message.body)

    A ``poll`` or loop that is cancelled hands nothing out: the messages come with the next one.

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
        """Make the consumer known and give it its queues; the first other call does it by itself.

        Raises: ConnectError, SubscriptionError, ClientClosed.
        """
        self._check_open()
        if not self._is_started:
            async with self._starting:
                if not self._is_started:
                    await self._engine.start(lambda: self._is_closed)
                    self._loop = asyncio.get_running_loop()
                    self._is_started = True
        self._engine.instance.check_here()
        return self

    async def close(self, timeout_s: float | None = None) -> None:
        """End: with auto commit everything that was handed out is committed; the group's other members take over."""
        await self._close(timeout_s, all_handed_out=True)

    async def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_started and self._loop is not asyncio._get_running_loop():
            _log.warning("group %s: closed outside of its event loop: messages may come again", self._settings.group)
        elif self._is_started:
            most = self._settings.close_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(most):
                    await self._engine.close(all_handed_out=all_handed_out)
            except (MqfastError, TimeoutError) as error:
                _log.warning("group %s: the pull consumer did not end in order in %g s: %s", self.group, most, error)

    def __del__(self) -> None:
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        warnings.warn(f"pull consumer of group {self.group} was not closed", ResourceWarning, stacklevel=2, source=self)
        loop, engine = self._loop, self._engine
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: loop.create_task(engine.close(all_handed_out=False)))

    # --- which queues ---

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Read a topic with the group. Raises: UsageError, SubscriptionError, ConnectError."""
        self._check_open()
        wanted = new_subscription(topic, tags, sql, self._settings.namespace)
        if self._is_started:
            await self._engine.shares.subscribe(wanted)
        else:
            self._engine.subscriptions[wanted.topic] = wanted

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        await self.start()
        await self._engine.shares.unsubscribe(self._topic(topic))

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read just these queues. Raises: UsageError, NoRoute, ConnectError."""
        wanted = self._wired(queues)
        await self.start()
        await self._engine.shares.assign(wanted)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic that can be read. Raises: NoRoute, ConnectError."""
        await self.start()
        return self._plain(await self._engine.queues(self._topic(topic)))

    def assignment(self) -> Mapping[MessageQueue, int]:
        """This member's queues -> the offset of the message that is handed out next; -1: not known yet."""
        self._check_open()
        return self._engine.positions()

    # --- messages ---

    async def poll(self, timeout_s: float = 5.0, max_count: int = 32) -> Sequence[Delivery]:
        """The next messages, as soon as there are any. Raises: OffsetMoved, Refused, ClientClosed."""
        self._check_poll(timeout_s, max_count)
        await self.start()
        cache, loop = self._engine.cache, asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        cache.acknowledge()
        while not (found := cache.take(max_count)):
            left = deadline - loop.time()
            if left <= 0:
                break
            await self._engine.wait(left)
        refusal = None if found else self._engine.refusal(has_waited=timeout_s > 0)
        if refusal is not None:
            raise refusal
        return self._told(found)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Messages until the consumer is closed, each acknowledged when the loop asks for the next.

        Raises (while looping): OffsetMoved, Refused.
        """
        await self.start()
        cache = self._engine.cache
        cache.rewind()
        before: Delivery | None = None
        while True:
            try:
                found = cache.next(before)
            except ClientClosed:
                return
            before = found
            if found is not None:
                self._told((found,))
                yield found
            elif not await self._engine.wait(_LOOK_AGAIN_S):
                refusal = self._engine.refusal()
                if refusal is not None:
                    raise refusal

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        tags: str = "*",
        sql: str | None = None,
        wait_s: float = 0,
    ) -> PullAnswer:
        """Read any queue at any offset, once. Raises: BrokerError, NoRoute, ConnectError, UsageError."""
        self._check_pull(offset, max_count, wait_s)
        on_wire = self._wire(queue)
        await self.start()
        return await self._engine.pull(on_wire, offset, max_count=max_count, tags=tags, sql=sql, wait_s=wait_s)

    # --- offsets ---

    async def seek(
        self, queue: MessageQueue, offset: int | Literal["earliest", "latest", "first", "last"] | datetime
    ) -> None:
        """Go on elsewhere. Raises: UsageError."""
        self._check_seek(offset)
        on_wire = self._wire(queue)
        await self.start()
        await self._engine.seek(on_wire, offset)

    async def offset_at(self, queue: MessageQueue, when: When) -> int:
        """The offset of the first message that was stored at a time or later."""
        milliseconds(when)
        on_wire = self._wire(queue)
        await self.start()
        return await self._engine.offset_at(on_wire, when)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is kept for the group; None: there is none."""
        on_wire = self._wire(queue)
        await self.start()
        return await self._engine.committed(on_wire)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep these offsets, or those behind all that was handed out. Raises: UsageError; what the store raises."""
        on_wire = self._checked_offsets(offsets)
        await self.start()
        await self._engine.commit(on_wire)

    # --- control ---

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull no more from these queues, or from all; what is cached is still handed out."""
        await self._paused(queues, True)

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull again."""
        await self._paused(queues, False)

    async def _paused(self, queues: Iterable[MessageQueue] | None, paused: bool) -> None:
        wanted = None if queues is None else self._wired(queues)
        await self.start()
        await self._engine.pause(wanted, paused=paused)

    def stats(self) -> Mapping[str, Any]:
        """What this consumer does: queues, offsets, what is cached, and why nothing comes."""
        return self._engine.stats() if self._is_started else {"group": self.group}
