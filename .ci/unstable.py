"""Runs the failed tests of a whole run of pytest again, alone, and names those that pass: ``unstable.py LOG``.

Ends with 0 when the run came to its end, at most LIMIT tests failed, and each passed PASSES of at most TRIES times.
Tests of a file whose setup failed count as one: they share their fixtures. A test that mostly fails alone, a crash or a
run that was cut short ends with 1. An unstable test is a fault, which the output names with its failures.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

LIMIT: Final = 5
PASSES: Final = 3
TRIES: Final = 5
ROOT: Final = Path(__file__).resolve().parents[1]
LAST_FAILED: Final = ROOT / ".pytest_cache/v/cache/lastfailed"
# pytest ends with 1 when tests failed, with more when a run was interrupted. A crashed worker may end with 1, too.
TESTS_FAILED: Final = re.compile(r"^make.*\*\*\* \[.*\] Error 1$", re.MULTILINE)
CRASHED: Final = re.compile(r"\bgw\d+\W+crashed|worker restarting disabled")
SUMMARY: Final = re.compile(r"^=+ (.*\d+ (?:failed|errors?)\b.*) =+$", re.MULTILINE)


def together(tests: list[str], log: str) -> dict[str, list[str]]:
    """Return the tests to repeat together, by name: those of a file whose setup failed, or a single test."""
    groups: dict[str, list[str]] = {}
    for test in tests:
        is_of_setup = re.search(rf"^ERROR {re.escape(test)}( - .*)?$", log, re.MULTILINE) is not None
        name = f"setup of {test.partition('::')[0]}" if is_of_setup else test
        groups.setdefault(name, []).append(test)
    return groups


def failures_alone(group: list[str]) -> int:
    """Return how often the tests failed alone until they passed PASSES times, or too often to do so."""
    passed = failed = 0
    while passed < PASSES and failed <= TRIES - PASSES:
        # All of a group at first, since none of them has run; then its setup, with the first.
        chosen = group if passed + failed == 0 else group[:1]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
        if subprocess.run(command, cwd=ROOT).returncode == 0:
            passed += 1
        else:
            failed += 1
    return failed


def main() -> int:
    """Decide whether the run whose output the argument names counts as passed."""
    log = Path(sys.argv[1]).read_text(errors="replace")
    summary = SUMMARY.search(log)
    if summary is None or CRASHED.search(log) or not TESTS_FAILED.search(log) or not LAST_FAILED.exists():
        return 1
    tests = sorted(test for test in json.loads(LAST_FAILED.read_text()) if test in log)  # none of an earlier run
    groups = together(tests, log)
    if not 0 < len(groups) <= LIMIT:
        return 1
    failures = {}
    for name, group in groups.items():
        print(f"== failed in the whole run, now alone until {PASSES} of at most {TRIES} runs pass: {name}", flush=True)
        failures[name] = failures_alone(group)
        if failures[name] > TRIES - PASSES:
            print(f"== failed again: {name}", flush=True)
            return 1
    for name, failed in failures.items():
        print(f"== UNSTABLE, to be mended; {failed} failures alone: {name}")
    print(f"== the whole run: {summary[1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
