"""Handling of exceptions of the application's functions: the client continues after each of them, whatever the class.

A SystemExit in a task would end the event loop, and also all sync clients of the process. Only Ctrl-C is passed on,
in the main thread.
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
    """Return whether the exception is Ctrl-C in the main thread, or the end of this task: no error of the function."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, asyncio.CancelledError):
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
        return task is not None and task.cancelling() > 0
    return False


def shielded(name: str, function: Callable[..., T], *args: Any) -> T:
    """Call the function, in a thread of an executor. Raises: the exceptions of the function; ClientError for other than
    an Exception.
    """
    try:
        return function(*args)
    except Exception:
        raise
    except BaseException as error:
        raise ClientError(f"{name} raised {error!r}") from error
