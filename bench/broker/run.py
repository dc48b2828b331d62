"""``make bench-broker``: our broker beside the Java broker, both driven by the same lean C programs, in turns.

It must never compare figures of different runs: each row is the median over rounds, in which the brokers take turns.
Without Java our column stands alone. The C programs take a processor of their own time; ``sender_cpu`` shows how much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("golden/make", "compat")]

from java_oracle import NEWEST, JavaOracle  # noqa: E402
from make import Machine, free_port, listens, wait_for  # noqa: E402

# connections, requests under way in each, what Java needs of the rate and of the CPU time of a message
SENDS = [(1, 1, 2.0, 1 / 3), (16, 1, 2.0, 1 / 4), (64, 1, 2.5, 1 / 5), (4, 64, 4.0, 1 / 8)]


def serves(port: int) -> bool:
    """Return whether a broker answers the question for its state."""
    from mqfast.remoting.client import RemotingClient

    async def ask() -> int:
        client = RemotingClient()
        try:
            return (await client.call(f"127.0.0.1:{port}", 28)).code
        finally:
            await client.close()

    return asyncio.run(ask()) == 0


class OurBroker:
    """``mqfast broker`` as a process. Args: reactors: serverSelectorThreads; 0 is the way of Python."""

    def __init__(self, work: Path, settings: dict[str, Any], reactors: int = 0) -> None:
        self.name = f"mqfast, reactors: {reactors}" if reactors else "mqfast"
        settings = {"serverSelectorThreads": reactors, **settings}
        self.port = free_port()
        lines = {"listenPort": self.port, "brokerName": "brk", "storePathRootDir": work / "store", **settings}
        conf = work / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        began = time.perf_counter()
        with (work / "broker.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mqfast.cli", "broker", "-c", str(conf)], stdout=log, stderr=log, cwd=ROOT
            )
        while not listens(f"127.0.0.1:{self.port}"):
            if self.process.poll() is not None or time.perf_counter() - began > 60:
                raise SystemExit((work / "broker.log").read_text())
            time.sleep(0.005)
        wait_for(lambda: serves(self.port), self.name)  # a broker listens before it serves
        self.ready_ms = (time.perf_counter() - began) * 1000
        if self.process.poll() is not None:
            raise SystemExit(f"port {self.port} is somebody else's:\n{(work / 'broker.log').read_text()}")
        self.pid = self.process.pid

    def end(self) -> None:
        """Stop it in order."""
        self.process.terminate()
        self.process.wait(60)


class JavaBroker:
    """Apache RocketMQ's own broker with its name server."""

    name = f"RocketMQ {NEWEST}"

    def __init__(self, work: Path, settings: dict[str, Any]) -> None:
        self.machine = Machine(NEWEST, work)
        self.machine.start_namesrv()
        self.port = free_port()
        began = time.perf_counter()
        heap = {"sendMessageThreadPoolNums": 4}
        self.process = self.machine.start_broker(work / "store", heap | settings, self.port)
        self.ready_ms = (time.perf_counter() - began) * 1000
        self.pid = self.process.pid

    def end(self) -> None:
        """Stop it in order."""
        self.machine.stop(self.process)
        self.machine.end_all()


class Floor:
    """``floor.c``: what a send costs at least, without a store. Takes sends only."""

    def __init__(self, program: Path, threads: int) -> None:
        self.name = f"floor, threads: {threads}"
        self.port = free_port()
        self.ready_ms = 0.0
        self.process = subprocess.Popen([str(program), str(self.port), str(threads)])
        self.pid = self.process.pid

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


def compiled(source: str, directory: Path, *more: Path) -> Path:
    """A C program of this folder."""
    out = directory / source
    files = [HERE / f"{source}.c", *more]
    subprocess.run(
        ["cc", "-O2", "-std=gnu11", f"-I{ROOT / 'csrc'}", *map(str, files), "-pthread", "-o", str(out)], check=True
    )
    return out


