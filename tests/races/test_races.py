"""The short form of the race lane: every setting once, in a process of its own that a hang ends with all stacks.

The long form, with a thread sanitizer, is ``make races``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("MQFAST_RACES", "6"))


def stress(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.races", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=SECONDS + 300,
    )


@pytest.mark.slow
def test_everything_at_once(disk_path: Path) -> None:
    done = stress(disk_path, "--seconds", str(SECONDS), "--round", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {kind: int(count) for count, _, kind in (part.partition(" ") for part in last_counts(done.stdout))}
    assert counts["opens"] >= 8, "not every setting was run"
    for kind in ("put", "put_many", "put_batch", "get", "tail", "delete_topic", "forks", "views held"):
        assert counts[kind] > 0, f"no {kind} among {counts}"
    assert counts["files removed by retention"] > 0
    assert counts["clean after close"] == counts["opens"]
    assert not any(disk_path.iterdir()), "the stress left files behind"


def last_counts(output: str) -> list[str]:
    return output.strip().rpartition("races: ")[2].split(", ")


@pytest.mark.parametrize(
    ("body", "belongs"),
    [(b"a/0/1\na/0/1a/0/1", True), (b"a/0/1\na/0/1a/0/", False), (b"a/0/1\nb/0/1", False), (b"b/0/1\n", False)],
)
def test_the_judge_of_bodies(body: bytes, belongs: bool) -> None:
    from races.stress import Broken, check_body

    if belongs:
        check_body(body, "a", 0)
    else:
        with pytest.raises(Broken):
            check_body(body, "a", 0)
