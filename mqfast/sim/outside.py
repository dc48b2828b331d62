"""The outside of the product during a simulation: clocks, random numbers, threads and sockets.

Functions of the standard library are replaced for the time of a run. Code outside of a simulated process, such as other
threads of a test, gets the real functions.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import mqfast.ha.failover.lease_guard
import mqfast.ha.slave
from mqfast.client.consumer import subscription
from mqfast.client.producer import encode
from mqfast.sim.network import connect_blocking
from mqfast.sim.process import PROCESS, Process

if TYPE_CHECKING:
    from mqfast.sim.loop import SimLoop

__all__ = ["replaced"]


class _Run:
    """The run of now.

    A module that is first imported during a run may keep one of the functions below, so none belongs to a run.
    """

    loop: SimLoop
    rng: random.Random


def _of(real: Callable[..., Any], virtual: Callable[[Process], Any]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        process = PROCESS.get()
        return real(*arguments) if process is None else virtual(process)

    return function


def _wall_s(process: Process) -> float:
    return process.machine.wall_s(_Run.loop.now_s)


def _wall_ns(process: Process) -> int:
    return int(_wall_s(process) * 1e9)


def _monotonic_s(process: Process) -> float:
    return process.machine.monotonic_s(_Run.loop.now_s)


def _monotonic_ns(process: Process) -> int:
    return int(_monotonic_s(process) * 1e9)


def _sleep_of(real: Callable[[float], None]) -> Callable[[float], None]:
    """Return the function for ``time.sleep``. In a variable of this module the real function would be replaced too."""

    def sleep(seconds: float) -> None:
        if PROCESS.get() is None:
            real(seconds)
        else:
            _Run.loop.threads.sleep(seconds)

    return sleep


_real_urandom: Final = os.urandom


def _urandom(size: int) -> bytes:
    return _real_urandom(size) if PROCESS.get() is None else _Run.rng.randbytes(size)


class _SeededRandom(random.Random):
    """Random numbers of the seed, unless the caller gives another seed."""

    def __init__(self, x: Any = None) -> None:
        super().__init__(_Run.rng.getrandbits(64) if x is None and PROCESS.get() is not None else x)


_CLOCKS: Final = {
    "time": _of(time.time, _wall_s),
    "time_ns": _of(time.time_ns, _wall_ns),
    "monotonic": _of(time.monotonic, _monotonic_s),
    "monotonic_ns": _of(time.monotonic_ns, _monotonic_ns),
    "perf_counter": _of(time.perf_counter, _monotonic_s),
    "perf_counter_ns": _of(time.perf_counter_ns, _monotonic_ns),
    "clock_gettime": _of(time.clock_gettime, _monotonic_s),
    "sleep": _sleep_of(time.sleep),
}
_REAL: Final = {id(getattr(time, name)): name for name in _CLOCKS}


class _Replacements:
    """Attributes that are replaced for a time."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute."""
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put all attributes back."""
        while self._before:
            owner, name, value = self._before.pop()
            setattr(owner, name, value)


@contextlib.contextmanager
def replaced(loop: SimLoop, rng: random.Random) -> Iterator[None]:
    """Replace the outside. Args: rng: the source of all random numbers of the product."""
    changes = _Replacements()
    _Run.loop, _Run.rng = loop, rng
    state = random.getstate()
    random.seed(rng.getrandbits(64))
    try:
        for module in [m for name, m in sorted(sys.modules.items()) if name.startswith("mqfast.")]:
            for name, value in list(vars(module).items()):
                if id(value) in _REAL:  # from time import monotonic
                    changes.set(module, name, _CLOCKS[_REAL[id(value)]])
        for name, function in _CLOCKS.items():
            changes.set(time, name, function)
        changes.set(os, "urandom", _urandom)
        changes.set(random, "_urandom", _urandom)
        changes.set(random, "Random", _SeededRandom)
        changes.set(encode, "_ids", None)  # of the whole real process
        changes.set(subscription, "_last_version", 0)
        changes.set(concurrent.futures.Future, "result", _result(loop))
        threading = loop.threads.module()
        changes.set(mqfast.ha.slave, "threading", threading)
        changes.set(mqfast.ha.failover.lease_guard, "threading", threading)
        changes.set(mqfast.ha.slave, "socket", _socket_module(loop))
        yield
    finally:
        changes.undo()
        del _Run.loop, _Run.rng
        random.setstate(state)


def _result(loop: SimLoop) -> Callable[..., Any]:
    real = concurrent.futures.Future.result

    def result(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        """Return the result of a future; a simulated thread waits in virtual time."""
        thread = loop.threads.running
        if thread is None:
            return real(future, timeout)
        if not future.done():
            future.add_done_callback(lambda _: thread.wake())
            thread.wait(timeout)
        return real(future, 0)

    return result


def _socket_module(loop: SimLoop) -> Any:
    import socket

    def create_connection(address: tuple[str, int], timeout_s: float | None = None) -> Any:
        return connect_blocking(loop.network, address[0], address[1], timeout_s)

    return SimpleNamespace(
        create_connection=create_connection,
        socket=socket.socket,
        IPPROTO_TCP=socket.IPPROTO_TCP,
        TCP_NODELAY=socket.TCP_NODELAY,
        SHUT_RDWR=socket.SHUT_RDWR,
    )
