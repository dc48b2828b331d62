"""The network of a simulation: connections in memory, with delays, cut links, resets and half-open ends.

A connection is two ordered streams of bytes. A cut link holds what is sent, as TCP repeats segments, until the link
heals or the sender gives up. A killed process resets its connections; a machine without power says nothing.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqfast.sim.process import Machine, Process, current
from mqfast.sim.threads import Crashed

if TYPE_CHECKING:
    from mqfast.sim.loop import SimLoop

__all__ = ["End", "Network", "SimSocket", "SimTransport"]

_KERNEL_BYTES: Final = 128 * 1024
_GIVE_UP_S: Final = (15.0, 60.0)
_SYN_S: Final = (1.0, 2.0, 4.0, 8.0)
_DATA, _EOF, _RESET = range(3)


class End:
    """One end of a connection.

    Attributes: ``on_data``, ``on_eof``, ``on_lost``: called in the process of this end; ``unread``: arrived bytes that
    the process does not take now; ``in_flight``: sent bytes that the peer has not taken; ``is_full``: whether this end
    waits until the peer takes some.
    """

    def __init__(self, network: Network, process: Process, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self.network: Final = network
        self.process: Final = process
        self.local: Final = local
        self.remote: Final = remote
        self.peer: End = self
        self.is_closed = False
        self.is_paused = False
        self.is_full = False
        self.in_flight = 0
        self.unread: deque[tuple[int, bytes]] = deque()
        self.held: deque[tuple[int, bytes]] = deque()
        self.next_s = 0.0
        self.gives_up: asyncio.TimerHandle | None = None
        self.on_data: Callable[[bytes], object] = lambda _: None
        self.on_eof: Callable[[], object] = lambda: None
        self.on_lost: Callable[[Exception | None], object] = lambda _: None
        self.on_sent: Callable[[], object] = lambda: None
        process.ends[self] = None

    def send(self, data: bytes) -> None:
        """Send bytes; a process behind its crash point sends nothing."""
        if data and not self.is_closed and self.process.is_seen:
            self.in_flight += len(data)
            self.network.carry(self, _DATA, data)

    def disconnect(self, *, reset: bool) -> None:
        """Close this end: the peer reads the end of the stream, or a reset."""
        if self.is_closed:
            return
        self.is_closed = True
        self.process.ends.pop(self, None)
        if self.process.is_seen:
            self.network.carry(self, _RESET if reset else _EOF, b"")

    def lose(self, error: Exception | None) -> None:
        """End the connection for this end only."""
        if not self.is_closed:
            self.is_closed = True
            self.process.ends.pop(self, None)
            self.on_lost(error)

    def arrive(self, kind: int, data: bytes) -> None:
        """Take an arrived item, in the process of this end."""
        if self.is_closed:
            return
        if self.is_paused or self.unread:
            self.unread.append((kind, data))
        else:
            self._take(kind, data)

    def resume(self) -> None:
        """Take what arrived while the process did not read."""
        self.is_paused = False
        while self.unread and not self.is_paused and not self.is_closed:
            self._take(*self.unread.popleft())

    def _take(self, kind: int, data: bytes) -> None:
        network = self.network
        if kind == _DATA:
            sender = self.peer
            sender.in_flight -= len(data)
            if sender.is_full and sender.process.is_alive and not sender.is_closed:
                network.loop.call_soon(sender.on_sent, context=sender.process.context)
            network.note(self.process, "data", f"{self.remote[0]} {len(data)}")
            self.on_data(data)
        elif kind == _EOF:
            network.note(self.process, "eof", self.remote[0])
            self.on_eof()
        else:
            network.note(self.process, "reset", self.remote[0])
            self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))


class SimTransport(asyncio.Transport):
    """The transport of one end."""

    def __init__(self, end: End, protocol: Any) -> None:
        super().__init__({"peername": end.remote, "sockname": end.local, "socket": None})
        self._end: Final = end
        self._protocol = protocol
        self._closing = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._sent_eof = False
        end.on_data = lambda data: self._protocol.data_received(data)
        end.on_eof = self._eof
        end.on_lost = self._lost
        end.on_sent = self._drained

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closes."""
        return self._closing

    def is_reading(self) -> bool:
        """Return whether bytes are taken."""
        return not self._end.is_paused and not self._closing

    def pause_reading(self) -> None:
        """Take no bytes until ``resume_reading``."""
        self._end.is_paused = True

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._end.is_paused = False
        self._loop.call_soon(self._end.resume)

    @property
    def _loop(self) -> SimLoop:
        return self._end.network.loop

    def set_protocol(self, protocol: Any) -> None:
        """Set the protocol."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the bytes above and below which the protocol pauses and resumes."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not taken."""
        return max(0, self._end.in_flight - _KERNEL_BYTES)

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._closing or self._sent_eof:
            return
        self._end.send(bytes(data))
        if not self._end.is_full and self.get_write_buffer_size() > self._high:
            self._end.is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def _drained(self) -> None:
        if self._end.is_full and self.get_write_buffer_size() <= self._low and not self._closing:
            self._end.is_full = False
            self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def write_eof(self) -> None:
        """End the stream of this side."""
        if not self._sent_eof and not self._closing:
            self._sent_eof = True
            self._end.network.carry(self._end, _EOF, b"")

    def _eof(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def _lost(self, error: Exception | None) -> None:
        self._closing = True
        self._protocol.connection_lost(error)

    def close(self) -> None:
        """Send what was written, and close."""
        self._finish(reset=False)

    def abort(self) -> None:
        """Close at once."""
        self._finish(reset=True)

    def _finish(self, *, reset: bool) -> None:
        if self._closing:
            return
        self._closing = True
        self._end.disconnect(reset=reset)
        self._loop.call_soon(self._protocol.connection_lost, None)


class _Listener:
    """A listening port, with the face of ``asyncio.Server``."""

    def __init__(self, process: Process, factory: Callable[[], Any], port: int) -> None:
        self.process: Final = process
        self.factory: Final = factory
        self.port: Final = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self.process.machine.address, self.port

    def close(self) -> None:
        """Stop to listen."""
        if self.process.listeners.get(self.port) is self:
            del self.process.listeners[self.port]

    def is_serving(self) -> bool:
        """Return whether the port is open."""
        return self.process.listeners.get(self.port) is self

    async def wait_closed(self) -> None:
        """Return at once."""


class Network:
    """All links between machines.

    Attributes: ``cut``: (from, to) of links that carry nothing; ``slow_s``: additional delay of links;
    ``delay_s``: smallest and largest delay of a segment.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, note: Callable[[Process | None, str, str], None]) -> None:
        self.loop: Final = loop
        self.note: Final = note
        self.cut: Final[dict[tuple[Machine, Machine], None]] = {}
        self.slow_s: Final[dict[tuple[Machine, Machine], float]] = {}
        self.delay_s = (0.0001, 0.002)
        self.splits = 0.0
        self.machines: Final[dict[str, Machine]] = {}
        self._rng: Final = rng
        self._held: Final[dict[End, None]] = {}

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut_link(self, source: Machine, to: Machine, *, both: bool = True) -> None:
        """Cut the link from one machine to another, or both directions."""
        self.cut[source, to] = None
        if both:
            self.cut[to, source] = None

    def heal(self) -> None:
        """Repair all links; held bytes arrive."""
        self.cut.clear()
        self.slow_s.clear()
        self.release()

    def release(self) -> None:
        """Send held bytes of links that carry again."""
        for end in list(self._held):
            if self._is_cut(end):
                continue
            del self._held[end]
            if end.gives_up is not None:
                end.gives_up.cancel()
                end.gives_up = None
            held, end.held = end.held, deque()
            for kind, data in held:
                self.carry(end, kind, data)

    def reset_all(self, first: Machine, second: Machine) -> None:
        """Reset all connections between two machines, as a firewall does."""
        for machine in (first, second):
            if machine.process is not None:
                for end in list(machine.process.ends):
                    if end.remote[0] in (first.address, second.address):
                        error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
                        self.loop.call_soon(end.lose, error, context=end.process.context)

    def process_ended(self, process: Process, *, has_kernel: bool) -> None:
        """Reset the connections of a process that has ended; without power nothing is sent."""
        for end in list(process.ends):
            end.is_closed = True
            self._held.pop(end, None)
            if has_kernel:
                self.carry(end, _RESET, b"")
        process.ends.clear()
        process.listeners.clear()

    # -- streams -------------------------------------------------------------------------------------------------------

    def _is_cut(self, end: End) -> bool:
        return (end.process.machine, end.peer.process.machine) in self.cut

    def _delay(self, source: Machine, to: Machine) -> float:
        low, high = self.delay_s
        return low + (high - low) * self._rng.random() ** 3 + self.slow_s.get((source, to), 0.0)

    def carry(self, end: End, kind: int, data: bytes) -> None:
        """Carry an item of an end to its peer."""
        if end.held or self._is_cut(end):
            self._hold(end, kind, data)
            return
        peer = end.peer
        machine = peer.process.machine
        if not peer.process.is_alive:
            if machine.has_power and end.process.is_alive and not end.is_closed:
                delay = 2 * self._delay(end.process.machine, machine)
                error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
                self.loop.call_later(delay, end.lose, error, context=end.process.context)
            elif end.process.is_alive and not end.is_closed:
                self._hold(end, kind, data)
            return
        if self.splits and len(data) > 1 and self._rng.random() < self.splits:
            at = self._rng.randrange(1, len(data))
            self._schedule(end, kind, data[:at])
            data = data[at:]
        self._schedule(end, kind, data)

    def _schedule(self, end: End, kind: int, data: bytes) -> None:
        peer = end.peer
        when = max(end.next_s, self.loop.now_s + self._delay(end.process.machine, peer.process.machine))
        end.next_s = when
        self.loop.call_at(when, peer.arrive, kind, data, context=peer.process.context)

    def _hold(self, end: End, kind: int, data: bytes) -> None:
        end.held.append((kind, data))
        self._held[end] = None
        if end.gives_up is None and end.process.is_alive:
            low, high = _GIVE_UP_S
            seconds = low + (high - low) * self._rng.random()
            end.gives_up = self.loop.call_later(seconds, self._give_up, end, context=end.process.context)

    def _give_up(self, end: End) -> None:
        end.gives_up = None
        if end in self._held:
            del self._held[end]
            end.held.clear()
            end.lose(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    # -- listening and connecting --------------------------------------------------------------------------------------

    def listen(self, factory: Callable[[], Any], port: int) -> Any:
        """Listen at a port of the current machine. Raises: OSError for a port in use."""
        process = current()
        port = port or process.machine.free_port()
        if port in process.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        process.listeners[port] = listener = _Listener(process, factory, port)
        return listener

    def _machine(self, process: Process, host: str) -> Machine:
        if host in ("127.0.0.1", "localhost", process.machine.address):
            return process.machine
        machine = self.machines.get(host)
        if machine is None:
            raise OSError(errno.EHOSTUNREACH, f"no machine has the address {host}")
        return machine

    def open(self, host: str, port: int) -> asyncio.Future[End]:
        """Open a connection from the current process. Returns: a future of this end, or with an OSError."""
        process = current()
        future: asyncio.Future[End] = self.loop.create_future()
        try:
            self._try(process, self._machine(process, host), port, future, 0)
        except OSError as error:
            future.set_exception(error)
        return future

    def _try(self, process: Process, machine: Machine, port: int, future: asyncio.Future[End], attempt: int) -> None:
        if future.done() or not process.is_alive:
            return
        source = process.machine
        if process.is_seen and (source, machine) not in self.cut and machine.has_power:
            delay = self._delay(source, machine)
            self.loop.call_later(delay, self._syn, process, machine, port, future, context=process.context)
        self._again(process, machine, port, future, attempt)

    def _again(self, process: Process, machine: Machine, port: int, future: asyncio.Future[End], attempt: int) -> None:
        if attempt < len(_SYN_S):
            self.loop.call_later(
                _SYN_S[attempt], self._try, process, machine, port, future, attempt + 1, context=process.context
            )
        else:
            self.loop.call_later(
                _SYN_S[-1], _fail, future, TimeoutError(errno.ETIMEDOUT, "connection timed out"),
                context=process.context,
            )  # fmt: skip

    def _syn(self, process: Process, machine: Machine, port: int, future: asyncio.Future[End]) -> None:
        if future.done() or not machine.has_power or (machine, process.machine) in self.cut:
            return
        back_s = self._delay(machine, process.machine)
        server = machine.process
        listener = None if server is None else server.listeners.get(port)
        if server is None or listener is None:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"connection to {machine.address}:{port} refused")
            self.loop.call_later(back_s, _fail, future, error, context=process.context)
            return
        local = process.machine.address, process.machine.free_port()
        near = End(self, process, local, (machine.address, port))
        far = End(self, server, (machine.address, port), local)
        near.peer, far.peer = far, near
        self.loop.call_soon(self._accept, listener, far, context=server.context)
        near.next_s = far.next_s = self.loop.now_s + back_s
        self.loop.call_at(near.next_s, self._connected, near, future, context=process.context)

    def _accept(self, listener: _Listener, end: End) -> None:
        if end.is_closed:
            return
        self.note(end.process, "accept", end.remote[0])
        protocol = listener.factory()
        protocol.connection_made(SimTransport(end, protocol))

    def _connected(self, end: End, future: asyncio.Future[End]) -> None:
        if future.done():
            end.disconnect(reset=True)
        else:
            future.set_result(end)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[SimTransport, Any]:
        """Connect as ``loop.create_connection``. Raises: OSError."""
        end = await self.open(host, port)
        protocol = factory()
        transport = SimTransport(end, protocol)
        protocol.connection_made(transport)
        if end.is_closed:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        return transport, protocol


def _fail(future: asyncio.Future[End], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)


class SimSocket:
    """A blocking socket of a simulated thread."""

    def __init__(self, end: End) -> None:
        self._end: Final = end
        self._timeout_s: float | None = None
        self._arrived: deque[bytes] = deque()
        self._has_ended = False
        self._error: Exception | None = None
        self._waiting: Any = None
        end.on_data = self._data
        end.on_eof = self._eof
        end.on_lost = self._lost

    def _data(self, data: bytes) -> None:
        self._arrived.append(data)
        self._wake()

    def _eof(self) -> None:
        self._has_ended = True
        self._wake()

    def _lost(self, error: Exception | None) -> None:
        self._error = error
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.wake()

    def settimeout(self, seconds: float | None) -> None:
        """Set the longest wait of a call."""
        self._timeout_s = seconds

    def setsockopt(self, *_: Any) -> None:
        """Accept any option."""

    def recv_into(self, buffer: memoryview) -> int:
        """Receive bytes. Raises: TimeoutError, OSError."""
        if not self._arrived and not self._has_ended:
            self._waiting = threads = self._end.network.loop.threads.running
            assert threads is not None
            threads.wait(self._timeout_s)
            self._waiting = None
        if self._arrived:
            data = self._arrived.popleft()
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            if size < len(data):
                self._arrived.appendleft(data[size:])
            return size
        if self._error is not None:
            raise self._error
        if self._has_ended:
            return 0
        raise TimeoutError("timed out")

    def recv(self, size: int) -> bytes:
        """Receive bytes. Raises: TimeoutError, OSError."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def sendall(self, data: Any) -> None:
        """Send bytes. Raises: OSError."""
        if not self._end.process.is_alive:
            raise Crashed
        if self._end.is_closed:
            raise self._error or BrokenPipeError(errno.EPIPE, "broken pipe")
        self._end.send(bytes(data))

    def shutdown(self, _how: int) -> None:
        """End both directions; a waiting thread reads the end."""
        self._end.disconnect(reset=False)
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        """Close the socket."""
        self._end.disconnect(reset=False)

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_blocking(network: Network, host: str, port: int, timeout_s: float | None) -> SimSocket:
    """Connect in a simulated thread. Raises: OSError, TimeoutError."""
    thread = network.loop.threads.running
    assert thread is not None, "a blocking connection outside of a simulated thread"
    future = network.open(host, port)
    future.add_done_callback(lambda _: thread.wake())
    if not future.done():
        thread.wait(timeout_s)
    if not future.done():
        future.cancel()
        raise TimeoutError("timed out")
    return SimSocket(future.result())
