"""AsyncSimpleConsumer: SimpleConsumer in the running event loop, without a thread and without blocking calls.

Source: as ``simple_consumer.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from types import TracebackType
from typing import Self, TypeVar

from mqfast.client.consumer.call import AsyncCalls, Work
from mqfast.client.consumer.simple.simple_base import SimpleConsumerBase
from mqfast.errors import MqfastError

__all__ = ["AsyncSimpleConsumer"]

T = TypeVar("T")
_log = logging.getLogger("mqfast.client.consumer")


class AsyncSimpleConsumer(SimpleConsumerBase, AsyncCalls):
    """Messages on demand by POP in an event loop: arguments, methods and rules of ``SimpleConsumer``.

        async with AsyncSimpleConsumer("report", topics="orders") as consumer:
            for message in await consumer.receive():
                print(message.body)
                await consumer.ack(message)

    Messages of a cancelled ``receive`` come again after the invisible time.

    Thread: that of the event loop of ``start``.
    """

    def _set_up(self) -> None:
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> Self:
        """Join the group; the first other call does the same.

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
        """Leave the group. Messages without an ack come again after the invisible time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_started and self._loop is not asyncio._get_running_loop():
            _log.warning("group %s: closed outside of its event loop", self.group)
        elif self._is_started:
            limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    await self._engine.close()
            except (MqfastError, TimeoutError) as error:
                _log.warning("group %s: the simple consumer did not end in order: %s", self.group, error)

    def __del__(self) -> None:
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        text = f"simple consumer of group {self.group} was not closed"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        loop, engine = self._loop, self._engine
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: loop.create_task(engine.close()))

    async def _run(self, work: Work[T]) -> T:
        try:
            await self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return await work.coroutine
