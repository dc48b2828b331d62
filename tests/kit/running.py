"""A real broker on a free port with a real store, for tests: ``async with running_broker(tmp_path) as one: ...``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from free_ports import free_port
from python_forms import in_use
from selector_threads import reactor_settings

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import Processors

if TYPE_CHECKING:  # a client without compiled code uses BrokerProcess only
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.context import BrokerContext
    from mqfast.broker.parts import Parts
    from mqfast.broker.server import Broker

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Running:
    """A broker and one client of it."""

    def __init__(self, broker: Broker, processors: Processors | None) -> None:
        self.broker = broker
        self.client = RemotingClient(processors)

    @property
    def context(self) -> BrokerContext:
        return self.broker.context

    @property
    def parts(self) -> Parts:
        return self.broker.parts

    @property
    def address(self) -> str:
        host, port = self.broker.address
        return f"{host}:{port}"

    async def call(self, code: int, body: bytes = b"", timeout_ms: int = 10_000, **fields: Any) -> RemotingCommand:
        return await self.client.call(
            self.address, code, {name: str(value) for name, value in fields.items()}, body, timeout_ms=timeout_ms
        )

    async def send(
        self, topic: str, body: bytes, *, queue_id: int = 0, queues: int = 4, properties: str = "", **more: Any
    ) -> RemotingCommand:
        """One message by 310."""
        letters: dict[str, Any] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": queues, "e": queue_id, "f": 0, "g": 1_700_000_000_000,
            "h": 0, "i": properties, "j": 0, "k": "false", "m": "false",
        }  # fmt: skip
        letters.update(more)
        return await self.call(RequestCode.SEND_MESSAGE_V2, body, **letters)


def broker_config(path: Path, **settings: Any) -> BrokerConfig:
    """The settings of a small broker with its store at ``path``."""
    if in_use():
        pytest.skip("a broker inside of a process without compiled code")
    from mqfast.broker.config.broker_config import BrokerConfig

    config = BrokerConfig()
    given: dict[str, Any] = {
        "brokerName": "broker-a", "listenPort": 0, "brokerIP1": "127.0.0.1", "storePathRootDir": str(path), **SMALL,
        **settings,
    }  # fmt: skip
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    config.update(texts, "test")
    return config


@contextlib.asynccontextmanager
async def running_broker(
    path: Path,
    *,
    now_ms: Callable[[], int] | None = None,
    processors: Processors | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A broker with its store at ``path``; settings by RocketMQ's names. Args: processors: of the client."""
    from mqfast.broker.server import Broker

    clock = {} if now_ms is None else {"now_ms": now_ms}
    broker = Broker(broker_config(path, **settings), **clock)
    await broker.start()
    running = Running(broker, processors)
    try:
        yield running
    finally:
        await running.client.close()
        await broker.stop()


def serve(path: Path, flow: Callable[[Running], Awaitable[None]], **settings: Any) -> None:
    """Let a flow use a running broker, for five minutes at most; it is stopped when this returns."""

    async def run() -> None:
        async with asyncio.timeout(300), running_broker(path, **settings) as one:
            await flow(one)

    asyncio.run(run())


class BrokerProcess:
    """``mqfast up`` as a process: a name server and a broker on free ports, for clients that are processes.

    Attributes: ``namesrv``: the name server's address; ``address``: (host, port) of the broker; ``store``: the
        directory of the store; ``log``: the file of its log.
    """

    def __init__(self, work: Path, **settings: Any) -> None:
        self.store = work / "store"
        self.log = work / "mqfast-up.log"
        self._settings = {**SMALL, **reactor_settings(), **settings}
        # It comes back on its ports, and on the one of its fast listener; another process may be quicker to take one.
        for tries_left in reversed(range(10)):
            self._ports = ("0", str(free_port()))
            try:
                self.start()
                break
            except AssertionError as error:
                if not tries_left or "address already in use" not in str(error):
                    raise

    def start(self) -> None:
        """Start it; after an end it comes back on its ports."""
        lines = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in self._settings.items()
        ]
        ports = ["--namesrv-port", self._ports[0], "--broker-port", self._ports[1]]
        command = [sys.executable, "-m", "mqfast.cli", "up", *ports]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--store", str(self.store), *lines], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        banner = self.process.stdout.readline()
        assert banner.startswith("NAMESRV_ADDR="), f"{banner!r}\n{self.log.read_text()}"
        self.namesrv = banner.removeprefix("NAMESRV_ADDR=").strip()
        listens = None
        for line in self.process.stdout:  # behind the endpoints, where the process serves gRPC
            if listens := re.search(r"listens on \S+:(\d+)", line):
                break
        assert listens, self.log.read_text()
        self._ports = (self.namesrv.rpartition(":")[2], listens[1])
        self.address = ("127.0.0.1", int(listens[1]))

    @property
    def broker(self) -> str:
        """The address of the broker."""
        return f"127.0.0.1:{self._ports[1]}"

    def end(self, how: int = signal.SIGTERM) -> int:
        """End it by a signal. Returns: its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(200)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.end()
