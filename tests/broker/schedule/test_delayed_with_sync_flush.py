"""Delayed messages with SYNC_FLUSH: readers see them when due, and not after the next flush by interval."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from running import Running, serve

sys.path.append(str(Path(__file__).resolve().parents[1] / "pop"))

from popping import MovedClock
from waiting import until_async as until

SELDOM_MS = 600_000


def test_a_delivery_is_synced_at_once(tmp_path: Path) -> None:
    clock = MovedClock()

    async def flow(running: Running) -> None:
        due_ms = time.time_ns() // 1_000_000 + 1000
        for number, delay in enumerate(("DELAY\x011\x02", f"TIMER_DELIVER_MS\x01{due_ms}\x02")):
            assert (await running.send("T", b"m", queue_id=number, properties=delay)).code == 0
        clock.ahead_ms += 5000
        await until(lambda: [running.context.store.max_offset("T", queue) for queue in range(2)] == [1, 1])

    serve(
        tmp_path, flow, now_ms=clock, flushDiskType="SYNC_FLUSH", messageDelayLevel="1s",
        flushIntervalCommitLog=SELDOM_MS, flushCommitLogThoroughInterval=SELDOM_MS, timerFlushIntervalMs=SELDOM_MS,
        flushConsumerOffsetInterval=SELDOM_MS, flushDelayOffsetInterval=SELDOM_MS,
    )  # fmt: skip
