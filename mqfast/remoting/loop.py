"""The event loop of a server process: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

__all__ = ["new_event_loop", "runner"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest installed loop."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def runner() -> asyncio.Runner:
    """Return a runner with the fastest installed loop."""
    return asyncio.Runner(loop_factory=new_event_loop)
