"""Programs of test_signals.py: what a signal handler does to a store at random moments. Each is a process of its own.

Room: tests/issues. ``python signal_rounds.py NAME SEED ROUNDS DIRECTORY``; the last line says what was seen.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import mqfast
from mqfast.errors import NestedCall, StoreClosed

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import lab

SETTINGS: dict[str, Any] = {
    "mapped_file_bytes_commit_log": 256 << 10,
    "mapped_file_bytes_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 400,
}


class Stop(Exception):
    """Raised by a handler."""


class Work:
    """Puts into many topics, with keys, reads and asks; counts what was acknowledged."""

    def __init__(self, store: mqfast.MessageStore, rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self.acknowledged: collections.Counter[str] = collections.Counter()
        self.tried: collections.Counter[str] = collections.Counter()

    def put(self) -> None:
        topic = f"n{self.rng.randrange(300)}"
        self.tried[topic] += 1
        self.store.put(topic, b"x" * 200, keys=f"k{self.tried[topic]}")
        self.acknowledged[topic] += 1

    def step(self) -> None:
        self.put()
        topic = f"n{self.rng.randrange(300)}"
        what = self.rng.randrange(6)
        if what < 3:
            self.store.get(topic, 0, 0)
        elif what == 3:
            self.store.query(topic, "k1")
        elif what == 4:
            self.store.max_offset(topic, 0)
        else:
            self.store.consumer_offsets.commit("G", topic, 0, 1)

    def check(self, path: Path, clean: bool) -> None:
        assert (path / "abort").exists() != clean
        with mqfast.open(path, **SETTINGS) as store:
            for topic, tried in self.tried.items():
                found = store.max_offset(topic, 0)
                assert self.acknowledged[topic] <= found <= tried, (topic, self.acknowledged[topic], found, tried)
        assert mqfast.verify(path).ok


def until_closed(work: Work) -> None:
    try:
        while True:  # a signal may come between two steps as well
            work.step()
    except (Stop, StoreClosed):
        return


def wait_until_closed(store: mqfast.MessageStore) -> None:
    """The rest of a close that a handler asked for."""
    closer = lab(store).closer
    if closer is not None:
        closer.join()


def close_in_a_handler(seed: int, rounds: int, base: Path) -> str:
    """The handler closes, and raises or does not."""
    rng = random.Random(seed)
    later = 0
    for number in range(rounds):
        path = base / str(number)
        store = mqfast.open(path, **SETTINGS)
        work = Work(store, random.Random(rng.random()))

        def handler(signum: int, frame: object, store: mqfast.MessageStore = store, number: int = number) -> None:
            nonlocal later
            store.close()
            later += lab(store).closer is not None
            if number % 2:
                raise Stop

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() * 0.1)
        until_closed(work)
        wait_until_closed(store)
        work.check(path, clean=True)
        shutil.rmtree(path)
    return f"{later} of {rounds} closes were left to a thread"


def close_within_close(seed: int, rounds: int, base: Path) -> str:
    """The handler closes while the main thread does."""
    rng = random.Random(seed)
    calls = 0
    for number in range(rounds):
        path = base / str(number)
        store = mqfast.open(path, **SETTINGS)
        work = Work(store, random.Random(rng.random()))

        def handler(signum: int, frame: object, store: mqfast.MessageStore = store) -> None:
            nonlocal calls
            calls += 1
            store.close()

        for _ in range(50):
            work.step()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + rng.random() * 0.01, 0.001)
        store.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        wait_until_closed(store)
        work.check(path, clean=True)
        shutil.rmtree(path)
    return f"{calls} calls"


def calls_in_a_handler(seed: int, rounds: int, base: Path) -> str:
    """The handler puts and gets, a thousand times a second."""
    rng = random.Random(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    store = mqfast.open(base / "store", **SETTINGS)
    work = Work(store, rng)
    inside = 0

    def handler(signum: int, frame: object) -> None:
        nonlocal inside
        if inside:
            return
        inside = 1
        try:
            before = dict(work.tried)
            try:
                work.step()
                outcomes["worked"] += 1
            except NestedCall:
                outcomes["nested"] += 1
                assert before is not None
        finally:
            inside = 0

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for _ in range(rounds):
        work.step()
    signal.setitimer(signal.ITIMER_REAL, 0)
    store.close()
    work.check(base / "store", clean=True)
    return str(dict(outcomes))


def exceptions_of_a_handler(seed: int, rounds: int, base: Path) -> str:
    """The handler raises, as Ctrl-C does; whoever catches it goes on."""
    rng = random.Random(seed)
    raised = 0
    store = mqfast.open(base / "store", **SETTINGS)
    work = Work(store, rng)

    def handler(signum: int, frame: object) -> None:
        raise Stop

    signal.signal(signal.SIGALRM, handler)
    for _ in range(rounds):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + rng.random() * 0.005)
            while True:
                work.step()
        except Stop:
            raised += 1
    interrupted = 0
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + rng.random() * 0.005 * (1 + interrupted))  # later and later
            store.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except Stop:
            interrupted += 1
    work.check(base / "store", clean=True)
    return f"{raised} raised in calls, {interrupted} in close"


def exit_in_a_handler(seed: int, rounds: int, base: Path) -> str:
    """The usual service: the handler closes and ends the process."""
    rng = random.Random(seed)
    store = mqfast.open(base / "store", **SETTINGS)
    work = Work(store, rng)

    def handler(signum: int, frame: object) -> None:
        store.close()
        sys.exit(0)

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() * 0.1)
    while True:
        work.step()


if __name__ == "__main__":
    print(globals()[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])), flush=True)
