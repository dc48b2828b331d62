"""Histories of threads that put and read at once, recorded with monotonic times, and the rules they must obey.

Room: tests/linearity. `record` runs the threads on an open store, `violations` reads the history alone: it never looks
into the store. Every operation has the time before its call and the time after its return; what happened inside took
effect somewhere between the two.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mqfast import MessageStore
from mqfast.errors import OffsetError
from mqfast.message import Message

Queue = tuple[str, int]
QUEUES: tuple[Queue, ...] = (("A", 0), ("A", 1), ("B", 0))


@dataclass(slots=True)
class Stored:
    """One message as its put answered."""

    name: bytes
    queue: Queue
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    began: int
    ended: int
    thread: int
    call: int  # number of the call in its thread
    batch: bool
    key: bool


@dataclass(slots=True)
class Seen:
    """One read: what it asked, what it saw, and how far the log was flushed afterwards."""

    kind: str  # "get", "tail", "look", "query", "max"
    queue: Queue
    offset: int
    limit: int
    found: list[tuple[int, int, int, bytes, int]]  # queue offset, physical offset, size, name, store timestamp
    answer: int
    flushed: int
    began: int
    ended: int
    thread: int


@dataclass
class History:
    """All operations of one run."""

    puts: list[Stored] = field(default_factory=list)
    reads: list[Seen] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


def name_of(body: memoryview | bytes) -> bytes:
    """The unique first line of a body; the rest repeats it."""
    text = bytes(body)
    name, _, rest = text.partition(b"\n")
    if rest != name * (len(rest) // max(1, len(name))):
        raise AssertionError(f"body of {name!r} is not whole")
    return name


def _body(rng: random.Random, name: bytes) -> bytes:
    return name + b"\n" + name * rng.choice([0, 0, 3, 40, 400])


def record(store: MessageStore, seconds: float, seed: int, writers: int, readers: int) -> History:
    """Run the threads for so long, then let the readers finish."""
    history = History()
    lock = threading.Lock()
    published: list[Stored] = []  # for look and query: only messages whose put has returned
    stop = time.monotonic() + seconds
    writing = writers

    def guarded(body: Callable[[int], None]) -> Callable[[int], None]:
        def run(thread: int) -> None:
            nonlocal writing
            try:
                body(thread)
            except BaseException as error:
                history.failures.append(error)
            finally:
                if thread < writers:
                    with lock:
                        writing -= 1

        return run

    def write(thread: int) -> None:
        rng = random.Random(f"{seed}.w.{thread}")
        mine: list[Stored] = []
        producers = {queue: store.producer(*queue, "tag") for queue in QUEUES}
        call = 0
        while time.monotonic() < stop:
            queue = rng.choice(QUEUES)
            kind = rng.choice(["put", "put", "producer", "key", "many", "batch"])
            count = rng.randrange(2, 30) if kind == "many" else rng.randrange(2, 6) if kind == "batch" else 1
            names = [b"%d.%d.%d" % (thread, call, i) for i in range(count)]
            bodies = [_body(rng, name) for name in names]
            queues = [queue] * count
            began = time.monotonic_ns()
            if kind == "put":
                results: Any = [store.put(queue[0], bodies[0], queue[1])]
            elif kind == "producer":
                results = [producers[queue].put(bodies[0])]
            elif kind == "key":
                results = [producers[queue].put(bodies[0], names[0].decode())]
            elif kind == "many":
                results = store.put_many(queue[0], bodies, queue[1])
            else:
                queues = [rng.choice(QUEUES) for _ in range(count)]
                results = store.put_batch([Message(q[0], body, q[1]) for q, body in zip(queues, bodies, strict=True)])
            ended = time.monotonic_ns()
            stored = [
                Stored(
                    name=names[i],
                    queue=queues[i],
                    queue_offset=r.queue_offset,
                    physical_offset=r.physical_offset,
                    size=r.size,
                    store_timestamp=r.store_timestamp,
                    began=began,
                    ended=ended,
                    thread=thread,
                    call=call,
                    batch=kind == "batch",
                    key=kind == "key",
                )
                for i, r in enumerate(results)
                if r.status.name == "PUT_OK"
            ]
            mine.extend(stored)
            if stored and (kind == "key" or rng.random() < 0.05):
                published.append(stored[0])
            call += 1
            if call % 4 == 0:
                time.sleep(0.0005)  # let the readers come in between
        with lock:
            history.puts.extend(mine)

    def note(
        seen: list[Seen], kind: str, queue: Queue, place: tuple[int, int], thread: int, call: Any, *arguments: Any
    ) -> Seen:
        began = time.monotonic_ns()
        try:
            answer = call(*arguments)
        except OffsetError:  # look: not visible
            answer = None
        ended = time.monotonic_ns()
        flushed = store.log.flushed
        messages = [] if kind == "max" else [answer] if kind == "look" and answer else answer or []
        rows = [(m.queue_offset, m.physical_offset, m.size, name_of(m.body), m.store_timestamp) for m in messages]
        one = Seen(kind, queue, *place, rows, answer if kind == "max" else 0, flushed, began, ended, thread)
        seen.append(one)
        return one

    def read(thread: int) -> None:
        rng = random.Random(f"{seed}.r.{thread}")
        seen: list[Seen] = []
        tail = dict.fromkeys(QUEUES, 0)
        last_round = False
        while True:
            last_round = last_round or writing == 0
            queue = rng.choice(QUEUES)
            topic, queue_id = queue
            kind = rng.choice(["tail", "tail", "tail", "get", "look", "query", "max"])
            if kind == "tail":
                limit = rng.choice([1, 8, 32])
                at = tail[queue]
                one = note(seen, kind, queue, (at, limit), thread, store.get, topic, queue_id, at, limit, 64 << 20)
                tail[queue] = at + len(one.found)
            elif kind == "get":
                at = rng.randrange(tail[queue] + 3)
                note(seen, kind, queue, (at, 16), thread, store.get, topic, queue_id, at, 16, 64 << 20)
            elif kind == "max":
                note(seen, kind, queue, (0, 0), thread, store.max_offset, topic, queue_id)
            elif published:
                wanted = rng.choice(published[-50:])
                place = (wanted.physical_offset, 1)
                if kind == "look":
                    note(seen, kind, wanted.queue, place, thread, store.get_by_offset, wanted.physical_offset)
                else:
                    key = wanted.name.decode()
                    note(seen, kind, wanted.queue, place, thread, store.query, wanted.queue[0], key)
            if last_round and rng.random() < 0.05:
                break
            if len(seen) % 64 == 0:
                time.sleep(0.0005)  # on few processors the writers must come in between
        with lock:
            history.reads.extend(seen)

    threads = [threading.Thread(target=guarded(write), args=(n,)) for n in range(writers)]
    threads += [threading.Thread(target=guarded(read), args=(writers + n,)) for n in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return history


# --- the rules -------------------------------------------------------------------------------------------------------


def violations(history: History, *, inline: bool, sync: bool, at_once: bool = True) -> list[str]:
    """Every broken rule, in words.

    Args: inline: who reads sees every put that has returned; at_once: so does look, which needs no queue; sync: nothing
    may be seen before it is flushed.
    """
    return [
        *(f"a thread failed: {error!r}" for error in history.failures),
        *_offsets(history),
        *_log_order(history),
        *_batches(history),
        *_reads(history, inline=inline, sync=sync, at_once=at_once),
        *_monotone(history),
    ]


def _by_queue(history: History) -> dict[Queue, list[Stored]]:
    found: dict[Queue, list[Stored]] = defaultdict(list)
    for put in history.puts:
        found[put.queue].append(put)
    for puts in found.values():
        puts.sort(key=lambda put: put.queue_offset)
    return found


def _offsets(history: History) -> list[str]:
    """No holes, no repeats, physical order, each thread's own order."""
    broken = []
    for queue, puts in _by_queue(history).items():
        last: dict[int, Stored] = {}
        for expected, put in enumerate(puts):
            if put.queue_offset != expected:
                broken.append(f"{queue}: offset {put.queue_offset} where {expected} is next: a hole or a repeat")
                break
            if expected and put.physical_offset <= puts[expected - 1].physical_offset:
                broken.append(f"{queue} {expected}: physical offset {put.physical_offset} is not above the one before")
            before = last.get(put.thread)
            if before is not None and (before.call, before.name) > (put.call, put.name) and before.call != put.call:
                broken.append(f"{queue} {expected}: thread {put.thread} put {put.name!r} before {before.name!r}")
            last[put.thread] = put
    return broken


