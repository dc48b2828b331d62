"""Remoting: frames in and out of memory, and the start and size of a name server.

Targets: a send header of 310 decodes at >= 0.5 million frames a second and its answer encodes at >= 1 million; a name
server is ready within 400 ms and takes < 45 MiB.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness import Table
from pytest_benchmark.fixture import BenchmarkFixture

from mqfast.remoting.command import JSON, ROCKETMQ, FrameDecoder, RemotingCommand, encode, send_header

FRAMES = 64
REPEATS = 50
FIELDS = {
    "a": "producer-group", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1795255178846", "h": "0",
    "i": "KEYS\x01key1\x02UNIQ_KEY\x017F0000017CAB4E0E2F2A69242E5D0000\x02WAIT\x01true\x02TAGS\x01TagA\x02", "j": "0",
    "k": "false", "m": "false", "n": "brk",
}  # fmt: skip
ANSWER = {
    "queueId": 1, "transactionId": "7F0000017CAB4E0E2F2A69242E5D0000", "msgId": "7F000002000051AF0000000000000000",
    "TRACE_ON": "true", "MSG_REGION": "DefaultRegion", "queueOffset": 123456,
}  # fmt: skip
CODECS = pytest.mark.parametrize("codec", [JSON, ROCKETMQ], ids=["json", "rocketmq"])


def _rate(benchmark: BenchmarkFixture) -> float:
    return FRAMES * REPEATS / statistics.median(benchmark.stats.stats.data)


@CODECS
def test_decode_a_send(benchmark: BenchmarkFixture, table: Table, codec: int) -> None:
    """Frames of 1 KiB bodies as a socket gives them, 64 a read, with their typed headers."""
    stream = encode(RemotingCommand(310, FIELDS, b"x" * 1024, opaque=7, serialize=codec)) * FRAMES
    decoder = FrameDecoder()

    def work() -> None:
        for _ in range(REPEATS):
            for command in decoder.feed(stream):
                send_header(command)

    benchmark.pedantic(work, rounds=31, warmup_rounds=2)
    rate = _rate(benchmark)
    name = ("JSON", "ROCKETMQ")[codec]
    table.add(
        f"decode of a 310 frame and its header, {name}", f"{rate / 1e6:.2f} M/s", ">= 0.5 M/s", rate >= 0.5e6, "-"
    )


@CODECS
def test_encode_its_answer(benchmark: BenchmarkFixture, table: Table, codec: int) -> None:
    (request,) = FrameDecoder().feed(encode(RemotingCommand(310, FIELDS, opaque=7, serialize=codec)))

    def work() -> None:
        for _ in range(FRAMES * REPEATS):
            encode(request.response(0, ANSWER))

    benchmark.pedantic(work, rounds=31, warmup_rounds=2)
    rate = _rate(benchmark)
    name = ("JSON", "ROCKETMQ")[codec]
    table.add(f"answer of a send, made and encoded, {name}", f"{rate / 1e6:.2f} M/s", ">= 1 M/s", rate >= 1e6, "-")


def test_a_name_server_starts(benchmark: BenchmarkFixture, table: Table, tmp_path: Path) -> None:
    """From the call to the line with its address; then its memory."""
    command = [sys.executable, "-m", "mqfast.cli", "namesrv", "-p", "0", f"kvConfigPath={tmp_path}/kv.json"]
    sizes: list[int] = []

    def work() -> None:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        assert re.search("NAMESRV_ADDR", process.stdout.readline())
        started.append(time.perf_counter() - began[0])
        sizes.append(psutil.Process(process.pid).memory_info().rss)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)

    began, started = [0.0], list[float]()

    def setup() -> None:
        began[0] = time.perf_counter()

    benchmark.pedantic(work, setup=setup, rounds=9, warmup_rounds=1)
    ms, mib = statistics.median(started) * 1000, statistics.median(sizes) / 2**20
    table.add("name server ready", f"{ms:.0f} ms", "<= 400 ms", ms <= 400, "-")
    table.add("name server, resident memory", f"{mib:.1f} MiB", "< 45 MiB", mib < 45, "-")
