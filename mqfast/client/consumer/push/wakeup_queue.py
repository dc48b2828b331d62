"""A queue of work items, and the threads that wait for items.

At most one thread is being woken; the woken thread wakes the next thread if items remain. So the awake threads run
short handlers, and all threads run slow handlers.
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
        """Add an item, and wake a thread unless a thread is being woken."""
        self._items.append(item)
        if not self._waking:
            self._wake()

    def close(self) -> None:
        """Let every ``get`` return None once the queue is empty."""
        self.closed = True
        while self._idle:
            self._waking = False
            self._wake()

    def clear(self) -> None:
        """Remove all items."""
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
        """Handle the state that items wait and no thread is idle."""

    def get(self, lock: threading.Lock, timeout_s: float) -> T | None:
        """Return the next item; None after the timeout, or after ``close``.

        Args: lock: a lock of the calling thread only, held by that thread.
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
        except BaseException:  # raised by a signal handler
            if not self._withdraw(lock) and self._items:
                self._wake()  # this thread had to wake the next one
            raise

    def _withdraw(self, lock: threading.Lock) -> bool:
        """Remove the thread from the idle threads.
        Returns: False if another thread is waking it; the lock is held again.
        """
        try:
            self._idle.remove(lock)
        except (ValueError, IndexError):
            lock.acquire()
            self._waking = False
            return False
        return True