def _log_order(history: History) -> list[str]:
    """Records do not overlap, store times never fall, and a put that ended before another began lies before it."""
    broken = []
    puts = sorted(history.puts, key=lambda put: put.physical_offset)
    latest_began = 0
    previous: Stored | None = None
    for put in puts:
        if previous is not None:
            if put.physical_offset < previous.physical_offset + previous.size:
                broken.append(f"{put.name!r} overlaps {previous.name!r} at physical offset {put.physical_offset}")
            if put.store_timestamp < previous.store_timestamp:
                broken.append(f"store time falls at physical offset {put.physical_offset}")
        if put.ended < latest_began:
            broken.append(f"{put.name!r} ended before another put began that lies before it in the log")
        latest_began = max(latest_began, put.began)
        previous = put
    return broken


def _batches(history: History) -> list[str]:
    """Messages of a batch stand next to each other, in order, with one store time."""
    broken = []
    batches: dict[tuple[int, int], list[Stored]] = defaultdict(list)
    for put in history.puts:
        if put.batch:
            batches[put.thread, put.call].append(put)
    for batch in batches.values():
        for before, put in itertools.pairwise(batch):
            if put.physical_offset != before.physical_offset + before.size:
                broken.append(f"batch: {put.name!r} does not stand behind {before.name!r}")
            if put.store_timestamp != before.store_timestamp:
                broken.append(f"batch: {put.name!r} has another store time than {before.name!r}")
    return broken


