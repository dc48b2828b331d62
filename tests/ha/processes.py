"""A master and a slave as processes that may be killed, a load of numbered messages, and what must be true afterwards.

Room: tests/ha; the tests with brokers of Java use the load and the checks as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from free_ports import free_port
from selector_threads import reactor_settings
from waiting import until_async as until

import mqfast
from mqfast.errors import MqfastError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.util.fastjson import standard

__all__ = [
    "NAME", "TOPIC", "Load", "OurSide", "Side", "assert_all_is_there", "assert_equal_logs", "at_rest", "free_port",
    "kills", "log_end", "name_server", "until",
]  # fmt: skip

QUEUES = 4
TOPIC = "T"
# All of 127.0.0.0/8 is this machine on Linux: no other run is at this address, and takes a port of a killed broker.
HOST = f"127.{random.randrange(16, 250)}.{random.randrange(1, 250)}.1" if sys.platform == "linux" else "127.0.0.1"
NAME = "broker-a"


class Side(Protocol):
    """A master or a slave. Attributes: store: its directory; address: ``host:port``."""

    store: Path
    address: str

    def start(self) -> None:
        """Start it, and wait until it listens."""

    def end(self, how: int = signal.SIGTERM) -> None:
        """End it by a signal, and wait."""

    def signal(self, how: int) -> None:
        """Send a signal."""


class _Process:
    """A command of ``mqfast`` as a process."""

    def __init__(self, log: Path, port: int, *arguments: str) -> None:
        self.log = log
        self.address = f"{HOST}:{port}"
        self._command = [sys.executable, "-m", "mqfast.cli", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + 120
        host, _, port = self.address.rpartition(":")
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < end, self.log.read_text()[-3000:]
            time.sleep(0.02)

    def end(self, how: int = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(200)

    def signal(self, how: int) -> None:
        assert self._process is not None
        self._process.send_signal(how)


class OurSide(_Process):
    """``mqfast broker`` as a process that comes back on its ports."""

    def __init__(self, work: Path, what: str, namesrv: str, **settings: Any) -> None:
        self.store = settings.pop("storePathRootDir", work / what)
        port = free_port()
        given = {
            "brokerName": NAME, "listenPort": port, "haListenPort": port + 1, "bindAddress": HOST, "brokerIP1": HOST,
            "storePathRootDir": self.store, "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 60_000,
            "maxHashSlotNum": 1000, "maxIndexNum": 4000, "haSendHeartbeatInterval": 500,
            "registerNameServerPeriod": 10_000, **reactor_settings(), **settings,
        }  # fmt: skip
        texts = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()]
        super().__init__(work / f"{what}.log", port, "broker", "-n", namesrv, *texts)


def name_server(work: Path) -> _Process:
    """``mqfast namesrv`` as a process, started."""
    port = free_port()
    one = _Process(
        work / "namesrv.log", port, "namesrv", "--host", HOST, "-p", str(port), f"kvConfigPath={work}/kv.json",
        f"configStorePath={work}/namesrv.properties",
    )  # fmt: skip
    one.start()
    return one


class Load:
    """Numbered messages to every queue, one at a time in each, until it is stopped.

    Args: send_to: asked for the address before each attempt; body_bytes: least and most; bytes_per_s: at most, None
        for no limit. Both may be changed while it runs.
    Attributes: acknowledged: queue -> (queue offset, number, when) of each answer with code 0; codes: others.
    """

    def __init__(
        self,
        send_to: Callable[[], str],
        seed: int,
        body_bytes: tuple[int, int] = (1, 4000),
        bytes_per_s: int | None = 4 << 20,
    ) -> None:
        self._send_to = send_to
        self._rng = random.Random(seed)
        self.body_bytes = body_bytes
        self.bytes_per_s = bytes_per_s
        self._began_s = time.monotonic()
        self._client = RemotingClient()
        self._tasks: list[asyncio.Task[None]] = []
        self.sent_bytes = 0
        self.acknowledged: dict[int, list[tuple[int, int, float]]] = {queue: [] for queue in range(QUEUES)}
        self.codes: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.ensure_future(self._send_to_queue(queue)) for queue in range(QUEUES)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _send_to_queue(self, queue: int) -> None:
        number = 0
        while True:
            number += 1
            head = b"%d:%d:" % (queue, number)
            body = head + bytes(self._rng.randint(*self.body_bytes))
            fields = {
                "a": "load", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0",
                "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{queue:08X}{number:024X}\x02", "j": "0",
                "k": "false", "m": "false",
            }  # fmt: skip
            try:
                address = self._send_to()
                answer = await self._client.call(address, RequestCode.SEND_MESSAGE_V2, fields, body, timeout_ms=4000)
            except (MqfastError, OSError):
                await asyncio.sleep(0.02)
                continue
            if answer.code == 0:
                self.acknowledged[queue].append((int(answer.ext_fields["queueOffset"]), number, time.monotonic()))
                self.sent_bytes += len(body)
                if self.bytes_per_s is not None:
                    due_s = self._began_s + self.sent_bytes / self.bytes_per_s
                    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            else:
                self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
                await asyncio.sleep(0.02)

    async def goes_on(self, seconds: float = 120) -> None:
        """Wait until more is acknowledged."""
        before = self.count

        async def more() -> bool:
            return self.count > before

        await until(more, "an acknowledged message", seconds)


async def log_end(address: str) -> int:
    """Where a broker's log ends; -1 while it does not answer."""
    client = RemotingClient()
    try:
        answer = await client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:  # a Java broker that starts
            return -1
        return int(json.loads(standard(bytes(answer.body)))["table"]["commitLogMaxOffset"])
    except (MqfastError, OSError, KeyError):
        return -1
    finally:
        await client.close()


