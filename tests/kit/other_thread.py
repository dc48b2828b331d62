"""A call in another thread: for what the calling thread may not do while it has a lock of the store.

Room: tests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_another_thread(call: Callable[[], T]) -> T:
    """Call, wait, return what the call returned or raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
