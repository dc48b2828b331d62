"""Consumption by a loop: ``for message in consumer`` and ``async for message in consumer``.

A message is acknowledged by the request for the next message, or by ``ack()``. After ``break`` the last message is
delivered again; an exception that leaves the ``with`` block sends the last message back. The loop is the only worker of
the push engine, so the order of a queue holds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqfast.client.consumer.push.dispatcher import Dispatcher
from mqfast.client.consumer.push.state import Assigned, Handler, Job
from mqfast.client.consumer.push.wakeup_queue import WakeupQueue
from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import check_may_wait, nested, refuse_nested
from mqfast.client.producer.request_reply import reply_message
from mqfast.client.values import Body, Retry, SendResult
from mqfast.errors import ClientNested, ClientUsageError
from mqfast.message import Message

__all__ = ["AsyncLoop", "AsyncLoopWorkers", "InHand", "Loop", "LoopWorkers"]

CHECK_S: Final = 1.0


class InHand:
    """The current messages of loops, and their acknowledgement by the application.

    Thread: any; the operations of its dicts are atomic.
    """

    def __init__(self) -> None:
        self._jobs: dict[Delivery, Job] = {}
        self._abandoned: dict[int, Job] = {}  # by thread: the last message of an abandoned loop
        self.dispatcher: Dispatcher | None = None
        self.answer: Callable[[Message], Awaitable[SendResult]] | None = None
        self.answer_sync: Callable[[Message], SendResult] | None = None

    def add(self, job: Job) -> Delivery:
        """Add the next message of a loop."""
        message = job.messages[0]
        self._jobs[message] = job
        return message

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the message. Raises: UsageError."""
        self._finish(delivery, None)

    def retry(self, delivery: Delivery, delay_level: int) -> None:
        """Send the message back for another delivery. Raises: UsageError."""
        self._finish(delivery, Retry(delay_level, "the loop asked for it"))

    async def reply(self, delivery: Delivery, body: Body) -> SendResult:
        """Answer a request. Raises: UsageError for a message that is no request; as a send."""
        if self.answer is None:
            raise ClientUsageError("reply: expected a message of an AsyncPushConsumer; call reply_sync")
        return await self.answer(reply_message(delivery, body))

    def reply_sync(self, delivery: Delivery, body: Body) -> SendResult:
        """Answer a request. Raises: as ``reply``."""
        if self.answer_sync is None:
            raise ClientUsageError("reply_sync: expected a message of a PushConsumer; await reply")
        return self.answer_sync(reply_message(delivery, body))

    def _finish(self, delivery: Delivery, error: Exception | None) -> None:
        refuse_nested()
        job = self._jobs.pop(delivery, None)
        if job is None or self.dispatcher is None:
            raise ClientUsageError(
                f"message {delivery.msg_id}: expected one that a loop has now, found one of a handler, whose end "
                "decides, or one that was settled before"
            )
        self.dispatcher.process_result(job, None, error)

    def ack_previous(self, delivery: Delivery | None) -> None:
        """Acknowledge the previous message of a loop, unless the application has acknowledged or retried it."""
        if delivery is not None and (job := self._jobs.pop(delivery, None)) is not None and self.dispatcher is not None:
            self.dispatcher.process_result(job, None, None)

    def abandon(self, delivery: Delivery | None) -> None:
        """Put the last message of a loop that has ended back into the queue."""
        if delivery is not None and (job := self._jobs.pop(delivery, None)) is not None and self.dispatcher is not None:
            self._abandoned[threading.get_ident()] = job
            try:
                self.dispatcher.release(job)
            except ClientNested:  # the garbage collector ends the loop within another call
                self.dispatcher.release_soon(job)

    def retry_abandoned(self, error: BaseException | None) -> None:
        """Send the last message of this thread's loop back, after an exception that left the ``with`` block."""
        job = self._abandoned.pop(threading.get_ident(), None)
        if job is None or not isinstance(error, Exception) or self.dispatcher is None:
            return
        if job.pq.withdraw(job.messages[0]):
            self.dispatcher.process_result(job, None, error)

    def clear(self) -> None:
        """Forget all messages of a closed consumer."""
        self._jobs.clear()


