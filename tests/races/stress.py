"""Threads that put, get, tail, delete topics, flush, fork and close one store at once, over and over.

Room: tests/races. A round opens the store with one of eight settings, lets the threads run, closes it under them,
checks the closed files and what was acknowledged, and the next round opens the same files again. Retention runs all the
while in its own thread, on a budget of a few log files. It must never excuse an error that the operation may not raise:
see ``ALLOWED``. Nothing here knows how the engine keeps its threads apart; a hang ends the run with the stacks of all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mqfast
from mqfast.errors import OffsetError, StoreBusy, StoreClosed, StoreForked
from mqfast.message import Message
from mqfast.store.base.results import GetMessageStatus
from mqfast.store.check.verify import Severity

Queue = tuple[str, int]
KEPT: tuple[Queue, ...] = (("kept", 0), ("kept", 1), ("also", 0))
GOING: tuple[Queue, ...] = (("going", 0), ("going", 3), ("gone", 0))
BATCHES: Queue = ("batches", 0)  # a queue of 46-byte units, each of which may hold several messages
QUEUES = (*KEPT, *GOING, BATCHES)
INNER_BATCH = 0x80

LOG_BYTES = 64 << 10
HANG_S = 60.0  # no operation may take so long, even on a machine that is busy with other things
CHILD_S = 30.0
HELD = 64

# What an operation may raise besides StoreClosed once the close has begun.
ALLOWED: dict[str, tuple[type[BaseException], ...]] = {
    "put": (StoreBusy,),  # the lock was held too long, or the next file was not ready: nothing is written
    "look": (OffsetError,),  # retention took it
}
PUTS = ("put", "producer", "put_many", "put_batch", "put_nowait", "inner batch")


@dataclass(frozen=True)
class Mode:
    """One way to run a store."""

    sync: bool
    pool: bool
    inline: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Small files, so that every kind of roll is met within a second."""
        return {
            "mapped_file_bytes_commit_log": LOG_BYTES,
            "mapped_file_bytes_consume_queue": 200 * 20,
            "mapped_file_bytes_batch_consume_queue": 20 * 46,
            "max_hash_slot_num": 50,
            "max_index_num": 400,
            "flush_disk_type": "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH",
            "transient_store_pool_enable": self.pool,
            "transient_store_pool_size": 3,
            "dispatch": "inline" if self.inline else "background",
            "retention_bytes": 6 * LOG_BYTES,
            "clean_resource_interval_ms": 3,
            "delete_files_interval_ms_commit_log": 0,
            "flush_interval_ms_commit_log": 10,
            "flush_least_pages_commit_log": 0,
            "flush_interval_ms_consume_queue": 20,
            "commit_interval_ms_commit_log": 10,
            "flush_consumer_offset_interval_ms": 50,
            "prefault_window_bytes": 16 << 10,
            "max_mapped_files": 16,
            "disk_space_warning_level_percent": 90,
        }

    def __str__(self) -> str:
        when = "inline" if self.inline else "background"
        return f"{'sync' if self.sync else 'async'}/{'pool' if self.pool else 'mmap'}/{when}"


MODES = tuple(Mode(*bits) for bits in itertools.product((False, True), repeat=3))


class Broken(AssertionError):
    """A rule was broken."""


class _Over(Exception):
    """The store was closed under this thread."""


def body_of(name: bytes, times: int) -> bytes:
    """A body that tells whether it is whole."""
    return name + b"\n" + name * times


