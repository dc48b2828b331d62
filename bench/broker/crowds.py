"""``make bench-broker``, second part: what many queues, groups and connections cost our broker.

Each row compares two brokers, or one with and without others beside it, in turns. It must never compare figures of
different runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run import OurBroker, compiled, drive, idle_mib, in_turns, line

QUEUES, GROUPS, OFFSETS_OF_A_GROUP, GROUPS_OF_A_CLIENT = 10_000, 1_000, 10, 50
IDLE = 10_000
# Connects as fast as one process makes them; prints how many there were once its input ends.
FLOOD = """
import socket, sys, threading
stop, count = [], 0
threading.Thread(target=lambda: stop.append(sys.stdin.read()), daemon=True).start()
while not stop:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
        count += 1
    except OSError:
        pass
print(count)
"""


class Few(OurBroker):
    """A topic of 8 queues."""

    name, queues = "8 queues", 8


class Many(OurBroker):
    """A topic of 10,000 queues, and 1,000 groups of consumers that are connected."""

    name, queues = f"{QUEUES:,} queues, {GROUPS:,} groups", QUEUES


async def populate(broker: Any, clients: list[Any]) -> None:
    """Make the topic, one message in each queue; members and offsets of the groups of ``Many``."""
    from mqfast.remoting.client import RemotingClient

    address = f"127.0.0.1:{broker.port}"
    first = RemotingClient()
    clients.append(first)

    async def told(client: Any, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        answer = await client.call(address, code, fields, body, timeout_ms=60_000)
        assert answer.code == 0, answer

    topic = {
        "topic": "bench", "defaultTopic": "TBW102", "readQueueNums": str(broker.queues), "perm": "6",
        "writeQueueNums": str(broker.queues), "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    await told(first, 17, topic)
    send = {
        "a": "bench", "b": "bench", "c": "TBW102", "d": "8", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false",
    }  # fmt: skip
    for begin in range(0, broker.queues, 100):
        queues = range(begin, min(begin + 100, broker.queues))
        await asyncio.gather(*(told(first, 310, {**send, "e": str(queue)}, b"x") for queue in queues))
    if broker.queues < QUEUES:
        return
    for begin in range(0, GROUPS, GROUPS_OF_A_CLIENT):
        names = [f"group-{number}" for number in range(begin, begin + GROUPS_OF_A_CLIENT)]
        member = RemotingClient()
        clients.append(member)
        wanted = [{"topic": "bench", "subString": "*", "expressionType": "TAG", "subVersion": 1}]
        groups = [
            {"groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
             "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": wanted}
            for name in names
        ]  # fmt: skip
        heartbeat = json.dumps({"clientID": f"client-{begin}", "consumerDataSet": groups}).encode()
        await told(member, 34, {}, heartbeat)
        for name in names:
            for queue in range(OFFSETS_OF_A_GROUP):
                await told(
                    member, 15, {"consumerGroup": name, "topic": "bench", "queueId": str(queue), "commitOffset": "1"}
                )


@contextmanager
def running(kind: type[OurBroker], work: Path) -> Iterator[Any]:
    """A broker of this kind in a folder of its own."""
    folder = work / kind.__name__
    folder.mkdir()
    broker = kind(folder, {"brokerFastFailureEnable": "false"})  # whoever waits is told so by the clock of the row
    try:
        yield broker
    finally:
        broker.end()


def many_queues(work: Path, sender: Path, rounds: int, seconds: float) -> None:
    """Rate with many queues and groups beside that with few, 16 connections."""
    with running(Few, work) as few, running(Many, work) as many:

        async def measured() -> dict[str, dict[str, float]]:
            clients: list[Any] = []
            for broker in (few, many):
                await populate(broker, clients)
            # The members answer what the broker asks them, so that this loop runs on.
            found = await asyncio.to_thread(
                in_turns, [few, many], rounds, lambda one: drive(sender, one, "bench", one.queues, 16, 1, 1024, seconds)
            )
            for client in clients:
                await client.close()
            return found

        found = asyncio.run(measured())
        one, other = found[few.name], found[many.name]
        shown = [f"{row['rate'] / 1000:.1f} k/s, {row['cpu_us']:.0f} us" for row in (one, other)]
        cost = 1 - other["rate"] / one["rate"]
        print(line(f"sends to {many.name}, beside 8 queues", *shown, f"cost {cost:.0%} of 20 %"), flush=True)
        print(line("memory of both, and the peak", f"{idle_mib(few):.0f} MiB", f"{idle_mib(many):.0f} MiB", ""))


def idle_connections(work: Path) -> None:
    """Memory of a broker with connections that say nothing."""
    with running(OurBroker, work) as broker:
        before = idle_mib(broker)
        held = [socket.create_connection(("127.0.0.1", broker.port), 30) for _ in range(IDLE)]
        after = idle_mib(broker)
        for one in held:
            one.close()
        print(
            line(f"{IDLE:,} idle connections", f"{before:.0f} MiB without", f"{after:.0f} MiB", "goal < 300 MiB"),
            flush=True,
        )


def flood(work: Path, sender: Path, rounds: int, seconds: float) -> None:
    """Tails of 16 connections while another process connects and goes, as fast as it can."""
    with running(Few, work) as broker:
        connects: list[float] = []

        def turn(is_flooded: Any) -> dict[str, float]:
            if not is_flooded.flag:
                return drive(sender, broker, "bench", 8, 16, 1, 1024, seconds)
            process = subprocess.Popen(
                [sys.executable, "-c", FLOOD, "127.0.0.1", str(broker.port)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            found = drive(sender, broker, "bench", 8, 16, 1, 1024, seconds)
            out, _ = process.communicate("")
            connects.append(int(out) / found["seconds"])
            return found

        found = in_turns([_Turn("quiet", False), _Turn("flood", True)], rounds, turn)
        quiet, beside = found["quiet"], found["flood"]
        shown = [f"{row['rate'] / 1000:.1f} k/s, p99 {row['p99_us'] / 1000:.2f} ms" for row in (quiet, beside)]
        per_second = sorted(connects)[len(connects) // 2]
        print(line(f"beside {per_second:,.0f} connects a second", *shown, ""), flush=True)


class _Turn:
    def __init__(self, name: str, flag: bool) -> None:
        self.name, self.flag = name, flag


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments, _ = parser.parse_known_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < IDLE + 1000:
        raise SystemExit(f"ulimit -n: expected at least {IDLE + 1000}, found {hard}")
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    print()
    print(line("crowds, 1 KiB bodies, ASYNC_FLUSH", "without", "with", "goal"))
    print(line(*["---"] * 4), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sender = compiled("sender", work)
        many_queues(work, sender, arguments.rounds, arguments.seconds)
        for name in ("Few", "Many"):
            subprocess.run(["rm", "-rf", str(work / name)], check=True)
        idle_connections(work)
        flood(work, sender, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
