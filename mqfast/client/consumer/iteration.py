"""Consumption by a loop: ``for message in consumer`` and ``async for message in consumer``.

A message is acknowledged when the loop asks for the next one. A loop that is left by ``break`` has said nothing of its
last message, which comes again; an exception that leaves the ``with`` block sends that message back. The loop is the
only worker of the push machine, so the order of a queue holds.

Room: client. It must never acknowledge a message that no loop has asked past, and that nobody has acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqfast.client.consumer.push.consume_service import ConsumeService
from mqfast.client.consumer.push.state import Assigned, Handler, Job
from mqfast.client.consumer.push.wakeup_queue import WakeupQueue
from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import check_may_wait, nested, refuse_nested
from mqfast.client.producer.request_reply import reply_message
from mqfast.client.values import Body, Retry, SendResult
from mqfast.errors import ClientNested, ClientUsageError
from mqfast.message import Message

__all__ = ["AsyncLoop", "AsyncLoopWorkers", "InHand", "Loop", "LoopWorkers"]

LOOK_S: Final = 1.0


class InHand:
    """The messages that loops have now; what the application says about them.

    Thread: any; the operations of its dicts are atomic.
    """

    def __init__(self) -> None:
        self._jobs: dict[Delivery, Job] = {}
        self._left: dict[int, Job] = {}  # by thread: the last message that a loop was left with
        self.handling: ConsumeService | None = None
        self.answer: Callable[[Message], Awaitable[SendResult]] | None = None
        self.answer_sync: Callable[[Message], SendResult] | None = None

    def add(self, job: Job) -> Delivery:
        """A loop gets a message."""
        message = job.messages[0]
        self._jobs[message] = job
        return message

    def ack(self, delivery: Delivery) -> None:
        """The message is done. Raises: UsageError."""
        self._end(delivery, None)

    def retry(self, delivery: Delivery, delay_level: int) -> None:
        """The message comes again. Raises: UsageError."""
        self._end(delivery, Retry(delay_level, "the loop asked for it"))

    async def reply(self, delivery: Delivery, body: Body) -> SendResult:
        """Answer a request. Raises: UsageError for a message that asks for no answer; as a send."""
        if self.answer is None:
            raise ClientUsageError("reply: expected a message of an AsyncPushConsumer; call reply_sync")
        return await self.answer(reply_message(delivery, body))

    def reply_sync(self, delivery: Delivery, body: Body) -> SendResult:
        """Answer a request. Raises: as ``reply``."""
        if self.answer_sync is None:
            raise ClientUsageError("reply_sync: expected a message of a PushConsumer; await reply")
        return self.answer_sync(reply_message(delivery, body))

    def _end(self, delivery: Delivery, error: Exception | None) -> None:
        refuse_nested()
        job = self._jobs.pop(delivery, None)
        if job is None or self.handling is None:
            raise ClientUsageError(
                f"message {delivery.msg_id}: expected one that a loop has now, found one of a handler, whose end "
                "decides, or one that was settled before"
            )
        self.handling.end(job, None, error)

    def asked_past(self, delivery: Delivery | None) -> None:
        """The loop asks for the next message: this one is done, unless it was settled before."""
        if delivery is not None and (job := self._jobs.pop(delivery, None)) is not None and self.handling is not None:
            self.handling.end(job, None, None)

    def left(self, delivery: Delivery | None) -> None:
        """The loop is gone: the message waits again."""
        if delivery is not None and (job := self._jobs.pop(delivery, None)) is not None and self.handling is not None:
            self._left[threading.get_ident()] = job
            try:
                self.handling.leave(job)
            except ClientNested:  # the garbage collector ends the loop inside of another call
                self.handling.leave_soon(job)

    def failed(self, error: BaseException | None) -> None:
        """An exception left the ``with`` block: the last message of this thread's loop is sent back."""
        job = self._left.pop(threading.get_ident(), None)
        if job is None or not isinstance(error, Exception) or self.handling is None:
            return
        if job.pq.withdraw(job.messages[0]):
            self.handling.end(job, None, error)

    def clear(self) -> None:
        """The consumer is closed: nothing can be said any more."""
        self._jobs.clear()


class LoopWorkers(WakeupQueue[Assigned]):
    """What loops of threads wait for."""

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message."""
        self.put(assigned)

    @property
    def busy(self) -> int:
        """Nobody waits for a loop: its owner is the one who closes."""
        return 0

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Raises: UsageError: there is no handler."""
        raise ClientUsageError("a loop takes the messages of this consumer")

    def stop(self) -> None:
        """Loops end."""
        self.clear()
        self.close()

    async def end(self, *, cancel: bool) -> None:
        """There is nothing to end."""


class Loop:
    """The iterator of one ``for``; a consumer may have several, of one thread each.

    Args: check: raises where the consumer cannot be used, in a forked child, say.
    """

    def __init__(self, workers: LoopWorkers, in_hand: InHand, check: Callable[[], object]) -> None:
        self._workers = workers
        self._in_hand = in_hand
        self._check = check
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_asked = False
        self._message: Delivery | None = None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Delivery:
        check_may_wait()
        if self._is_asked:
            raise nested()
        self._is_asked = True
        try:
            message, self._message = self._message, None
            self._in_hand.asked_past(message)
            self._message = self._next()
            return self._message
        finally:
            self._is_asked = False

    def _next(self) -> Delivery:
        handling = self._in_hand.handling
        assert handling is not None
        while True:
            assigned = self._workers.get(self._lock, LOOK_S)
            if assigned is None:
                if self._workers.closed:
                    raise StopIteration
                self._check()
                continue
            job = handling.begin(assigned)
            if job is not None:
                return self._in_hand.add(job)

    def __del__(self) -> None:
        self._in_hand.left(self._message)


class AsyncLoopWorkers:
    """What loops of tasks wait for. Thread: that of the loop."""

    def __init__(self) -> None:
        self._items: deque[Assigned] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.closed = False

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message."""
        self._items.append(assigned)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    async def get(self) -> Assigned | None:
        """The next queue; None after ``stop``."""
        while not self._items:
            if self.closed:
                return None
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake()  # it was this one's turn
                raise
        return self._items.popleft()

    def next_now(self) -> Assigned | None:
        """The next queue, None when there is none now."""
        return self._items.popleft() if self._items else None

    @property
    def busy(self) -> int:
        """Nobody waits for a loop."""
        return 0

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Raises: UsageError: there is no handler."""
        raise ClientUsageError("a loop takes the messages of this consumer")

    def stop(self) -> None:
        """Loops end."""
        self.closed = True
        self._items.clear()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def end(self, *, cancel: bool) -> None:
        """There is nothing to end."""


class AsyncLoop:
    """The iterator of one ``async for``."""

    def __init__(self, workers: AsyncLoopWorkers, in_hand: InHand) -> None:
        self._workers = workers
        self._in_hand = in_hand
        self._message: Delivery | None = None

    def __aiter__(self) -> AsyncLoop:
        return self

    async def __anext__(self) -> Delivery:
        message, self._message = self._message, None
        self._in_hand.asked_past(message)
        handling: Any = self._in_hand.handling
        workers = self._workers
        while True:
            assigned = workers.next_now() or await workers.get()
            if assigned is None:
                raise StopAsyncIteration
            job = handling.begin(assigned)
            if job is not None:
                self._message = self._in_hand.add(job)
                return self._message

    def __del__(self) -> None:
        self._in_hand.left(self._message)
