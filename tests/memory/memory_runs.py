"""Starts the children of the memory lane and adds up what they say; ``make memory``.

Room: tests. It must never take a child that ended early for one that found nothing.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
sys.path.append(str(_HERE.parent / "kit"))

from shared_library import NoCompiler, shared_library  # noqa: E402

_CHILD_SECONDS: Final = 1800


class CannotRun(Exception):
    """Memory cannot be made to fail on this machine; the text says why."""


@functools.cache
def library() -> Path:
    """fail_malloc as a shared library; compiled once for each state of its source. Raises: CannotRun."""
    if not sys.platform.startswith("linux"):
        raise CannotRun("only Linux preloads a library this way")
    try:
        return shared_library("fail-malloc", [_HERE / "fail_malloc.c"], ["-O2", "-ldl"])
    except NoCompiler as reason:
        raise CannotRun(str(reason)) from reason


def run_cases(names: Sequence[str], step: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Run these cases in one child. Returns: counts, and what was wrong."""
    environment = {**os.environ, "LD_PRELOAD": str(library()), "PYTHONMALLOC": "malloc", "PYTHONFAULTHANDLER": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    left = list(names)
    while left:
        command = [sys.executable, str(_HERE / "loop.py"), str(seed), str(step), *left]
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False
        )
        begun, before = "", len(left)
        for line in child.stdout.splitlines():
            said = json.loads(line)
            if "begin" in said:
                begun = said["begin"]
                left.remove(begun)
                continue
            begun = ""
            counts.update({name: said[name] for name in ("calls", "faults", "raised", "answered")}, cases=1)
            if said["bad"]:
                wrong.append(said["bad"])
        # Status 1 tells of a finding, but also of a child that broke before its first case.
        if begun or child.returncode not in (0, 1) or (left and (child.returncode == 0 or len(left) == before)):
            code = child.returncode
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            wrong.append(f"{begun or 'the child'} ended with {how}:\n{child.stderr[-3000:]}")
            if not begun:
                break
    return counts, wrong


def main() -> int:
    """``memory_runs.py [STEP [SEED [CASE ...]]]``. Returns: 1 when something was wrong."""
    sys.path.insert(0, str(_HERE))
    from cases import CASES

    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    names = sys.argv[3:] or [*(case.name for case in CASES), "services"]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    for name in names:
        one, bad = run_cases([name], step, seed)
        counts.update(one)
        wrong += bad
        print(f"memory: {name}: {one['faults']} failed allocations, {one['raised']} calls raised", flush=True)
        for text in bad:
            print(f"WRONG {text}\n  again: python tests/memory/memory_runs.py {step} {seed} {name}", flush=True)
    print(
        f"memory: seed {seed}, {counts['cases']} public calls made {counts['calls']} times,"
        f" {counts['faults']} with failed allocations: {counts['raised']} raised, {counts['answered']} answered all the"
        f" same; {len(wrong)} findings in {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
