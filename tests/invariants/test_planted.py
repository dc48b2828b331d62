"""A rule of the engine that is broken stops each long lane: planted by MQFAST_PLANT on a build that checks its rules.

Room: tests. It must never pass because a lane did not run: each lane also runs once without a plant.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mqfast
from mqfast.store.base.os_api import IS_DEBUG

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not IS_DEBUG, reason="this build does not check its rules: make test-debug")

LANES = {
    "crash": [
        "tests/crash/sweep.py",
        "--workload",
        "roll-sync-slow-clock",
        "--images",
        "40",
        "--per-call",
        "1",
        "--jobs",
        "1",
    ],
    "kill": ["tests/kill/runs.py", "2"],
    "damage": ["-m", "tests.damage", "--small", "--count", "60", "--processes", "1"],
    "races": ["-P", "-m", "tests.races", "--seconds", "3", "--no-forks", "--seed", "1"],
}
PLANTS = {
    "crash": ("flushed", "flushed"),
    "kill": ("written", "flushed <= "),
    "damage": ("unit", "room_end"),
    "races": ("owner", "lock_owner"),
}


def run(command: list[str], plant: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({} if plant is None else {"MQFAST_PLANT": plant})
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def broken(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("broken invariant: ")]


@pytest.mark.parametrize("lane", LANES)
def test_a_planted_violation_stops_the_lane(lane: str) -> None:
    plant, names = PLANTS[lane]
    done = run(LANES[lane], plant)
    found = broken(done.stderr + done.stdout)
    assert found, done.stderr[-3000:]
    assert names in found[0]
    assert done.returncode != 0


@pytest.mark.parametrize("lane", LANES)
def test_the_same_lane_passes_without_it(lane: str) -> None:
    done = run(LANES[lane], None)
    assert broken(done.stderr + done.stdout) == []
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        ("flushed", "flushed"),
        ("written", "flushed"),
        ("unit", "room_end"),
        ("owner", "lock_owner"),
        ("read", "readable_end"),
    ],
)
def test_the_message_names_file_line_condition_and_values(tmp_path: Path, plant: str, names: str) -> None:
    code = (
        "import sys, mqfast\n"
        "with mqfast.open(sys.argv[1]) as store:\n"
        "    store.put('T', b'x')\n"
        "    store.put_many('T', [b'y'] * 3)\n"
        "    store.flush()\n"
        "    store.get('T', 0, 0)\n"
    )
    done = run(["-c", code, str(tmp_path / "store")], plant)
    assert done.returncode == -6, done.stderr
    (line,) = broken(done.stderr)
    assert names in line
    assert line.split(": ")[1].rsplit(":", 1)[1].isdigit()
    assert line.endswith("]")
    # what was acknowledged before is there: the process ended before anything more was written
    with mqfast.open(tmp_path / "store") as store:
        assert store.max_offset("T", 0) >= 0
