"""Fixtures of several tests of the store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "crash"))

from mqfast.sim.simulated_os import Sim, in_real_time


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    """A simulated system in real time."""
    with in_real_time(tmp_path) as sim:
        yield sim


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A filesystem in memory of so many bytes."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a tmpfs needs Linux and root")
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        place = tmp_path / f"tmpfs-{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)
