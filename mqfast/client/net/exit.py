"""Closes the clients that are still open when the process ends, within EXIT_S in all."""

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
    """An object that can be closed within a time."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close within so many seconds."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(client: Closable) -> None:
    """Close the client when the process ends. ``close`` may be called again."""
    _open.add(client)


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_S
    for client in list(_open):
        try:
            client.close(max(0.0, deadline - time.monotonic()))
        except Exception:
            _log.exception("%r was not closed at the end of the process", client)


atexit.register(_close_all)
