"""Ports for servers that come back on them: below those that the system gives to clients."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["free_port", "free_ports", "still_free"]

_FIRST, _BEHIND, _STEP = 20_911, 32_700, 10
_BEFORE = 5  # a block of ports begins so far before the port that is given out: VIP port, HA port, fast listener

_given: set[int] = set()  # by this process: the first server may not listen yet when the second port is looked for
# One byte for each port, locked by the process of tests that gave the port out, up to the end of that process. The
# file is never closed: a process loses its locks as soon as any descriptor of the file is closed.
_locks = os.open(
    Path(tempfile.gettempdir()) / f"mqfast-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
)


def free_port() -> int:
    """A loopback port with free ones beside it: a broker listens on three. Which one is random: others look as well.

    No other process of tests gets a port of the same ten, up to the end of this process.
    """
    ports = range(_FIRST, _BEHIND, _STEP)
    for port in random.sample(ports, len(ports)):
        if port not in _given and _lock(port) and _is_free((port - 2, port, port + 1)):
            _given.add(port)
            return port
    if not _given:
        raise RuntimeError("no free port on the loopback interface")
    _given.clear()
    return free_port()


def free_ports(count: int) -> int:
    """The first of so many free ports in a row. No other process of tests gets one of these."""
    blocks = -(-count // _STEP)
    ports = range(_FIRST, _BEHIND - blocks * _STEP, _STEP)
    for port in random.sample(ports, len(ports)):
        row = range(port, port + blocks * _STEP, _STEP)
        first = port - _BEFORE
        if _given.isdisjoint(row) and all(map(_lock, row)) and _is_free(range(first, first + count)):
            _given.update(row)
            return first
    if not _given:
        raise RuntimeError(f"no {count} free ports in a row on the loopback interface")
    _given.clear()
    return free_ports(count)


def still_free(port: int) -> int:
    """The port that a server had, another one where another process took it meanwhile."""
    return port if _is_free((port - 2, port, port + 1)) else free_port()


def _lock(port: int) -> bool:
    """Keep the block of a port for this process. Returns: False where another process of tests has it."""
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(ports: Iterable[int]) -> bool:
    with contextlib.ExitStack() as held, contextlib.suppress(OSError):
        for one in ports:
            taken = held.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a client left there is no server
            taken.bind(("127.0.0.1", one))
        return True
    return False
