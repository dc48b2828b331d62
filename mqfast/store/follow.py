"""Waiting for the next message of an embedded consumer: ``for``, or ``async for``, over ``consumer.follow()``.

All loops of a process share the store's Arrivals: whoever wakes first takes what arrived and wakes the others. It must
never acknowledge by itself (``consumer.py`` does), never miss a message, and never sleep without a bound that was
asked for.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Final, Protocol

from mqfast.errors import StoreClosed, UsageError

if TYPE_CHECKING:
    from mqfast.store.engine import Engine
    from mqfast.store.record.record import StoredMessage

__all__ = ["Follow", "Followers"]

_POLL_S_MAX: Final = 86_400.0  # epoll takes no more than 24 days at once


class _Consumer(Protocol):
    """The part of a consumer that its loops use."""

    @property
    def topic(self) -> str: ...
    def position(self, queue_id: int) -> int: ...
    def _next(self, before: StoredMessage | None) -> StoredMessage | None: ...


class Followers:
    """All loops that wait for messages of one open store. ``Followers.of(engine)`` is that of a store.

    Thread: any. It holds no lock while it calls the store, which calls ``wake_topic`` in the middle of a put.
    """

    def __init__(self, engine: Engine) -> None:
        self._arrivals: Final = engine.arrivals()
        self.waiters: dict[FollowWaiter, None] = {}
        engine.queues.created = self.wake_topic
        engine.followers = self

    @classmethod
    def of(cls, engine: Engine) -> Followers:
        """Those of an open store. Raises: StoreClosed, UsageError."""
        with engine.dispatcher.locked():
            found = engine.followers
        if isinstance(found, cls) and not found._arrivals.closed:
            return found
        if engine.has_arrivals:
            raise UsageError(
                "follow: a broker of this process waits for the messages of this store; expected a client of the "
                "broker, found an embedded consumer"
            )
        return cls(engine)

    @property
    def fileno(self) -> int:
        """Readable while something may have arrived."""
        return self._arrivals.fileno()

    def watch(self, waiter: FollowWaiter, topic: str, positions: dict[int, int]) -> bool:
        """Wait for a message at or above these offsets. Returns: True where there is one already."""
        waiter.keys = {(topic, queue_id) for queue_id in positions}
        is_there = False
        for queue_id, offset in positions.items():
            if self._arrivals.watch(topic, queue_id, offset):
                self._wake_key((topic, queue_id))
                is_there = True
        return is_there

    def settle(self) -> None:
        """Wake everybody for whom something arrived. Raises: StoreClosed."""
        for key in self._arrivals.take():
            self._wake_key(key)

    def _wake_key(self, key: tuple[str, int]) -> None:
        for waiter in tuple(self.waiters):
            if key in waiter.keys:
                waiter.wake()

    def wake_topic(self, topic: str) -> None:
        """The topic got another queue."""
        for waiter in tuple(self.waiters):
            if waiter.topic == topic:
                waiter.wake()

    def end(self) -> None:
        """The store closes: everybody hears of it."""
        for waiter in tuple(self.waiters):
            waiter.wake()


class FollowWaiter:
    """One loop that waits. ``fileno`` is readable when it is to look again.

    Thread: one at a time; ``wake``: any.
    """

    __slots__ = ("_epoll", "_event", "_followers", "keys", "topic")

    def __init__(self, followers: Followers, topic: str) -> None:
        self.topic = topic
        self.keys: set[tuple[str, int]] = set()
        self._followers = followers
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        for descriptor in (self._event, followers.fileno):
            self._epoll.register(descriptor, select.EPOLLIN)
        followers.waiters[self] = None

    def fileno(self) -> int:
        """For an event loop."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """Let it look again; nothing after its end."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def watch(self, positions: dict[int, int]) -> bool:
        """Wait for a message at or above these offsets. Returns: True where there is one already."""
        return self._followers.watch(self, self.topic, positions)

    def take(self) -> bool:
        """Is it to look again? Raises: StoreClosed."""
        self._followers.settle()
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return False
        return True

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until it is to look again. Returns: False at the timeout. GIL: released. Raises: StoreClosed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.take():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._epoll.poll(None if left is None else min(left, _POLL_S_MAX))
        return True

    def close(self) -> None:
        """The loop ended."""
        if self._followers.waiters.pop(self, self) is None:
            self._epoll.close()
            os.close(self._event)


class Follow:
    """The messages of a consumer as they come: ``for message in follow`` or ``async for message in follow``.

    A message is acknowledged when the loop asks for the next one, also while it then waits. After ``break`` or an
    exception a new loop begins at the first message that was not acknowledged.

    Thread: one at a time, as its consumer.
    """

    def __init__(self, consumer: _Consumer, engine: Engine, timeout_s: float | None) -> None:
        self._consumer: Final = consumer
        self._engine: Final = engine
        self._timeout_s: Final = timeout_s
        self._waiter: FollowWaiter | None = None
        self._message: StoredMessage | None = None
        self._is_over = False

    def __iter__(self) -> Follow:
        return self

    def __aiter__(self) -> Follow:
        return self

    def __next__(self) -> StoredMessage:
        deadline = self._deadline()
        while True:
            message = self._look()
            if message is not None:
                return message
            assert self._waiter is not None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                came = self._waiter.wait(left)
            except StoreClosed:
                self._end()
                raise
            if not came:
                self._end()
                raise StopIteration

    async def __anext__(self) -> StoredMessage:
        from mqfast.aio import readable

        deadline = self._deadline()
        while True:
            message = self._look()
            if message is not None:
                return message
            assert self._waiter is not None
            try:
                while not self._waiter.take():
                    left = None if deadline is None else deadline - time.monotonic()
                    if (left is not None and left <= 0) or not await readable(self._waiter.fileno(), left):
                        self._end()
                        raise StopAsyncIteration
            except StoreClosed:
                self._end()
                raise

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _look(self) -> StoredMessage | None:
        """Acknowledge the message in hand; the next one, or None when there is something to wait for."""
        if self._is_over:
            return None
        before, self._message = self._message, None
        while True:
            self._message = self._consumer._next(before)
            if self._message is not None:
                return self._message
            before = None
            if self._waiter is None:  # a queue that is made from now on wakes it, so look once more
                self._waiter = FollowWaiter(Followers.of(self._engine), self._consumer.topic)
                continue
            if not self._waiter.watch(self._places()):
                return None

    def _places(self) -> dict[int, int]:
        """Where to wait: also in queues that have no message yet, as those of a put that is under way."""
        consumer = self._consumer
        ids = {queue.queue_id for queue in self._engine.queues.all() if queue.topic == consumer.topic}
        return {queue_id: consumer.position(queue_id) for queue_id in ids}

    def _end(self) -> None:
        self._is_over = True
        if self._waiter is not None:
            self._waiter.close()

    def __del__(self) -> None:
        if getattr(self, "_waiter", None) is not None:
            self._end()
