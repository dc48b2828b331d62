"""Maven for tests (tests/kit/maven.py): one process at a time, tried again, with Maven's own words at the end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from maven import MavenError, run_maven

FAILS_ONCE = """#!/bin/sh
test -e tried || { touch tried; echo "Failed to copy full contents"; exit 1; }
echo "$@" > arguments
"""
FAILS = """#!/bin/sh
echo try >> tries; echo "Could not transfer artifact"; exit 1
"""
NOT_TWICE = """#!/bin/sh
mkdir running || { touch ../overlapped; exit 0; }
sleep 0.2
rmdir running
"""


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for runs of another ``mvn``, which stands first in PATH."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "where").mkdir()
    return tmp_path / "where"


def _become(where: Path, script: str) -> None:
    program = where.parent / "mvn"
    program.write_text(script)
    program.chmod(0o755)


def test_a_failed_download_is_tried_again(where: Path) -> None:
    _become(where, FAILS_ONCE)
    run_maven(["dependency:copy"], where, 60, pause_s=0)
    assert (where / "arguments").read_text() == "-q -B dependency:copy\n"


def test_the_last_failure_has_the_words_of_maven(where: Path) -> None:
    _become(where, FAILS)
    with pytest.raises(MavenError, match="Could not transfer artifact"):
        run_maven(["dependency:copy"], where, 60, pause_s=0)
    assert (where / "tries").read_text() == "try\n" * 3


def test_two_runs_do_not_overlap(where: Path) -> None:
    _become(where, NOT_TWICE)
    threads = [threading.Thread(target=run_maven, args=(["x"], where, 60)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not (where.parent / "overlapped").exists()
    assert not (where / "running").exists()
