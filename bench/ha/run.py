"""``make bench-ha``: masters and slaves of ours beside those of Java, in turns, on loopback.

Four parts: how fast a slave without a log catches up, what one slave costs its master, answers that wait for a slave,
and what async mode loses with its master's machine. It must never compare figures of different runs. Without Java our
column stands alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [
    str(HERE.parent / "broker"),
    *(str(ROOT / "tests" / part) for part in (".", "kit", "golden/make", "compat")),
]

from ha import processes  # noqa: E402
from ha.processes import NAME, TOPIC, Load, OurSide, free_port, name_server  # noqa: E402
from java_oracle import NEWEST, JavaOracle  # noqa: E402
from make import Machine  # noqa: E402
from run import compiled, cpu_s, drive, line  # noqa: E402  (bench/broker)

import mqfast  # noqa: E402
from mqfast.errors import MqfastError  # noqa: E402
from mqfast.remoting.client import RemotingClient  # noqa: E402
from mqfast.util.fastjson import standard  # noqa: E402

processes.HOST = "127.0.0.1"  # where the C programs look for a broker
FILE = 1 << 30
GIB = 1 << 30
PARTS = ("rate", "cost", "sync", "window")
COMMON = {"mappedFileSizeCommitLog": FILE, "mappedFileSizeConsumeQueue": 6_000_000, "registerNameServerPeriod": 10_000}


class Ours(OurSide):
    """``mqfast broker`` as a process."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


