"""Maven Central for tests: one Maven at a time on a machine, tried again after a failed download.

Maven's local repository is not safe for several processes: a second Maven copies jars that the first has not written
to their end. Never deletes what an earlier run has fetched.
"""

from __future__ import annotations

import fcntl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MavenError", "locked", "run_maven"]

TRIES = 3
PAUSE_S = 5.0  # a registry that refuses for a moment


class MavenError(RuntimeError):
    """Maven failed in each of its tries; the text has its last output."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made where it is missing; other processes wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_maven(arguments: Sequence[str], where: Path, timeout_s: float, *, pause_s: float = PAUSE_S) -> None:
    """Run ``mvn -q -B`` in a directory.

    Raises: MavenError after the last try; subprocess.TimeoutExpired after ``timeout_s`` of a try.
    """
    command = ["mvn", "-q", "-B", *arguments]
    for attempt in range(1, TRIES + 1):
        with locked(Path.home() / ".m2" / "mqfast-tests.lock"):
            done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode == 0:
            return
        if attempt < TRIES:
            time.sleep(pause_s)
    raise MavenError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
