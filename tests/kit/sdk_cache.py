"""SDKs from registries, fetched once into the cache of interop; without the registry the test is skipped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

__all__ = ["UNREACHABLE", "fetch", "sdk_home"]

FETCH_S = 600
UNREACHABLE = ("dial tcp", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "no such host", "Temporary failure", "No matching")


def sdk_home(name: str) -> Path:
    """Return the directory of an SDK."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqfast-interop" / name
    base.mkdir(parents=True, exist_ok=True)
    return base


def fetch(home: Path, *commands: list[str]) -> None:
    """Run the commands that fetch an SDK, unless they have succeeded before."""
    if (home / "ready").exists():
        return
    for command in commands:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=FETCH_S)
        if done.returncode != 0:
            if any(word in done.stderr + done.stdout for word in UNREACHABLE):
                pytest.skip(f"{command[0]}: its registry cannot be reached")
            pytest.fail(f"{' '.join(command)}:\n{done.stderr[-3000:]}")
    (home / "ready").touch()