def cpu_s(pid: int) -> float:
    """CPU time of a process until now."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def drive(program: Path, broker: Any, *arguments: object) -> dict[str, float]:
    """One turn of a C program against a broker; with the broker's CPU time of a message."""
    before = cpu_s(broker.pid)
    done = subprocess.run(
        [str(program), "127.0.0.1", str(broker.port), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise SystemExit(f"{program.name} {arguments}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    found["rate"] = found["answers"] / found["seconds"]
    found["cpu_us"] = (cpu_s(broker.pid) - before) / found["answers"] * 1e6
    return found


def in_turns(brokers: list[Any], rounds: int, turn: Callable[[Any], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians by broker; the first round warms up."""
    found: dict[str, list[dict[str, float]]] = {one.name: [] for one in brokers}
    for number in range(rounds + 1):
        for one in brokers if number % 2 else brokers[::-1]:
            figures = turn(one)
            if number:
                found[one.name].append(figures)
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}


def line(*cells: object) -> str:
    """A row of the table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def sends(brokers: list[Any], sender: Path, rounds: int, seconds: float) -> list[str]:
    """Rows of sends; 1 KiB bodies."""
    rows = []
    for connections, window, rate_goal, cpu_goal in SENDS:
        found = in_turns(
            brokers, rounds, lambda one, c=connections, w=window: drive(sender, one, "bench", 8, c, w, 1024, seconds)
        )
        ours, java = found[brokers[0].name], found.get(JavaBroker.name)
        what = f"{connections} connections" + (f", {window} under way in each" if window > 1 else "")
        rows.append(
            line(
                what,
                *(f"{one['rate'] / 1000:.1f} k/s, {one['cpu_us']:.0f} us, p99 {one['p99_us'] / 1000:.2f} ms"
                  for one in found.values()),
                f"{ours['rate'] / java['rate']:.2f}x of {rate_goal}x" if java else "-",
                f"1/{java['cpu_us'] / ours['cpu_us']:.1f} of 1/{1 / cpu_goal:.0f}" if java else "-",
            )
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def pulls(brokers: list[Any], puller: Path, rounds: int, seconds: float) -> str:
    """The row of one consumer that pulls what the sends left."""
    found = in_turns(brokers, rounds, lambda one: drive(puller, one, "bench", 8, 32, seconds))
    ours, java = found[brokers[0].name], found.get(JavaBroker.name)
    row = line(
        "pull, one consumer, 32 a pull",
        *(f"{one['rate'] / 1000:.0f} k/s, {one['cpu_us']:.2f} us" for one in found.values()),
        f"{ours['rate'] / java['rate']:.2f}x of 3x" if java else "-",
        f"1/{java['cpu_us'] / ours['cpu_us']:.1f}" if java else "-",
    )
    print(row, flush=True)
    return row


async def push_latencies(broker: Any, count: int) -> list[float]:
    """How long from the begin of a send until a pull that waits for it has its answer, us."""
    from mqfast.remoting.client import RemotingClient

    producer, consumer, address = RemotingClient(), RemotingClient(), f"127.0.0.1:{broker.port}"
    send = {
        "a": "bench", "b": "latency", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "UNIQ_KEY\x017F00000100001111222200000000AAAA\x02WAIT\x01true", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    answer = await producer.call(address, 310, send, bytes(1024))
    offset, found = int(answer.ext_fields["queueOffset"]) + 1, []
    for _ in range(count):
        pull = {
            "consumerGroup": "bench-readers", "topic": "latency", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        waiting = asyncio.ensure_future(consumer.call(address, 11, pull, timeout_ms=30_000))
        await asyncio.sleep(0.003)  # the broker holds the pull by then
        began = time.perf_counter()
        sent = asyncio.ensure_future(producer.call(address, 310, send, bytes(1024)))
        got = await waiting
        found.append((time.perf_counter() - began) * 1e6)
        await sent
        offset = int(got.ext_fields["nextBeginOffset"])
    await producer.close()
    await consumer.close()
    return found


def pushes(brokers: list[Any], rounds: int) -> str:
    """The row of a message that somebody waits for."""

    def turn(broker: Any) -> dict[str, float]:
        took = sorted(asyncio.run(push_latencies(broker, 200)))
        return {"p50": took[100], "p99": took[198]}

    found = in_turns(brokers, rounds, turn)
    shown = [f"p50 {one['p50']:.0f} us, p99 {one['p99']:.0f} us" for one in found.values()]
    row = line("put to a waiting pull, a Python client on both ends", *shown, "p50 <= 300 us", "-")
    print(row, flush=True)
    return row


def idle_mib(broker: Any) -> float:
    """Resident memory."""
    return float(psutil.Process(broker.pid).memory_info().rss) / (1 << 20)


def measured(
    settings: dict[str, Any], arguments: argparse.Namespace, work: Path, sender: Path, puller: Path
) -> list[str]:
    """All rows of one pair of brokers."""
    brokers: list[Any] = []
    floors: list[Any] = []

    def folder(name: str) -> Path:
        made = work / name
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        return made

    try:
        # The first one is measured against the goals.
        for reactors in arguments.reactors:
            brokers.append(OurBroker(folder(f"ours{reactors}"), settings, reactors))
        if JavaOracle.available()[0] and not arguments.alone:
            brokers.append(JavaBroker(folder("java"), settings))
        if settings["flushDiskType"] == "ASYNC_FLUSH":
            program = compiled("floor", work, *sorted((ROOT / "csrc").glob("crc32*.c")))
            floors.extend(Floor(program, threads) for threads in (1, 2))
        for one in [*brokers, *floors]:
            wait_for(lambda one=one: listens(f"127.0.0.1:{one.port}"), one.name)
            print(f"{one.name}: ready after {one.ready_ms:.0f} ms, {idle_mib(one):.0f} MiB", flush=True)
        names = [one.name for one in [*brokers, *floors]]
        print("\n" + line("1 KiB bodies", *names, "rate, goal", "CPU of a message, goal"))
        print(line(*["---"] * (len(names) + 3)), flush=True)
        return [
            *sends([*brokers, *floors], sender, arguments.rounds, arguments.seconds),
            pulls(brokers, puller, arguments.rounds, arguments.seconds),
            pushes(brokers, arguments.rounds),
        ]
    finally:
        for one in [*brokers, *floors]:
            one.end()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--alone", action="store_true", help="our broker only")
    parser.add_argument(
        "--reactors", type=int, nargs="+", default=[0, 1, 2], help="serverSelectorThreads of each of our brokers"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sender, puller = compiled("sender", work), compiled("puller", work)
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            print(f"\n{flush}\n")
            measured({"flushDiskType": flush}, arguments, work, sender, puller)


if __name__ == "__main__":
    main()
