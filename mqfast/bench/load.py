"""One load on one new store: threads put for some seconds (``mqfast bench store``).

Half of the time counts messages, with no clock in the loop; the other half takes the time of every put. The log stays
within a byte budget, and the store is removed at the end, also after an interrupt.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["PERCENTILES", "Load", "LoadResult", "run"]

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)
_TOPIC: Final = "Bench"
_CHUNK: Final = 1000
_CHUNK_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 256  # of a record without its body, and more
_FILE_BYTES: Final = 256 << 20
_LEAST_BUDGET: Final = 16 << 20
_MOST_BUDGET: Final = 8 << 30
_WAIT_S: Final = 0.1


@dataclass(frozen=True)
class Load:
    """A load. ``size``: bytes of a body; ``flush``: async or sync; ``max_bytes``: limit of log bytes."""

    threads: int = 1
    size: int = 1024
    queues: int = 1
    flush: str = "async"
    seconds: float = 5.0
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("threads", 1), ("size", 0), ("queues", 1)):
            if getattr(self, name) < low:
                raise UsageError(f"{name}: expected at least {low}, found {getattr(self, name)}")
        if self.flush not in ("async", "sync"):
            raise UsageError(f"flush: expected async or sync, found {self.flush}")
        if not 0 < self.seconds <= 86_400:
            raise UsageError(f"seconds: expected more than 0 and at most 86400, found {self.seconds:g}")


@dataclass
class LoadResult:
    """Result of a load. Page-cache figures are None under sync flush, where each put waits for the disk.

    ``latency_ns``: of single puts, by percentile and ``max``; ``durable_latency_ns``: the same under sync flush.
    """

    load: Load
    messages: int
    seconds: float
    page_cache_messages_per_s: float | None
    page_cache_bytes_per_s: float | None
    durable_messages_per_s: float
    durable_bytes_per_s: float
    latency_ns: dict[str, int] | None
    durable_latency_ns: dict[str, int] | None
    samples: int
    ended_by: str = "time"
    sync_calls: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        return asdict(self)


class _Phase:
    """One half of the run: all threads begin together and end at the deadline, at the budget, or at the first error."""

    def __init__(self, store: MessageStore, load: Load, seconds: float, chunk: int, end_offset: int) -> None:
        self.store = store
        self.load = load
        self.seconds = seconds
        self.chunk = chunk
        self.end_offset = end_offset
        self.stop = False
        self.ended_by = "time"
        self.counts = [0] * load.threads
        self.samples: list[array[int]] = [array("Q") for _ in range(load.threads)]
        self.error: BaseException | None = None
        self.barrier = threading.Barrier(load.threads + 1)
        self.deadline = 0.0

    def _puts(self, number: int) -> Iterator[Callable[[bytes], object]]:
        load = self.load
        mine = range(number, load.queues, load.threads) or range(number % load.queues, number % load.queues + 1)
        return cycle([self.store.producer(_TOPIC, queue_id).put for queue_id in mine])

    def _work(self, number: int, timed: bool) -> None:
        try:
            puts = self._puts(number)
            body = b"x" * self.load.size
            chunk, log, samples, clock = self.chunk, self.store.log, self.samples[number], time.perf_counter_ns
            count = 0
            self.barrier.wait()
            while not self.stop:
                if timed:
                    for put in islice(puts, chunk):
                        started_s = clock()
                        put(body)
                        samples.append(clock() - started_s)
                else:
                    for put in islice(puts, chunk):
                        put(body)
                count += chunk
                self.counts[number] = count
                if time.perf_counter() >= self.deadline:
                    break
                if log.written >= self.end_offset:
                    self.ended_by = "bytes"
                    break
        except BaseException as error:
            self.error = self.error or error
            self.stop = True
            self.barrier.abort()

    def run(self, timed: bool, progress: Callable[[float], None] | None) -> float:
        """Run. Returns: seconds from the common start to the end of the last thread."""
        threads = [
            threading.Thread(target=self._work, args=(number, timed), daemon=True)
            for number in range(self.load.threads)
        ]
        for thread in threads:
            thread.start()
        started_s = time.perf_counter()
        try:
            self.deadline = started_s + self.seconds
            self.barrier.wait()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_WAIT_S)
                    if progress is not None:
                        progress(min(1.0, (time.perf_counter() - started_s) / self.seconds))
        except threading.BrokenBarrierError:
            pass
        finally:
            self.stop = True
            for thread in threads:
                thread.join()
        if self.error is not None:
            raise self.error
        return time.perf_counter() - started_s


def _percentiles(samples: list[array[int]]) -> dict[str, int]:
    import numpy

    every = numpy.concatenate([numpy.frombuffer(part, dtype=numpy.uint64) for part in samples if len(part)])
    # The value that so many per cent of the puts did not exceed: a measured value, without interpolation.
    values = numpy.percentile(every, PERCENTILES, method="higher")
    return {
        **{f"p{percent:g}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)},
        "max": int(every.max()),
    }


def _budget(path: str, load: Load) -> int:
    """Return the bytes of log that this load may write."""
    free = shutil.disk_usage(path).free
    allowed = min(_MOST_BUDGET, free // 3)
    if load.max_bytes is not None:
        allowed = min(allowed, load.max_bytes)
    if allowed < _LEAST_BUDGET:
        raise UsageError(f"{path}: expected room for {3 * _LEAST_BUDGET:,} bytes, found {free:,} free")
    return allowed


def _chunk(load: Load, budget: int) -> tuple[int, int]:
    """Return the puts of a thread between two checks of the clock and of the end of the log, and the log bytes, at
    most, between two checks of all threads, each with the unused rest of a file.

    Raises: UsageError if the budget is too small for twice these bytes.
    """
    record = load.size + _RECORD_BYTES
    # With sync flush each put is a disk access, so the clock may be read after each.
    max_count = 1 if load.flush == "sync" else _CHUNK
    chunk = max(1, min(max_count, _CHUNK_BYTES // record, budget // (8 * load.threads * record)))
    step = load.threads * (chunk + 1) * record
    min_bytes = load.queues * _RECORD_BYTES + 2 * step  # a first message makes each queue
    if min_bytes > budget:
        raise UsageError(
            f"max_bytes: expected at least {min_bytes:,} bytes of log for {load.threads} threads that put"
            f" {load.size:,} bytes each, and {load.queues} queues; found {budget:,},"
            " the least of max_bytes and of what the disk has room for"
        )
    return chunk, step


def run(path: str | os.PathLike[str], load: Load, progress: Callable[[float], None] | None = None) -> LoadResult:
    """Put into a new store in a directory of its own below ``path``, which must exist.

    Args: progress: called now and then with the part that is done, 0 to 1.
    Raises: UsageError, and whatever the store raises.
    """
    import mqfast

    where = os.fspath(path)
    if not os.path.isdir(where):
        raise UsageError(f"{where}: expected a directory on the disk to measure, found none")
    budget = _budget(where, load)
    chunk, step = _chunk(load, budget)
    file_bytes = min(_FILE_BYTES, max(_LEAST_BUDGET, budget // 4))
    directory = tempfile.mkdtemp(prefix="mqfast-bench-", dir=where)
    sync = load.flush == "sync"

    def part(first: float) -> Callable[[float], None] | None:
        return None if progress is None else lambda done: progress(first + done / 2)

    try:
        with mqfast.open(
            directory,
            flushDiskType="SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            mapped_file_bytes_commit_log=file_bytes,
            max_message_bytes=max(4 << 20, load.size),
        ) as store:
            for queue_id in range(load.queues):
                store.put(_TOPIC, b"", queue_id, wait_store_ok=False)
            store.flush()
            start = store.log.written
            half = (budget - start) // 2 - step
            counted = _Phase(store, load, load.seconds / 2, chunk, start + half)
            seconds = counted.run(False, part(0.0))
            flushing = time.perf_counter()
            store.flush()
            durable_seconds = seconds + time.perf_counter() - flushing
            timed = _Phase(store, load, load.seconds / 2, chunk, store.log.written + half)
            timed.run(True, part(0.5))
            latency = _percentiles(timed.samples)
            count = sum(counted.counts)
            by_budget = "bytes" in (counted.ended_by, timed.ended_by)
            return LoadResult(
                load=load,
                messages=count,
                seconds=seconds,
                page_cache_messages_per_s=None if sync else count / seconds,
                page_cache_bytes_per_s=None if sync else count * load.size / seconds,
                durable_messages_per_s=count / durable_seconds,
                durable_bytes_per_s=count * load.size / durable_seconds,
                latency_ns=None if sync else latency,
                durable_latency_ns=latency if sync else None,
                samples=sum(map(len, timed.samples)),
                ended_by="bytes" if by_budget else "time",
                sync_calls=int(store.stats()["sync_calls"]),
                notes=[f"ended at {budget:,} bytes of log, before the time was up"] if by_budget else [],
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
