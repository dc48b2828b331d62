"""Waiting for conditions, with a deadline that only a failure reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeVar

__all__ = ["LIMIT_S", "until", "until_async"]

T = TypeVar("T")

LIMIT_S: Final = 250.0
"""Far above what any condition takes, also on a busy machine."""


def until(
    condition: Callable[[], T], what: str = "the condition", seconds: float = LIMIT_S, *, pause_s: float = 0.005
) -> T:
    """Wait until a condition is true. Returns: the value. Raises: AssertionError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(pause_s)
    return value


async def until_async(
    condition: Callable[[], T | Awaitable[T]],
    what: str = "the condition",
    seconds: float = LIMIT_S,
    *,
    pause_s: float = 0.005,
) -> T:
    """Wait in an event loop until a condition is true; the condition may be a coroutine function.

    Returns: the value. Raises: AssertionError after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        value = await result if isawaitable(result) else result
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(pause_s)
