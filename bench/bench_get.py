"""get, query: from the page cache into Python. Targets: zero-copy >= 10 million messages a second, as bytes >= 3,
to numpy or Arrow >= 15; a key query that hits <= 0.7 us.
"""

from __future__ import annotations

import ctypes
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from harness import Floor, Table
from pytest_benchmark.fixture import BenchmarkFixture

import mqfast

COUNT = 100_000
WALKS = 10  # over all of it, a round
TIMES = 500  # a round asks for each key


@pytest.fixture
def store(place: Path) -> Iterator[mqfast.MessageStore]:
    """100,000 messages of 256 bytes in one queue, every hundredth with a key."""
    with mqfast.open(place / "store", maxHashSlotNum=50_000, maxIndexNum=200_000, profile="broker") as made:
        put = made.producer("Bench").put
        for number in range(COUNT):
            put(b"x" * 256, f"key{number}" if number % 100 == 0 else None)
        yield made


def _rate(benchmark: BenchmarkFixture, per_round: int) -> float:
    return per_round / statistics.median(benchmark.stats.stats.data)


def _reader_rate(benchmark: BenchmarkFixture, walk: Callable[[], int]) -> float:
    """Messages a second of a reader that reads on: rounds of some 50 ms, one after the other.

    Without a rest between them: after 30 ms of sleep the first walk on a virtual machine took twice as long and more
    (docs/dev/notebook.md).
    """

    def work() -> None:
        for _ in range(WALKS):
            assert walk() == COUNT

    benchmark.pedantic(work, rounds=31, warmup_rounds=1)
    return _rate(benchmark, COUNT * WALKS)


def _walk(store: mqfast.MessageStore) -> int:
    offset = seen = 0
    while True:
        found = store.get("Bench", 0, offset, 32)
        if not len(found):
            return seen
        for message in found:
            assert message is not None
        seen += len(found)
        offset = found.next_offset


def _copy(store: mqfast.MessageStore) -> int:
    offset = seen = 0
    while True:
        found = store.get("Bench", 0, offset, 32)
        if not len(found):
            return seen
        seen += len(found.bodies())
        offset = found.next_offset


def _objects_ns() -> float:
    """ns of the same loop over the cheapest objects that the interpreter can make, a new one each time."""
    nothing, seen = [()] * 32, 0
    began = time.perf_counter_ns()
    while seen < COUNT:
        found = nothing.copy()
        if not len(found):
            break
        for message in starmap(object, found):
            assert message is not None
        seen += len(found)
    return (time.perf_counter_ns() - began) / seen


def test_get_zero_copy(
    benchmark: BenchmarkFixture, store: mqfast.MessageStore, place: Path, table: Table, floor: Floor
) -> None:
    """Batches of 32, every message object taken."""
    least: list[tuple[float, float]] = []

    def work() -> None:
        assert _walk(store) == COUNT

    def between() -> None:
        least.append((floor.touch_ns(place, 256, COUNT), _objects_ns()))

    benchmark.pedantic(work, setup=between, rounds=9, warmup_rounds=1)
    rate = _rate(benchmark, COUNT)
    touch, objects = (statistics.median(column) for column in zip(*least, strict=True))
    in_c = f"records looked at {touch:.0f} ns, objects made {objects:.0f} ns"
    figure = f"{rate / 1e6:.1f} M/s ({1e9 / rate:.0f} ns)"
    table.add("get 32, zero-copy messages", figure, ">= 10 M/s", rate >= 10e6, baseline=in_c)


def test_get_bytes(benchmark: BenchmarkFixture, store: mqfast.MessageStore, table: Table) -> None:
    """Batches of 32, every body copied into a bytes object."""
    rate = _reader_rate(benchmark, lambda: _copy(store))
    table.add("get 32, bodies as bytes", f"{rate / 1e6:.1f} M/s", ">= 3 M/s", rate >= 3e6)


def _imports(store: mqfast.MessageStore, pyarrow: Any, batch: int) -> float:
    """ns a message that pyarrow takes for columns that are made already, with a schema that it has already."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    schema = pyarrow.schema(store.get("Bench", 0, 0, 1))
    took = seen = offset = 0
    while len(found := store.get("Bench", 0, offset, batch)):
        _, columns = found.__arrow_c_array__()
        place = address(columns, b"arrow_array")
        began = time.perf_counter_ns()
        pyarrow.RecordBatch._import_from_c(place, schema)
        took += time.perf_counter_ns() - began
        seen += len(found)
        offset = found.next_offset
    return took / seen


@pytest.mark.parametrize("batch", [32, 1000])
@pytest.mark.parametrize("kind", ["numpy", "arrow"])
def test_get_columns(
    benchmark: BenchmarkFixture,
    store: mqfast.MessageStore,
    place: Path,
    table: Table,
    floor: Floor,
    kind: str,
    batch: int,
) -> None:
    """Batches as columns: the fixed fields copied into numpy, or everything as a pyarrow.RecordBatch."""
    pyarrow = pytest.importorskip("pyarrow") if kind == "arrow" else None

    def work() -> int:
        offset = seen = 0
        while True:
            found = store.get("Bench", 0, offset, batch)
            if not len(found):
                return seen
            seen += len(found.to_numpy()) if pyarrow is None else found.to_arrow().num_rows
            offset = found.next_offset

    rate, target = _reader_rate(benchmark, work), 15e6
    if pyarrow is None:
        import numpy

        kind_of_row = store.get("Bench", 0, 0, 1).to_numpy().dtype
        count = 10_000
        room = batch * kind_of_row.itemsize

        def empty() -> Any:
            return numpy.ndarray(batch, kind_of_row, numpy.empty(room, numpy.uint8))

        took = timeit.timeit(empty, number=count) / count / batch * 1e9
        least = f"an empty array {took:.0f} ns"
    else:
        copy = statistics.median(floor.gather_ns(place, 256, batch) for _ in range(7))
        taken = statistics.median(_imports(store, pyarrow, batch) for _ in range(7))
        least = f"copying the bodies {copy:.0f} ns, pyarrow with ready columns and schema {taken:.0f} ns"
    figure = f"{rate / 1e6:.1f} M/s ({1e9 / rate:.0f} ns)"
    table.add(f"get {batch}, to {kind}", figure, f">= {target / 1e6:.0f} M/s", rate >= target, baseline=least)


def test_query(benchmark: BenchmarkFixture, store: mqfast.MessageStore, table: Table) -> None:
    """A key query that hits, compared with the message."""
    keys = [f"key{number}" for number in range(0, COUNT, 1000)]

    def work() -> None:
        for _ in range(TIMES):
            for key in keys:
                assert len(store.query("Bench", key)) == 1

    benchmark.pedantic(work, rounds=31, warmup_rounds=1)
    us = 1e6 / _rate(benchmark, len(keys) * TIMES)
    table.add("query by key, hit", f"{us:.2f} us", "<= 0.7 us", us <= 0.7)
