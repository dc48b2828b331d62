"""Ports for servers that come back on them: below those that the system gives to clients."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A loopback port with free ones beside it: a broker listens on three. Which one is random: others look as well."""
    for port in random.sample(range(20911, 32700, 50), 236):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for one in (port - 2, port, port + 1):
                taken = held.enter_context(socket.socket())
                taken.bind(("127.0.0.1", one))
            return port
    raise SystemExit("no free port on the loopback interface")
