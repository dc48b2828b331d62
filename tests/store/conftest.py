"""Fixtures of several tests of the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from simulation import Sim, in_real_time


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    """A simulated system in real time."""
    with in_real_time(tmp_path) as sim:
        yield sim
