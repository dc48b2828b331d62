"""Reserved ports of servers that are down: another process may take a free port at any moment.

A reserved port does not listen: a connection is refused, as on a free port.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import Final

__all__ = ["HeldPorts"]


class HeldPorts:
    """Reserved ports. Thread: one."""

    def __init__(self) -> None:
        self._sockets: Final[dict[int, socket.socket]] = {}

    def hold(self, ports: Iterable[int]) -> None:
        """Reserve ports; ports in use by another process are skipped."""
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
        """Release ports; all of them for None."""
        for port in list(self._sockets if ports is None else ports):
            if port in self._sockets:
                with contextlib.suppress(OSError):
                    self._sockets.pop(port).close()
