"""POP of a broker in this process: cost of a delivery, and how late redeliveries are, with many messages in flight.

    python bench/pop.py [--in-flight 100000]

The clock that counts is that of the store: a redelivery is late by its store time minus its due time. It must never
send requests over a network: the costs of connections are those of ``make bench-broker``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kit")]

from running import Running, running_broker  # noqa: E402

from mqfast.broker.pop.pop_result import PopRequest  # noqa: E402
from mqfast.broker.send.message_writer import MessageRecord  # noqa: E402

FAR_MS = 3_600_000
NEAR = 60
NEAR_MS = 3000
BODY = b"x" * 100


async def fill(one: Running, count: int) -> None:
    await one.send("T", BODY)
    for number in range(count):
        one.context.writer.write(MessageRecord("T", number % 4, BODY, b"", born_timestamp=1))
        if number % 1000 == 0:
            await asyncio.sleep(0)


async def measure(count: int, folder: Path) -> None:
    async with running_broker(folder, mappedFileSizeCommitLog=1 << 28, mappedFileSizeConsumeQueue=6_000_000) as one:
        service, retry = one.parts.pop.service, "%RETRY%g_T"
        await fill(one, count + 32 * NEAR)
        began_s, popped = time.process_time(), 0
        while popped < count:
            popped += len((await service.pop(PopRequest(group="g", topic="T", invisible_ms=FAR_MS))).messages)
            await asyncio.sleep(0)
        cost_us = (time.process_time() - began_s) / popped * 1e6
        print(f"{service.in_flight.messages} in flight; a delivered message, of 32, costs {cost_us:.1f} us of CPU")
        dues: list[int] = []
        for number in range(NEAR):
            wait_ms = NEAR_MS + 17 * number
            result = await service.pop(PopRequest(group="g", topic="T", invisible_ms=wait_ms))
            dues += [result.pop_time + wait_ms] * len(result.messages)
            await asyncio.sleep(0.005)
        while one.context.store.max_offset(retry, 0) < len(dues):
            await asyncio.sleep(0.05)
        stored = sorted(
            one.context.engine.unit_at(retry, 0, offset).record.store_timestamp for offset in range(len(dues))
        )
        late = sorted(at - due for at, due in zip(stored, sorted(dues), strict=True))
        half, near_all = late[len(late) // 2], late[int(len(late) * 0.99)]
        print(f"{len(late)} redeliveries are late by p50 {half} ms, p99 {near_all} ms, max {late[-1]} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        asyncio.run(measure(given.in_flight, Path(folder)))


if __name__ == "__main__":
    main()
