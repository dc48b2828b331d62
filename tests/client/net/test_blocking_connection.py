"""Sync callers on one socket: many at once, deadlines, a connection that is cut at every byte, requests of a broker."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client.net.raw_server import SEND_OK, Connection, RawServer

from mqfast import Message, Producer
from mqfast.client.net.connection_pool import TLS_SOCKETS, BlockingConnectionPool
from mqfast.client.net.request_steps import Request, RequestSteps, Sleep
from mqfast.errors import CallTimeout, ClientError, ConnectError, ConnectionLost, TooManyCalls
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode

CODE = 310


@pytest.fixture
def connection_pool() -> Iterator[BlockingConnectionPool]:
    one = BlockingConnectionPool()
    yield one
    one.close()


def echo(one: Connection, request: RemotingCommand) -> None:
    one.send(encode(request.response(0, dict(request.ext_fields), bytes(request.body))))


def ask(address: str, number: object = 1, *, timeout_s: float = 10.0, body: bytes = b"") -> Request:
    return Request(address, CODE, {"number": str(number)}, body, timeout_s)


def test_steps_are_run_on_the_callers_thread(connection_pool: BlockingConnectionPool) -> None:
    def steps(address: str) -> RequestSteps[str]:
        first = yield ask(address, 1)
        yield Sleep(0.001)
        second = yield ask(address, 2, body=b"body")
        return f"{first.ext_fields['number']} {second.ext_fields['number']} {bytes(second.body).decode()}"

    with RawServer(echo) as server:
        assert connection_pool.run(steps(server.address)) == "1 2 body"
        assert len(server.connections) == 1
        assert server.requests[0].language == 3


def test_exceptions_of_steps_are_raised(
    connection_pool: BlockingConnectionPool,
) -> None:
    def steps(address: str) -> RequestSteps[str]:
        try:
            yield Request(address, CODE, None, b"", 0.5)
        except ConnectError:
            raise TooManyCalls("mine") from None
        return "no"

    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(TooManyCalls, match="mine"):
        connection_pool.run(steps(address))


def test_a_body_of_several_parts_is_sent_as_one(connection_pool: BlockingConnectionPool) -> None:
    with RawServer(echo) as server:
        answer = connection_pool.request(Request(server.address, CODE, {"a": "b"}, [b"one", memoryview(b"two")], 5.0))
        assert answer is not None
        assert bytes(answer.body) == b"onetwo"


def test_threads_share_a_socket_and_each_gets_its_response(connection_pool: BlockingConnectionPool) -> None:
    wrong: list[str] = []

    def work(address: str, thread: int) -> None:
        for i in range(200):
            text = f"{thread}.{i}"
            answer = connection_pool.request(ask(address, text))
            if answer is None or answer.ext_fields["number"] != text:
                wrong.append(text)

    with RawServer(echo) as server:
        threads = [threading.Thread(target=work, args=(server.address, i), daemon=True) for i in range(16)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert not [one for one in threads if one.is_alive()]
        assert not wrong
        assert len(server.connections) == 1


def test_answers_may_come_in_any_order(connection_pool: BlockingConnectionPool) -> None:
    held: list[RemotingCommand] = []

    def serve(one: Connection, request: RemotingCommand) -> None:
        held.append(request)
        if len(held) == 8:
            for old in reversed(held):
                echo(one, old)

    found: dict[int, str] = {}

    def work(address: str, number: int) -> None:
        answer = connection_pool.request(ask(address, number))
        assert answer is not None
        found[number] = answer.ext_fields["number"]

    with RawServer(serve) as server:
        threads = [threading.Thread(target=work, args=(server.address, i), daemon=True) for i in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        assert found == {i: str(i) for i in range(8)}


def test_each_caller_waits_until_its_own_deadline_and_no_longer(connection_pool: BlockingConnectionPool) -> None:
    """The first caller reads for all; when its time is over the reading goes to another one, and no answer is lost."""
    connections: list[tuple[Connection, RemotingCommand]] = []
    results: dict[str, Any] = {}

    def serve(one: Connection, request: RemotingCommand) -> None:
        connections.append((one, request))

    def work(address: str, name: str, timeout_s: float) -> None:
        begin = time.monotonic()
        try:
            connection_pool.request(ask(address, name, timeout_s=timeout_s))
            results[name] = ("answer", time.monotonic() - begin)
        except CallTimeout:
            results[name] = ("timeout", time.monotonic() - begin)

    with RawServer(serve) as server:
        threads = []
        for name, timeout_s in (("leader", 0.3), ("follower", 0.4), ("late", 30.0)):
            thread = threading.Thread(target=work, args=(server.address, name, timeout_s), daemon=True)
            threads.append(thread)
            thread.start()
            deadline = time.monotonic() + 10
            while len(connections) < len(threads) and time.monotonic() < deadline:
                time.sleep(0.001)
        threads[0].join(10)
        threads[1].join(10)
        assert results["leader"][0] == results["follower"][0] == "timeout"
        assert 0.3 <= results["leader"][1] < 5
        assert 0.4 <= results["follower"][1] < 5
        for one, request in connections:  # those of callers that have gone change nothing
            echo(one, request)
        threads[2].join(20)
        assert results["late"][0] == "answer"
        assert len(server.connections) == 1


def frame_of_an_answer() -> bytes:
    return encode(RemotingCommand(0, dict(SEND_OK), b"body", opaque=0, flag=1))


@pytest.mark.parametrize("cut_at", range(0, len(frame_of_an_answer()), 1))
def test_a_connection_that_is_cut_at_every_byte_of_the_answer(cut_at: int) -> None:
    connection_pool = BlockingConnectionPool()
    whole: list[bool] = []

    def serve(one: Connection, request: RemotingCommand) -> None:
        answer = encode(request.response(0, dict(SEND_OK), b"body"))
        if one.number == 0:
            one.send(answer[:cut_at])
            one.cut()
        else:
            whole.append(True)
            one.send(answer)

    with RawServer(serve) as server:
        with pytest.raises(ConnectionLost, match="the connection ended before the answer came"):
            connection_pool.request(ask(server.address))
        assert connection_pool.request(ask(server.address)) is not None  # the client lives, over a new connection
        assert whole == [True]
    connection_pool.close()


def test_lost_connection_ends_every_waiting_caller(connection_pool: BlockingConnectionPool) -> None:
    waiting = threading.Semaphore(0)

    def serve(one: Connection, request: RemotingCommand) -> None:
        waiting.release()

    errors: list[Exception] = []

    def work(address: str) -> None:
        try:
            connection_pool.request(ask(address))
        except ConnectionLost as error:
            errors.append(error)

    with RawServer(serve) as server:
        threads = [threading.Thread(target=work, args=(server.address,), daemon=True) for _ in range(6)]
        for one in threads:
            one.start()
        for _ in threads:
            assert waiting.acquire(timeout=10)
        server.connections[0].cut()
        for one in threads:
            one.join(10)
        assert len(errors) == 6


@pytest.mark.parametrize(
    "nonsense", [b"\xff" * 64, b"\x00\x00\x00\x08\x00\x00\x00\xff1234", b"GET / HTTP/1.1\r\n\r\n"], ids=str
)
def test_nonsense_ends_the_connection_and_the_client_lives(
    connection_pool: BlockingConnectionPool, nonsense: bytes
) -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if one.number == 0:
            one.send(nonsense)
        else:
            echo(one, request)

    with RawServer(serve) as server:
        with pytest.raises(ConnectionLost, match="the connection is given up"):
            connection_pool.request(ask(server.address))
        assert connection_pool.request(ask(server.address)) is not None


def endless(one: Connection, request: RemotingCommand) -> None:
    """The first answer has a length that is wrong, so that it takes the answers behind it."""
    if one.number == 0 and request.ext_fields["number"] == "0":
        one.send(b"\x00\x01\x00\x00" + encode(request.response(0))[4:])  # its length says 64 KiB
    else:
        echo(one, request)


def test_a_frame_that_never_ends_does_not_take_every_later_answer(connection_pool: BlockingConnectionPool) -> None:
    with RawServer(endless) as server:
        for number in range(20):
            try:
                answer = connection_pool.request(ask(server.address, number, timeout_s=1.3))
            except CallTimeout:
                continue
            break
        assert answer is not None
        assert 1 <= number < 20
        assert answer.ext_fields["number"] == str(number)
        assert len(server.connections) == 2


def test_nor_does_it_in_a_loop() -> None:
    async def flow(address: str) -> None:
        client = RemotingClient()
        try:
            for number in range(20):
                try:
                    answer = await client.call(address, CODE, {"number": str(number)}, timeout_ms=1300)
                except CallTimeout:
                    continue
                break
            assert 1 <= number < 20
            assert answer.ext_fields["number"] == str(number)
        finally:
            await client.close()

    with RawServer(endless) as server:
        asyncio.run(flow(server.address))
        assert len(server.connections) == 2


def test_a_long_answer_over_a_slow_link_is_not_cut_off_by_a_short_call_behind_it(
    connection_pool: BlockingConnectionPool,
) -> None:
    begun, expired, found = threading.Event(), threading.Event(), list[Any]()

    def serve(one: Connection, request: RemotingCommand) -> None:
        if request.ext_fields["number"] != "0":
            return
        whole = encode(request.response(0, dict(request.ext_fields), b"x" * 1000))
        for at in range(len(whole) - 1):
            one.send(whole[at : at + 1])
            begun.set()
            if expired.wait(0.02):
                break
        one.send(whole[at + 1 :])

    with RawServer(serve) as server:
        pull = threading.Thread(
            target=lambda: found.append(connection_pool.request(ask(server.address, 0, timeout_s=60)))
        )
        pull.start()
        assert begun.wait(20)
        time.sleep(0.1)  # the begin of the frame was read
        with pytest.raises(CallTimeout):
            connection_pool.request(ask(server.address, 1, timeout_s=0.3))
        expired.set()
        pull.join(30)
        assert [bytes(one.body) for one in found] == [b"x" * 1000]
        assert len(server.connections) == 1


def test_a_request_of_the_broker_is_answered_that_it_is_not_served(connection_pool: BlockingConnectionPool) -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        one.send(encode(RemotingCommand(39, {"a": "b"}, opaque=77)))
        one.send(encode(RemotingCommand(40, {"a": "b"}, opaque=78, flag=2)))
        echo(one, request)

    with RawServer(serve) as server:
        assert connection_pool.request(ask(server.address)) is not None
        deadline = time.monotonic() + 10
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        refusal = server.requests[1]
        assert (refusal.code, refusal.opaque, refusal.remark) == (3, 77, " request type 39 not supported")


def test_a_connection_that_ended_while_it_rested_is_replaced_before_anything_is_sent(
    connection_pool: BlockingConnectionPool,
) -> None:
    with RawServer(echo) as server:
        assert connection_pool.request(ask(server.address)) is not None
        server.connections[0].cut()
        time.sleep(0.15)  # longer than a socket is taken for alive
        assert connection_pool.request(ask(server.address)) is not None
        assert len(server.connections) == 2


def test_a_socket_that_rested_too_long_is_closed(
    connection_pool: BlockingConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawServer(echo) as server:
        assert connection_pool.request(ask(server.address)) is not None
        connection_pool.close_idle()
        assert connection_pool.request(ask(server.address)) is not None
        assert len(server.connections) == 1
        monkeypatch.setattr("mqfast.client.net.connection_pool.IDLE_S", 0.0)
        connection_pool.close_idle()
        assert connection_pool.request(ask(server.address)) is not None
        assert len(server.connections) == 2


def test_go_away_repeats_the_request_over_a_new_connection(connection_pool: BlockingConnectionPool) -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if one.number == 0:
            one.send(encode(request.response(1500, remark="GO_AWAY")))
        else:
            echo(one, request)

    with RawServer(serve) as server:
        answer = connection_pool.request(ask(server.address))
        assert answer is not None
        assert answer.code == 0
        assert len(server.connections) == 2


def test_oneway_requests_do_not_wait(connection_pool: BlockingConnectionPool) -> None:
    with RawServer(lambda one, request: None) as server:
        assert connection_pool.request(Request(server.address, CODE, {"a": "b"}, b"", 5.0, True)) is None
        deadline = time.monotonic() + 10
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.001)
        assert server.requests[0].is_oneway


def test_a_peer_that_does_not_read_takes_no_more_than_the_deadline(connection_pool: BlockingConnectionPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(CallTimeout, match="the request was not taken in time"):
            connection_pool.request(ask(address, body=bytes(15 << 20), timeout_s=0.4))
        assert time.monotonic() - begin < 60


def test_an_address_that_is_none(connection_pool: BlockingConnectionPool) -> None:
    with pytest.raises(ConnectError, match="expected host:port"):
        connection_pool.request(ask("nowhere"))


def test_closing_ends_those_that_wait() -> None:
    connection_pool = BlockingConnectionPool()
    waits = threading.Event()
    found: list[Exception] = []

    def work(address: str) -> None:
        try:
            connection_pool.request(ask(address, timeout_s=30))
        except ConnectionLost as error:
            found.append(error)

    with RawServer(lambda one, request: waits.set()) as server:
        thread = threading.Thread(target=work, args=(server.address,), daemon=True)
        thread.start()
        assert waits.wait(10)
        connection_pool.close()
        thread.join(10)
        assert "the client is closed" in str(found[0])


@pytest.mark.parametrize("where", ["send", "wait"])
def test_interrupted_caller_leaves_the_connection_usable(
    connection_pool: BlockingConnectionPool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Ctrl-C comes while a caller writes or reads: other callers go on."""
    with RawServer(echo) as server:
        assert connection_pool.request(ask(server.address)) is not None
        from mqfast.client.net.blocking_connection import Socket

        name: str = {"send": "send_all", "wait": "receive_into"}[where]
        kept: Callable[..., Any] = getattr(Socket, name)
        monkeypatch.setattr(Socket, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection_pool.request(ask(server.address))
        monkeypatch.setattr(Socket, name, kept)
        answer = connection_pool.request(ask(server.address, 9))
        assert answer is not None
        assert answer.ext_fields["number"] == "9"


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_frame_of_a_blocking_connection_is_decoded_by_the_codec() -> None:
    (command,) = FrameDecoder().feed(frame_of_an_answer())
    assert command.is_response


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make certificates")
    home = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", home / "key.pem", "-out", home / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return home


def test_interrupted_caller_with_tls_leaves_no_partial_frame(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqfast.client.net.blocking_connection import Socket

    kept = Socket.receive_into

    def read_and_interrupt(one: Socket, buffer: bytearray, deadline: float) -> int:
        kept(one, buffer, deadline)
        raise KeyboardInterrupt

    connection_pool = BlockingConnectionPool(ssl.create_default_context(cafile=str(certificate / "cert.pem")))

    def serve(one: Connection, request: RemotingCommand) -> None:
        whole = encode(request.response(0, dict(request.ext_fields)))
        one.send(whole if one.number else whole[:20])

    with RawServer(serve, server_tls(certificate)) as server:
        monkeypatch.setattr(Socket, "receive_into", read_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection_pool.request(ask(server.address, 1))
        monkeypatch.setattr(Socket, "receive_into", kept)
        answer = connection_pool.request(ask(server.address, 2))
        assert answer is not None
        assert answer.ext_fields["number"] == "2"
        assert len(server.connections) == 2
    connection_pool.close()


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def test_with_tls_each_socket_has_one_caller_and_there_are_at_most_four(certificate: Path) -> None:
    connection_pool = BlockingConnectionPool(ssl.create_default_context(cafile=str(certificate / "cert.pem")))
    wrong: list[str] = []

    def work(address: str, thread: int) -> None:
        for i in range(20):
            text = f"{thread}.{i}"
            answer = connection_pool.request(ask(address, text, timeout_s=30))
            if answer is None or answer.ext_fields["number"] != text:
                wrong.append(text)

    with RawServer(echo, server_tls(certificate)) as server:
        threads = [threading.Thread(target=work, args=(server.address, i), daemon=True) for i in range(12)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert not [one for one in threads if one.is_alive()]
        assert not wrong
        assert 1 <= len(server.connections) <= TLS_SOCKETS
        with pytest.raises(CallTimeout):
            server.serve = lambda one, request: None
            connection_pool.request(ask(server.address, timeout_s=0.3))
    connection_pool.close()


def test_a_producer_over_tls_on_both_of_its_ways(certificate: Path) -> None:
    """Sync sends over blocking connections, the others over the loop; an untrusted certificate is refused on both."""
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with RawServer(lambda one, request: one.answer(request), server_tls(certificate)) as server:
        with Producer("g", server.address, tls=trusting) as producer:
            assert producer.send("T", b"x").ok
            assert producer.send_future(Message("T", b"x")).result(10).ok
        with Producer("g", server.address, tls=True, send_timeout_s=2, close_timeout_s=0.5) as producer:
            with pytest.raises(ConnectError, match="certificate verify failed"):
                producer.send("T", b"x")
            with pytest.raises(ClientError):
                producer.send_future(Message("T", b"x")).result(10)


def test_untrusted_certificate_is_refused(certificate: Path) -> None:
    connection_pool = BlockingConnectionPool(ssl.create_default_context())
    with RawServer(echo, server_tls(certificate)) as server:
        with pytest.raises(ConnectError, match=r"no TLS: .*certificate verify failed"):
            connection_pool.request(ask(server.address))
    connection_pool.close()
