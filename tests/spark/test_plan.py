"""Planning: from snapshots made up here to pieces that hold everything once. Nothing here opens a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from mqfast.spark.plan import OffsetRange, Queue, ScanRange, Selection, Snapshot, Split, plan
from mqfast.spark.pushdown import Narrowed, narrow

RECORD = 100


class Even:
    """A log of records of equal length; queues take turns."""

    def __init__(self, span: tuple[int, int] = (0, 0)) -> None:
        self.span = span

    def boundary(self, physical_offset: int, limit: int) -> int:
        return min(-(-physical_offset // RECORD) * RECORD, limit)

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        return [self.boundary(offset, limit) for offset in physical_offsets]

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        return self.span


def snapshot(queues: Sequence[Queue], log_end: int) -> Snapshot:
    return Snapshot("/store", "id", 0, 0, log_end, tuple(queues))


COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=12)
LIMITS = st.tuples(st.none() | st.integers(1, 40), st.none() | st.integers(1, 40)).map(
    lambda pair: pair if None in pair or pair[0] <= pair[1] else pair[::-1]
)


@given(counts=COUNTS, partition_bytes=st.integers(50, 40_000), limits=LIMITS)
def test_along_queues_every_message_is_in_one_piece_and_pieces_are_alike(
    counts: list[int], partition_bytes: int, limits: tuple[int | None, int | None]
) -> None:
    queues = [Queue("T", i, 5, 5 + count) for i, count in enumerate(counts)]
    ranges = tuple(OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in queues)
    total = sum(counts)
    pieces = plan(
        snapshot(queues, total * RECORD), Selection(ranges), Even((0, total * RECORD)), order="queue",
        partition_bytes=partition_bytes, min_partitions=limits[0], max_partitions=limits[1],
    )  # fmt: skip
    read = [(r.queue_id, n) for piece in pieces for r in piece.queues for n in range(r.start, r.end)]
    assert read == [(q.queue_id, n) for q in queues for n in range(q.min_offset, q.max_offset)]
    sizes = [sum(r.end - r.start for r in piece.queues) for piece in pieces]
    assert all(sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1
    if limits[0] is not None:
        assert len(pieces) >= min(limits[0], total)
    if limits[1] is not None:
        assert len(pieces) <= limits[1]


@given(
    records=st.integers(0, 500), partition_bytes=st.integers(50, 40_000), limits=LIMITS,
    within=st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)).map(lambda pair: (min(pair), max(pair))),
)  # fmt: skip
def test_along_the_log_pieces_meet_at_records(
    records: int, partition_bytes: int, limits: tuple[int | None, int | None], within: tuple[int, int]
) -> None:
    end = records * RECORD
    pieces = plan(
        snapshot([], end), Selection(whole=True), Even(), order="commitlog", partition_bytes=partition_bytes,
        min_partitions=limits[0], max_partitions=limits[1], within=within,
    )  # fmt: skip
    scans = [piece.scan for piece in pieces if piece.scan is not None]
    assert len(scans) == len(pieces)
    assert all(a.end == b.start for a, b in pairwise(scans))
    begun = [at for scan in scans for at in range(-(-scan.start // RECORD) * RECORD, scan.end, RECORD)]
    assert begun == [at for at in range(0, end, RECORD) if within[0] <= at < within[1]]
    assert all(scan.start % RECORD == 0 for scan in scans)
    assert limits[1] is None or len(pieces) <= limits[1]


def test_the_cheaper_order_is_taken() -> None:
    queues = [
        Queue("A", 0, 0, 900),
        Queue("B", 0, 0, 100),
        Queue("%LMQ%x", 0, 0, 50),
        Queue("C", 0, 0, 9, is_batch=True),
    ]
    shot = snapshot(queues, 100_900)

    def along_log(*names: str, whole: bool = False, span: tuple[int, int] = (0, 100_900)) -> bool:
        ranges = tuple(OffsetRange(q.topic, q.queue_id, 0, q.max_offset) for q in queues if q.topic in names)
        pieces = plan(shot, Selection(ranges, whole), Even(span))
        return pieces[0].scan is not None

    assert along_log(whole=True)
    assert along_log("A")
    assert not along_log("B")
    assert along_log("B", span=(0, 20_000))  # they lie close to each other
    assert not along_log("A", "%LMQ%x")  # only its queue knows which messages are a light queue's
    assert not along_log("A", "C")


def test_nothing_to_read_is_no_piece() -> None:
    assert plan(snapshot([], 0), Selection(whole=True), Even()) == []
    assert plan(snapshot([Queue("A", 0, 3, 3)], 100), Selection(), Even()) == []
    assert plan(snapshot([], 500), Selection(whole=True), Even(), within=(700, 900)) == []
    assert plan(snapshot([], 500), Selection(whole=True), Even()) == [Split(scan=ScanRange(0, 500))]


# --- filters ---------------------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
MS = round(MOMENT.timestamp() * 1000)
MICRO = timedelta(microseconds=1)


@pytest.mark.parametrize("filters, left", [
    ([EqualTo(("topic",), "A")], {"topics": frozenset("A")}),
    ([In(("topic",), ["A", "B", None]), EqualTo(("topic",), "B")], {"topics": frozenset("B")}),
    ([StringStartsWith(("topic",), "ord"), StringStartsWith(("topic",), "o")], {"topic_prefix": "ord"}),
    ([In(("queueId",), [1, 2])], {"queue_ids": frozenset((1, 2))}),
    ([EqualTo(("tags",), "x")], {"tags": frozenset("x")}),
    ([GreaterThan(("queueOffset",), 4), LessThanOrEqual(("queueOffset",), 9)], {"queue_offsets": (5, 10)}),
    ([EqualTo(("physicalOffset",), 7)], {"physical_offsets": (7, 8)}),
    ([GreaterThanOrEqual(("storeTimestamp",), MOMENT), LessThan(("storeTimestamp",), MOMENT)], {"stored_ms": (MS, MS)}),
    ([GreaterThan(("storeTimestamp",), MOMENT), LessThanOrEqual(("storeTimestamp",), MOMENT)],
     {"stored_ms": (MS + 1, MS + 1)}),
    ([GreaterThanOrEqual(("storeTimestamp",), MOMENT + MICRO), LessThan(("storeTimestamp",), MOMENT + MICRO)],
     {"stored_ms": (MS + 1, MS + 1)}),
    # not understood, so nothing is narrowed
    ([Not(EqualTo(("topic",), "A")), IsNotNull(("tags",)), EqualNullSafe(("topic",), "A")], {}),
    ([EqualTo(("properties", "k"), "v"), EqualTo(("queueOffset",), True), EqualTo(("storeTimestamp",), 5)], {}),
])  # fmt: skip
def test_bounds_of_pushed_down_filters(filters: list[Any], left: dict[str, Any]) -> None:
    found = narrow(filters)
    names = ("queue_offsets", "physical_offsets", "stored_ms")
    for name in names:
        low, high = getattr(found, name)
        expected = left.get(name, getattr(Narrowed(), name))
        if name in left:
            assert (max(low, -(1 << 63)), high) == expected
        else:
            assert (low, high) == expected
    for name in ("topics", "topic_prefix", "queue_ids", "tags"):
        assert getattr(found, name) == left.get(name, getattr(Narrowed(), name))


def test_a_narrowed_selection_keeps_its_bounds() -> None:
    whole = Selection((OffsetRange("A", 0, 5, 20), OffsetRange("A", 1, 0, 3), OffsetRange("B", 0, 0, 9)), whole=True)
    assert Narrowed(stored_ms=(1, 2)).apply(whole) is whole
    assert Narrowed(topics=frozenset("A"), queue_offsets=(3, 7)).apply(whole) == Selection((OffsetRange("A", 0, 5, 7),))
    assert Narrowed(topic_prefix="B", queue_ids=frozenset((0,))).apply(whole) == Selection((OffsetRange("B", 0, 0, 9),))
    assert Narrowed(topics=frozenset()).apply(whole) == Selection()
