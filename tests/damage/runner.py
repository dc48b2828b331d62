"""Runs seeds in child processes: a child that dies, hangs or takes too much memory is a finding with its seed.

Room: tests. It must never open a store in the parent process. A child writes the seed it is at into shared memory
before it starts on it; who reads that knows what a dead child died of.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import mmap
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .check import Workplace, clear
from .mutations import mutate
from .stores import Bases

_HANG_S: Final = 20.0
_MEMORY_BYTES: Final = 768 << 20
_STATE: Final = struct.Struct("<qd")


@dataclass
class Finding:
    """A seed that broke the rule."""

    seed: int
    damage: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.damage}): {self.what}"


@dataclass
class Outcome:
    """What a run found."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    next_seed: int = 0


def scratch_dir() -> str:
    """A directory in memory where there is one."""
    return tempfile.mkdtemp(prefix="mqfast-damage-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def _limit_memory() -> None:
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return  # the sanitizer's shadow is larger than any limit
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _child(root: str, bases: Bases, full: bool, seeds: Iterator[int], state: mmap.mmap, pipe: int) -> None:
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    _limit_memory()
    place = Workplace(root, bases, full=full)
    gc.freeze()  # the bases are not looked through again and again
    sent: Counter[str] = Counter()

    def tell(**what: Any) -> None:
        os.write(pipe, (json.dumps(what) + "\n").encode())

    def tell_counts() -> None:
        tell(counts=dict(place.counts - sent))
        sent.clear()
        sent.update(place.counts)

    for seed in seeds:
        state[: _STATE.size] = _STATE.pack(seed, time.monotonic())
        try:
            place.run(seed)
        except BaseException as error:  # whatever it is: it is not one of ours, and the run goes on
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if type(error).__name__ == "Wrong" else f" in {os.path.basename(last.filename)}:{last.lineno}"
            place.counts["mutations"] += 1
            tell(seed=seed, what=f"{type(error).__name__}{where}: {error}"[:3000])
        if seed % 256 < 2:
            tell_counts()
    tell_counts()


class _Worker:
    """One child after the other over one share of the seeds."""

    def __init__(self, bases: Bases, full: bool, first: int, stop: int, step: int) -> None:
        self.bases = bases
        self.full = full
        self.first, self.stop, self.step = first, stop, step
        self.root = os.path.join(scratch_dir(), "store")
        self.state = mmap.mmap(-1, mmap.PAGESIZE)
        self.buffer = b""
        self.start(first)

    def start(self, seed: int) -> None:
        read, write = os.pipe()
        self.state[: _STATE.size] = _STATE.pack(seed, time.monotonic())
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(read)
                _child(self.root, self.bases, self.full, iter(range(seed, self.stop, self.step)), self.state, write)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(write)
        self.pipe = read

    @property
    def at(self) -> tuple[int, float]:
        seed, since = _STATE.unpack(self.state[: _STATE.size])
        return int(seed), float(since)

    def lines(self, data: bytes) -> list[dict[str, Any]]:
        *whole, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.pipe)
        clear(os.path.dirname(self.root))


def run(
    bases: Bases,
    first: int,
    count: int,
    *,
    seconds: float | None = None,
    processes: int = 2,
    stop_after: int = 20,
    full: bool = True,
    progress: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Check ``count`` seeds from ``first`` on, or as many as ``seconds`` allow.

    Args: full: each store is read and opened; otherwise two of four are read, the others opened.
    Returns: Outcome; it ends early after ``stop_after`` findings.
    """
    began = time.monotonic()
    outcome = Outcome(next_seed=first)
    workers = [_Worker(bases, full, first + i, first + count, processes) for i in range(processes)]
    running = list(workers)
    told = began

    def found(seed: int, what: str) -> None:
        outcome.findings.append(Finding(seed, str(mutate(bases.of(seed), seed)), what))

    try:
        while running:
            ready, _, _ = select.select([worker.pipe for worker in running], [], [], 0.5)
            for worker in list(running):
                if worker.pipe in ready:
                    data = os.read(worker.pipe, 1 << 16)
                    for line in worker.lines(data):
                        if "counts" in line:
                            outcome.counts.update(line["counts"])
                        else:
                            found(line["seed"], line["what"])
                    if not data:
                        running.remove(worker)
                        status = os.waitpid(worker.pid, 0)[1]
                        seed = worker.at[0]
                        outcome.next_seed = max(outcome.next_seed, seed + 1)
                        if status == 0 or (seconds is not None and time.monotonic() - began >= seconds):
                            continue
                        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                        hung = time.monotonic() - worker.at[1] > _HANG_S
                        found(seed, "the call does not end" if hung else f"the process died, signal {signal_number}")
                        if seed + worker.step < worker.stop:
                            os.close(worker.pipe)
                            worker.start(seed + worker.step)
                            running.append(worker)
                elif time.monotonic() - worker.at[1] > _HANG_S:
                    worker.kill()
            over = seconds is not None and time.monotonic() - began >= seconds
            if over or len(outcome.findings) >= stop_after:
                seconds = 0.0
                for worker in running:
                    worker.kill()
            outcome.seconds = time.monotonic() - began
            if progress is not None and time.monotonic() - told >= 5:
                told = time.monotonic()
                progress(outcome)
    finally:
        for worker in workers:
            worker.close()
    outcome.seconds = time.monotonic() - began
    return outcome