class Java:
    """Apache RocketMQ's own broker."""

    def __init__(self, machine: Machine, what: str, **settings: Any) -> None:
        self._machine = machine
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.store = machine.work / what
        # On a machine with much to do it would refuse sends.
        tolerant = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": 60_000}
        self._settings = {"brokerName": NAME, "sendMessageThreadPoolNums": 4, **tolerant, **settings}
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = self._machine.start_broker(self.store, self._settings, self.port)

    def end(self, how: int = signal.SIGTERM) -> None:
        """End it by a signal, and wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(100)


class Pair:
    """A name server, a master, and slaves that are made when they are needed.

    Attributes: name: of the column; master; pid, port: those of the master, for ``drive``.
    """

    def __init__(self, name: str, work: Path, **settings: Any) -> None:
        self.name = name
        self._work = work
        work.mkdir()
        self._names = name_server(work)
        self._machine: Machine | None = None
        if not name.startswith("mqfast"):
            self._machine = Machine(NEWEST, work)
            self._machine.namesrv = self._names.address
        self._slaves = 0
        self.slave: Any = None
        self.master = self._side("master", **COMMON, **settings)
        self.master.start()
        self.pid, self.port = self.master.pid, self.master.port

    def _side(self, what: str, **settings: Any) -> Any:
        if self._machine is not None:
            return Java(self._machine, what, **settings)
        return Ours(self._work, what, self._names.address, **settings)

    def start_slave(self) -> None:
        """A slave without a log, and wait until the master knows it."""
        self._slaves += 1
        self.slave = self._side(f"slave{self._slaves}", **COMMON, brokerRole="SLAVE", brokerId=1)
        self.slave.start()

    def drop_slave(self) -> None:
        """End the slave, and forget its store."""
        self.slave.end(signal.SIGKILL)
        shutil.rmtree(self.slave.store, ignore_errors=True)

    def acknowledged(self) -> tuple[int, int]:
        """(what the slave acknowledged, -1 without one; end of the master's log)."""
        status = asyncio.run(_ask(self.master.address, 907))
        infos = status.get("haConnectionInfo") or []
        return (int(infos[0]["slaveAckOffset"]) if infos else -1), int(status.get("masterCommitLogMaxOffset", 0))

    def wait_for_slave(self, seconds: float = 120) -> None:
        """Until the slave has all."""
        end = time.monotonic() + seconds
        while True:
            acknowledged, log_end = self.acknowledged()
            if acknowledged >= log_end and (acknowledged > 0 or log_end == 0):
                return
            if time.monotonic() > end:
                raise SystemExit(f"{self.name}: the slave is at {acknowledged} of {log_end} after {seconds:.0f} s")
            time.sleep(0.05)

    def end(self) -> None:
        """End all of it."""
        for one in (self.slave, self.master, self._names):
            if one is not None:
                one.end(signal.SIGKILL)
        if self._machine is not None:
            self._machine.end_all()
        shutil.rmtree(self._work, ignore_errors=True)


async def _ask(address: str, code: int) -> dict[str, Any]:
    client = RemotingClient()
    try:
        answer = await client.call(address, code, timeout_ms=10_000)
        return dict(json.loads(standard(bytes(answer.body))) if answer.body else {})
    except (MqfastError, OSError):
        return {}
    finally:
        await client.close()


async def _catch_up(pair: Pair) -> tuple[float, float, float]:
    """Bytes a second between the first acknowledgement seen and the last; CPU seconds of a GiB, master and slave."""
    client = RemotingClient()
    points: list[tuple[float, int]] = []
    before, of_slave, end_of_log = cpu_s(pair.pid), cpu_s(pair.slave.pid), 0
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        answer = await client.call(pair.master.address, 907, timeout_ms=10_000)
        status = json.loads(standard(bytes(answer.body)))
        end_of_log = status["masterCommitLogMaxOffset"]
        infos = status.get("haConnectionInfo") or []
        if infos:
            acknowledged = infos[0]["slaveAckOffset"]
            if not points or acknowledged != points[-1][1]:
                points.append((time.perf_counter(), acknowledged))
            if acknowledged >= end_of_log:
                break
        await asyncio.sleep(0.002)
    await client.close()
    points = [point for point in points if point[1] > 0]
    if len(points) < 2:
        raise SystemExit(f"{pair.name}: too few acknowledgements were seen, {points}: ask for more --mib")
    (first_s, first), (last_s, last) = points[0], points[-1]
    begun = end_of_log // FILE * FILE  # where a slave without a log begins
    gib = (end_of_log - begun) / GIB
    cpu = [(cpu_s(pid) - then) / gib for pid, then in ((pair.pid, before), (pair.slave.pid, of_slave))]
    return (last - first) / (last_s - first_s), *cpu


def rate(kinds: list[str], work: Path, sender: Path, arguments: argparse.Namespace) -> list[str]:
    """A slave without a log catches up with a master that has one file of data."""
    pairs = [Pair(kind, work / f"rate-{number}", brokerRole="ASYNC_MASTER") for number, kind in enumerate(kinds)]
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    try:
        for pair in pairs:
            while pair.acknowledged()[1] < arguments.mib << 20:
                drive(sender, pair, TOPIC, 4, 4, 4, 64_000, 0.2)
        for number in range(arguments.rounds):
            for pair in pairs if number % 2 else pairs[::-1]:
                pair.start_slave()
                found[pair.name].append(asyncio.run(_catch_up(pair)))
                pair.drop_slave()
    finally:
        for pair in pairs:
            pair.end()
    medians = {kind: [statistics.median(column) for column in zip(*rows, strict=True)] for kind, rows in found.items()}
    cells = [
        f"{one[0] / GIB:.2f} GiB/s, CPU of a GiB: master {one[1]:.2f} s, slave {one[2]:.2f} s"
        for one in medians.values()
    ]
    ours = medians["mqfast"][0]
    ratio = f", {ours / medians[kinds[1]][0]:.2f}x" if len(kinds) > 1 else ""
    return [line("a slave catches up", *cells, f"{ours / GIB:.2f} of 1 GiB/s{ratio}")]


def cost(kinds: list[str], work: Path, sender: Path, arguments: argparse.Namespace) -> list[str]:
    """Two masters of a kind in turns, one of which has a slave."""
    rows = []
    for place, kind in enumerate(kinds):
        alone, followed = (Pair(kind, work / f"cost-{place}-{what}") for what in ("alone", "followed"))
        try:
            followed.start_slave()
            drive(sender, followed, TOPIC, 4, 4, 1, 1024, 0.5)
            followed.wait_for_slave()
            figures: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for number in range(arguments.rounds + 1):
                for pair in (alone, followed) if number % 2 else (followed, alone):
                    row = drive(sender, pair, TOPIC, 4, 16, 1, 1024, arguments.seconds)
                    if number:
                        figures[pair is followed].append(row)
            median = {
                with_slave: {key: statistics.median(row[key] for row in some) for key in ("rate", "cpu_us")}
                for with_slave, some in figures.items()
            }
            lost = 1 - median[True]["rate"] / median[False]["rate"]
            more = median[True]["cpu_us"] / median[False]["cpu_us"] - 1
            cells = [f"{median[one]['rate'] / 1000:.1f} k/s, {median[one]['cpu_us']:.1f} us" for one in (False, True)]
            rows.append(
                line(f"{kind}: without, with a slave", *cells, f"rate {-lost:+.1%} (goal -5 %), CPU {more:+.1%}")
            )
        finally:
            alone.end()
            followed.end()
    return rows


def sync(kinds: list[str], work: Path, sender: Path, arguments: argparse.Namespace) -> list[str]:
    """SYNC_MASTER: each answer waits until the slave has the message."""
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    pairs = [Pair(kind, work / f"sync-{number}", **settings) for number, kind in enumerate(kinds)]
    reactors = [
        Pair(f"mqfast, reactors: {threads}", work / f"reactors-{threads}", serverSelectorThreads=threads, **settings)
        for threads in arguments.reactors
    ]
    pairs += reactors
    rows = []
    try:
        for pair in pairs:
            pair.start_slave()
            pair.wait_for_slave()  # an answer before that would be 11
            drive(sender, pair, TOPIC, 4, 1, 1, 1024, 0.5)
            pair.wait_for_slave()
        for connections in (16, 64):
            figures: dict[str, list[dict[str, float]]] = {pair.name: [] for pair in pairs}
            for number in range(arguments.rounds + 1):
                for pair in pairs if number % 2 else pairs[::-1]:
                    row = drive(sender, pair, TOPIC, 4, connections, 1, 1024, arguments.seconds)
                    if row.get("failures"):
                        raise SystemExit(f"{pair.name}: {row['failures']} answers were not 0")
                    if number:
                        figures[pair.name].append(row)
            found = {
                kind: {key: statistics.median(row[key] for row in some) for key in some[0]}
                for kind, some in figures.items()
            }
            cells = [
                f"{row['rate'] / 1000:.1f} k/s, {row['cpu_us']:.0f} us, p99 {row['p99_us'] / 1000:.2f} ms"
                for row in found.values()
            ]
            java = found[kinds[1]]["rate"] if len(kinds) > 1 else 0
            ratio = f"{found['mqfast']['rate'] / java:.2f}x of 2x" if java else "-"
            rows.append(line(f"SYNC_MASTER, {connections} connections", *cells[: len(kinds)], ratio))
            for pair, cell in zip(reactors, cells[len(kinds) :], strict=True):
                rows.append(line(f"SYNC_MASTER, {connections} connections", f"{pair.name}: {cell}", "-"))
    finally:
        for pair in pairs:
            pair.end()
    return rows


async def _lost(pair: Pair, seconds: float) -> tuple[int, int, float]:
    """Kill the master under load, and count what the slave has not: (lost, acknowledged, ms before the kill)."""
    async with Load(lambda: pair.master.address, 1, (1000, 1000), None) as load:
        await load.goes_on()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(pair.master.end, signal.SIGKILL)
        killed_s = time.monotonic()
    await asyncio.to_thread(pair.slave.end)
    lost = []
    with mqfast.StoreReader(pair.slave.store) as reader:
        for queue, sent in load.acknowledged.items():
            ends = [one.queue_offset for one in reader.messages(TOPIC, queue)]
            lost += [row for row in sent if not ends or row[0] > ends[-1]]
    oldest_ms = max([0.0, *((killed_s - when) * 1000 for _, _, when in lost)])
    return len(lost), load.count, oldest_ms


def window(kinds: list[str], work: Path, sender: Path, arguments: argparse.Namespace) -> list[str]:
    """Acknowledged by an async master and not at its slave when the master's machine is lost."""
    found: dict[str, list[tuple[int, int, float]]] = {kind: [] for kind in kinds}
    for number in range(arguments.rounds):
        for place, kind in enumerate(kinds if number % 2 else kinds[::-1]):
            pair = Pair(kind, work / f"window-{number}-{place}")
            try:
                pair.start_slave()
                drive(sender, pair, "other", 4, 1, 1, 100, 0.2)
                pair.wait_for_slave()
                found[kind].append(asyncio.run(_lost(pair, arguments.seconds)))
            finally:
                pair.end()
    cells = [
        f"{max(row[0] for row in rows)} of {statistics.median(row[1] for row in rows):.0f}, "
        f"{max(row[2] for row in rows):.1f} ms"
        for rows in found.values()
    ]
    return [line("async, most that was lost in a run", *cells, "-")]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--mib", type=int, default=900, help="data of the part rate, less than one log file of 1 GiB")
    parser.add_argument("--alone", action="store_true", help="our brokers only")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--reactors", type=int, nargs="*", default=[2], help="serverSelectorThreads of more masters in the part sync"
    )
    arguments = parser.parse_args()
    if arguments.mib > 1000:
        parser.error("--mib: expected at most 1000, because a slave begins with its master's last file")
    kinds = ["mqfast"] if arguments.alone or not JavaOracle.available()[0] else ["mqfast", f"RocketMQ {NEWEST}"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sender = compiled("sender", work)
        print(line("1 KiB bodies", *kinds, "goal"))
        print(line(*["---"] * (len(kinds) + 2)), flush=True)
        for part in arguments.parts:
            heads = ["replication", "without a slave", "with a slave", "goal"]
            if part == "cost":
                print("\n" + line(*heads) + "\n" + line(*["---"] * 4))
            for row in {"rate": rate, "cost": cost, "sync": sync, "window": window}[part](
                kinds, work, sender, arguments
            ):
                print(row, flush=True)


if __name__ == "__main__":
    main()
