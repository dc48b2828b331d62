"""``python -m mqfast.demo``: the main job on real input, start to end, in under a minute.

A store that a real RocketMQ broker wrote before a kill is copied, recovered and read. Then a child process puts a
million messages into a new store and gets a SIGKILL. The store is recovered, and every message that the child had
acknowledged is read and compared. Then clients of RocketMQ's protocol send to a broker and pull from the broker
(``demo_network.py``). The broker's store is never opened in place, and all files are removed at the end unless the user
keeps them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from mqfast.demo_network import NetworkFailed, network

__all__ = ["main"]

BODY_BYTES: Final = 1024
RECORD_BYTES: Final = BODY_BYTES + 91 + 5  # the topic has five letters, there are no properties
TOPIC: Final = "Demo1"
QUEUES: Final = 4
CHUNK: Final = 1000
FILE_BYTES: Final = 256 << 20
LEAST_MESSAGES: Final = 10_000
# Preallocated log files, the queues, and the copy of the broker's store.
SPARE_BYTES: Final = 3 * FILE_BYTES + (64 << 20)
KILL_AT: Final = 0.98
GOLDEN: Final = Path("tests", "golden", "golden-5.3.3", "killed", "store")

_ACK: Final = struct.Struct("<qq")


class DemoFailed(Exception):
    """Failure of the demo, with the reason as text."""


# --- what is printed ---


def _paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() else text


def step(text: str) -> None:
    """Announce the next step."""
    print(_paint("1;36", f"\n== {text}"), flush=True)


def say(text: str) -> None:
    """Print one line of a step."""
    print(f"   {text}", flush=True)


def good(text: str) -> None:
    """Print one line with a proven fact."""
    print(f"   {_paint('32', 'ok')} {text}", flush=True)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar: redrawn in place on a terminal, a line at each quarter otherwise."""
    terminal = sys.stdout.isatty()
    shown = [-1]

    def update(done: int, whole: int) -> None:
        percent = min(100, 100 * done // whole) if whole > 0 else 100
        mark = percent if terminal else percent // 25 * 25
        if mark <= shown[0]:
            return
        shown[0] = mark
        if terminal:
            print(f"\r   {what} [{'#' * (percent // 4)}{'.' * (25 - percent // 4)}] {percent:3d} %", end="", flush=True)
        else:
            say(f"{what}: {mark} %")

    try:
        yield update
    finally:
        if terminal and shown[0] >= 0:
            print()


# --- the messages of the big part: any process can tell each body from its number ---


def _tails() -> list[bytes]:
    chance = random.Random(7)
    return [chance.randbytes(BODY_BYTES - 8) for _ in range(251)]


def bodies(tails: Sequence[bytes], first: int, count: int) -> list[bytes]:
    """Return the bodies of the messages ``first`` and following."""
    n = len(tails)
    return [number.to_bytes(8, "big") + tails[number % n] for number in range(first, first + count)]


def write(path: str, count: int, acknowledge: BinaryIO) -> None:
    """Put messages in the writer process; after every chunk, report offsets and duration.

    The writer continues after ``count`` until the kill.
    """
    import mqfast

    tails = _tails()
    store = mqfast.open(path, mapped_file_bytes_commit_log=FILE_BYTES)
    producers = [store.producer(TOPIC, queue_id) for queue_id in range(QUEUES)]
    number = 0
    while number < 2 * count:
        put = producers[number // CHUNK % QUEUES].put
        chunk = bodies(tails, number, CHUNK)
        started_ns = time.perf_counter_ns()
        results = [put(body) for body in chunk]
        spent = time.perf_counter_ns() - started_ns
        places = array("q", [result.physical_offset for result in results])
        acknowledge.write(_ACK.pack(number, spent) + places.tobytes())
        acknowledge.flush()
        number += CHUNK
    store.close()


def _acknowledged(stream: BinaryIO) -> Iterator[tuple[int, int, array[int]]]:
    """Return (first number, ns of the puts, physical offsets) of every chunk that arrived whole."""
    size = _ACK.size + CHUNK * 8
    while len(data := stream.read(size)) == size:
        number, spent = _ACK.unpack_from(data)
        places: array[int] = array("q")
        places.frombytes(data[_ACK.size :])
        yield number, spent, places


def kill_a_writer(path: Path, count: int) -> tuple[array[int], list[float]]:
    """Start a child that writes, and kill the child near the end.

    Returns: the acknowledged physical offsets by message number, and the ns of a put in each chunk.
    """
    # The child must import this very package, from any place.
    root = str(Path(__file__).resolve().parents[1])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    child = subprocess.Popen(
        [sys.executable, "-m", "mqfast.demo", "--writer", str(path), "--messages", str(count)],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdout is not None
    stream = cast(BinaryIO, child.stdout)
    places: array[int] = array("q")
    speeds: list[float] = []
    alive = True
    try:
        with bar("putting") as update:
            for number, spent, chunk in _acknowledged(stream):
                if number != len(places):
                    raise DemoFailed(f"the writer acknowledged message {number}, expected {len(places)}")
                places += chunk
                speeds.append(spent / CHUNK)
                update(len(places), count)
                if alive and len(places) >= count * KILL_AT:
                    child.send_signal(signal.SIGKILL)
                    alive = False
    finally:
        if child.poll() is None:
            child.kill()
        child.stdout.close()
        code = child.wait()
    if alive:
        raise DemoFailed(
            f"the writer ended by itself with exit code {code} after {len(places)} messages, "
            "expected it to run until it is killed"
        )
    return places, speeds


# --- the two parts ---


def golden_store(given: str | None) -> Path:
    """Return the broker's store: the given directory, or that of the source checkout around this file or the working
    directory.
    """
    if given is not None:
        roots = [Path(given)]
    else:
        roots = [Path(__file__).resolve().parents[1] / GOLDEN, Path.cwd() / GOLDEN]
    for root in roots:
        if (root / "commitlog").is_dir():
            return root
    raise DemoFailed(
        f"the broker's store was not found: expected {' or '.join(map(str, roots))}. "
        "It is part of the source checkout, not of the "
        "installed package: run this from a checkout (make demo), or name a copy of any RocketMQ store with --store"
    )


def real_store(source: Path, work: Path) -> None:
    """Copy the broker's store, recover it, read it."""
    import mqfast

    step("a store that a RocketMQ broker wrote, killed with SIGKILL")
    copy = work / "broker"
    shutil.copytree(source, copy)
    say(f"copied {source}")
    say(f"abort file: {'there, so nobody closed it' if (copy / 'abort').exists() else 'not there'}")
    with mqfast.open(copy) as store:
        report = store.recovery
        good(
            f"recovered: {report.records} records, {report.bytes} bytes walked, log ends at {report.end} "
            f"({report.reason}), {report.seconds * 1e3:.1f} ms"
        )
        for topic in store.topics():
            ranges = (
                f"{queue}: {store.min_offset(topic, queue)}..{store.max_offset(topic, queue)}"
                for queue in store.queue_ids(topic)
            )
            say(f"{topic:<24} queues {', '.join(ranges)}")
        rows = store.queues()
        if not rows:
            raise DemoFailed(f"{source} has no queue")
        read = 0
        keyed: tuple[str, str] | None = None
        for topic, queue_id, offset, last in rows:
            while offset < last:
                answer = store.get(topic, queue_id, offset)
                for message in answer:
                    read += 1
                    if keyed is None and message.keys and not topic.startswith(("SCHEDULE_TOPIC", "RMQ_SYS", "%")):
                        keyed = topic, message.keys[0]
                if answer.next_offset <= offset:
                    raise DemoFailed(
                        f"{topic}/{queue_id}: get at {offset} found {answer.status.name}, expected to come forward"
                    )
                offset = answer.next_offset
        good(f"read {read} messages of {len(rows)} queues")
        first = next(iter(store.get(rows[0][0], rows[0][1], rows[0][2])))
        say(
            f"the first: {first.topic}/{first.queue_id}@{first.queue_offset}, tags {first.tags}, "
            f"keys {' '.join(first.keys)}, {bytes(first.body)[:40]!r}..."
        )
        if keyed is not None:
            hits = store.query(*keyed)
            if not hits:
                raise DemoFailed(
                    f"the key {keyed[1]} of topic {keyed[0]} was read in a message and is not found by a query"
                )
            good(
                f"query {keyed[0]} for key {keyed[1]!r}: {len(hits)} message(s), "
                f"the first at physical offset {hits[0].physical_offset}"
            )
        result = store.put(rows[0][0], b"stored by mqfast behind the broker's messages", rows[0][1])
        good(f"one more message put behind the broker's: {rows[0][0]}/{rows[0][1]}@{result.queue_offset}")


def big_store(work: Path, count: int) -> None:
    """Append, kill, recover and compare; print the times."""
    import mqfast
    from mqfast.bench.floor import memory_floor

    step(f"{count:,} messages of {BODY_BYTES} bytes from a child process, which is killed")
    path = work / "big"
    places, speeds = kill_a_writer(path, count)
    acknowledged = len(places)
    good(
        f"SIGKILL after {acknowledged:,} acknowledged messages; "
        f"abort file {'there' if (path / 'abort').exists() else 'missing'}"
    )

    step("recovery")
    with bar("recovering") as update:
        store = mqfast.open(path, progress=update)
    with store:
        report = store.recovery
        good(f"{report.records:,} records, {report.bytes / 1e6:,.0f} MB in {report.seconds:.2f} s")
        if report.end < places[-1] + RECORD_BYTES:
            raise DemoFailed(f"the log ends at {report.end}, expected at least {places[-1] + RECORD_BYTES}")

        step("every acknowledged message is read and compared")
        started_s = time.perf_counter()
        tails = _tails()
        with bar("comparing") as update:
            for number in range(0, acknowledged, CHUNK):
                queue_id, offset = number // CHUNK % QUEUES, number // CHUNK // QUEUES * CHUNK
                result = store.get(TOPIC, queue_id, offset, CHUNK, 16 << 20)
                where = [message.physical_offset for message in result]
                if result.bodies() != bodies(tails, number, CHUNK) or where != list(places[number : number + CHUNK]):
                    raise DemoFailed(
                        f"messages {number} to {number + CHUNK}: "
                        f"{TOPIC}/{queue_id}@{offset} does not hold what was acknowledged"
                    )
                update(number + CHUNK, acknowledged)
        reading = time.perf_counter() - started_s
        survived = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
        good(
            f"all {acknowledged:,} are there, byte for byte, where the writer was told "
            f"({survived - acknowledged} more had no acknowledgement yet)"
        )

    step("speed on this machine")
    copy_ns, scan_bytes = memory_floor(BODY_BYTES, min(count, 200_000))
    median = sorted(speeds)[len(speeds) // 2]
    mean = sum(speeds) / len(speeds)
    say(
        f"put of 1 KiB from Python:       {median:7.0f} ns median of chunks, "
        f"{mean:.0f} ns mean ({1e3 / mean:.2f} million a second)"
    )
    if copy_ns <= median:
        say(f"  floor: copy + CRC of 1 KiB    {copy_ns:7.0f} ns into resident memory")
    else:
        say("  the floor (copy + CRC of 1 KiB) took longer than a put: the machine was busier by then")
    say("  (in the mean: what the kernel takes to give new pages to the file)")
    walked = max(report.seconds - report.sync_seconds, 1e-9)
    say(
        f"recovery after the kill:        {report.bytes / walked / 1e9:7.2f} GB/s,"
        f" then {report.sync_seconds:.2f} s to make it durable"
    )
    if scan_bytes >= report.bytes / walked:
        say(f"  floor: CRC of memory          {scan_bytes / 1e9:7.2f} GB/s")
    else:
        say("  the floor (CRC of memory) was slower than the recovery: the machine was busier by then")
    say(f"get, copy and compare (Python): {acknowledged / reading / 1e6:7.2f} million messages a second")


def affordable(count: int, directory: Path) -> int:
    """Return the number of messages that the free disk space allows, at most ``count``, in whole chunks."""
    free = shutil.disk_usage(directory).free
    # The writer may continue for a moment after the last acknowledged message.
    room = int((free * 0.9 - SPARE_BYTES) / (RECORD_BYTES + 20) / 1.05)
    possible = min(count, room) // CHUNK * CHUNK
    if possible < min(LEAST_MESSAGES, count):
        need = int((SPARE_BYTES + LEAST_MESSAGES * (RECORD_BYTES + 20) * 1.05) / 0.9)
        raise DemoFailed(
            f"not enough disk space at {directory}: expected at least {need >> 20} MiB, "
            f"found {free >> 20} MiB (--dir names another place)"
        )
    if possible < count:
        say(f"only {free >> 20} MiB are free at {directory}: {possible:,} messages instead of {count:,}")
    return possible


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0, or 1 when something is missing or wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m mqfast.demo", description="Recover a real broker's store, survive a SIGKILL, show the speed."
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=1_000_000,
        metavar="N",
        help="messages to append, in thousands (default: 1,000,000)",
    )
    parser.add_argument("--store", metavar="PATH", help="another RocketMQ store to copy and read")
    parser.add_argument("--dir", metavar="PATH", help="where to work (default: the directory for temporary files)")
    parser.add_argument("--keep", action="store_true", help="keep the stores, and say where they are")
    parser.add_argument("--writer", metavar="PATH", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.messages < CHUNK:
        parser.error(f"--messages: expected at least {CHUNK}, found {arguments.messages}")
    if arguments.writer is not None:
        write(arguments.writer, arguments.messages, sys.stdout.buffer)
        return 0
    started_s = time.monotonic()
    work: Path | None = None
    try:
        source = golden_store(arguments.store)
        work = Path(tempfile.mkdtemp(prefix="mqfast-demo-", dir=arguments.dir))
        count = affordable(arguments.messages, work)
        real_store(source, work)
        big_store(work, count)
        network(work, step, say, good)
        print(f"\ndone in {time.monotonic() - started_s:.1f} s")
        return 0
    except (DemoFailed, NetworkFailed) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if work is not None:
            if arguments.keep:
                print(f"kept: {work}")
            else:
                shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
