"""Reading with Spark on one processor and on two: processes of their own, turn about, held to that many processors.
Target: twice the processors >= 1.7x the rate of full rows.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import QUICK, ROOT, Table, ratio_of

pytest.importorskip("pyspark", reason="needs mqfast[spark]")
from bench_spark import STORE_BYTES, make_store

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

PROGRAM = Path(__file__).with_name("spark_cores.py")


def _rates(store: Path, cores: int) -> list[tuple[float, ...]]:
    command = [sys.executable, str(PROGRAM), str(store), str(cores), "1" if QUICK else "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return [tuple(map(float, line.split())) for line in run.stdout.splitlines() if line[:1].isdigit()]


def test_two_processors(benchmark: BenchmarkFixture, place: Path, table: Table) -> None:
    """Full rows, and one column, on one processor and on two."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    make_store(place / "store", STORE_BYTES)
    found: dict[int, list[tuple[float, ...]]] = {1: [], 2: []}

    def rounds() -> None:
        for _ in range(1 if QUICK else 3):
            for cores, rates in found.items():
                rates += _rates(place / "store", cores)

    benchmark.pedantic(rounds, rounds=1)
    for what, one, two, least in zip(
        ("full rows", "one int column"), zip(*found[1], strict=True), zip(*found[2], strict=True), (1.7, None),
        strict=True,
    ):  # fmt: skip
        ratio = ratio_of(two, one)
        text = f"{ratio:.2f}x ({statistics.median(one) / 1e9:.2f} and {statistics.median(two) / 1e9:.2f} GB/s)"
        target, met = (f">= {least}x", None if QUICK else ratio >= least) if least else ("", None)
        table.add(f"Spark: {what} on 2 processors beside 1", text, target, met)
