"""Faults that a test switches on: of connections, of requests and answers, of clocks, of the disk.

All but two are context managers, limited to some request codes (``only=``) or a number of requests (``times=``) if
given. A fault ends with the context.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from mqfast.errors import UsageError
from mqfast.remoting.codes import ResponseCode
from mqfast.testing import checks
from mqfast.testing.fault_injection import InjectedFault
from mqfast.util.validate import is_number

if TYPE_CHECKING:
    from mqfast.testing.cluster import RunningCluster
    from mqfast.testing.disk_faults import Disk
    from mqfast.testing.event_loop_thread import EventLoopThread

__all__ = ["Faults"]

_SECONDS_MAX: Final = 3600.0
_JUMP_S_MAX: Final = 365 * 86_400.0
_CODE_MAX: Final = (1 << 31) - 1
_BUSY: Final = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms, size of queue: 0"
)


class Faults:
    """The faults of a test cluster. Thread: any but that of the cluster."""

    def __init__(self, host: EventLoopThread, cluster: RunningCluster) -> None:
        self._host = host
        self._cluster = cluster

    # --- connections ---

    def drop_connections(self) -> int:
        """Close all connections of clients. Returns: the number of connections."""
        return self._host.call(self._cluster.drop_connections)

    @contextlib.contextmanager
    def refuse_connections(self) -> Iterator[None]:
        """Close new connections at once; existing connections stay (see ``drop_connections``)."""
        gate = self._cluster.gate

        def add(number: int) -> None:
            gate.refuses = max(0, gate.refuses + number)

        self._host.call(add, 1)
        try:
            yield
        finally:
            self._host.call(add, -1)

    # --- requests and answers ---

    def slow(
        self, seconds: float, *, only: Iterable[int] = (), times: int | None = None
    ) -> AbstractContextManager[None]:
        """Serve requests so much later. Raises: UsageError."""
        seconds = checks.seconds("slow", seconds, _SECONDS_MAX)
        return self._on(InjectedFault("slow", _codes(only), _times(times), seconds=seconds))

    def lose_answers(self, *, only: Iterable[int] = (), times: int | None = None) -> AbstractContextManager[None]:
        """Serve requests without an answer."""
        return self._on(InjectedFault("lose answers", _codes(only), _times(times)))

    def lose_requests(self, *, only: Iterable[int] = (), times: int | None = None) -> AbstractContextManager[None]:
        """Drop requests without service or answer."""
        return self._on(InjectedFault("lose requests", _codes(only), _times(times)))

    def answer(
        self, code: int, remark: str = "", *, only: Iterable[int] = (), times: int | None = None
    ) -> AbstractContextManager[None]:
        """Answer requests with this code instead of service. Args: remark: RocketMQ's text for the cause."""
        code = checks.whole("answer", code, 0, _CODE_MAX)
        return self._on(InjectedFault("answer", _codes(only), _times(times), answer=code, remark=remark))

    def busy(self, times: int | None = None, *, only: Iterable[int] = ()) -> AbstractContextManager[None]:
        """Answer requests as an overloaded broker (code 2)."""
        return self.answer(ResponseCode.SYSTEM_BUSY, _BUSY, only=only, times=times)

    def duplicate_deliveries(self, every: int = 1) -> AbstractContextManager[None]:
        """Deliver the messages of every n-th pull a second time."""
        every = checks.whole("every", every, 1, _CODE_MAX)
        return self._on(InjectedFault("duplicate deliveries", frozenset(), None, seconds=every))

    def trigger_rebalance(self) -> None:
        """Notify all consumers that the members of their group changed, which rebalances the queues."""
        self._host.call(self._cluster.trigger_rebalance)

    def shuffle_members(self) -> None:
        """Call ``trigger_rebalance``; the former name."""
        warnings.warn("Faults.shuffle_members is trigger_rebalance now", DeprecationWarning, stacklevel=2)
        self.trigger_rebalance()

    # --- time ---

    @contextlib.contextmanager
    def clock_jump(self, seconds: float) -> Iterator[None]:
        """Set the clocks of brokers and name servers ahead, or back (less than 0), and restore the clocks at the end.

        Nothing happens between, unlike ``clock.advance``. Raises: UsageError.
        """
        given: object = seconds
        if not is_number(given, -_JUMP_S_MAX, _JUMP_S_MAX):
            raise UsageError(f"clock_jump: expected -{_JUMP_S_MAX:g} to {_JUMP_S_MAX:g} seconds, found {seconds!r}")
        time_, ms = self._cluster.time, round(seconds * 1000)
        self._host.call(time_.jump, ms)
        try:
            yield
        finally:
            self._host.call(time_.jump_back, ms)

    # --- the disk ---

    def disk_full(self) -> AbstractContextManager[None]:
        """Fill the disk: sends are answered SERVICE_NOT_AVAILABLE (14)."""
        return self._of_disk(lambda disk, on: disk.count_full(on))

    def slow_disk(self, seconds: float) -> AbstractContextManager[None]:
        """Delay every sync. Raises: UsageError."""
        seconds = checks.seconds("slow_disk", seconds, _SECONDS_MAX)
        return self._of_disk(lambda disk, on: disk.count_slow(on, seconds))

    def failing_flush(self) -> AbstractContextManager[None]:
        """Fail every sync with EIO. A store with a failed sync refuses messages until the restart of the broker."""
        return self._of_disk(lambda disk, on: disk.count_failing(on))

    # --- on and off ---

    @contextlib.contextmanager
    def _on(self, fault: InjectedFault) -> Iterator[None]:
        faults = self._cluster.gate.faults

        def off() -> None:
            if fault in faults:
                faults.remove(fault)

        self._host.call(faults.append, fault)
        try:
            yield
        finally:
            self._host.call(off)

    @contextlib.contextmanager
    def _of_disk(self, count: Callable[[Disk, int], None]) -> Iterator[None]:
        def change(on: int) -> None:
            count(self._cluster.disk, on)
            self._cluster.disk_changed()

        self._host.call(change, 1)
        try:
            yield
        finally:
            self._host.call(change, -1)


def _codes(only: Iterable[int]) -> frozenset[int]:
    if isinstance(only, int):
        only = (only,)
    return frozenset(checks.whole("only", code, 0, _CODE_MAX) for code in only)


def _times(times: int | None) -> int | None:
    return None if times is None else checks.whole("times", times, 1, _CODE_MAX)
