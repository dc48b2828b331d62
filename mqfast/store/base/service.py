"""Service: starts, stops and joins one background loop (RocketMQ: ServiceThread).

A turn is a loop in C that sleeps and works without the GIL, and returns to Python for work that needs Python. Threads
are daemons, so that an interpreter that exits does not hang on an open store: the store's exit handler stops the
threads first. A failed turn is logged once and kept in ``error``; it does not end the loop.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Protocol

from mqfast.store.base.event import Event
from mqfast.store.base.os_api import SystemThread, current_ident, name_thread

__all__ = ["Joinable", "Service", "start_thread"]

_log = logging.getLogger("mqfast.store")


class Joinable(Protocol):
    """A thread that was started."""

    def join(self) -> None: ...


def start_thread(target: Callable[[], object], name: str, *, daemon: bool = True) -> Joinable:
    """Run ``target`` in a system thread, also under gevent or eventlet, which replace threading's threads."""
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        return SystemThread(target)
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    thread.start()
    return thread


class Service:
    """One named background loop.

    Args: ``turn(event)`` works and sleeps until the event is set, or until Python has something to do; it is called
    until ``stop``. ``end_turn``: called by ``stop``, where the event does not end a turn.
    Thread: start and stop from the owner's thread.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[Event], None],
        *,
        end_turn: Callable[[], object] | None = None,
        pause_after_error_s: float = 0.1,
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._turn = turn
        self._end_turn = end_turn
        self._event = Event()
        self._pause = pause_after_error_s
        self._stopping = False
        self._thread: Joinable | None = None
        self._ident = 0

    def start(self) -> None:
        """Start the loop."""
        self._thread = start_thread(self._run, f"mqfast-{self.name}")

    def wake(self) -> None:
        """End the current sleep."""
        self._event.set()

    def stop(self) -> None:
        """Stop the loop and wait for the turn under way. Safe to call twice, and from the loop itself."""
        self._stopping = True
        self._event.set()
        if self._end_turn is not None:
            self._end_turn()
        if self._thread is not None and self._ident != current_ident():
            self._thread.join()  # a signal handler may interrupt the join: the next stop continues
        self._thread = None

    @property
    def is_running(self) -> bool:
        """True if the loop was started and not stopped."""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """True if stop was called."""
        return self._stopping

    def _run(self) -> None:
        self._ident = current_ident()
        try:
            name_thread(f"mqfast-{self.name}")
        except MemoryError:
            pass  # a loop without a name works as well
        while not self._stopping:
            try:
                self._turn(self._event)
            except Exception as error:
                try:
                    self._report(error)
                except Exception:
                    pass  # there may be no memory for the text; the loop continues
            else:
                self.error = None

    def _report(self, error: Exception) -> None:
        before, self.error = self.error, error
        if type(error) is not type(before) or str(error) != str(before):
            _log.error("%s: %s", self.name, error)
        if not self._stopping:
            self._event.wait(self._pause)