class LoopWorkers(WakeupQueue[Assigned]):
    """The workers of a sync consumer without handlers: loops of threads wait for queues."""

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message."""
        self.put(assigned)

    @property
    def busy(self) -> int:
        """Return 0: a close does not wait for a loop."""
        return 0

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Raise UsageError: there is no handler."""
        raise ClientUsageError("a loop takes the messages of this consumer")

    def stop(self) -> None:
        """End all loops."""
        self.clear()
        self.close()

    async def shutdown(self, *, cancel: bool) -> None:
        """Return at once: the loops end on their own."""


class Loop:
    """The iterator of a ``for``; a consumer may have several loops, each in its own thread.

    Args: check: raises if the consumer cannot be used, for example in a forked child.
    """

    def __init__(self, workers: LoopWorkers, in_hand: InHand, check: Callable[[], object]) -> None:
        self._workers = workers
        self._in_hand = in_hand
        self._check = check
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_waiting = False
        self._message: Delivery | None = None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Delivery:
        check_may_wait()
        if self._is_waiting:
            raise nested()
        self._is_waiting = True
        try:
            message, self._message = self._message, None
            self._in_hand.ack_previous(message)
            self._message = self._next()
            return self._message
        finally:
            self._is_waiting = False

    def _next(self) -> Delivery:
        dispatcher = self._in_hand.dispatcher
        assert dispatcher is not None
        while True:
            assigned = self._workers.get(self._lock, CHECK_S)
            if assigned is None:
                if self._workers.closed:
                    raise StopIteration
                self._check()
                continue
            job = dispatcher.begin(assigned)
            if job is not None:
                return self._in_hand.add(job)

    def __del__(self) -> None:
        self._in_hand.abandon(self._message)


class AsyncLoopWorkers:
    """The workers of an asyncio consumer without handlers: loops of tasks wait. Thread: that of the event loop."""

    def __init__(self) -> None:
        self._items: deque[Assigned] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.closed = False

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message."""
        self._items.append(assigned)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    async def get(self) -> Assigned | None:
        """Wait for the next queue; None after ``stop``."""
        while not self._items:
            if self.closed:
                return None
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake()  # wake another task in place of the cancelled one
                raise
        return self._items.popleft()

    def next_now(self) -> Assigned | None:
        """Return the next queue; None: no queue has a message."""
        return self._items.popleft() if self._items else None

    @property
    def busy(self) -> int:
        """Return 0: a close does not wait for a loop."""
        return 0

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Raise UsageError: there is no handler."""
        raise ClientUsageError("a loop takes the messages of this consumer")

    def stop(self) -> None:
        """End all loops."""
        self.closed = True
        self._items.clear()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def shutdown(self, *, cancel: bool) -> None:
        """Return at once: the loops end on their own."""


class AsyncLoop:
    """The iterator of an ``async for``."""

    def __init__(self, workers: AsyncLoopWorkers, in_hand: InHand) -> None:
        self._workers = workers
        self._in_hand = in_hand
        self._message: Delivery | None = None

    def __aiter__(self) -> AsyncLoop:
        return self

    async def __anext__(self) -> Delivery:
        message, self._message = self._message, None
        self._in_hand.ack_previous(message)
        dispatcher: Any = self._in_hand.dispatcher
        workers = self._workers
        while True:
            assigned = workers.next_now() or await workers.get()
            if assigned is None:
                raise StopAsyncIteration
            job = dispatcher.begin(assigned)
            if job is not None:
                self._message = self._in_hand.add(job)
                return self._message

    def __del__(self) -> None:
        self._in_hand.abandon(self._message)
