"""An iterator whose next items another thread makes while the caller works on the last item.

The number of items made ahead is bounded. After ``close`` the thread ends with the present item.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Prefetcher"]

T = TypeVar("T")
_POLL_S: Final = 0.2


class Prefetcher(Generic[T]):
    """Items of ``source``, up to ``depth`` of them made ahead. Thread: one; a second thread uses ``source`` alone."""

    def __init__(self, source: Iterator[T], depth: int) -> None:
        self._source: Final = source
        self._items: Final[queue.Queue[tuple[T | None, BaseException | None]]] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqfast-pull", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._source:
                if not self._put(item, None) or self._stopped.is_set():
                    return
            self._put(None, StopIteration())
        except BaseException as error:
            self._put(None, error)

    def _put(self, item: T | None, error: BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put((item, error), timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        item, error = self._items.get()
        if error is not None:
            self._items.put((None, error))  # every later call raises the error again
            raise error
        assert item is not None
        return item

    def close(self) -> None:
        """Make no more items; the creator of ``source`` interrupts a wait in ``source``."""
        self._stopped.set()