def _reads(history: History, *, inline: bool, sync: bool, at_once: bool = True) -> list[str]:
    """What was seen was put, whole, not before its time; what had to be seen was seen."""
    broken = []
    queues = _by_queue(history)
    by_place = {put.physical_offset: put for put in history.puts}
    latest = {queue: list(itertools.accumulate((put.began for put in puts), max)) for queue, puts in queues.items()}
    for read in history.reads:
        label = f"{read.kind} of {read.queue} at {read.offset} by thread {read.thread}"
        puts = queues[read.queue]
        for position, (queue_offset, physical, size, name, timestamp) in enumerate(read.found):
            put = by_place.get(physical)
            if put is None:
                broken.append(f"{label}: saw {name!r} at {physical}, which nobody put")
                continue
            if (put.name, put.queue_offset, put.size, put.store_timestamp) != (name, queue_offset, size, timestamp):
                broken.append(f"{label}: saw {name!r} offset {queue_offset} where {put.name!r} was put")
            if put.began > read.ended:
                broken.append(f"{label}: saw {name!r} before its put began")
            if sync and physical + size > read.flushed:
                broken.append(f"{label}: saw {name!r} before it was flushed")
            if read.kind in ("get", "tail") and queue_offset != read.offset + position:
                broken.append(f"{label}: saw offset {queue_offset}, not {read.offset + position}")
        if read.kind in ("get", "tail") and inline and len(read.found) < read.limit:
            missed = read.offset + len(read.found)
            if missed < len(puts) and puts[missed].ended < read.began:
                broken.append(f"{label}: did not see offset {missed}, whose put had returned")
        if read.kind == "max":
            if read.answer > len(puts):
                broken.append(f"{label}: {read.answer}, but only {len(puts)} messages were put")
            elif read.answer and latest[read.queue][read.answer - 1] > read.ended:
                broken.append(f"{label}: {read.answer}, but not all of these puts had begun")
            if inline and read.answer < len(puts) and puts[read.answer].ended < read.began:
                broken.append(f"{label}: {read.answer}, though the put of that offset had returned")
        if read.kind == "look" and (read.found or at_once) and [row[1] for row in read.found] != [read.offset]:
            broken.append(f"{label}: found {read.found}")
        keyed = read.kind == "query" and inline and read.offset in by_place and by_place[read.offset].key
        if keyed and read.offset not in [row[1] for row in read.found]:
            broken.append(f"{label}: key {by_place[read.offset].name!r} was not found")
    return broken


def _monotone(history: History) -> list[str]:
    """A read that begins after another ended never sees less of a queue."""
    broken = []
    reads: dict[Queue, list[tuple[int, int, int, int]]] = defaultdict(list)  # began, ended, at least, at most
    for read in history.reads:
        end = read.offset + len(read.found)
        if read.kind == "max":
            reads[read.queue].append((read.began, read.ended, read.answer, read.answer))
        elif read.kind == "tail" or (read.kind == "get" and read.found):
            reads[read.queue].append((read.began, read.ended, end, end if len(read.found) < read.limit else 1 << 62))
        elif read.kind == "get":
            reads[read.queue].append((read.began, read.ended, 0, end))
    for queue, rows in reads.items():
        ends = sorted((ended, least) for _, ended, least, _ in rows)
        best, position = 0, 0
        for began, _, _, most in sorted(rows):
            while position < len(ends) and ends[position][0] < began:
                best = max(best, ends[position][1])
                position += 1
            if most < best:
                broken.append(f"{queue}: the end was {most} after it had been {best}")
    return broken
