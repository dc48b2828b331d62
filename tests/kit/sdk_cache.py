"""SDKs from registries, fetched once into the cache of interop; without the registry the test is skipped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from maven import MavenError, locked, run_maven

__all__ = ["UNREACHABLE", "fetch", "sdk_home"]

FETCH_S = 600
UNREACHABLE = ("dial tcp", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "no such host", "Temporary failure", "No matching")


def sdk_home(name: str) -> Path:
    """Return the directory of an SDK."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqfast-interop" / name
    base.mkdir(parents=True, exist_ok=True)
    return base


def fetch(home: Path, *commands: list[str]) -> None:
    """Run the commands that fetch an SDK, unless they have succeeded before; ``mvn`` takes its turn with others."""
    with locked(home / "fetch.lock"):
        if (home / "ready").exists():
            return
        for command in commands:
            failure = _failure(command, home)
            if any(word in failure for word in UNREACHABLE):
                pytest.skip(f"{command[0]}: its registry cannot be reached")
            if failure:
                pytest.fail(failure)
        (home / "ready").touch()


def _failure(command: list[str], home: Path) -> str:
    """Run a command; return its last output where it failed, else an empty text."""
    if command[0] == "mvn":
        try:
            run_maven(command[1:], home, FETCH_S)
        except MavenError as error:
            return str(error)
        return ""
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=FETCH_S)
    return f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-3000:]}" if done.returncode else ""
