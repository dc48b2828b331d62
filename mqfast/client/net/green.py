"""Checks for threads and loops that a client cannot use: gevent, eventlet, trio. No module of these is imported."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mqfast.errors import ClientError

__all__ = ["loop_of_caller", "refuse_green_threads"]


def refuse_green_threads() -> None:
    """Refuse green threads: the event loop of sync clients would block all of them for ever.

    Raises: ClientError where gevent or eventlet has replaced the threads of this process.
    """
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and (gevent.is_module_patched("threading") or gevent.is_module_patched("_thread")):
        raise ClientError(
            "gevent has replaced the threads of this process, and a client of mqfast needs those of the system: call "
            "gevent.monkey.patch_all(thread=False), or use the client in a process without gevent"
        )
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise ClientError(
            "eventlet has replaced the threads of this process, and a client of mqfast needs those of the system: call "
            "eventlet.monkey_patch(thread=False), or use the client in a process without eventlet"
        )


def loop_of_caller() -> asyncio.AbstractEventLoop:
    """Return the event loop of an asynchronous client. Raises: ClientError without an asyncio loop, as under trio."""
    loop = asyncio._get_running_loop()
    if loop is None:
        raise ClientError(
            "expected a running event loop of asyncio, found none: asynchronous clients run under asyncio and "
            "uvloop; under trio call a sync client by trio.to_thread.run_sync"
        )
    return loop
