"""A TCP connection within a time limit, including the name resolution: the system's resolver has no limit."""

from __future__ import annotations

import contextlib
import socket
import time
from _thread import allocate_lock, start_new_thread
from typing import Any

__all__ = ["connect"]

_Found = list[tuple[Any, Any, int, str, tuple[Any, ...]]]


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection to the first address of a host that accepts. Its socket timeout is the rest of the time.

    A socket that the caller does not get is closed. Raises: OSError, TimeoutError; ValueError for a text that is no
    host name.
    """
    deadline = time.monotonic() + timeout_s
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, place in _addresses(host, port, timeout_s):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _addresses(host: str, port: int, timeout_s: float) -> _Found:
    with contextlib.suppress(socket.gaierror):
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    answer: list[_Found | Exception] = []

    def resolve() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            answer.append(error)

    ended = allocate_lock()
    ended.acquire()

    def resolve_and_notify() -> None:
        resolve()
        ended.release()

    try:  # not by threading.Thread, whose own locks a signal handler may have interrupted
        start_new_thread(resolve_and_notify, ())
    except RuntimeError:  # no thread can be started any more: the interpreter ends, or the system's limit is reached
        resolve()
    else:
        ended.acquire(timeout=timeout_s)
    if not answer:
        raise TimeoutError(f"the name {host} was not resolved in {timeout_s:.2f} s")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]
