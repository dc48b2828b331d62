"""A killed process loses nothing that was promised: random kills, and kills at single system calls.

Room: tests/kill. Short form of `make crash-kill`; what is drawn and what is judged: runs.py and syscalls.py. A failure
names the command that repeats it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import runs
import syscalls
from sampling import WHOLE, Sample

KILLS = 125 if WHOLE else 5
STEP = 3 if WHOLE else 60
LANE = "make crash-kill"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("part", range(4))
def test_random_kills(part: int, seed: int, sample: Sample) -> None:
    sample.note(KILLS, 125, f"kills at random moments, part {part}", LANE)
    print(f"python tests/kill/runs.py {KILLS} {seed}")
    counts = runs.run_until(KILLS, seed)
    assert counts["kills"] >= KILLS
    assert counts["acknowledged"] > 0


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", syscalls.WORKLOADS)
def test_kills_at_system_calls(tmp_path: Path, name: str, sample: Sample) -> None:
    first = sample.seed % STEP + 1
    print(f"first call {first}, every {STEP}th")
    try:
        counts = syscalls.run(syscalls.build(tmp_path), name, STEP, first)
    except syscalls.CannotTrace as reason:
        pytest.skip(str(reason))
    assert counts["calls"] > 100, "the tracer does not see the workload"
    sample.note(counts["kills"], counts["calls"], f"kills at system calls of {name!r}", LANE)
    assert counts["kills"] > 100 // STEP


def test_the_judge_sees_a_lost_message(tmp_path: Path) -> None:
    killed = runs.write_and_kill(_plain(), tmp_path / "store")
    killed.acknowledged[0].durable.add(10**6)
    with pytest.raises(runs.Lost, match="1 acknowledged messages are lost"):
        runs.judge(tmp_path / "store", 5, [killed])


def test_the_judge_sees_a_changed_message(tmp_path: Path) -> None:
    killed = runs.write_and_kill(_plain(), tmp_path / "store")
    with pytest.raises(runs.Lost, match=r"content of 0\.0"):
        runs.judge(tmp_path / "store", 6, [killed])


def _plain() -> runs.Plan:
    return runs.Plan(
        seed=5,
        generation=0,
        way="put",
        threads=1,
        sync=False,
        pool=False,
        settings={"mappedFileSizeCommitLog": 1 << 20, "messageIndexEnable": True},
        body_bytes=40,
        kill_when="acks",
        kill_after=50,
    )
