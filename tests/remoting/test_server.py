"""Servers and clients over loopback, on asyncio's loop and on uvloop: whatever a peer does, the others are served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from waiting import until_async as eventually

from mqfast.errors import CallRefused, CallTimeout, ConfigError, ConnectionLost, FieldError, TooManyCalls
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient, split_address
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import ROCKETMQ, FrameDecoder, RemotingCommand, encode
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import WANTS_TLS, TlsMode, client_context, server_context

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

LOOPS = ["asyncio", pytest.param("uvloop", marks=pytest.mark.skipif(uvloop is None, reason="uvloop is not here"))]
Main = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A server on a free port, with clients; all end with it."""

    def __init__(self, settings: RemotingSettings | None = None, context: ssl.SSLContext | None = None) -> None:
        self.processors = Processors()
        self.lane = ConcurrencyLimit("all", concurrency=2, queue_max=2)
        self.closed: list[Channel] = []
        self.held: list[tuple[Channel, RemotingCommand]] = []
        self.server = RemotingServer(self.processors, settings, context=context, on_closed=self.closed.append)
        self.clients: list[RemotingClient] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.processors.register([1], self.echo, self.lane)
        self.processors.register([2], self.fail, self.lane)
        self.processors.register([3], self.hold, self.lane)
        self.processors.register([4], self.slow, self.lane)
        self.processors.register([5], self.large, self.lane)
        self.gate = asyncio.Event()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    def client(self, **more: Any) -> RemotingClient:
        self.clients.append(RemotingClient(**more))
        return self.clients[-1]

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.server.address)
        self.writers.append(writer)
        return reader, writer

    def echo(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = {**request.ext_fields, "peer": f"{channel.peer[0]}:{channel.peer[1]}", "tls": channel.is_tls}
        return request.response(0, fields, request.body)

    def fail(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        errors = {"field": FieldError("topic", "a value", "none"), "refused": CallRefused(17, "no such topic")}
        raise errors.get(request.ext_fields["how"], ZeroDivisionError("never"))

    def hold(self, channel: Channel, request: RemotingCommand) -> None:
        self.held.append((channel, request))

    async def slow(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await self.gate.wait()
        return request.response(remark="slow")

    def large(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=[b"x" * 65536] * 4)


async def frames(reader: asyncio.StreamReader, count: int) -> list[RemotingCommand]:
    decoder, found = FrameDecoder(), []
    while len(found) < count:
        data = await asyncio.wait_for(reader.read(65536), 300)
        assert data, f"the connection ended after {len(found)} of {count} answers"
        found += decoder.feed(data)
    return found


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        while await asyncio.wait_for(reader.read(65536), 300):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a coroutine with a World on one kind of loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Main, settings: RemotingSettings | None = None, context: ssl.SSLContext | None = None) -> None:
        async def whole() -> None:
            world = World(settings, context)
            await world.server.start()
            try:
                await asyncio.wait_for(main(world), 300)
            finally:
                for writer in world.writers:
                    writer.close()
                for client in world.clients:
                    await client.close()
                world.gate.set()
                await world.server.stop(0.2)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole())

    return run


def test_answers_in_the_codec_of_the_client(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        for codec in (0, ROCKETMQ):
            answer = await client.call(world.address, 1, {"a": "b"}, b"body", serialize=codec)
            assert (answer.code, answer.ext_fields["a"], answer.body) == (0, "b", b"body")
            assert answer.serialize == codec

    play(main)


def test_unregistered_code_is_refused_and_the_connection_stays(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        answer = await client.call(world.address, 4711)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 4711 not supported"
        assert (await client.call(world.address, 1)).code == 0
        assert len(world.server.channels) == 1
        world.processors.register_default(world.echo, world.lane)
        assert (await client.call(world.address, 4711)).code == 0

    play(main)


def test_exception_of_a_handler_becomes_the_response(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        said = [await client.call(world.address, 2, {"how": how}) for how in ("field", "refused", "else")]
        assert [answer.code for answer in said] == [1, 17, 1]
        assert said[0].remark == "FieldError: field topic: expected a value, found none"
        assert said[1].remark == "no such topic"
        assert said[2].remark == "ZeroDivisionError: never"

    play(main)


def test_held_requests_are_answered_later_and_out_of_order(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        calls = [asyncio.create_task(client.call(world.address, 3, {"n": n})) for n in range(3)]
        await eventually(lambda: len(world.held) == 3, "three are held")
        assert (await client.call(world.address, 1)).code == 0
        for n in (2, 0, 1):
            channel, request = world.held[n]
            channel.answer(request, request.response(remark=f"answer {n}"))
        assert [(await call).remark for call in calls] == ["answer 0", "answer 1", "answer 2"]

    play(main)


def test_call_timeout_and_late_response(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        with pytest.raises(CallTimeout, match="no answer to request 3 in time"):
            await client.call(world.address, 3, timeout_ms=20)
        channel, request = world.held[0]
        channel.answer(request, request.response(remark="late"))
        assert (await client.call(world.address, 1)).remark is None

    play(main)


def test_server_sends_requests_to_clients(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        told: list[str] = []

        def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            told.append(request.ext_fields["group"])
            return request.response(remark="me")

        processors = Processors()
        processors.register([40, 307], serve, ConcurrencyLimit("client"))
        client = world.client(processors=processors)
        await client.call(world.address, 1)
        (channel,) = world.server.channels
        answer = await channel.call(307, {"group": "g"}, timeout_ms=5000)
        assert answer.remark == "me"
        channel.oneway(40, {"group": "h"})
        await eventually(lambda: told == ["g", "h"], "both arrived")
        with pytest.raises(CallTimeout):
            await (await client.channel(world.address)).call(3, timeout_ms=10)

    play(main)


def test_concurrency_limit_of_running_and_waiting_requests(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        calls = [asyncio.create_task(client.call(world.address, 4, timeout_ms=20_000)) for _ in range(5)]
        refused = await next(asyncio.as_completed(calls))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == "[OVERLOAD]system busy, start flow control for a while"
        assert (world.lane.running, len(world.lane.waiting)) == (2, 2)
        assert world.lane.head_wait_ms(time.monotonic() + 1) >= 1000
        world.processors.register([1], world.echo, ConcurrencyLimit("other"))
        assert (await client.call(world.address, 1)).code == 0  # another lane is free
        world.gate.set()
        assert sorted([(await call).code for call in calls]) == [0, 0, 0, 0, 2]
        assert world.lane.running == 0

    play(main)


def test_queue_timeout_of_waiting_requests(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        lane = ConcurrencyLimit("brief", concurrency=1, queue_timeout_ms=0)
        world.processors.register([4], world.slow, lane)
        client = world.client()
        calls = [asyncio.create_task(client.call(world.address, 4, timeout_ms=20_000)) for _ in range(2)]
        await eventually(lambda: lane.head_wait_ms(time.monotonic()) >= 2, "one waits")
        world.gate.set()
        answers = [await call for call in calls]
        assert [answer.code for answer in answers] == [0, ResponseCode.SYSTEM_BUSY]
        assert str(answers[1].remark).startswith(
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        )

    play(main)


def test_oneway_requests_get_no_response(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        reader, writer = await world.raw()
        writer.write(b"".join(encode(RemotingCommand(code, opaque=code, flag=2)) for code in (1, 2, 99)))
        writer.write(encode(RemotingCommand(1, opaque=7)))
        (answer,) = await frames(reader, 1)
        assert answer.opaque == 7

    play(main)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1", b"\xff" * 64, b"\0\0\0\x08\0\0\0\4[[[[", struct.pack(">II", 2**31 - 1, 0)],
)
def test_garbage_closes_its_own_connection_only_with_one_line(
    play: Callable[..., None], garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        client = world.client()
        assert (await client.call(world.address, 1)).code == 0
        for _ in range(20):
            reader, writer = await world.raw()
            writer.write(encode(RemotingCommand(1, opaque=5)) + garbage)
            (answer,) = await frames(reader, 1)  # what came before it is served
            assert answer.opaque == 5
            assert await ends(reader)
        assert (await client.call(world.address, 1)).code == 0
        await eventually(lambda: len(world.server.channels) == 1, "only the client is left")
        assert len(world.closed) == 20

    with caplog.at_level(logging.WARNING, "mqfast.remoting"):
        play(main)
    assert len([record for record in caplog.records if "closed: " in record.getMessage()]) == 1


def test_a_frame_byte_by_byte(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        reader, writer = await world.raw()
        for byte in encode(RemotingCommand(1, {"a": "b"}, b"xyz", opaque=9)):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        (answer,) = await frames(reader, 1)
        assert (answer.opaque, answer.body) == (9, b"xyz")

    play(main)


def test_a_slow_reader_is_not_read_and_the_others_are_served(play: Callable[..., None]) -> None:
    """256 KiB of answer for each request of 100 bytes: memory stays bounded while the client does not read."""

    async def main(world: World) -> None:
        slow = socket.create_connection(world.server.address)
        slow.setblocking(False)
        request = encode(RemotingCommand(5))
        wanted = 2000
        sent = 0
        stream = request * wanted
        stalled_since = time.monotonic()
        while sent < len(stream) and time.monotonic() - stalled_since < 0.5:
            try:
                sent += slow.send(stream[sent : sent + 65536])
                stalled_since = time.monotonic()
            except BlockingIOError:
                pass
            await asyncio.sleep(0)
        (channel,) = world.server.channels
        assert channel.unsent_bytes < 8 * 1024 * 1024
        client = world.client()
        assert (await client.call(world.address, 1)).code == 0
        # It reads again, and gets all that it asked for.
        loop = asyncio.get_running_loop()
        decoder, found = FrameDecoder(), 0
        rest = asyncio.create_task(loop.sock_sendall(slow, stream[sent:]))
        while found < wanted:
            data = await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 300)
            assert data
            found += len(decoder.feed(data))
        await rest
        slow.close()

    play(main)


def test_a_client_that_does_not_wait_takes_its_turn(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        served: list[int] = []
        has_sent = threading.Event()

        def work(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            if not served:
                assert has_sent.wait(60)  # the loop stands still until both have sent
            served.append(request.code)
            until = time.perf_counter() + 0.0001
            while time.perf_counter() < until:
                pass
            return request.response()

        world.processors.register([8, 9], work, ConcurrencyLimit("work"))
        flood, calm = socket.create_connection(world.server.address), socket.create_connection(world.server.address)
        await eventually(lambda: len(world.server.channels) == 2, "both are there")
        flood.settimeout(0.5)

        def send() -> None:
            data = b"".join(encode(RemotingCommand(8, opaque=i)) for i in range(10_000))
            with contextlib.suppress(TimeoutError):
                flood.sendall(data)  # as much as the system takes: the server reads nothing meanwhile
            calm.sendall(encode(RemotingCommand(9)))
            has_sent.set()

        thread = threading.Thread(target=send)
        thread.start()
        await eventually(lambda: 9 in served, "the other was served")
        thread.join()
        assert served.index(9) < 1000
        flood.close()
        calm.close()

    play(main)


def test_more_connections_than_allowed_are_closed(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        first, _ = await world.raw()
        second, writer = await world.raw()
        await eventually(lambda: len(world.server.channels) == 2, "two are there")
        third, _ = await world.raw()
        assert await ends(third)
        writer.close()
        await eventually(lambda: len(world.server.channels) == 1, "one has left")
        assert (await world.client().call(world.address, 1)).code == 0
        assert not first.at_eof()
        assert second is not None

    play(main, RemotingSettings(connections_max=2))


def test_incomplete_frames_of_all_connections_together_are_limited(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        half = encode(RemotingCommand(1, body=b"x" * 100_000))[:-1]
        readers = []
        for _ in range(3):
            reader, writer = await world.raw()
            writer.write(half)
            readers.append(reader)
        done, _ = await asyncio.wait([asyncio.create_task(ends(r)) for r in readers], return_when="FIRST_COMPLETED")
        assert len(done) == 1
        await eventually(lambda: len(world.server.channels) == 2, "two stay")

    play(main, RemotingSettings(buffered_bytes_max=250_000))


def test_connection_with_most_buffered_bytes_is_closed_first(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        half = encode(RemotingCommand(1, body=b"x" * 100_000))[:-1]
        hogs = []
        for _ in range(2):
            reader, writer = await world.raw()
            writer.write(half)
            hogs.append(reader)
        await eventually(lambda: world.server.buffered_bytes > 200_000, "both are held")
        reader, writer = await world.raw()
        whole = encode(RemotingCommand(1, body=b"y" * 90_000))
        writer.write(whole[:80_000])
        done, _ = await asyncio.wait([asyncio.create_task(ends(r)) for r in hogs], return_when="FIRST_COMPLETED")
        assert len(done) == 1
        writer.write(whole[80_000:])
        (answer,) = await frames(reader, 1)
        assert answer.code == 0

    play(main, RemotingSettings(buffered_bytes_max=250_000))


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        reader, _ = await world.raw()
        client = world.client()
        closed = asyncio.create_task(ends(reader))
        while not closed.done():
            await client.call(world.address, 1)
            await asyncio.sleep(0.1)
        assert len(world.server.channels) == 1

    play(main, RemotingSettings(idle_timeout_s=2.0))


def test_a_lost_connection_ends_its_calls_and_the_next_call_makes_a_new_one(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        call = asyncio.create_task(client.call(world.address, 3))
        await eventually(lambda: len(world.held) == 1, "it is held")
        channel, request = world.held[0]
        channel.close()
        with pytest.raises(ConnectionLost, match="ended before the answer came"):
            await call
        channel.answer(request, request.response())  # nobody is there; nothing happens
        assert world.closed == [channel]
        assert (await client.call(world.address, 1)).code == 0

    play(main)


def test_call_without_a_listener(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionLost, match="no connection"):
                await world.client().call(f"127.0.0.1:{taken.getsockname()[1]}", 1)
        limited = world.client(settings=RemotingSettings(calls_max=1))
        call = asyncio.create_task(limited.call(world.address, 3))
        await eventually(lambda: len(world.held) == 1, "it is held")
        with pytest.raises(TooManyCalls):
            await limited.call(world.address, 3)
        world.held[0][0].answer(world.held[0][1], world.held[0][1].response())
        assert (await call).code == 0
        for wrong in ("nowhere", ":1", "a:b", "a:99999"):
            with pytest.raises(ValueError, match="expected host:port"):
                await limited.call(wrong, 1)

    play(main)
    assert split_address("[::1]:10911") == ("::1", 10911)


def test_stopping_server_sends_its_responses(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        client = world.client()
        call = asyncio.create_task(client.call(world.address, 4))
        await eventually(lambda: world.processors.running == 1, "it runs")
        asyncio.get_running_loop().call_later(0.05, world.gate.set)
        began = time.monotonic()
        await world.server.stop(30.0)
        assert (await call).remark == "slow"
        assert time.monotonic() - began < 25
        assert world.server.channels == frozenset()
        with pytest.raises(ConnectionLost):
            await client.call("127.0.0.1:1", 1)

    play(main)


# --- PROXY preamble ---------------------------------------------------------------------------------------------------

V2 = b"\r\n\r\n\0\r\nQUIT\n"
PREAMBLES = [
    (b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 10911\r\n", "192.0.2.7:4711"),
    (b"PROXY TCP6 2001:db8::7 ::1 4711 10911\r\n", "2001:db8::7:4711"),
    (b"PROXY UNKNOWN\r\n", None),
    (
        V2 + b"\x21\x11\0\x0c" + bytes([192, 0, 2, 7, 127, 0, 0, 1]) + struct.pack(">HH", 4711, 10911),
        "192.0.2.7:4711",
    ),
    (
        V2 + b"\x21\x21\0\x24" + bytes.fromhex("20010db8" + "0" * 22 + "07" + "0" * 30 + "01") + b"\x12\x67\x2a\x9f",
        "2001:db8::7:4711",
    ),
    (V2 + b"\x20\0\0\0", None),
    (V2 + b"\x21\x11\0\x0f" + bytes(8) + struct.pack(">HH", 4711, 1) + b"tlv", "0.0.0.0:4711"),
]


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("preamble, peer", PREAMBLES)
def test_the_client_behind_a_load_balancer(
    play: Callable[..., None], preamble: bytes, peer: str | None, step: int
) -> None:
    async def main(world: World) -> None:
        reader, writer = await world.raw()
        stream = preamble + encode(RemotingCommand(1, opaque=3))
        for at in range(0, len(stream), step):
            writer.write(stream[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        (answer,) = await frames(reader, 1)
        mine = writer.get_extra_info("sockname")
        assert answer.ext_fields["peer"] == (peer or f"127.0.0.1:{mine[1]}")
        (channel,) = world.server.channels
        assert channel.socket_peer == ("127.0.0.1", mine[1])

    play(main)


@pytest.mark.parametrize(
    "preamble",
    [
        b"PROXY " + b"x" * 200,
        b"PROXY TCP4 a b c d\r\n",
        b"PROXY TCP4 1.2.3.4\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 99999 1\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n",
        V2 + b"\x31\x11\0\x0c",
        V2 + b"\x21\x11\xff\xff",
    ],
)
def test_preambles_that_are_none(play: Callable[..., None], preamble: bytes) -> None:
    async def main(world: World) -> None:
        reader, writer = await world.raw()
        writer.write(preamble)
        assert await ends(reader)

    play(main)


def test_a_preamble_is_taken_only_where_it_is_expected_and_comes_in_time(play: Callable[..., None]) -> None:
    async def unexpected(world: World) -> None:
        reader, writer = await world.raw()
        writer.write(PREAMBLES[0][0])
        assert await ends(reader)

    play(unexpected, RemotingSettings(proxy_protocol=False))

    async def late(world: World) -> None:
        reader, writer = await world.raw()
        writer.write(b"PROXY TCP4")
        assert await ends(reader)

    play(late, RemotingSettings(handshake_timeout_s=0.1))


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make certificates")
    home = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=home, check=True, capture_output=True,
        )  # fmt: skip
    return home


def keys(home: Path, **more: str) -> dict[str, str]:
    named = {"tls.server.certPath": str(home / "server.pem"), "tls.server.keyPath": str(home / "server.key")}
    return named | {key.replace("_", "."): value for key, value in more.items()}


def test_tls_and_plain_connections_share_the_port(play: Callable[..., None], certificates: Path) -> None:
    async def main(world: World) -> None:
        plain, secret = world.client(), world.client(context=client_context({}))
        trusting = world.client(
            context=client_context(
                {"tls.client.authServer": "true", "tls.client.trustCertPath": str(certificates / "server.pem")}
            )
        )
        assert (await plain.call(world.address, 1)).ext_fields["tls"] == "false"
        body = bytes(range(256)) * 4096
        for client in (secret, trusting):
            answer = await client.call(world.address, 1, {}, body)
            assert (answer.ext_fields["tls"], answer.body) == ("true", body)
            assert len((await client.call(world.address, 5)).body) == 262144
        strange = world.client(
            context=client_context(
                {"tls.client.authServer": "true", "tls.client.trustCertPath": str(certificates / "client.pem")}
            )
        )
        with pytest.raises((ConnectionLost, CallTimeout)):
            await strange.call(world.address, 1, timeout_ms=2000)

    play(main, context=server_context(keys(certificates)))


def test_modes_of_tls(play: Callable[..., None], certificates: Path) -> None:
    async def no_plain(world: World) -> None:
        answer = await world.client().call(world.address, 1)
        assert (answer.code, answer.remark) == (1, WANTS_TLS)
        assert (await world.client(context=client_context({})).call(world.address, 1)).code == 0

    async def no_tls(world: World) -> None:
        with pytest.raises(ConnectionLost, match="takes no TLS"):
            await world.client(context=client_context({})).call(world.address, 1)
        assert (await world.client().call(world.address, 1)).code == 0

    context = server_context(keys(certificates))
    play(no_plain, RemotingSettings(tls_mode=TlsMode.ENFORCING), context)
    play(no_tls, RemotingSettings(tls_mode=TlsMode.DISABLED), context)
    play(no_tls)  # permissive, but there is no certificate


def test_certificates_of_clients(play: Callable[..., None], certificates: Path) -> None:
    async def main(world: World) -> None:
        files = {
            "tls.client.certPath": str(certificates / "client.pem"),
            "tls.client.keyPath": str(certificates / "client.key"),
        }
        known = world.client(context=client_context(files))
        assert (await known.call(world.address, 1)).code == 0
        (channel,) = world.server.channels
        assert channel.peer_certificate is not None
        assert channel.peer_certificate["subject"] == ((("commonName", "client"),),)
        with pytest.raises((ConnectionLost, CallTimeout)):
            await world.client(context=client_context({})).call(world.address, 1, timeout_ms=2000)

    settings = keys(certificates, tls_server_need_client_auth="require")
    with pytest.raises(ConfigError, match=r"tls\.server\.trustCertPath: expected the file"):
        server_context(settings)
    play(main, context=server_context(settings | {"tls.server.trustCertPath": str(certificates / "client.pem")}))


def test_garbage_in_a_tls_handshake_closes_the_connection(play: Callable[..., None], certificates: Path) -> None:
    async def main(world: World) -> None:
        for garbage in (b"\x16" + b"x" * 300, b"\x16\x03\x01"):
            reader, writer = await world.raw()
            writer.write(garbage)
            assert await ends(reader)
        assert (await world.client(context=client_context({})).call(world.address, 1)).code == 0

    play(main, RemotingSettings(handshake_timeout_s=0.1), server_context(keys(certificates)))


def test_settings_of_tls(tmp_path: Path, certificates: Path) -> None:
    assert server_context({}) is None
    with pytest.raises(ConfigError, match="expected none, optional or require, found 'yes'"):
        server_context(keys(certificates, tls_server_need_client_auth="yes"))
    with pytest.raises(ConfigError, match=r"certificate .*missing"):
        server_context({"tls.server.certPath": str(tmp_path / "missing.pem")})
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath"):
        client_context({"tls.client.authServer": "true"})
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath .*missing"):
        client_context({"tls.client.authServer": "true", "tls.client.trustCertPath": str(tmp_path / "missing.pem")})


def test_many_clients_at_once(play: Callable[..., None]) -> None:
    async def main(world: World) -> None:
        async def one(n: int) -> None:
            client = world.client()
            answers: list[Awaitable[RemotingCommand]] = [
                client.call(world.address, 1, {"n": f"{n}.{i}"}, timeout_ms=20_000) for i in range(50)
            ]
            for i, answer in enumerate(await asyncio.gather(*answers)):
                assert answer.ext_fields["n"] == f"{n}.{i}"

        await asyncio.gather(*(one(n) for n in range(40)))
        assert len(world.server.channels) == 40

    play(main)
