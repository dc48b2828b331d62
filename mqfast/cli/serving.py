"""A server as a process: start, banner, wait for SIGTERM or control-C, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from mqfast.cli.systemd import Watchdog, notify
from mqfast.errors import StoreLocked

__all__ = ["Server", "other_store", "serve"]


@contextlib.contextmanager
def other_store(option: str) -> Iterator[None]:
    """Return the advice for a locked store: a separate directory. Args: option: that names a directory."""
    try:
        yield
    except StoreLocked as error:
        from mqfast.store.base.lock import ADVICE

        error.strerror = f"{str(error.strerror).removesuffix(ADVICE)}stop it first, or choose another store: {option}"
        raise


class Server(Protocol):
    """Protocol of a server with start and stop."""

    async def start(self) -> None:
        """Start to serve."""

    async def stop(self) -> None:
        """Stop."""


async def serve(server: Server, banner: Callable[[], str]) -> None:
    """Run a server until a signal. Raises: errors of the start."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_OneLine())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    watchdog = Watchdog()
    starting = asyncio.ensure_future(server.start())
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _show(banner())
            notify("READY=1")
            watchdog.start()
            await ended.wait()
    finally:
        ending.cancel()
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        notify("STOPPING=1")
        watchdog.stop()
        await server.stop()


class _OneLine:
    """Logger of errors of the event loop by the system, such as too few descriptors: one line every ten seconds."""

    def __init__(self) -> None:
        from mqfast.util.log_limit import LogLimit

        self._limit = LogLimit(logging.getLogger("mqfast"))

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):
            self._limit.warning("loop", "%s: %s", context.get("message"), error)
        else:
            loop.default_exception_handler(context)


def _show(text: str) -> None:
    """Print, or log the failure: a server does not end with the standard output, for example on a full disk."""
    try:
        print(text, flush=True)
    except OSError as error:
        logging.getLogger("mqfast").warning("standard output cannot be written (%s); it is lost: %s", error, text)
        # The buffered text would fail again with the next line, and when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
