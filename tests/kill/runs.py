"""Kills a writing process and holds the store to what it had acknowledged; `python tests/kill/runs.py 500` does it 500
times.

Room: tests/kill. The writer is a forked child that draws its options from a seed and reports every acknowledged
message through a pipe: that is the expected state, and it lies outside of the store. The parent kills it with SIGKILL,
opens the store and judges. It must never judge by what the store itself says was acknowledged. A failed run prints the
line that repeats it.

What is promised (docs/durability.md): a killed process loses nothing acknowledged; with the transient pool and async
flush it may lose what was not yet committed to the page cache. Each acknowledgement carries the committed position, so
that this is exact too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import mqfast  # noqa: E402  (its folder was just made importable)
from mqfast.message import Message  # noqa: E402

ACK = struct.Struct("<HIIqqq")  # writer, first number, count, end offset, committed offset, monotonic ns
WAYS = ("put", "put_many", "put_batch", "producer", "properties", "put_nowait")
TOPICS = ("TopicA", "TopicB")
LATE_S = 5.0  # a commit that is this late on a busy machine is a fault, not a delay


@dataclass
class Plan:
    """Options of one writer, all from one seed."""

    seed: int
    generation: int
    way: str
    threads: int
    sync: bool
    pool: bool
    settings: dict[str, Any]
    body_bytes: int
    kill_when: str  # "time", "acks", "open", "close", or "syscall"
    kill_after: float
    messages: int | None = None  # None: until killed


@dataclass
class Acknowledged:
    """What one writer thread reported."""

    numbers: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)  # of those, what must have outlived the kill


def plan_of(seed: int, generation: int = 0) -> Plan:
    """Draw everything of one writer."""
    store = random.Random(seed)  # of all generations: sizes are part of the format
    sizes = {
        "mappedFileSizeCommitLog": store.choice([32 << 10, 64 << 10, 256 << 10, 4 << 20]),
        "mappedFileSizeConsumeQueue": 20 * store.choice([60, 500, 3000]),
        "maxHashSlotNum": store.choice([50, 5000]),
        "maxIndexNum": store.choice([200, 20000]),
        "messageIndexEnable": store.random() < 0.8,
    }
    rng = random.Random(seed * 1009 + generation)
    pool = rng.random() < 0.35
    sync = rng.random() < 0.4
    settings = sizes | {
        "flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
        "dispatch": rng.choice(["inline", "background"]),
        "flushIntervalCommitLog": rng.choice([10, 500]),
        "flushIntervalConsumeQueue": rng.choice([10, 1000]),
        "preallocate_files": rng.choice([0, 1, 2]),
        "prefault_window_bytes": rng.choice([0, 8 << 10, 2 << 20]),
        "transientStorePoolEnable": pool,
        "transientStorePoolSize": rng.choice([1, 3]),
        "commitIntervalCommitLog": rng.choice([10, 200]),
    }
    when = rng.choice(["time", "time", "time", "acks", "acks", "open", "close"])
    after = {
        "time": rng.random() ** 2 * 0.4,
        "acks": float(rng.randrange(1, 200)),
        "open": rng.random() * 0.02,
        "close": rng.random() * 0.03,
    }[when]
    return Plan(
        seed=seed,
        generation=generation,
        way=rng.choice(WAYS),
        threads=rng.choice([1, 1, 2, 3]),
        sync=sync,
        pool=pool,
        settings=settings,
        body_bytes=rng.choice([0, 40, 700, 5000]),
        kill_when=when,
        kill_after=after,
    )


def body_of(seed: int, writer: int, number: int, body_bytes: int) -> bytes:
    """The body of one message: its name, then bytes that only it has."""
    rest = random.Random(f"{seed}.{writer}.{number}").randbytes(body_bytes)
    return b"%d.%d.%d:" % (writer, number, body_bytes) + rest


def place_of(writer: int, number: int) -> tuple[str, int]:
    """Topic and queue of a call whose first message has this number."""
    return TOPICS[(number // 7) % 2], (writer + number // 3) % 3


# --- the child -------------------------------------------------------------------------------------------------------


def write(plan: Plan, path: Path, acks: int) -> None:
    """Write until killed. In the child."""
    os.write(acks, ACK.pack(0xFFFF, 0, 0, 0, 0, time.monotonic_ns()))  # about to open
    store = mqfast.open(path, **plan.settings)
    os.write(acks, ACK.pack(0xFFFE, 0, 0, 0, 0, time.monotonic_ns()))
    stop = threading.Event()
    failures: list[str] = []

    def run(thread: int) -> None:
        try:
            _write_thread(plan, store, acks, plan.generation * 10 + thread, stop)
        except BaseException:
            failures.append(traceback.format_exc())
            stop.set()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(plan.threads)]
    for thread in threads:
        thread.start()
    if plan.kill_when == "close":
        time.sleep(0.05)
        stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError("\n".join(failures))
    os.write(acks, ACK.pack(0xFFFD, 0, 0, 0, 0, time.monotonic_ns()))  # about to close
    store.close()


def _write_thread(plan: Plan, store: mqfast.MessageStore, acks: int, writer: int, stop: threading.Event) -> None:
    rng = random.Random(f"{plan.seed}.{plan.generation}.{writer}")
    number = 0
    producers: dict[tuple[str, int], Any] = {}

    def acknowledge(count: int, end: int) -> None:
        os.write(acks, ACK.pack(writer, number, count, end, store.log.committed, time.monotonic_ns()))

    def body(n: int) -> bytes:
        return body_of(plan.seed, writer, n, plan.body_bytes)

    while not stop.is_set() and (plan.messages is None or number < plan.messages):
        topic, queue_id = place_of(writer, number)
        count = 1
        results: list[Any]
        if plan.way == "put_many":
            count = rng.randrange(1, 40)
            batch = store.put_many(topic, [body(number + i) for i in range(count)], queue_id)
            results = [batch[count - 1]]
        elif plan.way == "put_batch":
            count = rng.randrange(1, 6)
            messages = [
                Message(TOPICS[i % 2], body(number + i), queue_id, keys=f"{writer}.{number + i}") for i in range(count)
            ]
            results = [store.put_batch(messages)[count - 1]]
        elif plan.way == "producer":
            producer = producers.get((topic, queue_id))
            if producer is None:
                producer = producers[topic, queue_id] = store.producer(topic, queue_id, "tag")
            results = [producer.put(body(number), f"{writer}.{number}")]
        elif plan.way == "properties":
            properties = {"UNIQ_KEY": f"{writer}.{number}", "n": str(number)}
            results = [store.put(topic, body(number), queue_id, properties=properties)]
        elif plan.way == "put_nowait":
            tickets = [store.put_nowait(topic, body(number + i), queue_id) for i in range(3)]
            count = 3
            if plan.sync:
                for ticket in tickets:
                    if not ticket.wait(30):
                        raise AssertionError("a ticket was not done in 30 s")
            results = [tickets[-1].result]
        else:
            results = [store.put(topic, body(number), queue_id)]
        last = results[-1]
        if last.status.name == "PUT_OK":
            acknowledge(count, last.physical_offset + last.size)
        number += count


# --- the parent ------------------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """One writer that was killed."""

    plan: Plan
    acknowledged: dict[int, Acknowledged]
    opened: bool
    ended: str  # "killed", or "closed" when it was faster


def fork_child(body: Callable[[], None], *unwanted: int) -> int:
    """Fork; run ``body`` in the child, which closes the unwanted descriptors and never comes back."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        logging.disable(logging.WARNING)
        for descriptor in unwanted:
            os.close(descriptor)
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def write_and_kill(plan: Plan, path: Path) -> Killed:
    """Let a child write and SIGKILL it when the plan says so."""
    read_end, write_end = os.pipe()
    pid = fork_child(lambda: write(plan, path, write_end), read_end)
    os.close(write_end)
    started = time.monotonic()
    raw = bytearray()
    moment: float | None = None
    seen = done = 0
    killed = opened = False
    with contextlib.closing(os.fdopen(read_end, "rb", 0)) as pipe:
        while True:
            now = time.monotonic()
            if not killed and ((moment is not None and now >= moment) or now > started + 30):
                os.kill(pid, signal.SIGKILL)
                killed = True
            wait = 30.0 if killed else max(0.0, (moment if moment is not None else started + 30) - now)
            if not select.select([pipe], [], [], wait)[0]:
                continue
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                break
            raw += piece
            while done + ACK.size <= len(raw):
                writer = ACK.unpack_from(raw, done)[0]
                done += ACK.size
                seen += writer < 0xFFF0
                opened |= writer == 0xFFFE
                trigger = {"open": 0xFFFF, "time": 0xFFFE, "close": 0xFFFD}.get(plan.kill_when)
                if moment is None and writer == trigger:
                    moment = time.monotonic() + plan.kill_after
            if moment is None and plan.kill_when == "acks" and seen >= plan.kill_after:
                moment = time.monotonic()
    _, status = os.waitpid(pid, 0)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) and status != 0:
        raise AssertionError(f"the writer ended with status {status} instead of being killed")
    return Killed(plan, sort(plan, bytes(raw)), opened, "closed" if status == 0 else "killed")


