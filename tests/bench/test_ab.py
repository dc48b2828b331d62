"""The comparison of two versions from git (bench/ab.py): one real run of a version against itself.

It must never build anything: the working tree stands for both versions.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "ab.py"


def test_a_version_against_itself() -> None:
    """Two processes take turns and a line a case comes out; nothing is surely 50 times slower than itself."""
    options = ["--rounds=3", "--processes=2", "--only=put 40 B", "--only=query", "--fail-above=5000"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), ".", ".", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "base: working tree; new: working tree; 2 x 3 rounds, page cache"
    assert lines[4].startswith("put 40 B ")
    assert lines[5].startswith("query ")
    assert " to " in lines[4]


def test_an_unknown_version(ab: ModuleType) -> None:
    """A wrong ref is told before anything is built."""
    with pytest.raises(SystemExit, match="no-such-ref: no such commit"):
        ab.build("no-such-ref")
