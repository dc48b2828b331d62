"""A broker that is about to stop: it sends new requests to another connection, and answers those that it has taken.

Nobody whose request it has taken may hear that the answer is lost: that request would be sent twice.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from client.net.raw_server import SEND_OK, Connection, RawServer
from waiting import until

from mqfast.client.net.asyncio_driver import AsyncioDriver
from mqfast.client.net.connection_pool import BlockingConnectionPool
from mqfast.client.net.request_steps import Request
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.message import Message
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand, encode


class Leaving:
    """Holds what is called ``slow`` until ``release``, and sends away what is called ``away`` at first."""

    def __init__(self) -> None:
        self.held: list[tuple[Connection, RemotingCommand]] = []
        self._was_asked = False

    def __call__(self, one: Connection, request: RemotingCommand) -> None:
        if request.ext_fields["name"] == "slow":
            self.held.append((one, request))
        elif request.ext_fields["name"] == "away" and not self._was_asked:
            self._was_asked = True
            one.send(encode(request.response(ResponseCode.GO_AWAY)))
        else:
            one.send(encode(request.response(0, dict(request.ext_fields))))

    def release(self) -> None:
        one, request = self.held[0]
        one.send(encode(request.response(0, dict(request.ext_fields))))


def ask(address: str, name: str) -> Request:
    return Request(address, 310, {"name": name}, b"", 30.0)


def who_waits(connection_pool: BlockingConnectionPool, server: RawServer, leaving: Leaving) -> None:
    found: list[Any] = []
    slow = threading.Thread(
        target=lambda: found.append(connection_pool.request(ask(server.address, "slow"))), daemon=True
    )
    slow.start()
    until(lambda: leaving.held)
    away = connection_pool.request(ask(server.address, "away"))
    assert away is not None
    assert away.code == 0
    leaving.release()
    slow.join(20)
    assert [one.ext_fields["name"] for one in found] == ["slow"]
    until(lambda: server.connections[0].sock.fileno() == -1)  # nobody waits there any more: it is closed


def test_go_away_keeps_pending_responses_of_a_shared_socket() -> None:
    connection_pool, leaving = BlockingConnectionPool(), Leaving()
    with RawServer(leaving) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        who_waits(connection_pool, server, leaving)
        port = server.address.rpartition(":")[2]
        assert not [one for one in caught if f"raddr=('127.0.0.1', {port})" in str(one.message)], (
            "left to the collector"
        )
        assert [request.ext_fields["name"] for request in server.requests] == ["slow", "away", "away"]
        assert connection_pool.request(ask(server.address, "then")) is not None
        assert len(server.connections) == 2
    connection_pool.close()


def test_go_away_keeps_pending_responses_of_a_loop() -> None:
    leaving = Leaving()

    async def main(server: RawServer) -> None:
        client = RemotingClient()
        driver = AsyncioDriver(client)
        slow = asyncio.create_task(driver.request(ask(server.address, "slow")))
        await asyncio.to_thread(until, lambda: leaving.held)
        away = await driver.request(ask(server.address, "away"))
        assert away is not None
        assert away.code == 0
        leaving.release()
        found = await slow
        assert found is not None
        assert found.ext_fields["name"] == "slow"
        await asyncio.to_thread(until, lambda: server.connections[0].sock.fileno() == -1)
        assert await driver.request(ask(server.address, "then")) is not None
        await client.close()

    with RawServer(leaving) as server:
        asyncio.run(main(server))
        assert [request.ext_fields["name"] for request in server.requests] == ["slow", "away", "away", "then"]
        assert len(server.connections) == 2


def test_drained_connection_without_response_closes_after_the_last_timeout() -> None:
    leaving = Leaving()

    async def main(server: RawServer) -> None:
        client = RemotingClient()
        driver = AsyncioDriver(client)
        slow = asyncio.create_task(client.call(server.address, 310, {"name": "slow"}, timeout_ms=1000))
        await asyncio.to_thread(until, lambda: leaving.held)
        assert await driver.request(ask(server.address, "away")) is not None
        with pytest.raises(TimeoutError):
            await slow
        await asyncio.to_thread(until, lambda: server.connections[0].sock.fileno() == -1)
        await client.close()

    with RawServer(leaving) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("name", ["drain", "renew"])
def test_connect_in_progress_survives_the_drain_of_the_previous_connection(name: str) -> None:
    """Two tasks that hear of it one after the other: a connection that nobody knew any more stayed open, unused."""

    async def main(server: RawServer) -> None:
        client = RemotingClient()
        await client.call(server.address, 310)
        getattr(client, name)(server.address)
        first = asyncio.ensure_future(client.call(server.address, 310))
        await asyncio.sleep(0)
        getattr(client, name)(server.address)
        await first
        await client.call(server.address, 310)
        assert len(server.connections) == 2
        await client.close()

    with RawServer(lambda one, request: one.answer(request)) as server:
        asyncio.run(main(server))


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


def test_go_away_keeps_pending_responses_of_a_tls_socket(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    connection_pool, leaving = (
        BlockingConnectionPool(ssl.create_default_context(cafile=str(certificate / "cert.pem"))),
        Leaving(),
    )
    with RawServer(leaving, context) as server:
        who_waits(connection_pool, server, leaving)
    connection_pool.close()


@pytest.mark.parametrize("count", [2, 50])
def test_sends_answered_together_with_go_away_complete(count: int) -> None:
    """All answers in one piece, the first of which ends the use of the connection: none may be dropped."""
    requests: list[RemotingCommand] = []

    def serve(one: Connection, request: RemotingCommand) -> None:
        if bytes(request.body) == b"first" or one.number:
            one.answer(request)
            return
        requests.append(request)
        if len(requests) == count:
            away, *others = requests
            answers = [away.response(ResponseCode.GO_AWAY), *(each.response(0, dict(SEND_OK)) for each in others)]
            one.send(b"".join(map(encode, answers)))

    async def main(address: str) -> list[Any]:
        ends, finished = list[Any](), asyncio.Event()

        def ended(end: Any) -> None:
            ends.append(end)
            if len(ends) == count:
                finished.set()

        async with AsyncProducer("g", address, send_timeout_s=60, close_timeout_s=0.1) as producer:
            await producer.send("T", b"first")
            for number in range(count):
                producer.send_nowait(Message("T", b"%d" % number), on_done=ended)
            async with asyncio.timeout(300):
                await finished.wait()
            assert producer.stats()["in_flight"] == 0
        return ends

    with RawServer(serve) as server:
        ends = asyncio.run(main(server.address))
        assert len(server.requests) == 1 + count + 1
        assert len(server.connections) == 2
    assert all(end.ok for end in ends)


class Rolling:
    """Two brokers: the one that is named in the route answers 1500 to every send, until the route names the other."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, bytes]] = []
        self.names = RawServer(lambda one, request: one.answer(request))
        self.names.__enter__()
        self.brokers = [RawServer(lambda one, request, name=name: self._serve(name, one, request)) for name in "ab"]
        for broker in self.brokers:
            broker.__enter__()
        self.leaves = "a"
        self.names.broker = self.brokers[0].address

    def _serve(self, name: str, one: Connection, request: RemotingCommand) -> None:
        if request.code not in (10, 310, 320):
            one.answer(request)
        elif name == self.leaves:
            self.names.broker = self.brokers[1].address  # it has said goodbye to the name server
            one.send(encode(request.response(ResponseCode.GO_AWAY)))
        else:
            self.stored.append((name, bytes(request.body)))
            one.answer(request)

    def close(self) -> None:
        for server in (self.names, *self.brokers):
            server.__exit__(None, None, None)


def test_send_follows_the_route_after_go_away() -> None:
    """The known route names that broker alone: three attempts at it, within 0.1 s, were all that a send tried."""
    rolling = Rolling()
    try:
        with Producer("g", rolling.names.address, send_timeout_s=20) as producer:
            assert producer.send("T", b"1").ok
            assert producer.send_future(Message("T", b"2")).result(20).ok
        rolling.leaves, rolling.names.broker = "a", rolling.brokers[0].address

        async def main() -> None:
            async with AsyncProducer("h", rolling.names.address, send_timeout_s=20) as one:
                assert (await one.send("T", b"3")).ok

        asyncio.run(main())
    finally:
        rolling.close()
    assert rolling.stored == [("b", b"1"), ("b", b"2"), ("b", b"3")]
