"""The event loop of a server process: uvloop where it is installed, else asyncio's own.

Room: remoting. It must never start a loop by itself.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

__all__ = ["runner"]


def runner() -> asyncio.Runner:
    """A runner with the fastest loop that is here."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
