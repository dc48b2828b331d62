"""One row of ``make bench-client`` for producers, in a process of its own: ``producers.py ROW ADDRESS SECONDS``.

It prints one JSON object: messages a second, and microseconds of this process's CPU for a message.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BODY = bytes(1024)
SMALL = bytes(100)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(work: Callable[[], int]) -> dict[str, float]:
    begin, cpu = time.perf_counter(), cpu_s()
    count = work()
    took, used = time.perf_counter() - begin, cpu_s() - cpu
    return {"rate": count / took, "cpu_us": used / count * 1e6}


def first_send(address: str, seconds: float) -> dict[str, float]:
    from mqfast import Producer

    begin, cpu = time.perf_counter(), cpu_s()
    producer = Producer("bench", address)
    producer.send("bench", BODY)
    took, used = time.perf_counter() - begin, cpu_s() - cpu
    producer.close()
    return {"ms": took * 1000, "cpu_ms": used * 1000}


def sync(address: str, seconds: float, threads: int) -> dict[str, float]:
    from mqfast import Message, Producer

    with Producer("bench", address) as producer:
        message = Message("bench", BODY)
        for _ in range(200):
            producer.send(message)
        counts = [0] * threads

        def one(index: int, end: float) -> None:
            count = 0
            while time.perf_counter() < end:
                producer.send(message)
                count += 1
            counts[index] = count

        def work() -> int:
            end = time.perf_counter() + seconds
            running = [threading.Thread(target=one, args=(i, end)) for i in range(threads)]
            for each in running:
                each.start()
            for each in running:
                each.join()
            return sum(counts)

        return measured(work)


def run_async(main: Callable[[], Any], loop: str) -> Any:
    if loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    return asyncio.run(main())


def tasks(address: str, seconds: float, count: int, loop: str, linger_ms: float, body: bytes) -> dict[str, float]:
    from mqfast import AsyncProducer, Message

    async def main() -> dict[str, float]:
        async with AsyncProducer("bench", address, linger_ms=linger_ms) as producer:
            message = Message("bench", body)
            for _ in range(200):
                await producer.send(message) if not linger_ms else None
            await producer.send(message)
            counts = [0] * count

            async def one(index: int, end: float) -> None:
                while time.perf_counter() < end:
                    await producer.send(message)
                    counts[index] += 1

            begin, cpu = time.perf_counter(), cpu_s()
            await asyncio.gather(*(one(i, begin + seconds) for i in range(count)))
            took, used = time.perf_counter() - begin, cpu_s() - cpu
            return {"rate": sum(counts) / took, "cpu_us": used / sum(counts) * 1e6}

    found: dict[str, float] = run_async(main, loop)
    return found


def nowait(address: str, seconds: float, loop: str) -> dict[str, float]:
    from mqfast import AsyncProducer, Message

    async def main() -> dict[str, float]:
        async with AsyncProducer("bench", address) as producer:
            message = Message("bench", BODY)
            await producer.send(message)
            finished = asyncio.get_running_loop().create_future()
            done = 0
            end = time.perf_counter() + seconds

            def again(_: Any) -> None:
                nonlocal done
                done += 1
                if finished.done():
                    return
                if done & 63 or time.perf_counter() < end:
                    producer.send_nowait(message, on_done=again)
                else:
                    finished.set_result(None)

            begin, cpu = time.perf_counter(), cpu_s()
            for _ in range(1024):
                producer.send_nowait(message, on_done=again)
            await finished
            took, used = time.perf_counter() - begin, cpu_s() - cpu
            return {"rate": done / took, "cpu_us": used / done * 1e6}

    found: dict[str, float] = run_async(main, loop)
    return found


def batch(address: str, seconds: float) -> dict[str, float]:
    from mqfast import Message, Producer

    with Producer("bench", address) as producer:
        messages = [Message("bench", SMALL) for _ in range(32)]
        producer.send_batch(messages)

        def work() -> int:
            end = time.perf_counter() + seconds
            count = 0
            while time.perf_counter() < end:
                producer.send_batch(messages)
                count += 32
            return count

        return measured(work)


def many(address: str, seconds: float) -> dict[str, float]:
    from mqfast import Message, Producer

    with Producer("bench", address) as producer:
        producer.send("bench", SMALL)
        message = Message("bench", SMALL)

        def work() -> int:
            end = time.perf_counter() + seconds

            def given() -> Any:
                while time.perf_counter() < end:
                    for _ in range(64):
                        yield message

            return sum(1 for _ in producer.send_many(given()))

        return measured(work)


def imported(address: str, seconds: float) -> dict[str, float]:
    begin, cpu = time.perf_counter(), cpu_s()
    from mqfast import Producer

    assert Producer
    return {"ms": (time.perf_counter() - begin) * 1000, "cpu_ms": (cpu_s() - cpu) * 1000}


def resident_bytes() -> int:
    with open("/proc/self/statm") as one:
        return int(one.read().split()[1]) * resource.getpagesize()


def memory(address: str, count: float) -> dict[str, float]:
    """C14, sent: memory between the first 200,000 messages and the last of ``count``, one in twenty by itself."""
    from mqfast import Message, Producer

    count = int(count) or 600_000
    with Producer("bench", address) as producer:
        message = Message("bench", SMALL)

        def some(number: int) -> None:
            for _ in producer.send_many(message for _ in range(number)):
                pass
            for _ in range(number // 20):
                producer.send(message)

        some(200_000)
        before = resident_bytes()
        for _ in range(count // 50_000):
            some(50_000)
        return {"mib": (resident_bytes() - before) / (1 << 20), "messages": count * 1.05}


def fill(address: str, count: float) -> dict[str, float]:
    from mqfast import Message, Producer

    with Producer("bench", address) as producer:
        message = Message("filled", BODY if count <= 1e6 else SMALL)
        found = sum(not isinstance(one, Exception) for one in producer.send_many(message for _ in range(int(count))))
    return {"messages": found}


def gone(address: str, seconds: float) -> dict[str, float]:
    from mqfast import AsyncProducer, Message
    from mqfast.errors import Backlog

    async def main() -> dict[str, float]:
        limit = 16 << 20
        async with AsyncProducer("bench", address, max_in_flight_bytes=limit, close_timeout_s=0.1) as producer:
            before = resident_bytes()
            refused = 0
            for i in range(1_000_000):
                try:
                    producer.send_nowait(Message("bench", bytes(1024)))
                except Backlog:
                    refused += 1
                if not i & 8191:
                    await asyncio.sleep(0)
            return {"mib": (resident_bytes() - before) / (1 << 20), "refused": refused}

    return asyncio.run(main())


ROWS: dict[str, Callable[[str, float], dict[str, float]]] = {
    "C1": lambda address, seconds: sync(address, seconds, 1),
    "C2": lambda address, seconds: sync(address, seconds, 16),
    "C3 uvloop": lambda address, seconds: tasks(address, seconds, 64, "uvloop", 0, BODY),
    "C3 asyncio": lambda address, seconds: tasks(address, seconds, 64, "asyncio", 0, BODY),
    "C4": lambda address, seconds: nowait(address, seconds, "uvloop"),
    "C5 batch": batch,
    "C5 many": many,
    "C6": lambda address, seconds: tasks(address, seconds, 256, "uvloop", 5, SMALL),
    "C10": first_send,
    "C12": imported,
    "C14": memory,
    "C15": gone,
    "fill": fill,
}

if __name__ == "__main__":
    name, where, duration = sys.argv[1:]
    print(json.dumps(ROWS[name](where, float(duration))))
