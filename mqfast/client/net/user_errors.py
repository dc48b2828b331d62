"""What a client does with exceptions of the application's functions: it goes on after each of them, whatever its class.

A SystemExit that a task of the event loop raises would end the loop, and with it all sync clients of the process. Only
Ctrl-C is passed on where it arrives, in the main thread. Room: client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mqfast.errors import ClientError

__all__ = ["is_passed_on", "shielded"]

T = TypeVar("T")


def is_passed_on(error: BaseException) -> bool:
    """Is it Ctrl-C in the main thread, or the end of this task, and no error of the application's function?"""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, asyncio.CancelledError):
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
        return task is not None and task.cancelling() > 0
    return False


def shielded(name: str, function: Callable[..., T], *args: Any) -> T:
    """Call it, in a thread of an executor. Raises: what it raises; ClientError for what is no Exception."""
    try:
        return function(*args)
    except Exception:
        raise
    except BaseException as error:
        raise ClientError(f"{name} raised {error!r}") from error
