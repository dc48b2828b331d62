"""Ports for servers that come back on them: below those that the system gives to clients."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]

_given: set[int] = set()  # by this process: the first server may not listen yet when the second port is looked for


def free_port() -> int:
    """A loopback port with free ones beside it: a broker listens on three. Which one is random: others look as well."""
    ports = range(20911, 32700, 10)
    for port in random.sample(ports, len(ports)):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            if port in _given:
                continue
            for one in (port - 2, port, port + 1):
                taken = held.enter_context(socket.socket())
                taken.bind(("127.0.0.1", one))
            _given.add(port)
            return port
    if not _given:
        raise SystemExit("no free port on the loopback interface")
    _given.clear()
    return free_port()
