"""The readers of the kombu transport: a queue shared by workers, and exchanges that every worker reads.

A message is confirmed by ``settle`` only. Consumers run in the loop of the thread of sync clients: an unacknowledged
message is a task there, and needs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any, Final

from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.queue_bounds import max_offset
from mqfast.client.delivery import Delivery
from mqfast.client.net import io_thread
from mqfast.client.values import Retry
from mqfast.errors import ClientClosed, MqfastError

__all__ = ["SharedReader", "TailReader"]

_START_S: Final = 30.0
_CLOSE_S: Final = 5.0
_LOOK_S: Final = 5.0
_log = logging.getLogger("mqfast.contrib.kombu")

Outcome = asyncio.Future[int | None]


class _Member(AsyncPushConsumer):
    """A push consumer with the state of its queues."""

    def holds(self, message: Delivery) -> bool:
        """Return whether a message is still this member's: the queue is assigned here, and no seek skipped the message.
        Thread: any.
        """
        assigned = self._engine.state.assigned.get(message.queue) if self._engine is not None else None
        return assigned is not None and assigned.pq.is_open(message)

    async def has_more(self) -> bool:
        """Return whether the queues have messages that no handler got. Raises: ClientError."""
        engine = self._running()
        state = engine.state
        mine = [queue for queue in state.assigned.values() if not state.is_full(queue)]
        if any(not queue.has_position or queue.pq.waiting for queue in mine):
            return True
        ends = await asyncio.gather(
            *(engine.instance.driver.run(max_offset(engine.instance, queue.queue)) for queue in mine)
        )
        return any(end > queue.pq.next_offset or queue.pq.waiting for queue, end in zip(mine, ends, strict=True))


class SharedReader:
    """A member of the group of a queue.

    Args: name: topic and group. arrived: called after the arrival of a message.
    Thread: any.
    """

    def __init__(
        self, name: str, arguments: Mapping[str, Any], consuming: Mapping[str, Any], arrived: Callable[[], None]
    ) -> None:
        self._arrived = arrived
        self._inbox: deque[tuple[Delivery, Outcome, asyncio.Task[Any]]] = deque()
        self._handed_out: set[Outcome] = set()
        self._is_ending = False
        self._io = io_thread.shared()
        self._consumer = _Member(
            name,
            from_where="earliest",
            threads=10_000,
            max_span=65_535,
            close_timeout_s=_CLOSE_S,
            **arguments,
            **consuming,
        )
        self._consumer.subscribe(name, self._receive)
        self._io.call(self._consumer.start(), _START_S)

    async def _receive(self, message: Delivery) -> None:
        _ = message.body  # a message that cannot be decompressed is refused here, and reaches no worker
        outcome: Outcome = asyncio.get_running_loop().create_future()
        handler = asyncio.current_task()
        assert handler is not None
        self._inbox.append((message, outcome, handler))
        self._arrived()
        level = await outcome
        if level is not None:
            raise Retry(level, "rejected, to come again")

    def next(self) -> tuple[SharedReader, Delivery, Outcome]:
        """Return the next message; messages of queues that moved to another member are skipped. Raises: Empty."""
        while True:
            try:
                message, outcome, handler = self._inbox.popleft()
            except IndexError:
                raise Empty from None
            if self._consumer.holds(message):
                break
            self._io.soon(handler.cancel)
        self._handed_out.add(outcome)
        return self, message, outcome

    def check_soon(self) -> None:
        """Wait until a message arrives, or the queues of this member are empty. Raises: ClientError."""
        if not self._inbox:
            self._io.call(self._poll(), _START_S)

    async def _poll(self) -> None:
        deadline = time.monotonic() + _LOOK_S
        while not self._inbox and time.monotonic() < deadline and await self._consumer.has_more():
            await asyncio.sleep(0.005)

    def purge(self) -> None:
        """Acknowledge the messages that were not handed out. Returns: their count."""
        with contextlib.suppress(IndexError):
            while True:
                self.settle(self._inbox.popleft()[1], None)

    def settle(self, outcome: Outcome, level: int | None) -> None:
        """Settle a message: acknowledge, or deliver again with a delay level."""

        def settle() -> None:
            if not outcome.done():
                outcome.set_result(level)

        self._io.soon(settle)
        self._handed_out.discard(outcome)
        if self._is_ending and not self._handed_out:
            self._io.submit(self._close())

    def close(self) -> None:
        """Stop reading; leave the group after the handed out messages are settled."""
        self._is_ending = True
        self._consumer.pause()
        if not self._handed_out and self._io.is_alive:
            try:
                self._io.call(self._close(), _CLOSE_S + 2.0)
            except MqfastError as error:
                _log.warning("queue %s was left without a word: %s", self._consumer.group, error)

    async def _close(self) -> None:
        await asyncio.sleep(0.01)  # handlers with recently settled messages
        await self._consumer.close(1.5 if self._inbox else _CLOSE_S)


class TailReader:
    """Reader of topics from a moment on, without a group's offsets.

    Args: arrived: called after the arrival of a message. Thread: any.
    """

    def __init__(self, arguments: Mapping[str, Any], arrived: Callable[[], None]) -> None:
        self._arguments = arguments
        self._arrived = arrived
        self._inbox: deque[Delivery] = deque()
        self._accepts: dict[str, list[Callable[[str], bool]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[AsyncPullConsumer] = []
        self._io = io_thread.shared()

    def bind(self, topic: str, accepts: Callable[[str], bool]) -> None:
        """Keep accepted messages of a topic from now on. No message after the return of this call is missed."""
        known = topic in self._accepts
        self._accepts.setdefault(topic, []).append(accepts)
        if not known:
            self._io.call(self._begin(topic), _START_S)

    async def _begin(self, topic: str) -> None:
        consumer = AsyncPullConsumer("kombu-tail", auto_commit_s=None, offset_reset="earliest", **self._arguments)
        self._consumers.append(consumer)
        queues = await consumer.queues(topic)
        ends = {queue: (await consumer.pull(queue, 0, max_count=1)).max_offset for queue in queues}
        await consumer.assign(queues)
        for queue, end in ends.items():
            await consumer.seek(queue, end)
        self._tasks.append(asyncio.get_running_loop().create_task(self._read(topic, consumer)))

    async def _read(self, topic: str, consumer: AsyncPullConsumer) -> None:
        while True:
            try:
                messages = await consumer.poll(30.0)
            except ClientClosed:
                return
            except MqfastError as error:
                _log.warning("topic %s: %s", topic, error)
                await asyncio.sleep(1.0)
                continue
            for message in messages:
                key = message.tags or ""
                if any(accepts(key) for accepts in self._accepts[topic]):
                    try:
                        _ = message.body
                    except MqfastError as error:
                        _log.warning("topic %s: message %s is left out: %s", topic, message.msg_id, error)
                        continue
                    self._inbox.append(message)
                    self._arrived()

    def __len__(self) -> int:
        return len(self._inbox)

    def next(self) -> Delivery:
        """Return the next message. Raises: Empty."""
        try:
            return self._inbox.popleft()
        except IndexError:
            raise Empty from None

    def purge(self) -> int:
        """Drop the waiting messages. Returns: their count."""
        count = len(self._inbox)
        self._inbox.clear()
        return count

    def close(self) -> None:
        """Stop reading."""
        if self._io.is_alive:
            try:
                self._io.call(self._close(), _CLOSE_S)
            except MqfastError as error:
                _log.warning("a reader of exchanges was not ended in order: %s", error)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for consumer in self._consumers:
            await consumer.close(1.0)
