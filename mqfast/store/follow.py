"""``consumer.follow()``: wait for the next message of an embedded consumer, with ``for`` or ``async for``.

All loops of a process share the store's Arrivals: the first loop that wakes takes the arrivals and wakes the others.
A loop acknowledges through ``consumer.py`` only, misses no message, and sleeps no longer than the timeout.
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

_POLL_S_MAX: Final = 86_400.0  # epoll accepts at most 24 days


class _Consumer(Protocol):
    """The part of a consumer that a loop uses."""

    @property
    def topic(self) -> str: ...
    def position(self, queue_id: int) -> int: ...
    def _next(self, before: StoredMessage | None) -> StoredMessage | None: ...


class Followers:
    """All waiting loops of an open store; ``Followers.of(engine)`` returns this object.

    Thread: any. No lock is held during calls into the store, which calls ``wake_topic`` in the middle of a put.
    """

    def __init__(self, engine: Engine) -> None:
        self._arrivals: Final = engine.arrivals()
        self.waiters: dict[FollowWaiter, None] = {}
        engine.queues.created = self.wake_topic
        engine.followers = self

    @classmethod
    def of(cls, engine: Engine) -> Followers:
        """Return the loops of an open store. Raises: StoreClosed, UsageError."""
        with engine.dispatcher.locked():
            followers = engine.followers
        if isinstance(followers, cls) and not followers._arrivals.closed:
            return followers
        if engine.has_arrivals:
            raise UsageError(
                "follow: a broker of this process waits for the messages of this store; expected a client of the "
                "broker, found an embedded consumer"
            )
        return cls(engine)

    @property
    def fileno(self) -> int:
        """A descriptor that is readable while arrivals may be pending."""
        return self._arrivals.fileno()

    def watch(self, waiter: FollowWaiter, topic: str, positions: dict[int, int]) -> bool:
        """Wait for a message at or above these offsets. Returns: True if there is a message already."""
        waiter.keys = {(topic, queue_id) for queue_id in positions}
        is_there = False
        for queue_id, offset in positions.items():
            if self._arrivals.watch(topic, queue_id, offset):
                self._wake_key((topic, queue_id))
                is_there = True
        return is_there

    def notify_arrivals(self) -> None:
        """Wake all loops with an arrival. Raises: StoreClosed."""
        for key in self._arrivals.drain():
            self._wake_key(key)

    def _wake_key(self, key: tuple[str, int]) -> None:
        for waiter in tuple(self.waiters):
            if key in waiter.keys:
                waiter.wake()

    def wake_topic(self, topic: str) -> None:
        """Wake the loops of a topic that got another queue."""
        for waiter in tuple(self.waiters):
            if waiter.topic == topic:
                waiter.wake()

    def wake_all(self) -> None:
        """Wake all loops: the store closes."""
        for waiter in tuple(self.waiters):
            waiter.wake()


class FollowWaiter:
    """A waiting loop. ``fileno`` is readable when the loop must check the queues again.

    Thread: a single thread at a time; ``wake``: any.
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
        """Return the descriptor for an event loop."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """Wake the loop. No effect after ``close``."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def watch(self, positions: dict[int, int]) -> bool:
        """Wait for a message at or above these offsets. Returns: True if there is a message already."""
        return self._followers.watch(self, self.topic, positions)

    def consume_wakeup(self) -> bool:
        """Clear the wake-up. Returns: True if the loop must check its queues again. Raises: StoreClosed."""
        self._followers.notify_arrivals()
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return False
        return True

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until a wake-up. Returns: False at the timeout. GIL: released. Raises: StoreClosed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.consume_wakeup():
            remaining_s = None if deadline is None else deadline - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                return False
            self._epoll.poll(None if remaining_s is None else min(remaining_s, _POLL_S_MAX))
        return True

    def close(self) -> None:
        """Unregister the loop and close both descriptors."""
        if self._followers.waiters.pop(self, self) is None:
            self._epoll.close()
            os.close(self._event)


class Follow:
    """Iterator over the messages of a consumer as they arrive: ``for message in follow``, ``async for message in
    follow``.

    The request for the next message acknowledges the previous message, also while that request waits. After ``break``
    or
    an exception a new loop begins at the first message that was not acknowledged.

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
            message = self._poll()
            if message is not None:
                return message
            assert self._waiter is not None
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                came = self._waiter.wait(remaining_s)
            except StoreClosed:
                self._close()
                raise
            if not came:
                self._close()
                raise StopIteration

    async def __anext__(self) -> StoredMessage:
        from mqfast.aio import readable

        deadline = self._deadline()
        while True:
            message = self._poll()
            if message is not None:
                return message
            assert self._waiter is not None
            try:
                while not self._waiter.consume_wakeup():
                    remaining_s = None if deadline is None else deadline - time.monotonic()
                    if (remaining_s is not None and remaining_s <= 0) or not await readable(
                        self._waiter.fileno(), remaining_s
                    ):
                        self._close()
                        raise StopAsyncIteration
            except StoreClosed:
                self._close()
                raise

    def _deadline(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _poll(self) -> StoredMessage | None:
        """Acknowledge the current message and return the next message, or None if the loop must wait."""
        if self._is_over:
            return None
        before, self._message = self._message, None
        while True:
            self._message = self._consumer._next(before)
            if self._message is not None:
                return self._message
            before = None
            if self._waiter is None:  # queues created from now on wake the waiter, so check once more
                self._waiter = FollowWaiter(Followers.of(self._engine), self._consumer.topic)
                continue
            if not self._waiter.watch(self._places()):
                return None

    def _places(self) -> dict[int, int]:
        """Return the offsets to wait for, also in queues without a message yet, such as the queue of a running put."""
        consumer = self._consumer
        ids = {queue.queue_id for queue in self._engine.queues.all() if queue.topic == consumer.topic}
        return {queue_id: consumer.position(queue_id) for queue_id in ids}

    def _close(self) -> None:
        self._is_over = True
        if self._waiter is not None:
            self._waiter.close()

    def __del__(self) -> None:
        if getattr(self, "_waiter", None) is not None:
            self._close()
