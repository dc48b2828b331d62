"""Two versions of mqfast side by side: ``make perf-ab BASE=<git ref>``.

Both are built from git in directories of their own (below build/ab, kept by commit, so that a second run starts at
once). A process of each version stays alive; the two take turns, round by round and in changing order, so that whatever
else the machine does meets both. What is compared is the ratio of the two times of one round; its confidence interval
comes from drawing the rounds again at random (bootstrap). Processes are started anew several times, because where a
process happens to lie in memory is worth some per cent by itself.

All figures are page-cache speed: syncs tell about the disk. It must never let both versions run at once.

    python bench/ab.py BASE [NEW]       NEW: a git ref, default HEAD; "." is the working tree, built in place
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build" / "ab"
DRAWS = 2000


# --- one version: a process that measures what it is told on stdin ---


class Worker:
    """The cases, on stores of its own below ``place``."""

    def __init__(self, place: Path) -> None:
        import mqfast

        settings = {"mappedFileSizeCommitLog": 128 << 20, "maxHashSlotNum": 50_000, "maxIndexNum": 200_000}
        settings["prefault_window_bytes"] = 16 << 20  # a broker's; older versions have no profile to name
        self.store: Any = mqfast.open(place / "puts", **settings)
        self.full: Any = mqfast.open(place / "gets", **settings)
        for _ in range(32):
            self.full.put_many("Bench", [b"x" * 256] * 1000)
        put = self.full.producer("Keyed").put
        for number in range(5000):
            put(b"x" * 256, f"key{number}")
        self.full.query("Keyed", "key0")

    def put(self, size: int) -> Callable[[int], None]:
        """Single puts by a bound producer."""
        put, body = self.store.producer("Bench", 0, "TagA").put, b"x" * size

        def work(count: int) -> None:
            for _ in repeat(None, count):
                put(body)

        return work

    def put_many(self, size: int) -> Callable[[int], None]:
        """Batches of a thousand."""
        bodies = [b"x" * size] * 1000

        def work(count: int) -> None:
            for _ in repeat(None, count // 1000):
                self.store.put_many("Bench", bodies)

        return work

    def get(self) -> Callable[[int], None]:
        """Batches of 32, every message taken."""

        def work(count: int) -> None:
            for offset in range(0, count, 32):
                for _ in self.full.get("Bench", 0, offset, 32):
                    pass

        return work

    def query(self) -> Callable[[int], None]:
        """Key queries that hit."""
        keys = [f"key{number}" for number in range(0, 5000, 5)]

        def work(count: int) -> None:
            for number in range(count):
                self.full.query("Keyed", keys[number % 1000])

        return work

    def serve(self) -> None:
        """Answer each line (case, count) with the seconds it took; end with stdin."""
        cases = {
            "put 40 B": self.put(40),
            "put 1 KiB": self.put(1024),
            "put_many 64 B": self.put_many(64),
            "put_many 1 KiB": self.put_many(1024),
            "get 32": self.get(),
            "query": self.query(),
        }
        gc.disable()
        print("ready", flush=True)
        for line in sys.stdin:
            name, count = json.loads(line)
            began = time.perf_counter()
            cases[name](count)
            print(time.perf_counter() - began, flush=True)
        self.store.close()
        self.full.close()


COUNTS = {
    "put 40 B": 20_000,
    "put 1 KiB": 10_000,
    "put_many 64 B": 50_000,
    "put_many 1 KiB": 20_000,
    "get 32": 32_000,
    "query": 2_000,
}


class Side:
    """A running process of one version."""

    def __init__(self, tree: Path) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="mqfast-ab-", dir=os.environ.get("MQFAST_BENCH_DIR")))
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-s", str(Path(__file__).resolve()), "--worker", str(self.place)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=self.place
        )
        self.answer()

    def answer(self) -> str:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a measuring process ended with {self.process.wait()}")
        return line

    def run(self, name: str, count: int) -> float:
        """ns of one piece of work."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, count]) + "\n")
        self.process.stdin.flush()
        return float(self.answer()) * 1e9 / count

    def close(self) -> None:
        """End the process and remove its stores."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.place, ignore_errors=True)


# --- building and comparing ---


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


class Ratio(NamedTuple):
    """Median ratio new/base, and the bounds that hold 95 of 100 of the drawn medians."""

    middle: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """In a word."""
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "no difference seen"


def bootstrap(ratios: Sequence[float], seed: int = 1) -> Ratio:
    """Confidence interval of the median."""
    chance = random.Random(seed)
    drawn = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return Ratio(statistics.median(ratios), drawn[int(DRAWS * 0.025)], drawn[int(DRAWS * 0.975) - 1])


def compare(
    base: Path, new: Path, names: Sequence[str], processes: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """(base, new) ns of every round of every case."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(processes):
        sides = [Side(base), Side(new)]
        try:
            for number in range(-1, rounds):
                for name in names:
                    order = (0, 1) if number % 2 else (1, 0)
                    took = {which: sides[which].run(name, COUNTS[name]) for which in order}
                    if number >= 0:  # the round before the first one warms up
                        found[name].append((took[0], took[1]))
        finally:
            for side in sides:
                side.close()
        print(".", end="", flush=True)
    print()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Build, measure, print; returns 1 when --fail-above is given and a case is slower by more, for sure."""
    parser = argparse.ArgumentParser(description="Compare two versions of mqfast, interleaved.")
    parser.add_argument("base", nargs="?", default="HEAD~1", help="git ref (default: HEAD~1)")
    parser.add_argument("new", nargs="?", default="HEAD", help='git ref, or "." for the working tree (default: HEAD)')
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each pair of processes (default: 9)")
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes (default: 3)")
    parser.add_argument("--only", action="append", choices=list(COUNTS), help="only this case; may be repeated")
    parser.add_argument("--fail-above", type=float, metavar="PERCENT", help="status 1 when surely slower by more")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        Worker(Path(arguments.worker)).serve()
        return 0
    (base, base_name), (new, new_name) = build(arguments.base), build(arguments.new)
    names = arguments.only or list(COUNTS)
    found = compare(base, new, names, arguments.processes, arguments.rounds)
    print(f"base: {base_name}; new: {new_name}; {arguments.processes} x {arguments.rounds} rounds, page cache")
    print(f"{'':16}{'base':>10}{'new':>10}{'new/base':>10}   95 % confidence")
    failed = False
    for name, rounds in found.items():
        ratio = bootstrap([new_ns / base_ns for base_ns, new_ns in rounds])
        before, after = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{name:16}{before:7.0f} ns{after:7.0f} ns{ratio.middle:10.3f}   "
            f"{ratio.low:.3f} to {ratio.high:.3f}  {ratio.verdict}"
        )
        failed = failed or (arguments.fail_above is not None and ratio.low > 1 + arguments.fail_above / 100)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
