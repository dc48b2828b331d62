"""What ``make test`` takes of a sweep that is too long for the suite: a sample that changes every day.

Room: tests; conftest.py gives it to the tests. It must never take a sample that cannot be repeated (``MQFAST_SEED``) or
that the report of the run does not name. ``make sweeps`` sets MQFAST_WHOLE=1: then every
sample is the whole, as in the runs with more examples (MQFAST_LONG=1).
"""

from __future__ import annotations

import datetime
import os
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

_Item = TypeVar("_Item")

LONG = os.environ.get("MQFAST_LONG") == "1"
WHOLE = LONG or os.environ.get("MQFAST_WHOLE") == "1"
_SEED = "MQFAST_SEED"


def seed_of_the_run() -> int:
    """MQFAST_SEED, by default the date as a number; the processes of one run agree on it, also over midnight."""
    return int(os.environ.setdefault(_SEED, f"{datetime.datetime.now(datetime.UTC):%Y%m%d}"))


class Sample:
    """What one test takes. Every choice depends on the seed of the run and the name of the test alone."""

    def __init__(self, name: str) -> None:
        self.whole = WHOLE
        self.seed = seed_of_the_run() ^ zlib.crc32(name.encode())
        self.rng = random.Random(self.seed)
        self.lines: list[str] = []

    def note(self, taken: int, whole: int, what: str, lane: str = "make sweeps") -> None:
        """A line for the report: so many of so many, and the lane that takes them all."""
        if taken != whole:
            self.lines.append(f"{taken:,} of {whole:,} {what}; all of them: {lane}")

    def of(self, items: Iterable[_Item], count: int, what: str, lane: str = "make sweeps") -> list[_Item]:
        """``count`` of the items in their order, all of them in the long form; and a line for the report."""
        every = list(items)
        if self.whole or count >= len(every):
            return every
        chosen = [every[index] for index in sorted(self.rng.sample(range(len(every)), count))]
        self.note(count, len(every), what, lane)
        return chosen


def choose(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Of the cases of each test that is marked ``sampled(count)``, leave ``count``. Returns: (kept, left out)."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None and marker.args and not WHOLE:
            name = marker.kwargs.get("group") or item.nodeid.partition("[")[0]
            cases.setdefault(name, []).append(item)
    dropped: set[pytest.Item] = set()
    for name, group in cases.items():
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        sample = Sample(name)
        kept = sample.of(group, marker.args[0], f"cases of {name}", marker.kwargs.get("lane", "make sweeps"))
        dropped.update(set(group) - set(kept))
        for item in kept:
            item.user_properties += [("sampled", line) for line in sample.lines]
    return [item for item in items if item not in dropped], [item for item in items if item in dropped]
