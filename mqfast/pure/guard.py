"""Locks of the client that know their threads: the form of ``client/net/guard.pyx`` without compiled code.

A signal handler may run behind any call of Python code. So the owner of a guard is noted by the lock itself
(``threading.RLock``, written in C), the guards of a thread are counted by asking them, and a guard is released without
Python code in between. No wait exceeds the caller's limit.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import ClientError, ClientNested

if TYPE_CHECKING:

    class _OwnedLock:
        def __enter__(self) -> bool: ...
        def __exit__(
            self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
        ) -> None: ...
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def _is_owned(self) -> bool: ...

else:
    from _thread import RLock as _OwnedLock


class _OfThread(threading.local):
    """The state of a thread: brief guards that the thread took last, depth of unfinished steps and of requests."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self.half_done = 0
        self.asking = 0
        self.serves = False
        self.generation = _generation


_generation = 0  # of guards and threads: a child of a fork begins another one
_thread = _OfThread()


def _of_thread() -> _OfThread:
    """Return the state of the calling thread; requests and guards of a parent process do not count."""
    state = _thread
    if state.generation != _generation:
        state.guards, state.half_done, state.asking, state.serves = [], 0, 0, False
        state.generation = _generation
    return state


class Guard(_OwnedLock):
    """A lock that refuses the thread that holds it already. Arguments, thread and errors: as in ``guard.pyx``."""

    def __new__(cls, *, brief: bool = True, nests: bool = False) -> Guard:
        """Create the lock, whose own constructor takes no arguments."""
        return super().__new__(cls)

    def __init__(self, *, brief: bool = True, nests: bool = False) -> None:
        self._brief = brief
        self._nests = nests
        self._born = _generation

    def __enter__(self) -> bool:
        return self.acquire()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock. Returns: whether the lock was free in time. Raises: ClientNested."""
        owned = self._is_owned()
        if owned and not self._nests:
            raise nested()
        if self._brief and self._born == _generation:
            guards = _of_thread().guards
            guards[:] = [guard for guard in guards if guard is not self and guard._is_owned()]
            guards.append(self)
        try:
            return super().acquire(blocking, timeout)
        except BaseException:  # of a signal handler, perhaps behind the acquisition
            if not owned and self._is_owned():
                self.release()
            raise


def nested() -> ClientNested:
    """Return the error of a call that cannot wait for the frame that it interrupted."""
    return ClientNested(
        "called inside of another call of a client by the same thread, which a signal handler, a finalizer or a "
        "callback interrupted: nothing was done; set a flag there, and call the client behind the interrupted call"
    )


def _holds_guards(state: _OfThread) -> bool:
    return state.half_done > 0 or any(guard._is_owned() for guard in state.guards)


def refuse_nested() -> None:
    """Refuse a call inside of a call that has a guard. Raises: ClientNested."""
    if _holds_guards(_of_thread()):
        raise nested()


def check_may_wait() -> None:
    """Check that this thread may wait for others. Raises: as in ``guard.pyx``."""
    state = _of_thread()
    if _holds_guards(state):
        raise nested()
    if state.serves:
        raise ClientError(
            "a sync client was called in the thread that serves sync clients (by on_done, a hook or a finalizer): it "
            "would wait for ever; use send_future there, or hand the work to another thread"
        )


def serve_here() -> None:
    """Mark the calling thread as the one that serves sync clients: it may not wait for a sync client."""
    _of_thread().serves = True


def serves_here() -> bool:
    """Return whether the calling thread serves sync clients."""
    return _of_thread().serves


def begin_anew() -> None:
    """Reset the state in a child of a fork: requests and guards of the parent do not count."""
    global _generation
    _generation += 1


class _HalfDone:
    """``with HALF_DONE``: other threads use what the calling thread is about to finish; as in ``guard.pyx``."""

    def __enter__(self) -> None:
        _of_thread().half_done += 1

    def __exit__(self, *_: Any) -> None:
        state = _of_thread()
        if state.half_done:
            state.half_done -= 1


class _Asking:
    """``with ASKING as inside``: a request of the calling thread. Returns and raises: as in ``guard.pyx``."""

    def __enter__(self) -> bool:
        state = _of_thread()
        if state.serves:
            check_may_wait()
        state.asking += 1
        return state.asking > 1

    def __exit__(self, *_: Any) -> None:
        state = _of_thread()
        if state.asking:
            state.asking -= 1


ASKING: Final = _Asking()
HALF_DONE: Final = _HalfDone()
