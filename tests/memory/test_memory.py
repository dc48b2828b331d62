"""Allocations fail in every public call: it raises MemoryError, and nothing else happens.

Room: tests/memory. Short form of ``make memory``: some of the calls, and of most of them every 60th allocation; what is
judged: loop.py. A failure names the command that repeats it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import memory_runs as runs
from cases import CASES
from sampling import WHOLE, Sample

STEP = 5 if WHOLE else 60
PARTS = 4
LANE = "make memory"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("part", range(PARTS))
def test_failing_allocations(part: int, seed: int, sample: Sample) -> None:
    names = [case.name for case in CASES][part::PARTS]
    names = sample.of(names, len(names) // 2, f"public calls with every {STEP}th allocation failing, part {part}", LANE)
    print(f"python tests/memory/memory_runs.py {STEP} {seed} {' '.join(names)}")
    try:
        counts, wrong = runs.run_cases(names, STEP, seed)
    except runs.CannotRun as reason:
        pytest.skip(str(reason))
    assert not wrong, "\n".join(wrong)
    assert counts["cases"] == len(names)
    assert counts["raised"] > len(names)


# They make so few that every single one can fail: what an engine allocates for itself is mostly one of them.
FEW = (
    *("put", "put-new-topic", "put-keys", "put-bytearray", "put-properties", "put-crc", "put-roll", "put-sync"),
    *("put-pool", "put-message", "put-light", "put-inner-batch", "put-nowait", "put-many", "put-many-bytearrays"),
    *("put-many-sync", "put-batch", "producer", "producer-put", "producer-put-key", "producer-put-many"),
    *("query", "offset-by-time", "bounds", "flush", "flush-pool"),
)


@pytest.mark.slow
@pytest.mark.sampled
def test_every_allocation_of_the_calls_that_make_few(seed: int, sample: Sample) -> None:
    names = sample.of(FEW, 7, "public calls with every allocation failing", LANE)
    print(f"python tests/memory/memory_runs.py 1 {seed} {' '.join(names)}")
    try:
        counts, wrong = runs.run_cases(names, 1, seed)
    except runs.CannotRun as reason:
        pytest.skip(str(reason))
    assert not wrong, "\n".join(wrong)
    assert counts["cases"] == len(names)
    assert counts["raised"] > 10 * len(names)


def test_every_allocation_of_calls_that_build_lists_and_json() -> None:
    """Cython 3.3 and CPython 3.11 release or use memory that is not theirs there; the build and the code avoid both."""
    try:
        counts, wrong = runs.run_cases(["stats", "delete-topic"], 5, 3)
    except runs.CannotRun as reason:
        pytest.skip(str(reason))
    assert not wrong, "\n".join(wrong)
    assert counts["cases"] == 2


def test_service_threads_outlive_a_lack_of_memory() -> None:
    try:
        counts, wrong = runs.run_cases(["services"], STEP, 0)
    except runs.CannotRun as reason:
        pytest.skip(str(reason))
    assert not wrong, "\n".join(wrong)
    assert counts["faults"] > 30


def test_a_child_that_breaks_before_its_first_case_is_an_error() -> None:
    try:
        counts, wrong = runs.run_cases(["no such case"], STEP, 0)
    except runs.CannotRun as reason:
        pytest.skip(str(reason))
    assert not counts
    assert len(wrong) == 1
    assert "the child ended with status 1" in wrong[0]
    assert "StopIteration" in wrong[0]
