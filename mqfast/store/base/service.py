"""Service: starts, stops and joins one background loop (RocketMQ: ServiceThread).

A loop body sleeps and works without the GIL; Python is met only once a turn. Threads are daemons, so that an
interpreter that exits does not hang on an open store: the store's exit handler stops them first. A failed turn is
logged once and kept in ``error``; it never ends the loop.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Protocol

from mqfast.store.base._os import (
    SystemThread,
    ask_for_short_slices,
    current_ident,
    let_puts,
    name_thread,
    stop_borrowing_gil,
)
from mqfast.store.log._commit_log import Bell, CommitLog

__all__ = ["Joinable", "Service", "start_thread"]

_log = logging.getLogger("mqfast.store")


class Joinable(Protocol):
    """A thread that was started."""

    def join(self) -> None: ...


def start_thread(target: Callable[[], object], name: str, *, daemon: bool = True) -> Joinable:
    """Run ``target`` in a thread of the system: under gevent or eventlet, too, whose threads are none."""
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        return SystemThread(target)
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    thread.start()
    return thread


class Service:
    """One named background loop.

    Args: ``turn(bell)`` does one piece of work and sleeps on the bell itself; it is called until ``stop``.
    ``heavy``: its work keeps a processor for milliseconds. The threads of all others run before it when they wake up:
    they want the GIL for a moment, and as soon as they are woken for it a thread that puts waits for them.
    ``log``: what it serves: a thread that puts there lends it the GIL without a sleep.
    ``end_turn``: called by ``stop``, where the bell does not end a turn.
    Thread: start and stop from the owner's thread.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[Bell], None],
        *,
        heavy: bool = False,
        log: CommitLog | None = None,
        end_turn: Callable[[], object] | None = None,
        pause_after_error_s: float = 0.1,
    ) -> None:
        self.name = name
        self.heavy = heavy
        self.error: BaseException | None = None
        self._log = log
        self._turn = turn
        self._end_turn = end_turn
        self._bell = Bell()
        self._pause = pause_after_error_s
        self._stopping = False
        self._thread: Joinable | None = None
        self._ident = 0

    def start(self) -> None:
        """Start the loop."""
        self._thread = start_thread(self._run, f"mqfast-{self.name}")

    def wake(self) -> None:
        """End the current sleep."""
        self._bell.ring()

    def stop(self) -> None:
        """Stop the loop and wait for the turn under way. Safe to call twice, and from the loop itself."""
        self._stopping = True
        self._bell.ring()
        if self._end_turn is not None:
            self._end_turn()
        if self._thread is not None and self._ident != current_ident():
            self._thread.join()  # a signal handler may end it: then the next stop goes on
        self._thread = None

    @property
    def is_running(self) -> bool:
        """Was the loop started, and not stopped?"""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Was stop asked for?"""
        return self._stopping

    def _run(self) -> None:
        self._ident = current_ident()
        try:
            name_thread(f"mqfast-{self.name}")
        except MemoryError:
            pass  # a loop without a name works as well
        if not self.heavy:
            ask_for_short_slices()
        if self._log is not None:
            self._log.borrow_gil()
        try:
            self._loop()
        finally:
            stop_borrowing_gil()

    def _loop(self) -> None:
        while not self._stopping:
            try:
                self._turn(self._bell)
            except Exception as error:
                try:
                    self._tell(error)
                except Exception:
                    pass  # there may be no memory for the words; the loop goes on
            else:
                self.error = None
            let_puts()

    def _tell(self, error: Exception) -> None:
        before, self.error = self.error, error
        if type(error) is not type(before) or str(error) != str(before):
            _log.error("%s: %s", self.name, error)
        if not self._stopping:
            self._bell.sleep(self._pause)
