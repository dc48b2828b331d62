"""Service: starts, stops and joins one background loop (RocketMQ: ServiceThread).

A loop body sleeps and works without the GIL; Python is met only once a turn. Threads are daemons, so that an
interpreter that exits does not hang on an open store: the store's exit handler stops them first. A failed turn is
logged once and kept in ``error``; it never ends the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mqfast.store._commit_log import Bell, CommitLog
from mqfast.store._os import ask_for_short_slices, let_puts, name_thread, stop_borrowing_gil

__all__ = ["Service"]

_log = logging.getLogger("mqfast.store")


class Service:
    """One named background loop.

    Args: ``turn(bell)`` does one piece of work and sleeps on the bell itself; it is called until ``stop``.
    ``heavy``: its work keeps a processor for milliseconds. The threads of all others run before it when they wake up:
    they want the GIL for a moment, and as soon as they are woken for it a thread that puts waits for them.
    ``log``: what it serves: a thread that puts there lends it the GIL without a sleep.
    Thread: start and stop from the owner's thread.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[Bell], None],
        *,
        heavy: bool = False,
        log: CommitLog | None = None,
        pause_after_error_s: float = 0.1,
    ) -> None:
        self.name = name
        self.heavy = heavy
        self.error: BaseException | None = None
        self._log = log
        self._turn = turn
        self._bell = Bell()
        self._pause = pause_after_error_s
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the loop."""
        thread = threading.Thread(target=self._run, name=f"mqfast-{self.name}", daemon=True)
        thread.start()
        self._thread = thread

    def wake(self) -> None:
        """End the current sleep."""
        self._bell.ring()

    def stop(self) -> None:
        """Stop the loop and wait for the turn under way. Safe to call twice, and from the loop itself."""
        self._stopping = True
        self._bell.ring()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def is_running(self) -> bool:
        """Was the loop started, and not stopped?"""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Was stop asked for?"""
        return self._stopping

    def _run(self) -> None:
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
