"""Two versions of mqfast side by side: ``make perf-ab BASE=<git ref>``.

Both are built from git in directories of their own (below build/ab, kept by commit, so that a second run starts at
once), and compared by ``mqfast.bench.compare``, which says how. It must never measure anything itself.

    python bench/ab.py BASE [NEW]       NEW: a git ref, default HEAD; "." is the working tree, built in place
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mqfast.bench.compare import compare, lines_of, side_of  # noqa: E402  (of this tree, not an installed package)
from mqfast.bench.worker import CASES  # noqa: E402
from mqfast.errors import UsageError  # noqa: E402

BUILDS = ROOT / "build" / "ab"


def build(ref: str) -> tuple[Path, str]:
    """A built tree of the version, and its name."""
    if ref == ".":
        return ROOT, "working tree"
    git = ["git", "-C", str(ROOT)]
    done = subprocess.run(
        [*git, "rev-parse", "--short=12", f"{ref}^{{commit}}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{ref}: no such commit")
    commit = done.stdout.strip()
    tree = BUILDS / f"{commit}-{sys.implementation.cache_tag}"
    if not (tree / "built").exists():
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.run(
            [*git, "archive", commit, "mqfast", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE"],
            capture_output=True,
            check=True,
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        print(f"building {ref} ({commit}) ...", flush=True)
        made = subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise SystemExit(f"{ref} does not build:\n{(made.stdout + made.stderr)[-3000:]}")
        (tree / "built").touch()
    return tree, f"{ref} ({commit})"


def main(argv: Sequence[str] | None = None) -> int:
    """Build, measure, print; returns 1 when a case is slower by more than --fail-above, for sure."""
    parser = argparse.ArgumentParser(description="Compare two versions of mqfast, interleaved.")
    parser.add_argument("base", nargs="?", default="HEAD~1", help="git ref (default: HEAD~1)")
    parser.add_argument("new", nargs="?", default="HEAD", help='git ref, or "." for the working tree (default: HEAD)')
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each pair of processes (default: 7)")
    parser.add_argument("--processes", type=int, default=8, help="pairs of processes (default: 8)")
    parser.add_argument("--only", action="append", choices=list(CASES), help="only this case; may be repeated")
    parser.add_argument("--counts", action="store_true", help="count instructions as well (needs valgrind)")
    parser.add_argument(
        "--fail-above", type=float, default=10.0, metavar="PERCENT", help="status 1 when surely slower (default: 10)"
    )
    arguments = parser.parse_args(argv)
    (base, base_name), (new, new_name) = build(arguments.base), build(arguments.new)
    try:
        found = compare(
            side_of(str(base)),
            side_of(str(new)),
            only=arguments.only,
            pairs=arguments.processes,
            rounds=arguments.rounds,
            limit_percent=arguments.fail_above,
            count=arguments.counts,
            place=os.environ.get("MQFAST_BENCH_DIR"),
        )
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"base: {base_name}; new: {new_name}; {arguments.processes} x {arguments.rounds} rounds, page cache")
    for line in lines_of(found):
        print(line)
    return int(bool(found.alarms))


if __name__ == "__main__":
    sys.exit(main())
