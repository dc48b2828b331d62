"""Queues that have a message for somebody, and the threads that wait for one.

Room: client. It must never call a handler. One thread at a time is on its way from sleep to work: it wakes the next one
when more is there. So a short handler is served by the threads that are awake, and a slow one by all.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["WakeupQueue"]

T = TypeVar("T")


class WakeupQueue(Generic[T]):
    """A queue of items for threads.

    Thread: any. The operations of deques are atomic, with and without a GIL.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._idle: deque[threading.Lock] = deque()
        self._waking = False
        self.closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item; wake a thread for it unless one is on its way."""
        self._items.append(item)
        if not self._waking:
            self._wake()

    def close(self) -> None:
        """Every ``get`` returns None from now on, once nothing is left."""
        self.closed = True
        while self._idle:
            self._waking = False
            self._wake()

    def clear(self) -> None:
        """Forget all items."""
        self._items.clear()

    def _wake(self) -> None:
        try:
            lock = self._idle.pop()
        except IndexError:
            self._lacks_threads()
            return
        self._waking = True
        lock.release()

    def _lacks_threads(self) -> None:
        """Items wait, and every thread is at work."""

    def get(self, lock: threading.Lock, timeout_s: float) -> T | None:
        """The next item; None when none came in time, or after ``close``.

        Args: lock: of the calling thread alone, held by it.
        """
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                pass
            else:
                if self._items and not self._waking:
                    self._wake()
                return item
            if self.closed:
                return None
            self._idle.append(lock)
            if self._items or self.closed:
                self._withdraw(lock)
            elif self._sleep(lock, timeout_s):
                self._waking = False
            elif self._withdraw(lock):
                return None

    def _sleep(self, lock: threading.Lock, timeout_s: float) -> bool:
        try:
            return lock.acquire(timeout=timeout_s)
        except BaseException:  # of a signal handler
            if not self._withdraw(lock) and self._items:
                self._wake()  # it was to wake the next one
            raise

    def _withdraw(self, lock: threading.Lock) -> bool:
        """Not idle any more. Returns: False when somebody is waking the thread; the lock is then held again."""
        try:
            self._idle.remove(lock)
        except (ValueError, IndexError):
            lock.acquire()
            self._waking = False
            return False
        return True
