"""A start without a name server: an error at once, after ``start_timeout_s``, or none while it may go on trying."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mqfast.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
)
from mqfast.errors import ClientClosed, ConfigError, ConnectError
from mqfast.testing import Broker

LONG_S = 60
MAKERS: dict[str, Callable[..., Any]] = {
    "producer": lambda address, **more: Producer("g", address, **more),
    "push": lambda address, **more: PushConsumer("g", address, topics="t", **more),
    "pull": lambda address, **more: PullConsumer("g", address, topics="t", **more),
}
ASYNC_MAKERS: dict[str, Callable[..., Any]] = {
    "producer": lambda address, **more: AsyncProducer("g", address, **more),
    "push": lambda address, **more: AsyncPushConsumer("g", address, topics="t", **more),
    "pull": lambda address, **more: AsyncPullConsumer("g", address, topics="t", **more),
}
NOBODY = "127.0.0.1:1"


class LateNameServer:
    """A name server that begins to listen when ``open`` is called: connections go on to a real one."""

    def __init__(self, behind: str) -> None:
        host, _, port = behind.rpartition(":")
        self._behind = host, int(port)
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens yet
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one, _ = self._listener.accept()
            other = socket.create_connection(self._behind)
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


class EndingNameServer(LateNameServer):
    """A name server that ends after its first answer: until ``open`` is called, connections end at once."""

    def __init__(self, behind: str) -> None:
        super().__init__(behind)
        self._is_open = threading.Event()
        self.refused = threading.Semaphore(0)
        self._listener.listen()
        threading.Thread(target=self._answer_once, daemon=True).start()

    def open(self) -> None:
        self._is_open.set()

    def _answer_once(self) -> None:
        one, _ = self._listener.accept()
        with one, socket.create_connection(self._behind) as other:
            other.sendall(one.recv(65_536))
            one.sendall(other.recv(65_536))
        while not self._is_open.is_set():
            self._listener.accept()[0].close()
            self.refused.release()
        self._accept()


@pytest.mark.parametrize("name", ["push", "pull"])
def test_a_name_server_that_ends_in_the_middle_of_a_start_is_waited_for_again(name: str) -> None:
    with Broker(topics={"t": 1}) as broker:
        names = EndingNameServer(broker.namesrv_addr)
        client = MAKERS[name](names.address, start_timeout_s=None)
        thread = threading.Thread(target=client.start)
        thread.start()
        assert names.refused.acquire(timeout=LONG_S)  # the request for the route
        assert names.refused.acquire(timeout=LONG_S)
        names.open()
        thread.join(LONG_S)
        assert not thread.is_alive()
        client.close()


@pytest.mark.parametrize("name", ["push", "pull"])
def test_by_default_a_start_says_at_once_that_no_name_server_answers(name: str) -> None:
    with pytest.raises(ConnectError, match=r"no name server answered in \d+\.\d s"):
        MAKERS[name](NOBODY).start()


@pytest.mark.parametrize("name", MAKERS)
def test_start_retries_until_start_timeout(name: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ConnectError, match="no name server answered"):
        MAKERS[name](NOBODY, start_timeout_s=0.5).start()
    assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("name", MAKERS)
def test_a_start_without_end_waits_for_the_name_server(name: str) -> None:
    with Broker(topics={"t": 1}) as broker:
        names = LateNameServer(broker.namesrv_addr)
        client = MAKERS[name](names.address, start_timeout_s=None)
        thread = threading.Thread(target=client.start)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        names.open()
        thread.join(LONG_S)
        assert not thread.is_alive()
        assert client.stats()["group"] == "g" if name != "push" else client.stats()
        client.close()


@pytest.mark.parametrize("name", ASYNC_MAKERS)
def test_an_asynchronous_start_waits_for_the_name_server(name: str) -> None:
    with Broker(topics={"t": 1}) as broker:

        async def main() -> None:
            names = LateNameServer(broker.namesrv_addr)
            client = ASYNC_MAKERS[name](names.address, start_timeout_s=None)
            task = asyncio.create_task(client.start())
            done, _ = await asyncio.wait([task], timeout=0.5)
            assert not done
            names.open()
            async with asyncio.timeout(LONG_S):
                await task
            await client.close()

        asyncio.run(main())


@pytest.mark.parametrize("name", MAKERS)
def test_a_close_ends_a_start_that_waits(name: str) -> None:
    client = MAKERS[name](NOBODY, start_timeout_s=None)
    found: list[BaseException] = []

    def start() -> None:
        try:
            client.start()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    client.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert [type(error) for error in found] == [ClientClosed]


def test_a_signal_ends_the_start_of_run() -> None:
    consumer = PushConsumer("g", NOBODY, start_timeout_s=None)
    consumer.subscribe("t", lambda message: None)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGTERM])
    timer.start()
    consumer.run()
    timer.join()


def test_a_signal_ends_the_start_of_an_asynchronous_run() -> None:
    async def main() -> None:
        consumer = AsyncPushConsumer("g", NOBODY, start_timeout_s=None)

        @consumer.on("t")
        async def handle(message: object) -> None:
            pass

        asyncio.get_running_loop().call_later(0.3, signal.raise_signal, signal.SIGTERM)
        async with asyncio.timeout(LONG_S):
            await consumer.run()

    asyncio.run(main())


def test_the_limit_is_checked() -> None:
    for make in MAKERS.values():
        with pytest.raises(ConfigError, match="start_timeout_s"):
            make(NOBODY, start_timeout_s=-1)
