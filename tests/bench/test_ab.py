"""The comparison of two versions (bench/ab.py): its interval, and one real run of a version against itself.

It must never build anything: the working tree stands for both versions.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "ab.py"


def test_interval_holds_the_truth(ab: ModuleType) -> None:
    """Of 200 samples with the true ratio 1.1 and wide noise, some 95 in 100 intervals hold it."""
    chance = random.Random(5)
    ab.DRAWS = 400
    held = 0
    for seed in range(200):
        low, high = ab.bootstrap([1.1 * chance.lognormvariate(0, 0.2) for _ in range(27)], seed)[1:]
        held += low <= 1.1 <= high
    assert 175 <= held <= 199


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.9, 0.91, 0.92, 0.9, 0.89, 0.9, 0.93], "faster"),
        ([1.1, 1.12, 1.09, 1.1, 1.11, 1.1, 1.1], "slower"),
        ([0.9, 1.1, 1.0, 0.95, 1.05, 1.2, 0.8], "no difference seen"),
    ],
)
def test_verdict(ab: ModuleType, ratios: list[float], verdict: str) -> None:
    """Faster or slower only where the whole interval is on one side."""
    found = ab.bootstrap(ratios)
    assert found.verdict == verdict
    assert found.low <= found.middle <= found.high


def test_a_version_against_itself() -> None:
    """Two processes take turns and a line a case comes out; nothing is surely 50 times slower than itself."""
    options = ["--rounds=3", "--processes=1", "--only=put 40 B", "--only=query", "--fail-above=5000"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), ".", ".", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "base: working tree; new: working tree; 1 x 3 rounds, page cache"
    assert lines[3].startswith("put 40 B ")
    assert lines[4].startswith("query ")
    assert " to " in lines[3]


def test_an_unknown_version(ab: ModuleType) -> None:
    """A wrong ref is told before anything is built."""
    with pytest.raises(SystemExit, match="no-such-ref: no such commit"):
        ab.build("no-such-ref")
