"""Workloads that write down what they did, and the check of what a crash left of it.

Room: tests. A workload must be deterministic: it is run again for every stretch of calls of which images are taken. The
check must never look at anything but the image and the notes that were made before its crash.

The notes know three grades of a message: sent (its put began), safe from a kill (the put returned; with the pool: it
was committed) and durable (acknowledged under sync flush, or flush() returned). What a reopened store holds must be, in
log order, a prefix of what was sent and reach at least as far as the grade that the crash leaves.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqfast.config import StoreConfig
from mqfast.errors import MqfastError
from mqfast.message import Message
from mqfast.sim.simulated_os import KILLED, START_MS, Image, Sim
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import list_offset_files
from mqfast.store.base.results import PutMessageStatus
from mqfast.store.check.verify import verify
from mqfast.store.message_store import MessageStore
from mqfast.store.reader.scan import LogWalk, PreadFile

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab, open_still

__all__ = ["Bad", "Run", "Workload", "check_image"]

STORE: Final = "s"
Note = tuple[str, Any]


class Bad(AssertionError):
    """A crash image broke a promise."""


@dataclass(frozen=True)
class Sent:
    """One message as it was sent."""

    number: int
    topic: str
    queue_id: int
    body: bytes
    keys: str | None


@dataclass(frozen=True)
class Workload:
    """A name, the steps, and the settings that its store is opened with afterwards."""

    name: str
    steps: Callable[[Run], None]
    settings: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Run], None] | None = None
    """Makes the store that the steps begin with; no images are taken of it."""


def body_of(number: int, size: int) -> bytes:
    """A body that tells its number and differs from others everywhere."""
    head = struct.pack(">I", number)
    return (head + random.Random(number).randbytes(max(0, size - 4)))[: max(4, size)]


class Run:
    """One run of a workload over a simulated system."""

    def __init__(self, workload: Workload, base: str) -> None:
        self.workload = workload
        self.root = os.path.join(base, "live")
        self.path = os.path.join(self.root, STORE)
        os.makedirs(self.root)
        self.sim = Sim(self.root)
        self.os_api = self.sim.os_api
        self.sent: list[Sent] = []
        self.notes: list[tuple[str, Any]] = []
        self.store: MessageStore = None  # type: ignore[assignment]
        self.left: list[MessageStore] = []

    # --- notes ---

    def note(self, what: str, value: Any = None) -> None:
        """Write down one thing; images carry how many there were."""
        self.notes.append((what, value))
        self.sim.mark(len(self.notes))

    # --- the store ---

    def open(self, **settings: Any) -> MessageStore:
        """Open it without threads, with the workload's settings and these."""
        config = StoreConfig.tiny(**{**self.workload.settings, **settings})
        self.store = open_still(self.path, config=config, os_api=self.os_api)
        return self.store

    def close(self) -> None:
        """Close it: everything is durable then."""
        self.store.close()
        self.note("durable")

    def abandon(self) -> None:
        """Leave it as a killed process leaves it; what stays is the page cache."""
        self.sim.freeze(True)
        leave(self.store)
        self.sim.freeze(False)

    def survivors(self) -> None:
        """After the process was killed: what it had only in its own memory is gone; later messages follow the rest."""
        killed = expected(self.notes, True)
        count = len(log_messages(self.path))
        assert killed.least <= count <= len(self.sent), (killed.least, count, len(self.sent))
        if count < len(self.sent):
            durable = expected(self.notes, False).least
            del self.sent[count:]
            self.notes[:] = [note for note in self.notes if note[0] not in ("send", "kept", "durable")]
            self.notes += [("send", None)] * durable + [("durable", None)] + [("send", None)] * (count - durable)
            self.note("kept")

    def commit_if_pooled(self) -> None:
        """The commit thread's step, where there is one."""
        if lab(self.store).pool is not None:
            self.commit()

    def power_cut(self, mode: int, seed: int) -> None:
        """Go on, under a new simulation, with what a power cut left; what recovery can find of it may not be lost."""
        target = self.root + ".cut"
        self.sim.image(target, mode, seed)
        self.end()
        os.rename(target, self.root)
        copy = self.root + ".copy"
        shutil.copytree(self.root, copy)
        store = open_still(os.path.join(copy, STORE), config=StoreConfig.tiny(**self.workload.settings))
        store.close()
        count = len(log_messages(os.path.join(copy, STORE)))
        shutil.rmtree(copy)
        least = expected(self.notes, mode == KILLED).least
        assert count >= least, f"{count} messages after the power cut, {least} were acknowledged"
        del self.sent[count:]
        self.notes[:] = [("send", None)] * count
        self.sim = Sim(self.root, start_ms=START_MS + 3_600_000)
        self.os_api = self.sim.os_api
        self.note("durable")

    def restart(self) -> None:
        """A new simulation over what is there: all of it is durable."""
        self.sim.free()
        self.sim = Sim(self.root, start_ms=START_MS + 3_600_000)
        self.os_api = self.sim.os_api
        self.sim.mark(len(self.notes))

    def _send(self, topic: str, queue_id: int, size: int, keys: str | None) -> Sent:
        number = len(self.sent)
        message = Sent(number, topic, queue_id, body_of(number, size), keys)
        self.sent.append(message)
        self.note("send")
        return message

    def _done(self, status: PutMessageStatus, wait: bool = True) -> None:
        if not self.store.config.transient_store_pool_enable:
            self.note("kept")
        if wait and self.store.config.sync_flush and status is PutMessageStatus.PUT_OK:
            self.note("durable")

    def put(
        self, topic: str = "t", size: int = 100, queue_id: int = 0, keys: str | None = None, **options: Any
    ) -> None:
        """One message."""
        m = self._send(topic, queue_id, size, keys)
        result = self.store.put(topic, m.body, queue_id, keys=keys, **options)
        self._done(result.status, options.get("wait_store_ok", True))

    def put_many(self, count: int, topic: str = "t", size: int = 100, queue_id: int = 0) -> None:
        """Many in one call."""
        messages = [self._send(topic, queue_id, size, None) for _ in range(count)]
        self._done(self.store.put_many(topic, [m.body for m in messages], queue_id).status)

    def put_batch(self, sizes: Iterable[int], topics: Iterable[str] = ("t",), keys: str | None = None) -> None:
        """A batch over several topics."""
        names = list(topics)
        messages = [self._send(names[i % len(names)], i % 2, size, keys) for i, size in enumerate(sizes)]
        result = self.store.put_batch([Message(m.topic, m.body, m.queue_id, keys=m.keys) for m in messages])
        self._done(result.status)

    def flush(self) -> None:
        """flush(), as the user calls it."""
        assert self.store.flush()
        self.note("durable")

    def commit(self) -> None:
        """The commit thread's step."""
        self.store.log.commit()
        self.note("kept")

    def flush_queues(self) -> None:
        """The flush thread's other step: queues and checkpoint."""
        lab(self.store).flush_queues()

    def flush_turn(self) -> None:
        """What the flush thread does by the clock."""
        lab(self.store).flush_turn()

    def flush_log(self) -> None:
        """The flush thread's step."""
        lab(self.store).flush_log(thorough=True)
        self.note("durable")

    def reput(self) -> None:
        """The dispatch thread's step."""
        lab(self.store).step_dispatch_if_needed()

    def offsets(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset of a message that was put, and write the file."""
        self.store.consumer_offsets.commit(group, topic, queue_id, offset)
        self.note("offset", (group, topic, queue_id, offset))
        self.store.persist_offsets()
        self.note("offsets durable")

    def delete_topic(self, topic: str) -> None:
        """delete_topic."""
        self.note("delete", topic)
        self.store.delete_topic(topic)
        self.note("deleted", topic)

    def retain(self) -> None:
        """One pass of retention."""
        self.note("retention")
        lab(self.store).retention.run_once(self.os_api.now_ms())

    def services(self, rng: random.Random) -> None:
        """A step of one service, drawn at random."""
        steps: list[Callable[[], object]] = [self.flush_queues, self.flush_turn, self.flush_log, self.reput]
        steps += [lab(self.store).make_next_file, lab(self.store).persist_topics]
        if lab(self.store).pool is not None:
            steps.append(self.commit)
        rng.choice(steps)()

    def end(self) -> None:
        """Release everything."""
        self.sim.freeze(True)
        if self.store is not None:
            leave(self.store)
        self.store = None  # type: ignore[assignment]
        maps, fds = self.sim.open_maps, self.sim.open_fds
        assert maps == fds == 0, f"{maps} mappings and {fds} descriptors were left behind"
        self.sim.free()
        shutil.rmtree(self.root)


def leave(store: MessageStore) -> None:
    """Drop a store's memory and its lock without letting it write anything; the simulation is frozen meanwhile."""
    lab(store).abandon()


# --- the check --------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What the notes before a crash say."""

    sent: int = 0
    least: int = 0
    retention: bool = False
    deleted: set[str] = field(default_factory=set)
    """Topics whose deletion has begun: they may be there or not."""
    gone: dict[str, int] = field(default_factory=dict)
    """Topic -> number of the first message that was sent when it was deleted: earlier ones may be in no queue."""
    offsets: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    """Values that may be found; the first may be -1: none."""


def expected(notes: list[tuple[str, Any]], killed: bool) -> Expected:
    """Sum the notes up."""
    e = Expected()
    durable = kept = 0
    for what, value in notes:
        if what == "send":
            e.sent += 1
        elif what == "durable":
            durable = e.sent
        elif what == "kept":
            kept = e.sent
        elif what == "retention":
            e.retention = True
        elif what == "delete":
            e.deleted.add(value)
        elif what == "deleted":
            e.deleted.discard(value)
            e.gone[value] = e.sent
        elif what == "offset":
            *key, offset = value
            e.offsets.setdefault((key[0], key[1], key[2]), [-1]).append(offset)
        elif what == "offsets durable":
            for values in e.offsets.values():
                del values[:-1]
    e.least = max(durable, kept) if killed else durable
    return e


def log_messages(path: str) -> list[Any]:
    """Every record of the log, in its order."""
    found: list[Any] = []
    for start, name in list_offset_files(REAL, os.path.join(path, "commitlog"))[0]:
        file = PreadFile(REAL, name, start)
        walk = LogWalk(file, start)
        while True:
            messages, stop = walk.batch()
            found += messages
            if stop is not None:
                break
            if not messages:
                break
    return found


def tree(path: str) -> dict[str, bytes]:
    """The bytes of every file that a reopen must not change."""
    found: dict[str, bytes] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            if name not in ("checkpoint", "lock"):
                full = os.path.join(directory, name)
                with open(full, "rb") as file:
                    found[os.path.relpath(full, path)] = file.read()
    return found


def want(condition: object, text: str) -> None:
    """Or the image is bad."""
    if not condition:
        raise Bad(text)


def check_image(
    root: str, image: Image, run_notes: list[tuple[str, Any]], sent: list[Sent], workload: Workload
) -> None:
    """Open what the crash left and hold it to every promise. Raises: Bad."""
    e = expected(run_notes[: image.mark], image.mode == KILLED)
    path = os.path.join(root, STORE)
    config = StoreConfig.tiny(**workload.settings)
    try:
        store = open_still(path, config=config)
    except MqfastError as error:
        raise Bad(f"cannot be opened: {error!r}") from error
    try:
        messages = log_messages(path)
        numbers = [struct.unpack(">I", bytes(m.body[:4]))[0] for m in messages]
        first = numbers[0] if numbers and e.retention else 0
        want(numbers == list(range(first, first + len(numbers))), f"not a prefix of what was sent: {numbers[:50]}")
        end = first + len(numbers)
        want(end <= e.sent, f"{end} messages found, {e.sent} were sent")
        want(end >= e.least or (e.retention and not numbers), f"{end} messages found, {e.least} were acknowledged")
        for number, m in zip(numbers, messages, strict=True):
            s = sent[number]
            same = m.body == s.body and m.topic == s.topic and m.queue_id == s.queue_id
            found = f"{m.topic!r}/{m.queue_id} at {m.physical_offset}"
            want(same, f"message {number} differs from what was sent to {s.topic!r}/{s.queue_id}: {found}")
        log_end = store.max_physical_offset
        if messages and log_end % store.log.file_bytes:
            want(log_end == messages[-1].physical_offset + messages[-1].size, f"the log ends at {log_end}")
        lab(store).step_dispatch_if_needed()
        there = [m for n, m in zip(numbers, messages, strict=True) if n >= e.gone.get(m.topic, 0)]
        _check_queues(store, there, e.deleted)
        _check_keys(store, messages, sent, numbers, e.deleted | e.gone.keys())
        _check_offsets(store, e)
        topic, queue_id = (messages[-1].topic, messages[-1].queue_id) if messages else ("t", 0)
        if topic in e.deleted or topic in e.gone or lab(store).queues.is_batch(topic):
            topic = "after"
        r = store.put(topic, b"after the crash", queue_id, keys="after")
        lab(store).step_dispatch_if_needed()
        got = store.get(topic, queue_id, r.queue_offset)
        want(len(got) == 1 and got[0].body == b"after the crash", "an append after recovery is not read back")
        if config.message_index_enable:
            want(len(store.query(topic, "after")) == 1, "its key is not found")
        want(store.flush(), "flush after recovery")
    finally:
        store.close()
    report = verify(path, config=config)
    serious = [d for d in report.damages if str(d.severity) != "note" and not _of_deleted(str(d), e.deleted)]
    want(not serious, f"verify after recovery and close: {[str(d) for d in serious[:5]]}")
    before = tree(path)
    again = open_still(path, config=config)
    want(again.recovery.clean, "the store was closed and is not clean")
    queues = again.queues()
    again.close()
    after = tree(path)
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    want(not changed, f"a second reopen changed {changed}")
    want(queues or not messages, "no queues")


def _of_deleted(text: str, deleted: set[str]) -> bool:
    return any(f"/{topic}" in text or f"{topic}/" in text for topic in deleted)


def _check_queues(store: MessageStore, messages: list[Any], deleted: set[str]) -> None:
    by_queue: dict[tuple[str, int], list[Any]] = {}
    for m in messages:
        by_queue.setdefault((m.topic, m.queue_id), []).append(m)
    for (topic, queue_id), records in by_queue.items():
        if topic in deleted or lab(store).queues.is_batch(topic):
            continue
        at, found = store.min_offset(topic, queue_id), []
        want(
            at == records[0].queue_offset,
            f"{topic}/{queue_id} begins at {at}, its records elsewhere",
        )
        while True:
            got = store.get(topic, queue_id, at, 64)
            if not len(got):
                break
            found += [(m.physical_offset, m.queue_offset) for m in got]
            at = got.next_offset
        asked = [(m.physical_offset, m.queue_offset) for m in records]
        want(found == asked, f"{topic}/{queue_id} shows {len(found)} messages, the log holds {len(asked)}")
    for topic, queue_id, _low, high in store.queues():
        held = (topic, queue_id) in by_queue or topic in deleted or topic.startswith("%LMQ%")
        want(held or store.min_offset(topic, queue_id) == high, f"{topic}/{queue_id} holds units without records")


def _check_keys(
    store: MessageStore, messages: list[Any], sent: list[Sent], numbers: list[int], deleted: set[str]
) -> None:
    if not store.config.message_index_enable:
        return
    keyed = [n for n in numbers if sent[n].keys and sent[n].topic not in deleted]
    for n in keyed[:2] + keyed[-3:]:
        for key in (sent[n].keys or "").split():
            found = {bytes(m.body[:4]) for m in store.query(sent[n].topic, key, 64)}
            want(sent[n].body[:4] in found, f"key {key!r} of message {n} is not found")
    if len(sent) > len(numbers) and sent[-1].keys and numbers and numbers[-1] < sent[-1].number:
        found = {bytes(m.body[:4]) for m in store.query(sent[-1].topic, sent[-1].keys.split()[-1], 64)}
        want(sent[-1].body[:4] not in found, "a lost message is found by its key")


def _check_offsets(store: MessageStore, e: Expected) -> None:
    for (group, topic, queue_id), values in e.offsets.items():
        if topic in e.deleted or topic in e.gone:
            continue
        found = store.consumer_offsets.get(group, topic, queue_id)
        want(found in values, f"offset of {group} is {found}, expected one of {values}")
