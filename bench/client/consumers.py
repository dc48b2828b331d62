"""One row of ``make bench-client`` for consumers, in a process of its own: ``consumers.py ROW NAMESRV COUNT``.

Topic ``filled`` has at least COUNT messages of 1 KiB in four queues, which a new group reads from the first one on. It
prints one JSON object: messages a second, and microseconds of this process's CPU for a message; other rows say theirs.
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import statistics
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence

LIMIT_S = 120


def group() -> str:
    """One that nobody has used."""
    return f"bench-{secrets.token_hex(4)}"


class Row:
    """One measurement, from before the start to the last message."""

    def __init__(self) -> None:
        self.count = 0
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self) -> dict[str, float]:
        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"rate": self.count / seconds, "cpu_us": cpu / self.count * 1e6}


def handlers(names: str, count: int, batch: int) -> dict[str, float]:
    """C7: a handler in threads that only counts."""
    from mqfast.client import Delivery, PushConsumer

    done = threading.Event()
    consumer = PushConsumer(group(), names, from_where="first")

    def count_all(given: Delivery | Sequence[Delivery]) -> None:
        row.count += len(given) if isinstance(given, list) else 1
        if row.count >= count:
            done.set()

    consumer.subscribe("filled", count_all, batch=batch)
    row = Row()
    with consumer:
        assert done.wait(LIMIT_S)
        return row.figures()


async def tasks(names: str, count: int) -> dict[str, float]:
    """C8: a coroutine function that only counts."""
    from mqfast.client import AsyncPushConsumer, Delivery

    done = asyncio.Event()
    consumer = AsyncPushConsumer(group(), names, from_where="first")

    @consumer.on("filled")
    async def count_all(message: Delivery) -> None:
        row.count += 1
        if row.count >= count:
            done.set()

    row = Row()
    async with consumer, asyncio.timeout(LIMIT_S):
        await done.wait()
        return row.figures()


async def loop(names: str, count: int) -> dict[str, float]:
    """C8: ``async for``."""
    from mqfast.client import AsyncPushConsumer

    row = Row()
    async with AsyncPushConsumer(group(), names, topics="filled", from_where="first") as consumer:
        async for _ in consumer:
            row.count += 1
            if row.count >= count:
                break
        return row.figures()


def decoded(names: str, count: int) -> dict[str, float]:
    """C9: the messages of one answer, each with its checksum, the least of several runs."""
    from mqfast.client.delivery import Source, decode_deliveries
    from mqfast.client.values import MessageQueue

    body, properties = bytes(1024), b"UNIQ_KEY\x01" + b"7F" * 16 + b"\x02TAGS\x01new\x02"
    tail = struct.pack(">i", len(body)) + body + b"\x06filled" + struct.pack(">h", len(properties)) + properties
    hosts = bytes([127, 0, 0, 1, 0, 0, 0, 9])
    crc = zlib.crc32(body) & 0x7FFFFFFF
    head = struct.pack(">iiiiqqiq", -626843481, crc, 0, 0, 7, 4096, 0, 1) + hosts + struct.pack(">q", 2) + hosts
    record = head + struct.pack(">iq", 0, 0) + tail
    answer = (struct.pack(">i", len(record) + 4) + record) * 32
    source = Source("b", MessageQueue("filled", "b", 0))
    assert [one.queue_offset for one in decode_deliveries(answer, source)] == [7] * 32
    taken = []
    for _ in range(200):
        begin = time.perf_counter()
        decode_deliveries(answer, source)
        taken.append(time.perf_counter() - begin)
    return {"ns": min(taken) / 32 * 1e9}


def latency(names: str, count: int) -> dict[str, float]:
    """C11: from before ``send`` to the handler, one message at a time."""
    from mqfast.client import Delivery, Producer, PushConsumer

    began, seen, taken = 0.0, threading.Event(), list[float]()
    consumer = PushConsumer(group(), names)

    @consumer.on("latency")
    def handle(message: Delivery) -> None:
        taken.append(time.perf_counter() - began)
        seen.set()

    with Producer("latency-makers", names) as producer:
        producer.send("latency", b"x" * 1024)
        with consumer:
            assert seen.wait(LIMIT_S)
            for _ in range(500):
                seen.clear()
                began = time.perf_counter()
                producer.send("latency", b"x" * 1024)
                assert seen.wait(LIMIT_S)
    found = sorted(one * 1e6 for one in taken[50:])
    return {"p50_us": statistics.median(found), "p99_us": found[int(len(found) * 0.99)]}


def resident_mib() -> float:
    with open("/proc/self/statm") as one:
        return int(one.read().split()[1]) * resource.getpagesize() / (1 << 20)


def idle(names: str, count: int) -> dict[str, float]:
    """C13: a producer and a consumer with nothing to do, over the interpreter with asyncio and ssl alone."""
    import ssl

    assert ssl
    before = resident_mib()
    from mqfast.client import Producer, PushConsumer

    consumer = PushConsumer(group(), names)
    consumer.subscribe("idle", lambda message: None)
    with Producer("idle", names) as producer, consumer:
        producer.send("idle", b"x")
        time.sleep(1.5)
        return {"mib": resident_mib() - before}


def received(names: str, count: int) -> dict[str, float]:
    """C14, received: memory between the first fifth and the last message."""
    from mqfast.client import Delivery, PushConsumer

    done, seen, before = threading.Event(), 0, 0.0
    consumer = PushConsumer(group(), names, from_where="first")

    def count_all(messages: list[Delivery]) -> None:
        nonlocal seen, before
        seen += len(messages)
        if not before and seen >= count // 5:
            before = resident_mib()
        if seen >= count:
            done.set()

    consumer.subscribe("filled", count_all, batch=32)
    with consumer:
        assert done.wait(LIMIT_S * 10)
        return {"mib": resident_mib() - before, "messages": seen}


def in_loop(work: Callable[[str, int], object]) -> Callable[[str, int], dict[str, float]]:
    from mqfast.remoting.loop import runner

    def run(names: str, count: int) -> dict[str, float]:
        with runner() as one:
            found: dict[str, float] = one.run(work(names, count))  # type: ignore[arg-type]
            return found

    return run


ROWS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "C7 batch": lambda names, count: handlers(names, count, 32),
    "C7": lambda names, count: handlers(names, count, 1),
    "C8 tasks": lambda names, count: in_loop(tasks)(names, count),
    "C8 loop": lambda names, count: in_loop(loop)(names, count),
    "C9": decoded,
    "C11": latency,
    "C13": idle,
    "C14 received": received,
}

if __name__ == "__main__":
    name, where, number = sys.argv[1:]
    print(json.dumps(ROWS[name](where, int(number))))
