"""Offsets of a stream: their text for Spark, and the shares of a limit.

Room: tests. Nothing here starts Spark.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqfast.errors import UsageError
from mqfast.spark import offsets as o

PLACES = st.tuples(st.sampled_from(["a", "b", "%RETRY%g", "t-1"]), st.integers(0, 12))
BACKLOGS = st.dictionaries(PLACES, st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=12)


def ends(backlog: dict[o.Place, tuple[int, int]]) -> tuple[o.Offsets, o.Offsets]:
    return {p: first for p, (first, _) in backlog.items()}, {p: first + n for p, (first, n) in backlog.items()}


@given(st.dictionaries(PLACES, st.integers(0, 2**63 - 1)))
def test_what_spark_keeps_is_sorted_and_comes_back(offsets: o.Offsets) -> None:
    spark = o.encode(dict(sorted(offsets.items(), reverse=True)))
    assert json.dumps(spark) == json.dumps(spark, sort_keys=True)
    assert o.decode(json.loads(json.dumps(spark))) == offsets


@pytest.mark.parametrize(
    "spark", [{"a": 1}, {"/1": 1}, {"a/": 1}, {"a/x": 1}, {"a/1": -1}, {"a/1": "1"}, {"a/1": True}, {"a/1": 1.5}]
)
def test_foreign_offsets_are_refused(spark: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="offset of"):
        o.decode(spark)


def test_an_offset_of_the_log_is_not_one_of_queues() -> None:
    assert o.log_position(o.encode_log(17)) == 17
    with pytest.raises(UsageError, match="order"):
        o.log_position({"a/0": 17})
    with pytest.raises(UsageError, match="expected topic/queue"):
        o.decode(o.encode_log(17))


def test_a_queue_that_is_new_begins_at_its_first_message() -> None:
    assert o.with_new_queues({("a", 0): 5}, {("a", 0): (3, 9), ("b", 1): (2, 4)}) == {("a", 0): 5, ("b", 1): 2}


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


def test_turns_reach_every_queue_when_the_limit_is_below_their_number() -> None:
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
