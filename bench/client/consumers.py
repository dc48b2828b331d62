"""Push consumers on our broker: rate and CPU of a message, and the time from a send to its handler.

    python bench/client/consumers.py [MESSAGES]

A broker of its own process with its store in memory; messages of 1 KiB in four queues, read from the first one on by a
new group for each row. CPU is that of this process alone.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from running import BrokerProcess

from mqfast.client import AsyncPushConsumer, Delivery, Producer, PushConsumer
from mqfast.message import Message
from mqfast.remoting.loop import runner

LIMIT_S = 120


class Row:
    """One measurement, from before the start to the last message."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def show(self) -> None:
        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        print(f"{self.name:24} {self.count / seconds:>10,.0f}/s  {cpu / self.count * 1e6:6.1f} us CPU", flush=True)


def handlers(names: str, count: int, batch: int) -> None:
    """C7: a handler in threads that only counts."""
    done = threading.Event()
    consumer = PushConsumer(f"threads-{batch}", names, from_where="first")

    def count_all(given: Delivery | Sequence[Delivery]) -> None:
        row.count += len(given) if isinstance(given, list) else 1
        if row.count >= count:
            done.set()

    consumer.subscribe("bench", count_all, batch=batch)
    row = Row(f"threads, batch={batch}")
    with consumer:
        assert done.wait(LIMIT_S)
        row.show()


async def tasks(names: str, count: int) -> None:
    """C8: a coroutine function that only counts."""
    done = asyncio.Event()
    consumer = AsyncPushConsumer("tasks", names, from_where="first")

    @consumer.on("bench")
    async def count_all(message: Delivery) -> None:
        row.count += 1
        if row.count >= count:
            done.set()

    row = Row("tasks")
    async with consumer, asyncio.timeout(LIMIT_S):
        await done.wait()
        row.show()


async def loop(names: str, count: int) -> None:
    """C8: ``async for``."""
    row = Row("async for")
    async with AsyncPushConsumer("loop", names, topics="bench", from_where="first") as consumer:
        async for _ in consumer:
            row.count += 1
            if row.count >= count:
                break
        row.show()


def latency(names: str, count: int) -> None:
    """C11: from before ``send`` to the handler, one message at a time."""
    began, seen, taken = 0.0, threading.Event(), list[float]()
    consumer = PushConsumer("latency", names)

    @consumer.on("latency")
    def handle(message: Delivery) -> None:
        taken.append(time.perf_counter() - began)
        seen.set()

    with Producer("latency-makers", names) as producer:
        producer.send("latency", b"x" * 1024)
        with consumer:
            assert seen.wait(LIMIT_S)
            for _ in range(count):
                seen.clear()
                began = time.perf_counter()
                producer.send("latency", b"x" * 1024)
                assert seen.wait(LIMIT_S)
    found = sorted(one * 1e6 for one in taken[count // 10 :])
    p99 = found[int(len(found) * 0.99)]
    print(f"{'send to handler':24} p50 {statistics.median(found):,.0f} us  p99 {p99:,.0f} us", flush=True)


def main() -> None:
    """All rows."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    memory = Path("/dev/shm")
    sizes = {"mappedFileSizeCommitLog": 256 << 20, "mappedFileSizeConsumeQueue": 6_000_000}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as work:
        with BrokerProcess(Path(work), **sizes) as broker:
            names = broker.namesrv
            with Producer("makers", names) as producer:
                for result in producer.send_many(Message("bench", b"x" * 1024) for _ in range(count)):
                    assert not isinstance(result, Exception), result
            for batch in (32, 1):
                handlers(names, count, batch)
            with runner() as one:
                one.run(tasks(names, count))
                one.run(loop(names, count))
            latency(names, 500)


if __name__ == "__main__":
    main()
