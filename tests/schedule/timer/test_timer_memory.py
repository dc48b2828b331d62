"""What parked messages cost: memory of the process, measured in a process of its own; a million in the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import WHOLE

MESSAGES = 1_000_000 if WHOLE else 200_000
MOST_BYTES = 64 * MESSAGES

SCRIPT = """
import json, sys, time
from mqfast import open as open_store
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.reader.timer_files import TIMER_TOPIC

def own():
    # Pages of the log's files are the page cache's, mapped by puts and gets: they are not the timer's.
    with open("/proc/self/status") as file:
        table = dict(line.split(":", 1) for line in file)
    return int(table["RssAnon"].split()[0]) << 10

now_ms = int(time.time()) * 1000
count = int(sys.argv[2])
with open_store(sys.argv[1], mapped_file_bytes_consume_queue=24_000_000) as store:
    put = store.engine.put_encoded
    timer = TimerService(store, TimerSettings(), now_ms)
    for number in range(count // 200):
        for i in range(200):
            n = number * 200 + i
            out = now_ms + 60_000 + n * 7919 % 172_000 * 1000
            text = b"TIMER_OUT_MS\\x01%d\\x02REAL_TOPIC\\x01T\\x02REAL_QID\\x010\\x02UNIQ_KEY\\x01%032d\\x02" % (out, n)
            put(TIMER_TOPIC.encode(), 0, b"x", text)
    before = own()
    began = time.perf_counter()
    while timer.run_once(now_ms) == now_ms and timer.enqueued < count:
        if timer.flush_is_due(now_ms + 2000):
            timer.flush(now_ms)
    parked_s = time.perf_counter() - began
    timer.flush(now_ms)
    cost = own() - before
    assert timer.enqueued == count, timer.enqueued
    print(json.dumps({"bytes": cost, "parked_s": parked_s, "in_wheel": timer.wheel.count_from(0)}))
    timer.close(now_ms)
"""


@pytest.mark.slow
@pytest.mark.sampled
def test_a_parked_message_costs_at_most_64_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(MESSAGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["in_wheel"] == MESSAGES
    assert found["bytes"] <= MOST_BYTES, found
