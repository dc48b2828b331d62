"""Our broker as a process beside Java programs, and the stock Java client that sends and receives on it.

Room: tests/interop. Every process that is started is ended.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from free_ports import free_port
from selector_threads import reactor_settings

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEWEST, STEP_S, Machine, OurNamesrv, compile_java

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}

_REACTORS = [f"{name}={value}" for name, value in reactor_settings().items()]


class OurBroker:
    """``mqfast broker`` as a process."""

    def __init__(self, work: Path, *arguments: str) -> None:
        self.log = work / f"mqfast-broker-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mqfast.cli", "broker", *arguments, *_REACTORS],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.banner = ""
        while "access control" not in self.banner:
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            self.banner += line

    def stop(self, how: int = signal.SIGTERM) -> float:
        began = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(200)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return time.monotonic() - began


def on_a_free_port(work: Path, *arguments: str) -> tuple[OurBroker, int]:
    """A broker and its port; another process may be quicker to take one."""
    for tries_left in reversed(range(10)):
        port = free_port()
        try:
            return OurBroker(work, f"listenPort={port}", *arguments), port
        except AssertionError as error:
            if not tries_left or "address already in use" not in str(error):
                raise
    raise AssertionError


class Setup:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.machine = Machine(NEWEST, work, HERE / "Flow.java")
        compile_java(self.machine.home, HERE / "Swap.java")
        self.names: OurNamesrv | None = None
        self.brokers: list[OurBroker] = []

    def start_names(self, *settings: str) -> str:
        self.names = OurNamesrv(self.work, *settings)
        self.machine.namesrv = self.names.address
        return self.names.address

    def broker(self, *arguments: str) -> OurBroker:
        self.brokers.append(OurBroker(self.work, *arguments))
        return self.brokers[-1]

    def swap(self, prefix: str, count: int, level: int = 0, wanted: int | None = None, **more: str) -> list[str]:
        """What a Java client sends and receives; the words behind ``failed`` where it cannot."""
        expected = count if wanted is None else wanted
        process = self.machine.java(
            self.machine.namesrv, "SwapTopic", "swap-group", prefix, str(count), str(level), str(expected),
            main="Swap", **more,
        )  # fmt: skip
        out, _ = process.communicate(timeout=STEP_S)
        found = re.search(r"^(?:received|failed) (.*)", out, re.MULTILINE)
        assert found, out
        return sorted(filter(None, found[1].split(","))) if found[0].startswith("received") else [found[0]]

    def end(self) -> None:
        self.machine.end_all()
        for one in self.brokers:
            if one.process.poll() is None:
                one.stop()
        if self.names is not None and self.names.process.poll() is None:
            self.names.stop()


@contextmanager
def our_process(work: Path, *settings: str) -> Iterator[str]:
    """Our name server and broker as one process. Yields: the name server's address."""
    with (work / "broker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "broker_process.py"), str(work / "store"), *settings, *_REACTORS],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        found = re.search(r"NAMESRV_ADDR=(\S+)", process.stdout.readline())
        assert found, (work / "broker.log").read_text()
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0, (work / "broker.log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def said_by(machine: Machine, *arguments: str, main: str) -> str:
    """What a Java client prints that rebalances each second; it ends well, and leaves its log where it does not."""
    quick = {"rocketmq.client.rebalance.waitInterval": "1000"}
    process = machine.java(*arguments, main=main, **quick)
    out, _ = process.communicate(timeout=2 * STEP_S)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(machine.work.glob(f"{main}*.log"))[-1:])
    assert process.returncode == 0, f"{out}\n{logs}"
    return str(out)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.end()


def numbered(prefix: str, count: int) -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(count))
