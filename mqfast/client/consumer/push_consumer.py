"""PushConsumer: handlers in threads, or a loop in the caller's thread; for programs without asyncio.

No handler runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import warnings
import weakref
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from mqfast.client.consumer.call import SyncCalls, Work
from mqfast.client.consumer.iteration import Loop, LoopWorkers
from mqfast.client.consumer.push.dispatcher import Dispatcher, Workers
from mqfast.client.consumer.push.engine import PushEngine
from mqfast.client.consumer.push.push_base import PUSH_CALL_S, PushConsumerBase, close_quietly
from mqfast.client.consumer.push.state import TopicSubscription
from mqfast.client.consumer.push.worker_pools import ExecutorWorkers, ThreadWorkers
from mqfast.client.net import io_thread
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.client.net.instance import ClientInstance
from mqfast.client.producer.producer import Producer
from mqfast.client.values import SendResult
from mqfast.errors import ClientClosed, ClientUsageError
from mqfast.message import Message

__all__ = ["PushConsumer"]

T = TypeVar("T")
START_S: Final = 30.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class PushConsumer(PushConsumerBase, SyncCalls):
    """Delivers the messages of a group to functions, or to a loop.

        consumer = PushConsumer("billing", "127.0.0.1:9876")

        @consumer.on("orders", tags="new || paid")
        def bill(message):
            print(message.msg_id, message.body)

        consumer.run()

    A handler acknowledges a message by None or True; after False or an exception the message is delivered again. See
    ``PushConsumerBase`` for the arguments.

    Thread: any; handlers run in up to ``threads`` threads at once.
    """

    _takes_coroutines: ClassVar[bool] = False
    _loop_workers: LoopWorkers | None = None
    _ended: threading.Event | None = None
    _signals: queue.SimpleQueue[int] | None = None

    _replier: Producer | None = None

    def _answer(self, message: Message) -> SendResult:
        with self._replier_lock:
            if self._replier is None:
                self._replier = Producer(self.group, **self._producer_arguments())
        return self._replier.send(message)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_hand.retry_abandoned(error)
        self.close()

    def start(self) -> Self:
        """Join the group; handlers run from now on. A second call does nothing.

        Raises: ConnectError when no name server answers, SubscriptionError, ClientError; UsageError without a topic.
        """
        with self._start_lock:  # a second thread waits for the end of the start
            self._check_usable()
            self._start_once()
        return self

    def _start_once(self) -> None:
        if self._engine is None:
            self._ended = threading.Event()
            self._pid = os.getpid()
            self._replier_lock = Guard(brief=False)
            answer, group = weakref.WeakMethod(self._answer), self.group  # the engine must not keep the consumer alive

            def answer_sync(message: Message) -> SendResult:
                method = answer()
                if method is None:
                    raise ClientClosed(f"group {group}: the consumer is gone")
                return method(message)

            self._in_hand.answer_sync = answer_sync
            close_at_exit(self)
            limit_s = io_thread.start_limit(START_S, self._settings.start_timeout_s)
            io_thread.shared().call(self._begin(), limit_s)

    async def _begin(self) -> None:
        self._check_usable()  # a signal handler or another thread may have closed the consumer
        loop = io_thread.shared().loop
        instance = ClientInstance.shared(self._instance_settings, loop, consumer_group=self._settings.group)
        engine = self._engine = self._make_engine(instance, self._make_workers)
        try:
            await engine.start()
        except BaseException:
            self._engine = None
            raise

    def _make_workers(self, dispatcher: Dispatcher) -> Workers:
        name, threads = self.group, self._settings.threads
        if self._is_loop:
            self._loop_workers = LoopWorkers()
            return self._loop_workers
        if self._executor is not None:
            return ExecutorWorkers(dispatcher, self._executor, threads, name)
        return ThreadWorkers(dispatcher, threads, name)

    def _subscribe_now(self, engine: PushEngine, topic: str, wanted: TopicSubscription) -> None:
        self._run(Work(engine.coordinator.subscribe(topic, wanted), PUSH_CALL_S))

    def _run(self, work: Work[T]) -> T:
        return io_thread.shared().call(work.coroutine, work.timeout_s)

    def run(self) -> None:
        """Start, and handle messages until SIGINT, SIGTERM or ``close``; then close. A second signal ends at once.

        Messages of topics without a handler wait for a loop in another thread; a warning names the topics.
        Signals are watched in the main thread only; their handlers are restored at the end.
        Raises: as ``start``.
        """
        self._warn_of_no_handler("on(), or iterate over the consumer in another thread")
        signals = self._signals = queue.SimpleQueue()
        handlers: dict[int, Any] = {}
        count = 0

        is_starting = False

        def on_signal(number: int, frame: Any) -> None:
            nonlocal count
            count += 1
            if count > 1:
                _restore_handlers(handlers)
                signal.raise_signal(number)
            signals.put(number)  # the only queue class whose put may interrupt its get
            engine = self._engine
            if is_starting and not (engine is not None and engine.has_joined):  # else handlers run: an orderly close
                raise _StartInterrupted

        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handlers[number] = signal.signal(number, on_signal)
        try:
            try:
                is_starting = True
                self.start()
                is_starting = False
            except _StartInterrupted:
                is_starting = False
                self.close()
                return
            ended = self._ended
            assert ended is not None
            while not ended.is_set():
                try:
                    signals.get(timeout=1.0)
                except queue.Empty:
                    continue
                break
            self.close()
        finally:
            _restore_handlers(handlers)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not self._is_closed and self._pid == os.getpid() and not sys.is_finalizing():
            warnings.warn(f"consumer of group {self.group} was not closed", ResourceWarning, source=self, stacklevel=1)
            engine.call_soon(lambda: engine.instance.spawn(close_quietly(engine), f"{self.group} close"))

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the group within ``timeout_s``: wait for running handlers, commit the offsets, release the locks.

        A call by a handler does not wait for the end. A second call does nothing.
        """
        engine = self._engine
        if self._is_closed or engine is None or self._pid != os.getpid():  # a child has nothing to close
            self._is_closed = True
            return
        workers = engine.dispatcher.workers
        is_handler = isinstance(workers, ThreadWorkers) and workers.is_current
        if not is_handler:
            check_may_wait()
        self._is_closed = True
        io = io_thread.shared()
        limit = self._settings.close_timeout_s if timeout_s is None else timeout_s
        if is_handler:
            io.submit(self._close_engine(engine, limit))
            return
        try:
            io.call(self._close_engine(engine, limit), limit + 5.0)
        finally:
            self._in_hand.clear()

    async def _close_engine(self, engine: PushEngine, timeout_s: float) -> None:
        try:
            await engine.close(timeout_s)
        finally:
            if self._replier is not None:
                await asyncio.to_thread(self._replier.close, 1.0)
            if self._ended is not None:
                self._ended.set()
            if self._signals is not None:
                self._signals.put(0)

    def __iter__(self) -> Loop:
        """Iterate over messages of ``topics``; the request for the next message acknowledges a message.

        Raises: UsageError for a consumer with handlers, else as ``start``.
        """
        if not self._is_loop:
            raise ClientUsageError(f"group {self.group}: expected topics without handlers for a loop, found handlers")
        self.start()
        assert self._loop_workers is not None
        return Loop(self._loop_workers, self._in_hand, self._check_usable)


class _StartInterrupted(BaseException):
    """A signal that ends the start of ``run``."""


def _restore_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    handlers.clear()
