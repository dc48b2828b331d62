"""A seed is a run: the same events at the same virtual times, in this process and in another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim.scenarios import fail_over, one_broker, send_and_consume

from mqfast.sim import run_seed

_HERE = Path(__file__).resolve().parent
_SEEDS = 100 if os.environ.get("MQFAST_WHOLE") else 3


@pytest.mark.parametrize("scenario", [send_and_consume, one_broker, fail_over])
def test_a_seed_repeats_all_events(scenario: object) -> None:
    for seed in range(_SEEDS):
        first, second = run_seed(scenario, seed), run_seed(scenario, seed)  # type: ignore[arg-type]
        assert first == second
        assert first.failure is None


def test_different_seeds_are_different_runs() -> None:
    assert run_seed(send_and_consume, 1).hash != run_seed(send_and_consume, 2).hash


def test_the_order_of_hashes_reaches_no_decision() -> None:
    """Compare processes with different hashes of text."""
    code = "from scenarios import fail_over; from mqfast.sim import run_seed; print(run_seed(fail_over, 7).hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(_HERE)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (1, 2)
    }
    assert len(hashes) == 1
