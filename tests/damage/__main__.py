"""``python -m tests.damage``: damage stores for a time, or repeat one seed.

Room: tests. It must never print anything that changes between two runs of one seed but the times.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from .check import Workplace, Wrong, clear
from .mutations import mutate
from .runner import Finding, Outcome, run, scratch_dir
from .stores import Bases, make_bases


def line(outcome: Outcome) -> str:
    """Counts, in words."""
    counts = outcome.counts
    return (
        f"{counts['mutations']} mutations in {outcome.seconds:.0f} s: {counts['detected']} detected,"
        f" {counts['harmless']} harmless, {counts['opened']} opened, {counts['not opened']} refused,"
        f" {counts['altered']} altered where no checksum covers it, {counts['units lost']} opened with fewer units,"
        f" {len(outcome.findings)} findings"
    )


def main() -> int:
    """Returns: 1 when the rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this one seed, in this process")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--small", action="store_true", help="small stores, each read or opened: more mutations in the same time"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--findings", type=int, default=20, help="stop after so many")
    options = parser.parse_args()
    bases = Bases() if options.small else Bases(make_bases())
    if options.seed is not None:
        logging.disable(logging.CRITICAL)
        print(mutate(bases.of(options.seed), options.seed))
        root = os.path.join(scratch_dir(), "store")
        place = Workplace(root, bases)
        try:
            place.run(options.seed)
        except Wrong as error:
            print(f"seed {options.seed}: {error}")
            return 1
        finally:
            clear(os.path.dirname(root))
        print("the rule holds:", dict(place.counts))
        return 0
    told: list[Finding] = []

    def tell(outcome: Outcome) -> None:
        for finding in outcome.findings[len(told) :]:  # at once: a long run may be stopped by hand
            print(finding, flush=True)
        told[:] = outcome.findings
        print("damage:", line(outcome), flush=True)

    outcome = run(
        bases,
        options.first,
        options.count,
        seconds=options.seconds,
        processes=options.processes,
        full=not options.small,
        stop_after=options.findings,
        progress=tell,
    )
    for finding in outcome.findings[len(told) :]:
        print(finding)
    kind = "small stores, " if options.small else ""
    print(f"damage: {kind}seeds {options.first} to {outcome.next_seed - 1}; {line(outcome)}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
