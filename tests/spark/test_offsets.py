"""Offsets of a stream: their text for Spark, and the shares of a limit.

Nothing here starts Spark.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqfast.errors import UsageError
from mqfast.spark import offsets as o

PLACES = st.tuples(st.sampled_from(["a", "b", "%RETRY%g", "t-1"]), st.integers(0, 12))
BACKLOGS = st.dictionaries(PLACES, st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=12)


def ends(backlog: dict[o.Place, tuple[int, int]]) -> tuple[o.Offsets, o.Offsets]:
    return {p: first for p, (first, _) in backlog.items()}, {p: first + n for p, (first, n) in backlog.items()}


NUMBERS = st.integers(0, 2**63 - 1)
MARKS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)
LOST = st.builds(o.Lost, NUMBERS, NUMBERS, NUMBERS)
BY_QUEUE = st.builds(
    o.StreamOffset, queues=st.dictionaries(PLACES, NUMBERS), first=st.dictionaries(PLACES, NUMBERS),
    read=st.integers(-1, 2**63 - 1), marks=MARKS, lost=LOST,
)  # fmt: skip
BY_LOG = st.builds(
    o.StreamOffset, position=NUMBERS, first_position=st.none() | NUMBERS, marks=MARKS, lost=LOST,
    topics=st.lists(st.text(min_size=1), unique=True).map(sorted).map(tuple),
)  # fmt: skip


@given(BY_QUEUE | BY_LOG, st.tuples(NUMBERS, NUMBERS, NUMBERS))
def test_encoded_offsets_are_sorted_and_decode_to_the_same(offset: o.StreamOffset, anchor: o.Anchor) -> None:
    if offset.queues is not None:
        anchors = dict.fromkeys(list(offset.queues)[::2], anchor)
        backwards = dict(sorted(offset.queues.items(), reverse=True))
        offset = replace(offset, queues=backwards, anchors=anchors)
    spark = o.encode(offset)
    assert json.dumps(spark) == json.dumps(spark, sort_keys=True)
    assert o.decode(json.loads(json.dumps(spark)), along_log=offset.queues is None) == offset


def test_offsets_of_version_1_are_read() -> None:
    assert o.decode({"a/1": 3, "a/0": 2}, along_log=False) == o.StreamOffset({("a", 0): 2, ("a", 1): 3}, version=1)
    assert o.decode({"phy": 17}, along_log=True) == o.StreamOffset(position=17, version=1)
    assert o.decode({}, along_log=False).queues == {}


@pytest.mark.parametrize(
    "spark",
    [
        {"a": 1}, {"/1": 1}, {"a/": 1}, {"a/x": 1}, {"a/1": -1}, {"a/1": "1"}, {"a/1": True}, {"a/1": 1.5},
        {"version": 2}, {"version": 2, "queues": {"a/0": []}}, {"version": 2, "queues": {"a/0": [1, 2]}},
        {"version": 2, "queues": 5}, {"version": 2, "queues": {}, "marks": [1]}, {"version": "2", "queues": {}},
        {"version": 2, "queues": {}, "lost": 3}, {"version": 2, "queues": {}, "from": {"a": 1}},
    ],
)  # fmt: skip
def test_foreign_offsets_are_refused(spark: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="offset of"):
        o.decode(spark, along_log=False)


def test_offsets_of_a_newer_mqfast_are_refused() -> None:
    with pytest.raises(UsageError, match="a newer mqfast wrote it"):
        o.decode({"version": 3, "queues": {}}, along_log=False)


@pytest.mark.parametrize("version", [{}, {"version": 2}])
def test_an_offset_of_the_log_is_not_one_of_queues(version: dict[str, int]) -> None:
    queues = {"queues": {"a/0": [17]}} if version else {"a/0": 17}
    assert o.decode({"phy": 17, **version}, along_log=True).position == 17
    with pytest.raises(UsageError, match="order"):
        o.decode({**queues, **version}, along_log=True)
    with pytest.raises(UsageError, match="expected topic/queue"):
        o.decode({"phy": 17, **version}, along_log=False)


def test_an_end_is_never_behind_its_start() -> None:
    found = o.advance({("a", 0): 5, ("a", 1): 7, ("a", 2): 1}, {("a", 0): 3, ("a", 1): 9})
    assert found == {("a", 0): 5, ("a", 1): 9, ("a", 2): 1}
    assert o.backlog({("a", 0): 5, ("a", 1): 7}, found) == 2 + 1


@settings(deadline=None)
@given(BACKLOGS, st.integers(1, 3000))
def test_a_row_limit_is_used_up_and_never_passed(backlog: dict[o.Place, tuple[int, int]], most: int) -> None:
    start, end = ends(backlog)
    found = o.limit_rows(start, end, most)
    assert list(found) == sorted(end)
    assert all(start[p] <= found[p] <= end[p] for p in found)
    assert o.backlog(start, found) == min(most, o.backlog(start, end))


@settings(deadline=None)
@given(BACKLOGS, st.integers(1, 200))
def test_every_queue_gets_a_row_where_the_limit_allows_it(backlog: dict[o.Place, tuple[int, int]], most: int) -> None:
    start, end = ends(backlog)
    waiting = [p for p in end if end[p] > start[p]]
    found = o.limit_rows(start, end, most)
    assert sum(found[p] > start[p] for p in waiting) == min(most, len(waiting))


def test_round_robin_reaches_every_queue_with_a_limit_below_their_number() -> None:
    start: o.Offsets = {("t", q): 0 for q in range(7)}
    end = {place: 100 if place[1] == 0 else 3 for place in start}
    served: set[o.Place] = set()
    for _ in range(7):
        found = o.limit_rows(start, end, 2)
        served |= {p for p in found if found[p] > start[p]}
        start = found
    assert served == set(end)


@settings(deadline=None)
@given(BACKLOGS, st.integers(1, 4000), st.integers(0, 2**32))
def test_a_byte_limit_is_never_passed_but_by_one_row(
    backlog: dict[o.Place, tuple[int, int]], most: int, seed: int
) -> None:
    start, end = ends(backlog)

    asked = 0

    def sizes_of(place: o.Place, first: int, last: int) -> list[int]:
        nonlocal asked
        assert start[place] <= first < last <= end[place]
        asked += last - first
        return [1 + (seed + 31 * k + place[1]) % 97 for k in range(first, last)]

    def size_of(place: o.Place, first: int, last: int) -> int:
        return sum(1 + (seed + 31 * k + place[1]) % 97 for k in range(first, last))

    found = o.limit_bytes(start, end, most, sizes_of)
    assert asked <= 2 * (most + 1024 * len(end))
    taken = sum(size_of(p, start[p], found[p]) for p in found)
    assert all(start[p] <= found[p] <= end[p] for p in found)
    assert taken <= most or o.backlog(start, found) == 1
    assert o.backlog(start, found) > 0 or o.backlog(start, end) == 0
    if sum(size_of(p, start[p], end[p]) for p in end) <= most:
        assert found == end
    else:
        # Nothing that would still fit is left behind.
        rest = most - taken
        assert all(found[p] == end[p] or size_of(p, found[p], found[p] + 1) > rest for p in found)
