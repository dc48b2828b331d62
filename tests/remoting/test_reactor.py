"""Reactors without a service: every frame reaches the event loop, and connections end as those of the loop do.

What a broker does with reactors: ``tests/broker/fast``; the whole suites run with reactors by
``MQFAST_TEST_SELECTOR_THREADS=2``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from raw_frames import Raw, binary_frame, json_frame
from waiting import until_async as until

from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer, reactors_of
from mqfast.remoting.settings import RemotingSettings

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")

ECHO, SILENT, LARGE = 1, 2, 3


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


class Served:
    """A server with reactors whose handlers answer with the body of the request."""

    def __init__(self, clock: Callable[[], float] | None = None, **settings: Any) -> None:
        self.settings = RemotingSettings(**{"selector_threads": 2, **settings})
        reactors = reactors_of(self.settings)
        assert reactors is not None
        self.reactors = reactors
        self.seen: list[bytes] = []
        self.closed: list[Channel] = []
        processors = Processors()
        lane = ConcurrencyLimit("all")
        processors.register([ECHO], self.echo, lane)
        processors.register([SILENT], lambda channel, request: None, lane)
        processors.register([LARGE], lambda channel, request: request.response(0, body=bytes(1 << 20)), lane)
        self.server = RemotingServer(
            processors, self.settings, on_closed=self.closed.append, reactors=reactors, clock=clock
        )

    def echo(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(bytes(request.body))
        return request.response(0, body=request.body)

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    served = Served(**settings)
    await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()
        served.reactors.stop()


def test_frames_in_pieces_of_any_size_come_whole_and_in_order() -> None:
    async def flow() -> None:
        chance = random.Random(1)
        async with serving() as served:
            raw = await Raw.to(served.address)
            bodies = [chance.randbytes(chance.choice((0, 1, 100, 70_000, 300_000))) for _ in range(60)]
            stream = b"".join(
                (json_frame if chance.random() < 0.5 else binary_frame)({}, body, code=ECHO, opaque=number)
                for number, body in enumerate(bodies)
            )
            at = 0
            got: list[bytes] = []

            async def read() -> None:
                for _ in bodies:
                    got.append(await raw.receive())

            reading = asyncio.ensure_future(read())
            while at < len(stream):
                size = chance.choice((1, 3, 7, 100, 5000, 100_000))
                raw.send(stream[at : at + size])
                await raw.writer.drain()
                at += size
            await reading
            assert served.seen == bodies
            assert [frame[len(frame) - len(body) :] for frame, body in zip(got, bodies, strict=True)] == bodies
            raw.close()
            await until(lambda: len(served.closed) == 1)

    run(flow())


def test_many_connections_come_and_go() -> None:
    async def client(served: Served, number: int) -> None:
        raw = await Raw.to(served.address)
        for turn in range(5):
            body = b"%d %d" % (number, turn)
            assert (await raw.ask(json_frame({}, body, code=ECHO))).endswith(body)
        if number % 3 == 0:  # ends with a reset
            sock = raw.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()

    async def flow() -> None:
        async with serving() as served:
            await asyncio.gather(*(client(served, number) for number in range(200)))
            await until(lambda: not served.server.channels)
            assert len(served.closed) == 200
            assert served.server.buffered_bytes == 0

    run(flow())


def test_bytes_that_are_no_frame_end_their_connection_only() -> None:
    async def flow() -> None:
        async with serving() as served:
            good = await Raw.to(served.address)
            for garbage in (
                b"\0\0\0\1x",
                b"\x7f\xff\xff\xff" + bytes(100),
                b"\0\0\0\x10\x05" + bytes(20),
                b"\x16\x03\x01",
            ):
                raw = await Raw.to(served.address)
                raw.send(garbage)
                raw.writer.write_eof()
                assert await raw.reader.read() == b""
                raw.close()
            assert (await good.ask(json_frame({}, b"still", code=ECHO))).endswith(b"still")
            good.close()

    run(flow())


def test_an_answer_reaches_a_client_that_sends_no_more() -> None:
    async def flow() -> None:
        async with serving() as served:
            raw = await Raw.to(served.address)
            raw.send(json_frame({}, b"last", code=ECHO))
            raw.writer.write_eof()
            assert (await raw.receive()).endswith(b"last")
            assert await raw.reader.read() == b""
            raw.close()

    run(flow())


def test_requests_before_the_end_of_a_client_are_served_though_others_have_their_turn_first() -> None:
    """A consumer stores its offsets by oneway requests and closes."""
    count = 2000
    ticks = itertools.count()

    async def flow() -> None:
        # By this clock the time of a turn is over after a few requests.
        async with serving(clock=lambda: next(ticks) / 1000) as served:
            with socket.create_connection(served.server.address) as peer:
                await until(lambda: len(served.server.channels) == 1)
                stream = b"".join(json_frame({}, b"%d" % n, code=ECHO, flag=2) for n in range(count))
                assert len(stream) < 256 * 1024  # handed over as one piece
                peer.sendall(stream)
                peer.shutdown(socket.SHUT_WR)
                while served.reactors.counts()["handedOver"] < count:  # the loop stands still, and sees both at once
                    time.sleep(0.001)
            await until(lambda: len(served.closed) == 1)
            assert [int(body) for body in served.seen] == list(range(count))

    run(flow())


def test_a_client_that_does_not_read_is_not_read_and_others_are_served() -> None:
    async def flow() -> None:
        async with serving() as served:
            deaf = await Raw.to(served.address)
            for number in range(64):
                deaf.send(json_frame({}, b"", code=LARGE, opaque=number))
            await until(lambda: any(channel.unsent_bytes > 1 << 20 for channel in served.server.channels))
            other = await Raw.to(served.address)
            assert (await other.ask(json_frame({}, b"here", code=ECHO))).endswith(b"here")
            unsent = max(channel.unsent_bytes for channel in served.server.channels)
            assert unsent < 8 << 20
            for _ in range(64):
                assert len(await deaf.receive()) > 1 << 20
            deaf.close()
            other.close()

    run(flow())


def test_the_proxy_preamble_names_the_peer() -> None:
    async def flow() -> None:
        async with serving() as served:
            raw = await Raw.to(served.address)
            raw.send(b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 10911\r\n" + json_frame({}, b"x", code=ECHO))
            assert (await raw.receive()).endswith(b"x")
            assert [channel.peer for channel in served.server.channels] == [("10.1.2.3", 4711)]
            raw.close()

    run(flow())


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async def flow() -> None:
        async with serving(idle_timeout_s=1.0) as served:
            raw, busy = await Raw.to(served.address), await Raw.to(served.address)

            async def work() -> None:
                while not served.closed:
                    await busy.ask(json_frame({}, b"x", code=ECHO))

            working = asyncio.ensure_future(work())
            assert await raw.reader.read() == b""
            await working
            assert (await busy.ask(json_frame({}, b"x", code=ECHO))).endswith(b"x")
            raw.close()
            busy.close()

    run(flow())


def test_too_many_connections_are_closed_at_once() -> None:
    async def flow() -> None:
        async with serving(connections_max=2) as served:
            kept = [await Raw.to(served.address) for _ in range(2)]
            for raw in kept:
                await raw.ask(json_frame({}, b"", code=ECHO))
            third = await Raw.to(served.address)
            with contextlib.suppress(ConnectionError):
                assert await third.reader.read() == b""
            third.close()
            for raw in kept:
                assert (await raw.ask(json_frame({}, b"x", code=ECHO))).endswith(b"x")
                raw.close()

    run(flow())


def test_the_end_of_the_server_ends_all_connections() -> None:
    async def flow() -> None:
        async with serving() as served:
            clients = [await Raw.to(served.address) for _ in range(20)]
            for raw in clients:
                await raw.ask(json_frame({}, b"", code=ECHO))
                raw.send(json_frame({}, b"", code=SILENT))
        for raw in clients:
            with contextlib.suppress(ConnectionResetError):  # the server may end before it has read SILENT
                assert await raw.reader.read() == b""
            raw.close()
        assert len(served.closed) == 20

    run(flow())


def test_reactors_are_not_started_where_tls_is_enforced_or_no_thread_is_asked_for() -> None:
    from mqfast.remoting.tls import TlsMode

    async def flow() -> None:
        assert reactors_of(RemotingSettings()) is None
        assert reactors_of(RemotingSettings(selector_threads=2, tls_mode=TlsMode.ENFORCING)) is None

    run(flow())


def test_an_error_of_the_protocol_does_not_lose_the_end_of_the_connection() -> None:
    class Failing(asyncio.Protocol):
        lost = 0

        def data_received(self, data: bytes) -> None:
            raise ValueError(data)

        def connection_lost(self, error: Exception | None) -> None:
            self.lost += 1

    async def flow() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        reactors = reactors_of(RemotingSettings(selector_threads=1))
        assert reactors is not None
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
        protocol = Failing()
        transport = reactors.adopt(accepted, protocol)
        peer.sendall(json_frame({}, b"", code=ECHO))
        while reactors.counts()["handedOver"] == 0:  # the loop stands still: bytes and end are taken together
            time.sleep(0.001)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        while transport.fileno() >= 0:
            time.sleep(0.001)
        await until(lambda: protocol.lost == 1)
        assert [type(context["exception"]) for context in errors] == [ValueError]
        reactors.stop()
        assert protocol.lost == 1

    run(flow())
