"""AsyncPushConsumer: handlers as tasks of the running event loop, or ``async for``. No threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
import weakref
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from mqfast.client.consumer.call import AsyncCalls, Work
from mqfast.client.consumer.iteration import AsyncLoop, AsyncLoopWorkers
from mqfast.client.consumer.push.dispatcher import Dispatcher, Workers
from mqfast.client.consumer.push.engine import PushEngine
from mqfast.client.consumer.push.push_base import PushConsumerBase, close_quietly
from mqfast.client.consumer.push.state import TopicSubscription
from mqfast.client.consumer.push.worker_pools import ExecutorWorkers, TaskWorkers
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.values import SendResult
from mqfast.errors import ClientClosed, ClientError, ClientUsageError
from mqfast.message import Message

__all__ = ["AsyncPushConsumer"]

_log = logging.getLogger("mqfast.client.consumer")
T = TypeVar("T")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class AsyncPushConsumer(PushConsumerBase, AsyncCalls):
    """Delivers the messages of a group to coroutine functions, or to an ``async for``.

    The same as PushConsumer; ``threads`` counts tasks. A function that is no coroutine function runs in the event loop
    itself. See ``PushConsumerBase`` for the arguments.

    Thread: that of the event loop in which it was started.
    """

    _takes_coroutines: ClassVar[bool] = True
    _loop_workers: AsyncLoopWorkers | None = None
    _ended: asyncio.Event | None = None
    _closing: asyncio.Task[None] | None = None

    _replier: AsyncProducer | None = None

    async def _answer(self, message: Message) -> SendResult:
        if self._replier is None:
            self._replier = AsyncProducer(self.group, **self._producer_arguments())
        return await self._replier.send(message)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_hand.retry_abandoned(error)
        await self.close()

    async def start(self) -> Self:
        """Join the group; handlers run from now on. A second call does nothing. Raises: as PushConsumer.start."""
        self._check_usable()
        if self._engine is None:
            self._ended = asyncio.Event()
            self._pid = os.getpid()
            answer, group = weakref.WeakMethod(self._answer), self.group  # the engine must not keep the consumer alive

            async def answer_async(message: Message) -> SendResult:
                method = answer()
                if method is None:
                    raise ClientClosed(f"group {group}: the consumer is gone")
                return await method(message)

            self._in_hand.answer = answer_async
            loop = loop_of_caller()
            instance = ClientInstance.shared(self._instance_settings, loop, consumer_group=self._settings.group)
            engine = self._make_engine(instance, self._make_workers)
            self._engine = engine
            try:
                await engine.start()
            except BaseException:
                self._engine = None
                raise
        self._engine.instance.check_here()
        return self

    def _make_workers(self, dispatcher: Dispatcher) -> Workers:
        tasks = self._settings.threads
        if self._is_loop:
            self._loop_workers = AsyncLoopWorkers()
            return self._loop_workers
        if self._executor is not None:
            return ExecutorWorkers(dispatcher, self._executor, tasks, self.group)
        return TaskWorkers(dispatcher, tasks, self.group)

    def _subscribe_now(self, engine: PushEngine, topic: str, wanted: TopicSubscription) -> None:
        async def subscribe() -> None:
            try:
                await engine.coordinator.subscribe(topic, wanted)
                engine.state.refused.pop(wanted.plain_topic, None)
            except ClientError as error:
                engine.state.refused[wanted.plain_topic] = str(error)
                engine.dispatcher.log_error(f"subscription of {wanted.plain_topic}: {error}")

        engine.instance.spawn(subscribe(), f"{self.group} subscribe")

    async def _run(self, work: Work[T]) -> T:
        engine = self._engine
        if engine is not None and not engine.instance.is_here:
            work.coroutine.close()
            engine.instance.check_here()
        return await work.coroutine

    async def run(self) -> None:
        """Start, and handle messages until SIGINT, SIGTERM or ``close``; then close. A second signal ends at once.

        Messages of topics without a handler wait for a loop in another task; a warning names the topics.
        Signals are watched in the main thread only; their handlers are restored at the end. A cancelled ``run`` closes
        too.
        Raises: as ``start``.
        """
        self._warn_of_no_handler("on(), or `async for` in another task")
        loop = loop_of_caller()
        stop = asyncio.Event()
        handlers: dict[int, Any] = {}

        def on_signal(number: int) -> None:
            if stop.is_set():
                _restore_handlers(loop, handlers)
                signal.raise_signal(number)
            stop.set()

        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                with contextlib.suppress(NotImplementedError):
                    loop.add_signal_handler(number, on_signal, number)
                    handlers[number] = handler
        try:
            waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self.start())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if self._engine is not None and self._engine.has_joined:  # handlers run: an orderly close
                    await asyncio.wait(waits[1:])
                if waits[1].done():
                    waits[1].result()
                    assert self._ended is not None
                    waits.append(asyncio.ensure_future(self._ended.wait()))
                    await asyncio.wait([waits[0], waits[2]], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await self.close()
        finally:
            _restore_handlers(loop, handlers)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not self._is_closed and self._pid == os.getpid() and not sys.is_finalizing():
            warnings.warn(f"consumer of group {self.group} was not closed", ResourceWarning, source=self, stacklevel=1)
            engine.call_soon(lambda: engine.instance.spawn(close_quietly(engine), f"{self.group} close"))

    async def close(self, timeout_s: float | None = None) -> None:
        """Leave the group; see PushConsumer.close. A call by a handler does not wait for the end."""
        engine = self._engine
        if self._is_closed or engine is None or self._pid != os.getpid():  # a child has nothing to close
            self._is_closed = True
            return
        self._is_closed = True
        if not engine.instance.is_here:
            _log.warning("group %s: closed outside of its event loop: messages may come again", self.group)
            return
        workers = engine.dispatcher.workers
        if isinstance(workers, TaskWorkers) and workers.is_current:
            self._closing = engine.instance.loop.create_task(self._close_engine(engine, timeout_s))
            return
        await self._close_engine(engine, timeout_s)

    async def _close_engine(self, engine: PushEngine, timeout_s: float | None) -> None:
        try:
            await engine.close(timeout_s)
            if self._replier is not None:
                await self._replier.close(1.0)
        finally:
            self._in_hand.clear()
            assert self._ended is not None
            self._ended.set()

    def __aiter__(self) -> AsyncLoop:
        """Iterate over messages of ``topics``; the request for the next message acknowledges a message.

        Raises: UsageError for a consumer with handlers, ClientClosed for one that was not started.
        """
        if not self._is_loop:
            raise ClientUsageError(f"group {self.group}: expected topics without handlers for a loop, found handlers")
        self._running()
        assert self._loop_workers is not None
        return AsyncLoop(self._loop_workers, self._in_hand)


def _restore_handlers(loop: asyncio.AbstractEventLoop, handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    handlers.clear()
