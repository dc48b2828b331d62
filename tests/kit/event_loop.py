"""A coroutine of a test in an event loop of its own, with a limit that only a hang reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(work: Coroutine[Any, Any, None], limit_s: float = 60) -> None:
    """Run a coroutine to its end. Raises: TimeoutError after the limit."""
    asyncio.run(asyncio.wait_for(work, limit_s))
