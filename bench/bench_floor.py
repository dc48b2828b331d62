"""put beside its floor, interleaved: copy and CRC of the same bytes into a file mapping that was made writable before.

Targets: one put of 1 KiB <= 1.5 times the floor, a batch <= 1.15 times; batches of 64 B >= 12 M/s from bytes and from
numpy and Arrow buffers.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from harness import QUICK, Floor, Table, interleaved, ratio_of, scaled
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

# Both sides: so many that no clock sees, for each round finds the interpreter, the code and what it reads in no cache,
# which costs 20 to 60 us; then so many puts, of so many bytes at most, which with the others are within the window of
# pages that are ready.
WARM_UP = 2000
PUTS = 20_000
PUT_BYTES = 10 << 20
# What the floor makes ready besides, so that its memory is in no cache either: else it would be far too low.
SPARE_BYTES = scaled(256 << 20)
ROUNDS = 3 if QUICK else 31  # short and many, so that both sides meet the same moments of the machine
HEADER = 91 + 5 + 10  # fixed fields, topic, tag property


def _puts(size: int) -> int:
    return scaled(min(PUTS, PUT_BYTES // (size + HEADER)))


def _calls(call: Callable[[Any], object], body: object, count: int) -> Callable[[], float]:
    """ns of one call."""

    def work() -> float:
        for _ in repeat(None, WARM_UP):
            call(body)
        began = time.perf_counter_ns()
        for _ in repeat(None, count):
            call(body)
        return (time.perf_counter_ns() - began) / count

    return work


def _handed_over(bodies: Any) -> Callable[[], float]:
    """ns a body of what a call has to do before it sees the first one. Of a list: a reference to each body, as another
    thread may change the list meanwhile; of arrays: what numpy and pyarrow do to show where the bytes are.
    """
    if isinstance(bodies, list):
        show: Callable[[], object] = partial(list, bodies)
    else:
        show = getattr(bodies, "__arrow_c_array__", partial(memoryview, bodies))

    def work() -> float:
        began = time.perf_counter_ns()
        for _ in repeat(None, 20):
            show()
        return (time.perf_counter_ns() - began) / (20 * len(bodies))

    return work


def _batch(store: mqfast.MessageStore, bodies: Any, count: int) -> Callable[[], float]:
    def work() -> float:
        for _ in repeat(None, WARM_UP // len(bodies)):
            store.put_many("Bench", bodies)
        began = time.perf_counter_ns()
        for _ in repeat(None, max(1, count // len(bodies))):
            store.put_many("Bench", bodies)
        return (time.perf_counter_ns() - began) / (max(1, count // len(bodies)) * len(bodies))

    return work


def _row(
    table: Table, what: str, found: list[list[float]], limit: float | None, least_rate: float | None = None
) -> None:
    ours, floor, whole, *calls = (statistics.median(column) for column in found)
    ratio = ratio_of(*found[:2])
    batch = "put_many" in what
    name = ("references" if "from bytes" in what else "their array") if batch else "a call that answers"
    parts = "unit and fields" if batch else "unit, fields, lock and time"
    call = f", {name} {calls[0]:.1f} ns" if calls else ""
    figure = f"{ratio:.2f}x ({ours:.0f} ns, {1e3 / ours:.1f} M/s)"
    in_c = f"copy and CRC {floor:.0f} ns, with {parts} {whole:.0f} ns{call}"
    if limit is not None:
        table.add(what, figure, f"<= {limit:g}x the floor", ratio <= limit, baseline=in_c)
    elif least_rate is not None:
        table.add(what, figure, f">= {least_rate / 1e6:g} M/s", 1e9 / ours >= least_rate, baseline=in_c)
    else:
        table.add(what, figure, "-", None, baseline=in_c)


@pytest.mark.parametrize(("size", "limit"), [(1024, 1.5), (40, None)])
def test_single(
    benchmark: BenchmarkFixture, place: Path, table: Table, floor: Floor, size: int, limit: float | None
) -> None:
    """A bound producer beside the floor."""
    count = _puts(size)
    with mqfast.open(place / "store", profile="broker") as store:
        works = (
            _calls(store.producer("Bench", 0, "TagA").put, b"x" * size, count),
            lambda: floor.copy_ns(place, size, count, HEADER, unseen=WARM_UP, spare=SPARE_BYTES),
            lambda: floor.record_ns(place, size, count, HEADER, unseen=WARM_UP, spare=SPARE_BYTES, alone=True),
            _calls(math.fabs, 0.5, count),  # about the cheapest call with one argument that answers with a new object
        )
        found = benchmark.pedantic(lambda: interleaved(*works, rounds=ROUNDS), rounds=1)
    _row(table, f"producer.put {size} B beside the floor", found, limit)


def _buffers(kind: str, size: int, count: int) -> Any:
    if kind == "bytes":
        return [b"x" * size] * count
    if kind == "numpy rows":
        import numpy

        return numpy.full((count, size), 120, dtype=numpy.uint8)
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.array([b"x" * size] * count, type=pyarrow.binary())


@pytest.mark.parametrize("kind", ["bytes", "numpy rows", "an Arrow array"])
@pytest.mark.parametrize(("size", "limit", "rate"), [(1024, 1.15, None), (64, None, 12e6)])
def test_batch(
    benchmark: BenchmarkFixture,
    place: Path,
    table: Table,
    floor: Floor,
    size: int,
    limit: float | None,
    rate: float | None,
    kind: str,
) -> None:
    """A thousand bodies a call beside the floor, which reads as many: one object over and over, or a thousand rows."""
    count, many, bodies = _puts(size), 1 if kind == "bytes" else 1000, _buffers(kind, size, 1000)
    with mqfast.open(place / "store", profile="broker") as store:
        works = (
            _batch(store, bodies, count),
            lambda: floor.copy_ns(place, size, count, HEADER - 10, many, unseen=WARM_UP, spare=SPARE_BYTES),
            lambda: floor.record_ns(place, size, count, HEADER - 10, many, unseen=WARM_UP, spare=SPARE_BYTES),
            _handed_over(bodies),
        )
        found = benchmark.pedantic(lambda: interleaved(*works, rounds=ROUNDS), rounds=1)
    _row(table, f"put_many {size} B from {kind} beside the floor", found, limit, rate)
