"""Ports of servers that are down, held until these serve again: a free port may be anybody's a moment later.

Room: testing. It must never listen: a connection to a port that is held is refused, as to one where nobody is.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import Final

__all__ = ["HeldPorts"]


class HeldPorts:
    """Ports that are held. Thread: one."""

    def __init__(self) -> None:
        self._sockets: Final[dict[int, socket.socket]] = {}

    def hold(self, ports: Iterable[int]) -> None:
        """Let nobody else have these ports; one that somebody has already is left to them."""
        for port in ports:
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before end in their time
            try:
                held.bind(("", port))
            except OSError:
                held.close()
            else:
                self.release([port])
                self._sockets[port] = held

    def release(self, ports: Iterable[int] | None = None) -> None:
        """Let ports go, all of them for None."""
        for port in list(self._sockets if ports is None else ports):
            if port in self._sockets:
                with contextlib.suppress(OSError):
                    self._sockets.pop(port).close()
