"""The rows of ``python -m mqfast.bench``: each piece of work beside a floor that is measured in between.

Every figure is the median time of a piece of work over several rounds. The floor is the same machine's time for the
unavoidable part of the work, so the ratio can be compared between runs and, with care, between machines. Page-cache
figures and durable figures are not compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["ROWS", "Row", "measure", "slower"]

_ROUNDS: Final = 5
_MOST_ROUNDS: Final = 40
_FILE_BYTES: Final = 128 << 20
_HEADER_BYTES: Final = 96
_APART: Final = 2.0


@dataclass(frozen=True)
class Row:
    """Median ns of a piece of work; None for a column that does not apply.

    ``page_cache_ns``: until the call returned; ``durable_ns``: until the disk had it; ``floor``: what ``floor_ns`` is.
    """

    name: str
    page_cache_ns: float | None
    durable_ns: float | None
    floor_ns: float
    floor: str
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def _rounds(seconds: float, work: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Return medians of (work, floor) over rounds that take ``seconds`` together, at least _ROUNDS."""
    started_s = time.perf_counter()
    work()  # its figures are dropped here and by the rows
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _ROUNDS or (time.perf_counter() - started_s < seconds and len(rounds) < _MOST_ROUNDS):
        rounds.append(work())
    return median(ours for ours, _ in rounds), median(floor for _, floor in rounds)


def _copy_floor(size: int, count: int) -> float:
    from mqfast.bench.floor import memory_floor

    copied: float = memory_floor(size + _HEADER_BYTES, count)[0]
    return copied


def _call_floor(count: int) -> float:
    """Return ns of a call of a method without work, loop included: the cost of any call in Python."""
    work = bytearray(b"x").isascii
    started_ns = time.perf_counter_ns()
    for _ in repeat(None, count):
        work()
    return (time.perf_counter_ns() - started_ns) / count


