"""SendMessage of 1 KiB over gRPC: calls a second, CPU of the broker for a call, time to start, and memory.

``python bench/grpc/run.py``; needs h2load (Debian: nghttp2-client). The load generator uses a processor of its own
process; on a machine with few processors read the CPU for a call, not the rate. ``--address`` measures another server,
such as RocketMQ's local proxy with the topic ``bench``; ``--pid`` is its process.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqfast.grpc import messages as m

CALLS, WARM_UP = 100_000, 20_000
BODY_BYTES = 1024
PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
HEADERS = {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "bench", "x-mq-language": "JAVA"}
TICKS = os.sysconf("SC_CLK_TCK")


def request() -> bytes:
    """Return a SendMessage with the prefix of gRPC."""
    system = m.SystemProperties(
        tag="t", message_id="0102FC000000012D7D0B1CA4E300000001", message_type=1, body_encoding=1,
        born_timestamp=time.time_ns() // 1_000_000, born_host="bench",
    )  # fmt: skip
    message = m.GrpcMessage(m.Resource("", "bench"), {"a": "b"}, system, b"x" * BODY_BYTES)
    data = m.encode(m.SendMessageRequest([message]))
    return b"\0" + len(data).to_bytes(4, "big") + data


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int) -> float:
    """Return the resident anonymous memory of a process: without the pages of mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) / 1024


@contextmanager
def own_broker(folder: str) -> Iterator[tuple[str, int]]:
    """Start a broker with an automatic topic. Yields: address and process id."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "mqfast.cli", "broker", "listenPort=0", f"storePathRootDir={folder}/store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        banner = ""
        while (place := re.search(r"listens on (\S+)", banner)) is None:
            banner = process.stdout.readline()
        print(f"ready after {time.perf_counter() - start:.2f} s, {resident_mib(process.pid):.0f} MiB")
        try:
            yield place[1], process.pid
        finally:
            process.terminate()


def load(address: str, body: Path, calls: int, connections: int, streams: int) -> str:
    """Run h2load. Returns: the output."""
    headers = [word for name, value in HEADERS.items() for word in ("-H", f"{name}: {value}")]
    command = ["h2load", "-n", str(calls), "-c", str(connections), "-m", str(streams), "-d", str(body), *headers]
    done = subprocess.run([*command, f"http://{address}{PATH}"], capture_output=True, text=True, check=True)
    assert f"{calls} succeeded" in done.stdout, done.stdout
    return done.stdout


def measure(address: str, pid: int, body: Path) -> None:
    """Print a line for each shape of the load."""
    load(address, body, WARM_UP, 1, 32)
    for connections, streams in ((1, 32), (16, 16)):
        before = cpu_s(pid)
        rate = re.findall(r"([\d.]+) req/s", load(address, body, CALLS, connections, streams))[0]
        used_us = (cpu_s(pid) - before) / CALLS * 1e6
        print(
            f"{connections} x {streams}: {float(rate):,.0f} calls/s, {used_us:.1f} us of CPU a call, "
            f"{resident_mib(pid):.0f} MiB"
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", help="host:port of a running server instead of a new broker")
    parser.add_argument("--pid", type=int, help="process id of this server")
    arguments = parser.parse_args()
    if shutil.which("h2load") is None:
        sys.exit("h2load is missing (Debian, Ubuntu: apt-get install nghttp2-client)")
    with tempfile.TemporaryDirectory(dir=os.environ.get("MQFAST_BENCH_DIR")) as folder:
        body = Path(folder) / "body"
        body.write_bytes(request())
        if arguments.address:
            measure(arguments.address, arguments.pid, body)
            return
        with own_broker(folder) as (address, pid):
            measure(address, pid, body)


if __name__ == "__main__":
    main()
