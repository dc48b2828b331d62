"""What is still open when the process ends is closed, in a few seconds in all.

Room: client. It must never make an end wait longer than EXIT_S: a client that nobody closed cannot hang its process.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from typing import Final, Protocol

__all__ = ["Closable", "close_at_exit"]

EXIT_S: Final = 5.0
_log = logging.getLogger("mqfast.client")


class Closable(Protocol):
    """Something that can be closed within a time."""

    def close(self, timeout_s: float | None = None) -> None:
        """End within so many seconds."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(client: Closable) -> None:
    """Close this one when the process ends, if it lives then. ``close`` may be called again."""
    _open.add(client)


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_S
    for client in list(_open):
        try:
            client.close(max(0.0, deadline - time.monotonic()))
        except Exception:
            _log.exception("%r was not closed at the end of the process", client)


atexit.register(_close_all)
