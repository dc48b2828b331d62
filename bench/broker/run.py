"""``make bench-broker``: our broker beside the Java broker, both driven by the same lean C programs, in turns.

It must never compare figures of different runs: each row is the median over rounds, in which the brokers take turns.
Without Java our column stands alone. The C programs take a processor of their own time; ``sender_cpu`` shows how much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
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
from make import Machine, free_port, wait_for  # noqa: E402

# connections, requests under way in each, what Java needs of the rate and of the CPU time of a message
SENDS = [(1, 1, 2.0, 1 / 3), (16, 1, 2.0, 1 / 4), (64, 1, 2.5, 1 / 5), (4, 64, 4.0, 1 / 8)]
KEY, SECRET = "bench-key", "12345678"


def listens(port: int) -> bool:
    """Return whether something accepts connections."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def serves(port: int) -> bool:
    """Return whether a broker answers the question for its state."""
    from mqfast.remoting.client import RemotingClient

    async def ask() -> int:
        client = RemotingClient()
        try:
            return (await client.call(f"127.0.0.1:{port}", 28)).code
        finally:
            await client.close()

    return asyncio.run(ask()) in (0, 1)  # 1: a refusal, by access control


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
        while not listens(self.port):
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


def waits(brokers: list[Any], waiter: Path, rounds: int) -> str:
    """The row of a message for which a pull waits, from the begin of the send to the answer of the pull."""
    found = in_turns(brokers, rounds, lambda one: drive(waiter, one, "waits", 1024, 300))
    ours, java = found[brokers[0].name], found.get(JavaBroker.name)
    row = line(
        "put to a waiting pull",
        *(f"p50 {one['p50_us']:.0f} us, p99 {one['p99_us']:.0f} us, {one['cpu_us']:.0f} us" for one in found.values()),
        f"p50 {ours['p50_us']:.0f} of 150 us",
        f"1/{java['cpu_us'] / ours['cpu_us']:.1f}" if java else "-",
    )
    print(row, flush=True)
    return row


def signatures(queues: int) -> str:
    """What the sender sends as the signature of each queue's requests; 1 KiB bodies."""
    from mqfast.remoting.signature import signature_of

    fields = {"a": "bench", "b": "bench", "c": "TBW102", "d": "8", "f": "0", "g": "1700000000000", "h": "0", "j": "0",
              "k": "false", "m": "false", "AccessKey": KEY}  # fmt: skip
    key = "UNIQ_KEY\x017F00000100001111222200000000{:04X}\x02WAIT\x01true"
    return ",".join(
        signature_of({**fields, "e": f"{queue:05}", "i": key.format(queue)}, b"x" * 1024, SECRET)
        for queue in range(queues)
    )


def guarded(arguments: argparse.Namespace, work: Path, sender: Path) -> None:
    """The rows of signed requests, beside the same requests of a broker without access control."""
    accounts = work / "plain_acl.yml"
    accounts.write_text(f"accounts:\n- {{accessKey: {KEY}, secretKey: {SECRET}, defaultTopicPerm: PUB}}\n")
    settings = {"aclEnable": "true", "aclFile": accounts}
    brokers = []
    try:
        for name, more in (("mqfast", {}), ("mqfast, access control", settings)):
            (work / name).mkdir()
            brokers.append(OurBroker(work / name, more))
            brokers[-1].name = name
        print("\n" + line("signed, 1 KiB bodies", *(one.name for one in brokers), "CPU of a message, goal"))
        print(line(*["---"] * 4), flush=True)
        for connections, window in ((64, 1), (4, 64)):
            signed = KEY, signatures(8)
            found = in_turns(
                brokers,
                arguments.rounds,
                lambda one, c=connections, w=window, s=signed: drive(
                    sender, one, "bench", 8, c, w, 1024, arguments.seconds, *s
                ),
            )
            plain, with_rights = (found[one.name] for one in brokers)
            cells = (f"{one['rate'] / 1000:.1f} k/s, {one['cpu_us']:.1f} us" for one in (plain, with_rights))
            ratio = with_rights["cpu_us"] / plain["cpu_us"]
            print(line(f"{connections} connections, {window} under way", *cells, f"{ratio:.2f}x of 2x"), flush=True)
    finally:
        for one in brokers:
            one.end()


def idle_mib(broker: Any) -> float:
    """Resident memory."""
    return float(psutil.Process(broker.pid).memory_info().rss) / (1 << 20)


def measured(
    settings: dict[str, Any], arguments: argparse.Namespace, work: Path, sender: Path, puller: Path, waiter: Path
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
            wait_for(lambda one=one: listens(one.port), one.name)
            print(f"{one.name}: ready after {one.ready_ms:.0f} ms, {idle_mib(one):.0f} MiB", flush=True)
        names = [one.name for one in [*brokers, *floors]]
        print("\n" + line("1 KiB bodies", *names, "rate, goal", "CPU of a message, goal"))
        print(line(*["---"] * (len(names) + 3)), flush=True)
        return [
            *sends([*brokers, *floors], sender, arguments.rounds, arguments.seconds),
            pulls(brokers, puller, arguments.rounds, arguments.seconds),
            waits(brokers, waiter, arguments.rounds),
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
        sender, puller, waiter = (compiled(name, work) for name in ("sender", "puller", "waiter"))
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            print(f"\n{flush}\n")
            measured({"flushDiskType": flush}, arguments, work, sender, puller, waiter)
        guarded(arguments, work, sender)


if __name__ == "__main__":
    main()
