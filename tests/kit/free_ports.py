"""Ports for servers that come back on them: below those that the system gives to clients."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port", "still_free"]

_given: set[int] = set()  # by this process: the first server may not listen yet when the second port is looked for


def free_port() -> int:
    """A loopback port with free ones beside it: a broker listens on three. Which one is random: others look as well."""
    ports = range(20911, 32700, 10)
    for port in random.sample(ports, len(ports)):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    if not _given:
        raise SystemExit("no free port on the loopback interface")
    _given.clear()
    return free_port()


def still_free(port: int) -> int:
    """The port that a server had, another one where another process took it meanwhile."""
    return port if _is_free(port) else free_port()


def _is_free(port: int) -> bool:
    with contextlib.ExitStack() as held, contextlib.suppress(OSError):
        for one in (port - 2, port, port + 1):
            taken = held.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a client left there is no server
            taken.bind(("127.0.0.1", one))
        return True
    return False
