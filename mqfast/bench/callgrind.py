"""Instruction counts by ``valgrind --tool=callgrind``: the cost of a piece of work, on any machine and under any load.

A program does its work N times and then 2N times between marks (``worker.begin_count``, ``worker.end_count``). The
difference over N is the count of a piece of work: start-up, imports and loop set-up cancel out.

Not counted: cache misses, page faults, waiting, and AVX-512 code, which valgrind does not know. Between different
versions of Python only mqfast's own instructions are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mqfast.bench.worker import can_count
from mqfast.errors import UsageError

__all__ = ["INSTALL", "Count", "count", "is_there", "parse"]

INSTALL: Final = "valgrind on x86-64 is needed: apt-get install valgrind"
_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # The same copy loop on every machine, whatever the microcode prefers.
    "GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824",
}


class Count(NamedTuple):
    """Instructions of a piece of work: those of mqfast's own extension modules, and all with the interpreter."""

    ours: float
    whole: float


def is_there() -> bool:
    """Return whether instructions can be counted on this machine."""
    return can_count() and shutil.which("valgrind") is not None


def parse(text: str, package: str) -> Count:
    """Sum a callgrind file written without compression: self cost, and that of the extensions below ``package``."""
    own = f"ob={package}{os.sep}"
    ours = whole = 0
    inside = skip = False
    for line in text.splitlines():
        first = line[:1]
        if first.isdigit():
            if skip:
                skip = False  # the cost of a call is counted in the callee
                continue
            cost = int(line.split()[1])
            whole += cost
            if inside:
                ours += cost
        elif line.startswith("ob="):
            inside = line.startswith(own) and line.endswith(".so")
        elif line.startswith("calls="):
            skip = True
    return Count(ours, whole)


def count(
    command: Sequence[str], n: int | None, package: str, directory: Path, environment: Mapping[str, str] | None = None
) -> Count:
    """Return the instructions of a piece of work of a program that writes down ``once`` and ``twice``.

    Args: n: pieces of work of ``once``, None where the program prints ``{"n": ...}``; package: directory of mqfast's
        extensions as the program sees them; directory: for callgrind's files; environment: beside that of this process.
    Raises: UsageError when valgrind or the program failed, or nothing was counted.
    """
    out = directory / "callgrind"
    options = ["--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no"]
    done = subprocess.run(
        ["valgrind", *options, f"--callgrind-out-file={out}", *command],
        env={**os.environ, **_ENVIRONMENT, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UsageError(f"valgrind ended with {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
    if n is None:
        n = int(json.loads(done.stdout)["n"])
    files = [Path(f"{out}.{number}") for number in (1, 2)]
    once, twice = (parse(file.read_text(), package) if file.exists() else Count(0, 0) for file in files)
    if once.whole == 0 or twice.whole <= once.whole:
        raise UsageError(f"{' '.join(command)}: nothing was counted: {done.stderr[-2000:]}")
    return Count((twice.ours - once.ours) / n, (twice.whole - once.whole) / n)
