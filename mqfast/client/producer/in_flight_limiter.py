"""Back-pressure: limits of messages and bytes in flight of one producer.

A message of any size is accepted while nothing is in flight.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Final

from mqfast.client.net.guard import Guard

__all__ = ["OWN_BYTES", "InFlightLimiter"]

OWN_BYTES: Final = 2048
"""Memory of a message in flight beside its bytes: steps, header, entries in tables."""


class InFlightLimiter:
    """Messages in flight, and callers that wait for room.

    Args: messages, size: limits of what is in flight; size in bytes, each message with OWN_BYTES more.
    Thread: any for ``acquire``, ``try_acquire``, ``release`` and ``wait_empty``; the ``async`` methods belong to an
    event loop, in which ``release`` is called then.
    """

    def __init__(self, messages: int, size: int) -> None:
        self._messages_max = messages
        self._bytes_max = size
        self.messages = 0
        self.bytes = 0
        self._held = 0
        self._lock = Guard()
        self._changed = threading.Condition(self._lock)  # type: ignore[arg-type]
        self._sleepers = 0
        self._tasks: deque[tuple[asyncio.Future[None], int, int]] = deque()
        self._ends: list[asyncio.Future[None]] = []

    def _fits(self, messages: int, size: int) -> bool:
        return self.messages == 0 or (
            self.messages + messages <= self._messages_max
            and self.bytes + size + messages * OWN_BYTES <= self._bytes_max
        )

    def try_acquire(self, messages: int, size: int, *, is_held: bool = False) -> bool:
        """Take room at once. Args: is_held: as ``acquire``. Returns: whether there was room."""
        with self._lock:
            if self._tasks or not self._fits(messages, size):
                return False
            if is_held:
                self._held += messages
            self.messages += messages
            self.bytes += size + messages * OWN_BYTES
            return True

    def acquire(self, messages: int, size: int, timeout_s: float) -> bool:
        """Take room, on a thread that may wait, for messages that the thread holds until ``hand_over``.

        Returns: whether there was room in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._fits(messages, size):
                remaining_s = deadline - time.monotonic()
                self._sleepers += 1
                try:
                    if remaining_s <= 0 or not self._changed.wait(remaining_s):
                        return False
                finally:
                    self._sleepers -= 1
            self._held += messages
            self.messages += messages
            self.bytes += size + messages * OWN_BYTES
            return True

    def hand_over(self, messages: int) -> None:
        """Pass messages that a thread held to the loop: from now on ``wait_empty`` waits for them."""
        with self._lock:
            self._held -= messages

    async def acquire_async(self, messages: int, size: int, timeout_s: float) -> bool:
        """Take room, in the event loop; waiting callers get room in their order. Returns: whether there was room in
        time.
        """
        if self.try_acquire(messages, size):
            return True
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.append((room, messages, size))
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except BaseException as error:
            if room.done() and not room.cancelled():
                self.release(messages, size)  # room came at the last moment
            room.cancel()
            self._wake_tasks()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def release(self, messages: int, size: int) -> None:
        """Release the room of messages that are no longer in flight."""
        with self._lock:
            self.messages -= messages
            self.bytes -= size + messages * OWN_BYTES
            if self._sleepers:
                self._changed.notify_all()
        if self._tasks:
            self._wake_tasks()
        if self._ends and self.messages == 0:
            for end in self._ends:
                if not end.done():
                    end.set_result(None)
            self._ends.clear()

    def _wake_tasks(self) -> None:
        while self._tasks:
            room, messages, size = self._tasks[0]
            if not room.done():
                with self._changed:
                    if not self._fits(messages, size):
                        return
                    self.messages += messages
                    self.bytes += size + messages * OWN_BYTES
                room.set_result(None)
            self._tasks.popleft()

    def wait_empty(self, timeout_s: float) -> int:
        """Wait, on a thread, until nothing is in flight but messages that a thread still holds: that thread may be in a
        frame that the caller interrupted. Returns: the number of messages in flight.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self.messages > self._held:
                remaining_s = deadline - time.monotonic()
                self._sleepers += 1
                try:
                    if remaining_s <= 0 or not self._changed.wait(remaining_s):
                        break
                finally:
                    self._sleepers -= 1
            return self.messages

    async def wait_empty_async(self, timeout_s: float) -> int:
        """Wait, in the event loop, until nothing is in flight. Returns: the number of messages in flight."""
        if self.messages:
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ends.append(end)
            try:
                async with asyncio.timeout(timeout_s):
                    await end
            except TimeoutError:
                pass
        return self.messages
