"""Breaks the engine in one place after the other, and checks that a named test fails for each.

The tree of the command never changes: every mutant is built in a temporary copy of the last commit. Changes that are
not committed are not part of the copy. What the broken places guarantee: ``docs/durability.md`` and
``mqfast/store/FORMAT.md``.

    make mutants                    all mutants: 14 minutes on two idle cores, 23 on busy ones
    make mutants ONLY=room          the mutants with this text in the name or file
    python tests/mutation/mutants.py --list

A mutant is a file, a function, an operator that changes one place of the function (``operators.py``), why the place
matters, and the tests that should catch the change: few, and fast. The mutants of a room are in ``mutants_ROOM.py``.

First all of these tests must pass on the unbroken copy. Then each mutant is applied, its extension is built (without
optimisation, which halves the time), and its tests run until the first failure. A crash of the interpreter or a run
that does not end counts as caught. The last line gives the counts. The exit status is 1 when a mutant survives, and 2
when a mutant cannot be tried. For a survivor, write a new test, not another mutant.

``test_mutants_apply.py`` (in ``make test``) checks that every function, place and test of the list exists.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mutants_append
import mutants_check
import mutants_dispatch
import mutants_flush
import mutants_get
import mutants_meta
import mutants_os
import mutants_put
import mutants_queues
import mutants_record
import mutants_timer
from mutant import ROOT, Mutant, broken, places

__all__ = ["MUTANTS"]

ROOMS: Final = (
    mutants_record,
    mutants_append,
    mutants_flush,
    mutants_put,
    mutants_queues,
    mutants_dispatch,
    mutants_get,
    mutants_check,
    mutants_meta,
    mutants_os,
    mutants_timer,
)
MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for room in ROOMS for mutant in room.MUTANTS)
_CRC_X86: Final = "csrc/crc32_x86.c"
_SCRATCH_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; ``word`` is caught, SURVIVED or BROKEN (it cannot be tried)."""

    word: str
    by: str
    seconds: float


def _scratch() -> str | None:
    """Memory where there is enough of it: most of a test's time goes to syncs."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _SCRATCH_BYTES else None


def _environment(tree: Path) -> dict[str, str]:
    scratch = tree.parent / "tmp"
    scratch.mkdir(exist_ok=True)
    ours = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch), "MQFAST_DEBUG": "1"}
    return {**os.environ, **ours, "MQFAST_WHOLE": "1"}  # the test that must fail is in no sample left out


def _build(tree: Path) -> str:
    """Build what is out of date; the end of the compiler's words where that fails, else nothing."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def _run_tests(tree: Path, tests: tuple[str, ...], seconds: float) -> tuple[str, str, str]:
    """(passed, caught or BROKEN; the test that failed, crashed or hung; the output)."""
    base, log = tree.parent / "pytest", tree.parent / "output"
    options = ["-x", "-v", "-rfE", "--tb=short", "--no-header", "--hypothesis-seed=0", "-p", "no:cacheprovider"]
    where = places(tree)
    chosen = [f"{where[name.partition('[')[0]]}::{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={base}", *chosen]
    ended: int | None = None
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, cwd=tree, env=_environment(tree), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = child.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # its children too
            except ProcessLookupError:
                pass
            child.wait()
    shutil.rmtree(base, ignore_errors=True)
    text = log.read_text(errors="replace")
    if ended == 0:
        return "passed", "", text
    if ended is None or ended < 0:
        running = re.findall(r"^(tests/\S+)", text, re.MULTILINE)
        how = f"hung for {seconds:.0f} s" if ended is None else signal.Signals(-ended).name
        return "caught", f"{running[-1] if running else '?'} ({how})", text
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.MULTILINE)
    if ended != 1 or failed is None:
        return "BROKEN", f"pytest ended with {ended}", text
    return "caught", failed.group(1), text


def _try(mutant: Mutant, seed: Path, base: Path, show: bool) -> Outcome:
    started_s = time.monotonic()
    tree = base / "tree"
    shutil.copytree(seed, tree, symlinks=True)  # with its times: nothing is built again without need
    try:
        path = tree / mutant.file
        path.write_text(broken(mutant, path.read_text()))
        if not mutant.file.endswith(".py"):
            before = {so: so.read_bytes() for so in tree.rglob("mqfast/**/*.so")}
            words = _build(tree)
            if words:
                return Outcome("BROKEN", f"it does not build:\n{words}", time.monotonic() - started_s)
            if all(so.read_bytes() == data for so, data in before.items()):
                return Outcome("BROKEN", "the built code is the same", time.monotonic() - started_s)
        word, by, text = _run_tests(tree, mutant.tests, mutant.seconds)
        if word == "passed":
            skipped = re.search(r"\d+ skipped", text)
            word, by = "SURVIVED", mutant.why + (f" ({skipped.group()})" if skipped else "")
        if show or word == "BROKEN":
            print(text)
        return Outcome(word, by, time.monotonic() - started_s)
    finally:
        shutil.rmtree(tree)


def _seed(base: Path) -> Path:
    """A built copy of the last commit. Raises: SystemExit."""
    seed = base / "seed"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(seed)], check=True)
    shutil.rmtree(seed / ".git")
    words = _build(seed)
    if words:
        raise SystemExit(f"the last commit does not build:\n{words}")
    where = subprocess.run(
        [sys.executable, "-c", "import mqfast.store.base.os_api as m; print(m.__file__)"],
        cwd=seed,
        env=_environment(seed),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not where.startswith(str(seed)):
        raise SystemExit(f"the tests would import {where.strip()}: expected it below {seed}")
    return seed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Break chosen lines of the engine; see the head of this file.")
    parser.add_argument("--only", action="append", default=[], help="a part of a name or of a file; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--show", action="store_true", help="print the tests' output as well")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass on the unbroken tree")
    a = parser.parse_args()
    here = [m for m in MUTANTS if m.file != _CRC_X86 or platform.machine() == "x86_64"]
    chosen = [m for m in here if not a.only or any(part in m.name or part in m.file for part in a.only)]
    if not chosen:
        parser.error(f"no mutant has {a.only} in its name or file")
    if a.list:
        for m in chosen:
            print(f"{m.name}\n    {m.file}: {m.why}\n    {' '.join(m.tests)}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies go
    started_s = time.monotonic()
    counts = {"caught": 0, "SURVIVED": 0, "BROKEN": 0}
    with tempfile.TemporaryDirectory(prefix="mqfast-mutants-", dir=_scratch()) as name:
        base = Path(name)
        seed = _seed(base)
        print(f"built a copy in {time.monotonic() - started_s:.0f} s", flush=True)
        if not a.no_baseline:
            tests = tuple(dict.fromkeys(test for m in chosen for test in m.tests))
            word, by, text = _run_tests(seed, tests, 1800)
            if word != "passed":
                print(text, f"the tests do not pass on the unbroken tree: {by}", sep="\n")
                return 2
            print(f"{len(tests)} tests pass on the unbroken tree, {time.monotonic() - started_s:.0f} s", flush=True)
        for m in chosen:
            outcome = _try(m, seed, base, a.show)
            counts[outcome.word] += 1
            print(f"{outcome.word:8} {m.name} ({m.file}), {outcome.seconds:.0f} s: {outcome.by}", flush=True)
    print(
        f"mutants: {len(chosen)} tried, {counts['caught']} caught, {counts['SURVIVED']} survived, "
        f"{counts['BROKEN']} could not be tried, {time.monotonic() - started_s:.0f} s"
    )
    return 2 if counts["BROKEN"] else 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