@contextlib.contextmanager
def _store(place: str, **settings: Any) -> Iterator[MessageStore]:
    import mqfast

    directory = tempfile.mkdtemp(prefix="mqfast-bench-", dir=place)
    try:
        with mqfast.open(directory, profile="broker", mapped_file_bytes_commit_log=_FILE_BYTES, **settings) as store:
            yield store
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _puts(place: str, seconds: float, name: str, size: int, count: int, many: bool, keywords: bool) -> Row:
    body = b"x" * size
    durable: list[float] = []
    with _store(place) as store:
        producer = store.producer("Bench", 0, "TagA")
        bodies = [body] * 1000

        def work() -> tuple[float, float]:
            floor = _copy_floor(size, count)
            started_ns = time.perf_counter_ns()
            if many:
                for _ in repeat(None, count // 1000):
                    producer.put_many(bodies)
            elif keywords:
                for _ in repeat(None, count):
                    store.put("Bench", body, tags="TagA")
            else:
                put = producer.put
                for _ in repeat(None, count):
                    put(body)
            took = time.perf_counter_ns() - started_ns
            store.flush()
            durable.append((time.perf_counter_ns() - started_ns) / count)
            return took / count, floor

        ours, floor = _rounds(seconds, work)
    return Row(name, ours, median(durable[1:]), floor, "copy + CRC of the same bytes in memory", size)


def _gets(place: str, seconds: float, name: str, how: str) -> Row:
    count = 32_000
    with _store(place) as store:
        for _ in range(count // 1000):
            store.put_many("Bench", [b"x" * 256] * 1000)

        def work() -> tuple[float, float]:
            floor = _call_floor(20_000)
            started_ns = time.perf_counter_ns()
            for offset in range(0, count, 32):
                result = store.get("Bench", 0, offset, 32)
                if how == "messages":
                    for _ in result:
                        pass
                elif how == "bytes":
                    result.bodies()
                else:
                    result.to_numpy()
            return (time.perf_counter_ns() - started_ns) / count, floor

        ours, floor = _rounds(seconds, work)
    return Row(name, ours, None, floor, "one empty method call", 256)


def _iovec(place: str, seconds: float, name: str, for_broker: bool) -> Row:
    count = 32_000
    with _store(place) as store:
        for _ in range(count // 1000):
            store.put_many("Bench", [b"x" * 1024] * 1000)
        engine = store.engine

        def work() -> tuple[float, float]:
            floor = _call_floor(20_000)
            started_ns = time.perf_counter_ns()
            for offset in range(0, count, 32):
                if for_broker:
                    with engine.get_records("Bench", 0, offset, 32) as result:
                        b"".join(result.buffers)
                else:
                    b"".join([message.to_bytes() for message in store.get("Bench", 0, offset, 32)])
            return (time.perf_counter_ns() - started_ns) / count, floor

        ours, floor = _rounds(seconds, work)
    return Row(name, ours, None, floor, "one empty method call", 1024)


def _query(place: str, seconds: float, name: str) -> Row:
    count = 10_000
    with _store(place, maxHashSlotNum=50_000, maxIndexNum=200_000) as store:
        put = store.producer("Bench").put
        for number in range(count):
            put(b"x" * 256, f"key{number}")
        keys = [f"key{number}" for number in range(0, count, 10)]

        def work() -> tuple[float, float]:
            floor = _call_floor(20_000)
            started_ns = time.perf_counter_ns()
            for key in keys:
                store.query("Bench", key)
            return (time.perf_counter_ns() - started_ns) / len(keys), floor

        ours, floor = _rounds(seconds, work)
    return Row(name, ours, None, floor, "one empty method call", 256)


def _scans(place: str, seconds: float, name: str, recover: bool) -> Row:
    import mqfast

    count, size = 50_000, 1024
    directory = tempfile.mkdtemp(prefix="mqfast-bench-", dir=place)
    killed = os.path.join(directory, "killed")
    durable: list[float] = []
    try:
        with mqfast.open(os.path.join(directory, "live"), mapped_file_bytes_commit_log=16 << 20) as store:
            for _ in range(count // 1000):
                store.put_many("Bench", [b"x" * size] * 1000)
            store.flush()
            shutil.copytree(store.path, killed)
            log_bytes = store.log.written

        def work() -> tuple[float, float]:
            floor = _scan_floor(size + _HEADER_BYTES, count)
            if not recover:
                started_ns = time.perf_counter_ns()
                report = mqfast.verify(os.path.join(directory, "live"))
                took = time.perf_counter_ns() - started_ns
                if not report.ok:
                    raise UsageError(f"verify: expected no damage, found {report}")
                return took / count, floor
            shutil.rmtree(os.path.join(killed, "consumequeue"), ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(killed, "checkpoint"))
            with open(os.path.join(killed, "abort"), "wb"):
                pass
            with mqfast.open(killed, create=False) as store:
                report_ = store.recovery
                if report_.end != log_bytes:
                    raise UsageError(f"recovery: expected a log of {log_bytes} bytes, found {report_.end}")
            durable.append(report_.seconds * 1e9 / count)
            return (report_.seconds - report_.sync_seconds) * 1e9 / count, floor

        ours, floor = _rounds(seconds, work)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Row(name, ours, median(durable[1:]) if durable else None, floor, "CRC of the same bytes in memory", size)


def _scan_floor(size: int, count: int) -> float:
    from mqfast.bench.floor import memory_floor

    bytes_per_s: float = memory_floor(size, count)[1]
    return size * 1e9 / bytes_per_s


def _syncs(place: str, seconds: float, name: str, threads: int) -> Row:
    body = b"x" * 1024
    count = 20 if threads == 1 else 10
    with _store(place, flushDiskType="SYNC_FLUSH") as store:
        store.put("Bench", body)
        probe = os.path.join(store.path, "probe")

        def work() -> tuple[float, float]:
            floor = median(store.os_api.sync_latencies_ns(probe, count))

            def puts(number: int) -> None:
                put = store.producer("Bench", number % 4).put
                for _ in repeat(None, count):
                    put(body)

            workers = [threading.Thread(target=puts, args=(number,)) for number in range(threads)]
            started_ns = time.perf_counter_ns()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return (time.perf_counter_ns() - started_ns) / (count * threads), floor

        ours, floor = _rounds(seconds, work)
    return Row(name, None, ours, floor, "one append + fdatasync", 1024)


def _put_row(size: int, count: int, many: bool = False, keywords: bool = False) -> Callable[[str, float, str], Row]:
    return lambda place, seconds, name: _puts(place, seconds, name, size, count, many, keywords)


ROWS: Final[dict[str, Callable[[str, float, str], Row]]] = {
    "producer.put 40 B": _put_row(40, 20_000),
    "producer.put 1 KiB": _put_row(1024, 10_000),
    "store.put(tags=) 1 KiB": _put_row(1024, 10_000, keywords=True),
    "put_many 64 B": _put_row(64, 50_000, many=True),
    "put_many 1 KiB": _put_row(1024, 20_000, many=True),
    "get 32, messages": lambda place, seconds, name: _gets(place, seconds, name, "messages"),
    "get 32, bytes": lambda place, seconds, name: _gets(place, seconds, name, "bytes"),
    "get 32, to_numpy": lambda place, seconds, name: _gets(place, seconds, name, "numpy"),
    "get 32 of 1 KiB, joined records": lambda place, seconds, name: _iovec(place, seconds, name, False),
    "get 32 of 1 KiB, iovec joined": lambda place, seconds, name: _iovec(place, seconds, name, True),
    "query by key": _query,
    "recovery, a record": lambda place, seconds, name: _scans(place, seconds, name, True),
    "verify, a record": lambda place, seconds, name: _scans(place, seconds, name, False),
    "sync flush, 1 thread": lambda place, seconds, name: _syncs(place, seconds, name, 1),
    "sync flush, 16 threads": lambda place, seconds, name: _syncs(place, seconds, name, 16),
}
"""Every row by its name: a function of (directory, seconds, name)."""


def measure(place: str, seconds: float, names: list[str] | None = None) -> Iterator[Row]:
    """Measure the rows in turn in new directories below ``place``, about ``seconds`` each.

    Raises: UsageError, and whatever the store raises.
    """
    if not os.path.isdir(place):
        raise UsageError(f"{place}: expected a directory on the disk to measure, found none")
    for name, row in ROWS.items():
        if names is None or name in names:
            yield row(place, seconds, name)


def slower(now: list[Row], before: list[dict[str, Any]], limit_percent: float) -> list[str]:
    """Return the rows that are slower than in an earlier run, by the ratio to the floor of the same run; a line each.

    Two runs of a build at different times differ by up to a factor of two: only rows slower than that by more than
    the limit are listed. compare.py is more precise, by interleaved runs of both.
    Raises: UsageError when no row is in both runs.
    """
    known = {str(row.get("name")): row for row in before}
    lines = []
    compared = 0
    for row in now:
        old = known.get(row.name)
        if old is None:
            continue
        for column in ("page_cache_ns", "durable_ns"):
            ours, theirs = getattr(row, column), old.get(column)
            if ours is None or not theirs:
                continue
            compared += 1
            ratio, was = ours / row.floor_ns, float(theirs) / float(old["floor_ns"])
            if ratio > _APART * was * (1 + limit_percent / 100):
                kind = column.removesuffix("_ns").replace("_", " ")
                lines.append(f"{row.name}, {kind}: {ratio:.2f} times its floor, before {was:.2f}")
    if not compared:
        raise UsageError(
            f"--compare: expected a row that is in both runs, found {', '.join(known) or 'none'} in the earlier one "
            f"and {', '.join(row.name for row in now) or 'none'} now"
        )
    return lines