def sort(plan: Plan, raw: bytes) -> dict[int, Acknowledged]:
    """Acknowledgements by writer; which of them must have outlived the kill."""
    rows = [row for row in ACK.iter_unpack(raw[: len(raw) // ACK.size * ACK.size]) if row[0] < 0xFFF0]
    committed = max((row[4] for row in rows), default=0)
    last = max((row[5] for row in rows), default=0)
    found: dict[int, Acknowledged] = {}
    for writer, first, count, end, _, at_ns in rows:
        one = found.setdefault(writer, Acknowledged())
        numbers = set(range(first, first + count))
        one.numbers |= numbers
        if not plan.pool or plan.sync or end <= committed or at_ns < last - LATE_S * 1e9:
            one.durable |= numbers
    return found


class Lost(AssertionError):
    """The store did not keep its promise."""


def judge(path: Path, seed: int, killed: list[Killed], indexed: bool = True) -> Counter[str]:
    """Open the store after its last kill and check everything; returns counts. Raises: Lost."""
    last = killed[-1].plan
    settings = {name: value for name, value in last.settings.items() if not name.startswith("transient")}
    sizes = {kill.plan.generation: kill.plan for kill in killed}
    counts: Counter[str] = Counter()

    def check(true: bool, text: str) -> None:
        if not true:
            raise Lost(text)

    with mqfast.open(path, **settings) as store:
        by_writer: dict[int, set[int]] = {}
        order: dict[tuple[str, int, int], int] = {}
        where: dict[tuple[int, int], int] = {}
        queue_messages = 0
        for topic, queue_id, first, end in store.queues():
            check(first == 0, f"{topic}/{queue_id} begins at {first}")
            offset, previous = 0, -1
            while offset < end:
                result = store.get(topic, queue_id, offset, 1000, 64 << 20)
                check(
                    result.status.name == "FOUND", f"{topic}/{queue_id} offset {offset} of {end}: {result.status.name}"
                )
                for message in result:
                    check(
                        message.queue_offset == offset,
                        f"{topic}/{queue_id}: offset {message.queue_offset}, not {offset}",
                    )
                    check(message.record_queue_offset == offset, f"{topic}/{queue_id} {offset}: record says otherwise")
                    check(message.physical_offset > previous, f"{topic}/{queue_id} {offset}: physical order")
                    check(
                        message.topic == topic and message.queue_id == queue_id, f"{topic}/{queue_id} {offset}: place"
                    )
                    previous = message.physical_offset
                    body = bytes(message.body)
                    writer, number, size = (int(part) for part in body.split(b":", 1)[0].split(b"."))
                    check(body == body_of(seed, writer, number, size), f"content of {writer}.{number}")
                    check((writer, number) not in where, f"{writer}.{number} is there twice")
                    check(order.get((topic, queue_id, writer), -1) < number, f"order of {writer} in {topic}/{queue_id}")
                    order[topic, queue_id, writer] = number
                    by_writer.setdefault(writer, set()).add(number)
                    where[writer, number] = message.physical_offset
                    offset += 1
                    queue_messages += 1
        for kill in killed:
            for writer, one in kill.acknowledged.items():
                there = by_writer.get(writer, set())
                gone = sorted(one.durable - there)
                check(not gone, f"writer {writer}: {len(gone)} acknowledged messages are lost, first {gone[:5]}")
                counts["acknowledged"] += len(one.numbers)
                counts["lost uncommitted"] += len(one.numbers - there)
        for writer, there in by_writer.items():
            check(there == set(range(len(there))), f"writer {writer}: a hole before {max(there)}")
        previous_time = previous_end = 0
        with mqfast.StoreReader(path) as reader:
            log_messages = 0
            for message in reader.scan():
                check(message.physical_offset >= previous_end, "physical offsets overlap")
                check(message.store_timestamp >= previous_time, "store time goes back in the log")
                previous_end = message.physical_offset + message.size
                previous_time = message.store_timestamp
                log_messages += 1
        check(log_messages == queue_messages, f"the log has {log_messages} messages, the queues {queue_messages}")
        keyed = [name for name in where if sizes[name[0] // 10].way in ("producer", "put_batch", "properties")]
        if all(kill.plan.settings["messageIndexEnable"] for kill in killed):
            for writer, number in random.Random(seed).sample(sorted(keyed), min(20, len(keyed))):
                topic = store.get_by_offset(where[writer, number]).topic
                hits = [message.physical_offset for message in store.query(topic, f"{writer}.{number}")]
                check(where[writer, number] in hits, f"key {writer}.{number} is not in the index")
                counts["keys"] += 1
        ends = {(topic, queue_id): end for topic, queue_id, _, end in store.queues()}
        for queue_id in range(3):
            put = store.put(TOPICS[0], b"afterwards", queue_id, keys="afterwards")
            check(put.queue_offset == ends.get((TOPICS[0], queue_id), 0), "the next offset after recovery")
            check(bytes(store.get_by_offset(put.physical_offset).body) == b"afterwards", "append after recovery")
    report = mqfast.verify(path)
    check(report.state == "clean", f"verify: {report.state}, {report.damages[:3]}")
    before = fingerprint(path)
    mqfast.open(path, **settings).close()
    check(fingerprint(path) == before, "a second reopen changed the files")
    counts["messages"] += queue_messages
    return counts


def fingerprint(path: Path) -> dict[str, str]:
    """Hash of every file of log, queues and index."""
    found = {}
    for room in ("commitlog", "consumequeue", "index"):
        for file in sorted((path / room).rglob("*")):
            if file.is_file():
                found[str(file.relative_to(path))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def run(seed: int, path: Path) -> Counter[str]:
    """One store: one to three writers killed one after the other, then the judgement."""
    counts: Counter[str] = Counter()
    killed: list[Killed] = []
    for generation in range(random.Random(seed).choice([1, 1, 2, 3])):
        plan = plan_of(seed, generation)
        kill = write_and_kill(plan, path)
        killed.append(kill)
        counts["kills" if kill.ended == "killed" else "closed in time"] += 1
        counts[f"killed: {plan.kill_when}"] += kill.ended == "killed"
        counts[f"mode: {'pool' if plan.pool else 'mmap'} {'sync' if plan.sync else 'async'}"] += 1
        counts[f"dispatch: {plan.settings['dispatch']}"] += 1
        counts[f"way: {plan.way}"] += 1
    return counts + judge(path, seed, killed)


@contextlib.contextmanager
def workplace(memory: bool) -> Iterator[Path]:
    """A directory in memory where asked for and possible: a kill does not depend on the disk."""
    base = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
    name = tempfile.mkdtemp(prefix="mqfast-kill-", dir=base)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def run_until(kills: int, seed: int) -> Counter[str]:
    """Runs until so many writers were killed; every fourth on the disk. Raises: Lost, naming the seed."""
    counts: Counter[str] = Counter()
    number = 0
    while counts["kills"] < kills:
        with workplace(memory=number % 4 != 3) as path:
            try:
                counts += run(seed + number, path / "store")
            except Exception as error:
                kept = Path(tempfile.mkdtemp(prefix="mqfast-kill-failed-")) / "store"
                if (path / "store").exists():
                    shutil.copytree(path / "store", kept)
                raise Lost(f"python tests/kill/runs.py 1 {seed + number}: {error}; the store is in {kept}") from error
        number += 1
    counts["stores"] = number
    return counts


def main() -> None:
    """Arguments: number of kills, seed (default: drawn)."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    print(f"crash-kill: {kills} kills, seed {seed}", flush=True)
    began = time.monotonic()
    counts = run_until(kills, seed)
    details = ", ".join(f"{name} {counts[name]}" for name in sorted(counts) if ":" in name)
    print(details)
    print(
        f"crash-kill: {counts['kills']} kills of {counts['stores']} stores,"
        f" {counts['acknowledged']} acknowledged messages, {counts['messages']} found,"
        f" {counts['keys']} keys asked, nothing lost that was promised"
        f" ({counts['lost uncommitted']} uncommitted with the pool), {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