async def kills(sides: list[Side], load: Load, count: int, rng: random.Random) -> None:
    """Kill a side at a random moment, start it again, and wait until messages are acknowledged: so many times."""
    for _ in range(count):
        await asyncio.sleep(rng.uniform(0.02, 1.0))
        side = rng.choice(sides)
        await asyncio.to_thread(side.end, signal.SIGKILL)
        await asyncio.sleep(rng.uniform(0, 0.2))
        await asyncio.to_thread(side.start)
        await load.goes_on()


async def at_rest(master: Side, slave: Side) -> int:
    """Wait until the slave has the master's log. Returns: where it ends."""

    end = -1

    async def equal() -> bool:
        nonlocal end
        end = await log_end(master.address)
        return end >= 0 and end == await log_end(slave.address)

    await until(equal, "the slave at the master's end")
    return end


def assert_equal_logs(slave: Path, master: Path, end: int) -> None:
    """Every file of the slave is the master's up to the end; a slave begins with its master's last file."""
    files = sorted((slave / "commitlog").iterdir())
    assert files
    for file in files:
        start, mine = int(file.name), file.read_bytes()
        theirs = (master / "commitlog" / file.name).read_bytes() if start < end else b""
        assert mine[: max(0, end - start)] == theirs[: max(0, end - start)], file.name
        assert not any(mine[max(0, end - start) :]), file.name


def assert_all_is_there(store: Path, load: Load) -> None:
    """Every acknowledged message is in its queue at its offset, and each queue has the order of its sends."""
    with mqfast.StoreReader(store) as reader:
        for queue, rows in load.acknowledged.items():
            there = {}
            for message in reader.messages(TOPIC, queue):
                there[message.queue_offset] = int(bytes(message.body).split(b":")[1])
            numbers = [there[offset] for offset in sorted(there)]
            assert numbers == sorted(set(numbers)), f"queue {queue}: order"
            missing = [number for offset, number, _ in rows if there.get(offset) != number]
            assert not missing, f"queue {queue}: {len(missing)} of {len(rows)} acknowledged are lost: {missing[:5]}"
