"""A test broker in a child process: a kill is a real SIGKILL, and the interpreter of the test is not shared.

The child has the whole cluster; this side forwards every call over a socket. The child ends with ``close`` or with this
process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any, Final, Self

from mqfast.errors import ClientError, UsageError
from mqfast.testing.broker_base import BrokerBase
from mqfast.testing.disk_faults import cut_power
from mqfast.testing.faults import Faults
from mqfast.testing.ports import HeldPorts
from mqfast.testing.scratch_directories import ScratchDirectory
from mqfast.testing.wait_helpers import stopped_loop, until_true

__all__ = ["ProcessBroker", "serve_calls"]

_END_S: Final = 30.0
_AT_ONCE: Final = ("drop_connections", "shuffle_members", "trigger_rebalance")


class ProcessBroker(BrokerBase):
    """A Broker whose servers run in a child process; returned by ``Broker(process=True)``.

    Thread: any; calls are serialized. Raises: ClientError if the child has ended.
    """

    def __init__(self, *, process: bool = True, **arguments: Any) -> None:
        super().__init__(**arguments)  # checks them
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._line: Connection
        self._state: Mapping[str, Any] = {}
        self._one_call = threading.Lock()
        self._number = 0
        self._held = HeldPorts()

    # --- the child ---

    def start(self) -> Self:
        """Start; ``with`` does as well. Raises: as ``Broker.start``."""
        if self._started:
            raise UsageError("start: expected a broker that is not started, found one that is")
        self._place = ScratchDirectory()
        try:
            self._begin()
        except BaseException:
            self._end_child(signal.SIGKILL)
            self._place.remove()
            raise
        self.faults = _Faults(self._request)  # type: ignore[assignment]
        self.clock = _Clock(self._request)  # type: ignore[assignment]
        return self

    def _begin(self) -> None:
        assert self._place is not None
        self._held.release()
        mine, its = socket.socketpair()
        with its:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mqfast.testing.child", str(its.fileno())], pass_fds=[its.fileno()]
            )
        self._line = Connection(mine.detach())
        self._started = True
        try:
            self._request("start", self._arguments, self._place.path, self._state)
        except BaseException:
            self._started = False
            raise
        self._state = self._request("state")
        self._namesrv_addr, self._addresses = self._request("namesrv_addr"), self._request("addresses")

    def _request(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self._started or self._pid != os.getpid():
            raise UsageError("expected a broker that is started, in this process: use it by `with`")
        if self._child is None:
            raise ClientError("the process of the test broker was killed: expected restart() first")
        try:
            with self._one_call:
                self._number = number = self._number + 1
                self._line.send((number, name, args, kwargs))
                answered, done, value = self._line.recv()
                while answered != number:  # of a call whose caller was interrupted, by control-C or a time-out
                    answered, done, value = self._line.recv()
        except (EOFError, OSError) as error:
            raise ClientError(f"the process of the test broker is gone: {error!r}") from None
        if not done:
            raise value
        return value

    def _end_child(self, how: int) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._line.close()
            if how == signal.SIGKILL:
                child.kill()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def close(self) -> None:
        """Close the clients of this broker, then the child; remove the files."""
        if not self._started or self._pid != os.getpid():
            return
        try:
            self.close_clients()
            if self._child is not None:
                with contextlib.suppress(ClientError):
                    self._request("close")
        finally:
            self._started = False
            self._held.release()
            self._end_child(signal.SIGTERM)
            if self._place is not None:
                self._place.remove()

    def kill(self, broker: str = "", *, power_loss: bool = False) -> None:
        """Kill, as ``Broker.kill``; without a name the whole process gets SIGKILL, name servers too."""
        if broker:
            self._request("kill", broker, power_loss=power_loss)
            return
        self._state = self._request("state")
        flushed: Mapping[str, int] = self._request("flushed")
        self._end_child(signal.SIGKILL)
        addresses = [*self._addresses.values(), *self._namesrv_addr.split(";")]
        self._held.hold(int(address.rpartition(":")[2]) for address in addresses)
        if power_loss:
            for path, offset in flushed.items():
                cut_power(path, offset)

    def restart(self, broker: str = "") -> None:
        """Restart, as ``Broker.restart``; after a kill of the process, start a process with all servers."""
        if self._child is None and self._started:
            self._begin()
        else:
            self._request("restart", broker)

    def reset(self) -> None:
        """Reset, as ``Broker.reset``."""
        if self._child is None and self._started:
            self._begin()
        self._request("reset")
        self._state = self._request("state")

    def wait_until(self, condition: Callable[[], object], *, timeout_s: float = 5.0) -> None:
        """Wait, as ``Broker.wait_until``."""
        if not until_true(condition, timeout_s):
            name = getattr(condition, "__name__", repr(condition))
            self._fail(f"wait_until: expected {name} to be true within {timeout_s:g} s")


def _plain(value: object) -> object:
    """Return a value that can be pickled: bytes for a memoryview."""
    return bytes(value) if isinstance(value, memoryview) else value


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: ProcessBroker, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_plain, args))
        kwargs = {key: _plain(value) for key, value in kwargs.items()}
        try:
            return self._request(name, *args, **kwargs)
        except AssertionError as error:
            hint = stopped_loop() if name.startswith("wait_") else ""
            if not hint:
                raise
            text, _, rest = str(error).partition("\n")
            raise AssertionError(f"{text}{hint}\n{rest}") from None

    method.__name__, method.__doc__ = name, f"As ``Broker.{name}``."
    return method


for _name in (
    "prepare_reset", "stop", "create_topics", "create_topic", "send", "messages", "dead_letters", "scheduled", "offset",
    "requests", "describe", "wait_for", "wait_consumed", "wait_members", "assert_sent", "assert_nothing_sent",
    "assert_consumed_once", "assert_in_order",
):  # fmt: skip
    setattr(ProcessBroker, _name, _forwarded(_name))


class _Faults:
    """The faults of a cluster in another process."""

    def __init__(self, request: Callable[..., Any]) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not hasattr(Faults, name):
            raise AttributeError(f"'Faults' object has no attribute {name!r}")
        if name in _AT_ONCE:
            return lambda: self._request("fault", name)

        def fault(*args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
            return self._on(self._request("fault", name, *args, **kwargs))  # wrong arguments fail here

        return fault

    @contextlib.contextmanager
    def _on(self, number: int) -> Iterator[None]:
        self._request("begin_fault", number)
        try:
            yield
        finally:
            with contextlib.suppress(ClientError):  # a killed process has no faults
                self._request("end_fault", number)


class _Clock:
    """The clock of a cluster in another process."""

    def __init__(self, request: Callable[..., Any]) -> None:
        self._request = request

    def now(self) -> datetime:
        """Return the time, as ``Clock.now``."""
        moment: datetime = self._request("clock", "now")
        return moment

    def now_ms(self) -> int:
        """Return the time, as ``Clock.now_ms``."""
        return int(self._request("clock", "now_ms"))

    def advance(self, seconds: float | timedelta) -> int:
        """Advance, as ``Clock.advance``."""
        return int(self._request("clock", "advance", seconds))

    def travel_to(self, when: datetime) -> int:
        """Advance, as ``Clock.travel_to``."""
        return int(self._request("clock", "travel_to", when))

    def advance_to_next(self) -> timedelta | None:
        """Advance, as ``Clock.advance_to_next``."""
        step: timedelta | None = self._request("clock", "advance_to_next")
        return step


class _Calls:
    """The child's side: calls from the parent, done by a Broker of this process."""

    def __init__(self) -> None:
        self._broker: BrokerBase
        self._faults: dict[int, contextlib.AbstractContextManager[None]] = {}

    def start(self, arguments: dict[str, Any], root: str, state: Mapping[str, Any]) -> None:
        """Start on given ports and stores."""
        self._broker = BrokerBase(**arguments)
        self._broker.start_at(root, state)

    def fault(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Create a fault. Returns: its number, or the result of a fault without an end."""
        fault_context = getattr(self._broker.faults, name)(*args, **kwargs)
        if name in _AT_ONCE:
            return fault_context
        self._faults[id(fault_context)] = fault_context
        return id(fault_context)

    def begin_fault(self, number: int) -> None:
        """Switch a fault on."""
        self._faults[number].__enter__()

    def end_fault(self, number: int) -> None:
        """Switch a fault off."""
        fault_context = self._faults.pop(number, None)
        if fault_context is not None:
            fault_context.__exit__(None, None, None)

    def clock(self, name: str, *args: Any) -> Any:
        """Call the clock."""
        return getattr(self._broker.clock, name)(*args)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._broker, name)
        return attribute if callable(attribute) else lambda: attribute


def serve_calls(line: Connection) -> None:
    """Serve the calls of the other side until the connection ends."""
    calls = _Calls()
    while True:
        try:
            number, name, args, kwargs = line.recv()
        except (EOFError, OSError):
            break
        try:
            done, value = True, getattr(calls, name)(*args, **kwargs)
        except BaseException as error:
            done, value = False, error
        try:
            line.send((number, done, value))
        except (pickle.PicklingError, TypeError, AttributeError):
            line.send((number, False, RuntimeError(repr(value))))
        if name == "close":
            break
    with contextlib.suppress(AttributeError):
        calls._broker.close()
