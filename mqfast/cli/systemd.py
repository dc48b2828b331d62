"""Notifications of a service to systemd: ready, alive, stopping; over a datagram socket.

No call fails, and nothing happens outside systemd. Protocol: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

__all__ = ["Watchdog", "notify"]


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a state, as ``READY=1``. Returns: False without systemd."""
    path = environment.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@") or not hasattr(socket, "AF_UNIX"):
        return False
    address = "\0" + path[1:] if path[0] == "@" else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.setblocking(False)
            speaker.sendto(state.encode(), address)
    except OSError:
        return False
    return True


class Watchdog:
    """Watchdog that notifies systemd twice in each interval while the event loop runs; idle without an interval."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        self._interval_s = int(text) / 2e6 if mine and text.isascii() and text.isdigit() else 0.0
        self._environment = environment
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Notify now and from now on."""
        if self._interval_s > 0:
            notify("WATCHDOG=1", self._environment)
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.start)

    def stop(self) -> None:
        """Stop notifying."""
        if self._timer is not None:
            self._timer.cancel()