def check_body(body: bytes | memoryview, topic: str, queue_id: int) -> None:
    """Raises: Broken when it is not whole, or of another queue."""
    text = bytes(body)
    name, _, rest = text.partition(b"\n")
    if not name.startswith(f"{topic}/{queue_id}/".encode()):
        raise Broken(f"{topic}/{queue_id}: message {name!r} belongs elsewhere")
    if rest != name * (len(rest) // len(name)):
        raise Broken(f"{topic}/{queue_id}: body of {name!r} is not whole")


@dataclass
class Acknowledged:
    """The newest put of a queue that returned, and what it stored."""

    queue_offset: int
    physical_offset: int
    body: bytes


@dataclass
class Run:
    """One run of many rounds over one directory."""

    path: str
    seed: int
    forks: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[Queue, Acknowledged] = field(default_factory=dict)
    held: list[tuple[memoryview, bytes]] = field(default_factory=list)

    def rounds(self, seconds: float, round_seconds: float, modes: tuple[Mode, ...] = MODES) -> None:
        """Run rounds for so long, at least one of each mode. Raises: Broken, or whatever an operation may not raise."""
        end = time.monotonic() + seconds
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        for number in itertools.count():
            if number >= len(modes) and time.monotonic() >= end:
                break
            faulthandler.dump_traceback_later(HANG_S + round_seconds, exit=True)
            try:
                Round(self, number, modes[number % len(modes)]).run(round_seconds)
            finally:
                faulthandler.cancel_dump_traceback_later()
        self.check_held()

    def check_held(self) -> None:
        """Every view that is held still shows what it showed. Raises: Broken."""
        for view, expected in list(self.held):
            self.counts["views checked"] += 1
            if view != expected:
                raise Broken(f"a held view of {expected[:40]!r} changed")

    def hold(self, body: memoryview) -> None:
        """Keep a view beyond the removal of its file and the close of its store."""
        entry = (body, bytes(body))
        if len(self.held) < HELD:
            self.held.append(entry)
        else:
            self.held[random.randrange(HELD)] = entry
        self.counts["views held"] += 1


class Round:
    """One opening of the store."""

    def __init__(self, run: Run, number: int, mode: Mode) -> None:
        self.job = run
        self.number = number
        self.mode = mode
        self.store = mqfast.open(run.path, **mode.settings)
        self.closing = False
        self.over = threading.Event()
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self.newest: dict[Queue, Acknowledged] = {}
        self.told: list[tuple[Queue, int, str]] = []  # places and keys of messages that were put
        self.deletions = 0  # odd while a topic is being deleted

    def run(self, seconds: float) -> None:
        """Open, run all threads, close under them, check. Raises: Broken."""
        self.job.counts["opens"] += 1
        rng = random.Random(f"{self.job.seed}.{self.number}")
        self.check_acknowledged()
        self.store.topic_table.ensure(BATCHES[0], 1, attributes={"queue.type": "BatchCQ"})
        sys.setswitchinterval(rng.choice([5e-3, 5e-4, 5e-5]))
        bodies: list[Callable[[random.Random, Counter[str], int], None]] = [
            self.write, self.write, self.tail, self.read, self.follow, self.delete, self.flush
        ]  # fmt: skip
        if self.job.forks:
            bodies.append(self.fork)
        threads = [
            threading.Thread(target=self._guarded, args=(body, index), name=f"{body.__name__}-{index}", daemon=True)
            for index, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        self.over.wait(rng.uniform(0.3, 1.0) * seconds)
        self.closing = True
        rivals = [threading.Thread(target=self._close, daemon=True) for _ in range(rng.choice([0, 0, 1]))]
        for thread in rivals:
            thread.start()
        self._close()
        self.over.set()
        for thread in (*rivals, *threads):
            thread.join(HANG_S)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                raise Broken(f"round {self.number} ({self.mode}): thread {thread.name} hangs")
        self.job.counts["files removed by retention"] += self.store.retention.deleted_files
        if self.failures:
            raise Broken(f"seed {self.job.seed}, round {self.number} ({self.mode}): " + "\n".join(self.failures))
        self.job.check_held()
        report = mqfast.verify(self.job.path)
        # Records of a topic that was deleted stay in the log; when it is put into again, they lack their units.
        serious = [
            damage
            for damage in report.damages
            if damage.severity is not Severity.NOTE
            and not (damage.kind.startswith("queue.") and damage.path.split("/consumequeue/")[-1].startswith("go"))
        ]
        if serious or report.dirty:
            raise Broken(f"round {self.number} ({self.mode}): {report}")
        self.job.counts["clean after close"] += 1
        self.job.acknowledged.update(self.newest)

    def _close(self) -> None:
        try:
            self.store.close()
        except Exception:
            self._fail(f"close: {traceback.format_exc()}")
        self.job.counts["closes"] += 1

    def _fail(self, text: str) -> None:
        self.failures.append(text)
        self.over.set()

    def _guarded(self, body: Callable[[random.Random, Counter[str], int], None], index: int) -> None:
        counts: Counter[str] = Counter()
        try:
            body(random.Random(f"{self.job.seed}.{self.number}.{index}"), counts, index)
        except _Over:
            pass
        except BaseException:
            self._fail(f"{body.__name__}: {traceback.format_exc()}")
        finally:
            with self.lock:
                self.job.counts.update(counts)

    def call(self, counts: Counter[str], kind: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Do one operation and count it; None when it raised what it may. Raises: _Over once the store is closed."""
        if self.failures:
            raise _Over
        try:
            answer = operation(*arguments)
        except StoreForked:
            raise
        except StoreClosed:
            if not self.closing:
                raise
            raise _Over from None
        except ALLOWED.get("put" if kind in PUTS else kind, ()):
            counts[f"{kind} refused"] += 1
            return None
        counts[kind] += 1
        return answer

    # --- the threads ---

    def write(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Puts of every kind into every queue."""
        store = self.store
        producers = {queue: store.producer(*queue, "tag") for queue in QUEUES}
        for call in itertools.count():
            topic, queue_id = queue = rng.choice(QUEUES)
            kind = rng.choice(PUTS[:-1]) if queue != BATCHES else "inner batch"
            times = rng.choice([0, 3, 40, 200])
            deletions = self.deletions
            names = [
                f"{topic}/{queue_id}/{self.number}.{index}.{call}.{i}".encode()
                for i in range(rng.randrange(2, 40) if kind == "put_many" else 4 if kind == "put_batch" else 1)
            ]
            bodies = [body_of(name, times) for name in names]
            key = None
            if kind == "put":
                key = names[0].decode()
                results: Any = self.call(counts, kind, store.put, topic, bodies[0], queue_id, "tag", key)
                results = results and [results]
            elif kind == "producer":
                key = names[0].decode() if call % 3 == 0 else None
                results = self.call(counts, kind, producers[queue].put, bodies[0], key)
                results = results and [results]
            elif kind == "put_many":
                results = self.call(counts, kind, store.put_many, topic, bodies, queue_id, "tag")
            elif kind == "put_batch":
                results = self.call(counts, kind, store.put_batch, [Message(topic, body, queue_id) for body in bodies])
            elif kind == "inner batch":
                several = Message(*BATCHES[:1], bodies[0], properties={"INNER_NUM": "3"}, sys_flag=INNER_BATCH)
                results = self.call(counts, kind, store.put_message, several)
                results = results and [results]
            else:
                ticket = self.call(counts, kind, store.put_nowait, topic, bodies[0], queue_id)
                results = ticket and [ticket.result]
                if ticket and rng.random() < 0.2:
                    done = threading.Event()
                    ticket.add_done_callback(lambda _, done=done: done.set())
                    if not done.wait(HANG_S):
                        raise Broken("a ticket's callback was never called")
            if not results:
                continue
            counts["messages put"] += len(results)
            last = Acknowledged(results[-1].queue_offset, results[-1].physical_offset, bodies[-1])
            with self.lock:
                before = self.newest.get(queue)
                if before is None or before.physical_offset < last.physical_offset:
                    self.newest[queue] = last
            self.told.append((queue, last.physical_offset, key or ""))
            shown = self.mode.inline and not (self.mode.sync and kind == "put_nowait")
            if shown and rng.random() < 0.05:
                self.check_written(counts, queue, last, deletions)
            if call % 16 == 0:
                del self.told[:-100]
                time.sleep(0.0005)  # on few processors the others must come in between

    def check_written(self, counts: Counter[str], queue: Queue, last: Acknowledged, deletions: int) -> None:
        """Who reads sees what was put, unless its topic was deleted since, or retention was faster."""
        found = self.call(counts, "own put", self.store.get, *queue, last.queue_offset, 1)
        if deletions % 2 or deletions != self.deletions or last.physical_offset < self.store.min_physical_offset:
            return
        if [bytes(message.body) for message in found] != [last.body]:
            raise Broken(f"{queue} {last.queue_offset}: {found!r}, not {last.body[:40]!r}, which was just put there")

    def tail(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Reads every queue at its end."""
        at = dict.fromkeys(QUEUES, 0)
        while True:
            topic, queue_id = queue = rng.choice(QUEUES)
            limit = rng.choice([1, 8, 32])
            found = self.call(counts, "tail", self.store.get, topic, queue_id, at[queue], limit, 4 << 20)
            self.check_found(found, queue, at[queue], counts)
            if queue not in GOING and found.next_offset < at[queue]:
                raise Broken(f"tail of {queue} at {at[queue]} goes back to {found.next_offset}: {found!r}")
            at[queue] = found.next_offset
            if not len(found) and rng.random() < 0.1:
                time.sleep(0.0002)

    def read(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Reads of every other kind."""
        store = self.store
        consumer = store.consumer("readers", "kept", offset_reset="earliest")  # retention is at work
        while True:
            topic, queue_id = queue = rng.choice(QUEUES)
            kind = rng.choice(["get", "get", "look", "query", "bounds", "time", "poll", "queues", "stats"])
            if kind == "get":
                low = self.call(counts, "bounds", store.min_offset, topic, queue_id)
                high = self.call(counts, "bounds", store.max_offset, topic, queue_id)
                at = rng.randrange(low, max(low, high) + 2)
                tags = rng.choice([None, None, "tag", "other || tag"])
                found = self.call(counts, kind, store.get, topic, queue_id, at, 16, 1 << 20, tags)
                self.check_found(found, queue, at, counts, tags is None)
            elif kind == "bounds":
                self.call(counts, kind, store.max_offset, topic, queue_id)
            elif kind == "time":
                self.call(counts, kind, store.offset_by_time, topic, queue_id, int(time.time() * 1000) - 200)
            elif kind == "poll":
                for message in self.call(counts, kind, consumer.poll):
                    check_body(message.body, "kept", message.queue_id)
                    counts["messages read"] += 1
                consumer.commit()
            elif kind == "queues":
                self.call(counts, kind, store.queues)
            elif kind == "stats":
                self.call(counts, kind, store.stats)
            elif self.told:
                (topic, queue_id), place, key = rng.choice(self.told[-50:])
                if kind == "look":
                    message = self.call(counts, kind, store.look, place)
                    if message is not None:
                        check_body(message.body, topic, queue_id)
                elif key:
                    for message in self.call(counts, kind, store.query, topic, key):
                        check_body(message.body, topic, queue_id)

    def follow(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """What another process may do: read the files of the open store."""
        with mqfast.StoreReader(self.job.path) as reader:
            at: dict[Queue, int] = dict.fromkeys(KEPT, 0)
            while not self.over.wait(rng.uniform(0.0, 0.002)):
                queue = rng.choice(KEPT)
                found = reader.get(*queue, at[queue], 16)
                for message in found:
                    check_body(message.body, *queue)
                if found.next_offset < at[queue] and found.status is not GetMessageStatus.OFFSET_OVERFLOW_BADLY:
                    raise Broken(f"reader of {queue} at {at[queue]} goes back to {found.next_offset}: {found!r}")
                at[queue] = found.next_offset
                counts["follow"] += 1
                if rng.random() < 0.02:
                    reader.refresh()
                    reader.queues()

    def check_found(self, found: Any, queue: Queue, at: int, counts: Counter[str], every: bool = True) -> None:
        """What a get found is whole, of its queue, and without holes."""
        last = None
        for message in found:
            check_body(message.body, *queue)
            step = 3 if queue == BATCHES else 1
            if every and last is not None and message.queue_offset != last + step:
                raise Broken(f"get of {queue} at {at}: offset {message.queue_offset} behind {last}")
            last = message.queue_offset
            counts["messages read"] += 1
            if counts["messages read"] % 97 == 0:
                self.job.hold(message.body)

    def delete(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Drops topics that others put into and read."""
        while not self.over.wait(rng.uniform(0.005, 0.05)):
            topic, _ = rng.choice(GOING)
            self.deletions += 1
            self.call(counts, "delete_topic", self.store.delete_topic, topic)
            self.deletions += 1

    def flush(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Flushes, with and without a limit of time."""
        while not self.over.wait(rng.uniform(0.0, 0.02)):
            self.call(counts, "flush", self.store.flush, rng.choice([None, 0, 0.001]))

    def fork(self, rng: random.Random, counts: Counter[str], index: int) -> None:
        """Children at any moment, of the close as well."""
        while not self.over.wait(rng.uniform(0.01, 0.1)):
            pid = os.fork()
            if pid == 0:
                os._exit(self._child(rng.random() < 0.1))
            deadline = time.monotonic() + CHILD_S
            while (answer := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(1)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    raise Broken("a forked child hangs: its stack is above")
                time.sleep(0.001)
            if answer[1] != 0:
                raise Broken(f"a forked child ended with status {answer[1]}: see above")
            counts["forks"] += 1

    def _child(self, opens: bool) -> int:
        store = self.store
        refused: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (store.put, ("kept", b"x")),
            (store.put_many, ("kept", [b"x", b"y"])),
            (store.put_batch, ([Message("kept", b"x")],)),
            (store.put_nowait, ("kept", b"x")),
            (store.get, ("kept", 0, 0)),
            (store.look, (0,)),
            (store.query, ("kept", "x")),
            (store.max_offset, ("kept", 0)),
            (store.flush, ()),
            (store.delete_topic, ("gone",)),
        ]
        try:
            for operation, arguments in refused:
                try:
                    operation(*arguments)
                except StoreForked:
                    continue
                except StoreClosed:
                    if self.closing:  # the parent may have closed it before
                        continue
                    raise
                raise Broken(f"{operation.__name__} in a forked child was not refused")
            self.job.check_held()
            store.close()
            self.job.check_held()
            self.job.held.clear()  # unmaps
            if opens:
                path = f"{self.job.path}-child"
                with mqfast.open(path, **self.mode.settings) as own:
                    own.put("kept", b"own")
                    if own.get("kept", 0, 0).bodies() != [b"own"] and self.mode.inline:
                        raise Broken("a forked child does not read what it put")
                shutil.rmtree(path)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            return 1
        return 0

    # --- between two rounds ---

    def check_acknowledged(self) -> None:
        """What was acknowledged before the last close is there, unless retention took it since. Raises: Broken."""
        store = self.store
        for (topic, queue_id), last in self.job.acknowledged.items():
            if (topic, queue_id) not in GOING and store.max_offset(topic, queue_id) <= last.queue_offset:
                raise Broken(f"{topic}/{queue_id} ends before {last.queue_offset}, which was acknowledged")
            with contextlib.suppress(OffsetError):
                message = store.get_by_offset(last.physical_offset)
                if message.body != last.body or (message.topic, message.queue_id) != (topic, queue_id):
                    raise Broken(f"{last.body[:40]!r} of {topic}/{queue_id} is not at {last.physical_offset} any more")
                self.job.counts["acknowledged messages checked"] += 1
