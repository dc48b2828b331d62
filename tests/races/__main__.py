"""``python -m tests.races``: the stress of stress.py for a time; the last line has the counts.

Room: tests/races. It must never leave its directory behind, nor hide a failure behind a count.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import threading

from .stress import MODES, Run


def _race(library: str) -> None:
    """Two threads that race in compiled code: a sanitizer that says nothing of it would say nothing at all."""
    import ctypes

    race = ctypes.CDLL(library).race
    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Returns: 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--round", type=float, default=1.5, help="seconds that a store stays open at most")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--mode", help="only these settings, as 'sync/pool/inline'")
    parser.add_argument("--no-forks", action="store_true", help="a thread sanitizer cannot follow a fork")
    parser.add_argument("--counts", help="also write the counts to this file, as JSON")
    parser.add_argument("--canary", help="a library whose function race() races; nothing else is run")
    options = parser.parse_args()
    if options.canary:
        _race(options.canary)
        return 0
    modes = tuple(mode for mode in MODES if options.mode in (None, str(mode)))
    logging.disable(logging.CRITICAL)
    scratch = tempfile.mkdtemp(prefix="mqfast-races-")
    run = Run(os.path.join(scratch, "store"), options.seed, forks=not options.no_forks)
    print(f"races: seed {options.seed}", flush=True)
    try:
        run.rounds(options.seconds, options.round, modes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.counts:
        with open(options.counts, "w", encoding="utf-8") as file:
            json.dump(run.counts, file)
    print("races:", ", ".join(f"{count} {kind}" for kind, count in sorted(run.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
