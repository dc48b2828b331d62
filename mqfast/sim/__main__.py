"""``python -m mqfast.sim MODULE:SCENARIO``: runs a scenario with many seeds, or one seed again.

Ends with 1 at the first failure, whose seed, faults and last events are printed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from mqfast.sim.faults import DEFAULT_KINDS, KINDS
from mqfast.sim.runs import Outcome, SimulationFailed, explore

__all__ = ["main"]

_REPORT_S = 10.0


class _Progress:
    """Prints a line now and then."""

    def __init__(self) -> None:
        self.begin_s = self._last_s = time.perf_counter()
        self.runs = 0
        self.virtual_s = 0.0

    def __call__(self, outcome: Outcome) -> None:
        """Count a run."""
        self.runs += 1
        self.virtual_s += outcome.virtual_s
        if time.perf_counter() - self._last_s > _REPORT_S:
            self._last_s = time.perf_counter()
            print(self.text(), file=sys.stderr, flush=True)

    def text(self) -> str:
        """Return runs and times."""
        seconds = time.perf_counter() - self.begin_s
        return f"{self.runs} seeds, {self.virtual_s / 3600:.2f} virtual hours in {seconds:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns: 0, or 1 after a failure."""
    parser = argparse.ArgumentParser(prog="python -m mqfast.sim", description=__doc__)
    parser.add_argument("scenario", help="module:function, an async function of a Cluster")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", default=",".join(DEFAULT_KINDS), help=f"kinds of faults: {', '.join(KINDS)}")
    a = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    module, _, name = a.scenario.partition(":")
    scenario = getattr(importlib.import_module(module), name)
    progress = _Progress()
    kinds = [kind.strip() for kind in a.kinds.split(",") if kind.strip()]
    try:
        explore(scenario, range(a.first, a.first + a.seeds), kinds=kinds, progress=progress)
    except SimulationFailed as failed:
        print(failed.failure)
        return 1
    finally:
        print(progress.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
