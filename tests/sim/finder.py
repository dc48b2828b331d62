"""Runs of mutants: ``python tests/sim/finder.py [NAME ...] --seeds N`` prints the seed that finds each mutant.

Each mutant runs in a process of its own, in which the loader of the changed files gives the changed source.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))

from sim_mutants import MUTANTS, ROOT, SimMutant, broken

__all__ = ["find", "main"]


def _install(mutant: SimMutant) -> None:
    """Let imports load the changed sources."""
    changed: dict[str, str] = {}
    for part in mutant.parts:
        path = str(ROOT / part.file)
        changed[path] = broken(part, changed.get(path) or Path(path).read_text(encoding="utf-8"))
    real = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return compile(changed[path], path, "exec") if path in changed else real(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def find(mutant: SimMutant, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that breaks a promise, and the promise."""
    _install(mutant)
    import scenarios

    from mqfast.sim import DEFAULT_KINDS, run_seed

    scenario = getattr(scenarios, mutant.scenario)
    for seed in seeds:
        kinds = DEFAULT_KINDS if mutant.kinds is None else mutant.kinds
        failure = run_seed(scenario, seed, kinds=kinds, plan=() if kinds == () else None).failure
        if failure is not None:
            return seed, failure.text
    return None


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help="run the only mutant in this process")
    a = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not a.names or mutant.name in a.names]
    if a.inside:
        hit = find(chosen[0], range(a.first, a.first + a.seeds))
        print("not found" if hit is None else f"seed {hit[0]}: {hit[1]}")
        return 0
    missing = 0
    for mutant in chosen:
        begin_s = time.monotonic()
        command = [sys.executable, __file__, mutant.name, "--inside", "--seeds", str(a.seeds), "--first", str(a.first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        line = (done.stdout.strip().splitlines() or [f"ended with {done.returncode}: {done.stderr[-200:]}"])[-1]
        missing += not line.startswith("seed ")
        print(f"{mutant.name}: {line[:160]} ({time.monotonic() - begin_s:.0f} s)", flush=True)
    print(f"{len(chosen) - missing} of {len(chosen)} mutants are found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
