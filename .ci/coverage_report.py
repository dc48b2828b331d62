#!/usr/bin/env python3
"""How much of the engine the suite runs: ``make coverage``.

Builds a copy of the working tree with gcov (MQFAST_COVERAGE=1: C, and the C that Cython makes), runs the short forms of
all lanes under coverage.py, and prints lines and branches of csrc/, of the .pyx and of the Python of mqfast/store. It
must never build in the working tree itself. Children count too: started, forked, and those that leave by ``os._exit``;
what a process did that was killed is lost. The C files that tests compile for themselves (the CRC variants, the table
of OS calls below the simulated system) are compiled with gcov as well, unless with a sanitizer.

What counts as a branch:
- csrc/: every branch that gcov sees, without optimisation. A line with the comment ``coverage: REASON``, or in a
  function with such a head, counts neither as a line nor as a branch; the report lists them. An inline function counts
  once a file, not once a call.
- .pyx and .pxd: Cython writes before the C of each statement from which line it comes. Of that C, in the bodies of
  our functions, the branches that stand for something in our line are counted: the condition of an if, elif, while or
  ternary, each part of an ``and`` or ``or``, the end of a loop over numbers, the cases of a switch, whether an except
  clause matches (that ``except BaseException`` does not match is none). Not counted are the branches that Cython adds
  by itself: a call into Python that failed (``__PYX_ERR``), None and type checks, reference counts, parsing of
  arguments, iteration over Python objects. Copies of a statement (a finally block has up to three; an inline function
  one a module) count as one.
- Python: as coverage.py has it.

    .ci/coverage_report.py [--goal 95] [--missing] [--only-report] [TEST ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "build" / "coverage"
TREE = BASE / "tree"
TESTS = [
    *("tests/store", "tests/issues", "tests/traps", "tests/csrc", "tests/truncation", "tests/linearity", "tests/model"),
    *("tests/crash", "tests/damage", "tests/fuzz", "tests/kill", "tests/cli", "tests/test_config.py"),
    # What Spark's tasks ask of the engine, without Spark.
    *("tests/spark/test_backend.py", "tests/spark/test_plan.py", "tests/spark/local/test_staging.py"),
]
# gcov only: where allocations fail, or a process of many threads forks, coverage.py itself breaks or hangs.
WITHOUT_PYTHON = ("tests/memory", "tests/races")
# Behind the tests: the suite lets about every 60th allocation of a verify fail, this every single one.
MEMORY = ("tests/memory/memory_runs.py", "1", "1", "verify")
# The engine's paths that the goal names, by module of mqfast/store.
PATHS = {
    "record": ("record",),
    "append and flush": ("append", "commit_log", "group_commit", "mapped_file", "put_message", "transient_pool"),
    "recovery": ("dispatch", "scan"),
    "the table of OS calls": ("os_api",),
}
# Of the C that Cython makes: what is a branch of ours, and which functions are ours.
NAME = r"\(?(?:__pyx_t_\d+|__pyx_v_[\w.>\-]+)\)?"
OURS = re.compile(
    rf"\s*(?:\}} else )?if \((?:!?{NAME}|(?:un)?likely\({NAME}\))\) (?:\{{|break;)"
    r"|\s*for \(__pyx_t_\d+ = [^;]*; __pyx_t_\d+ [<>]=? __pyx_t_\d+; "
    r"|\s*switch \((?!__pyx_nargs|__pyx_kwds)"
)
NOT_OURS = re.compile(
    r"__Pyx_|__pyx_(?:pw|tp|mod|pymod|setprop|getprop|sq|mp)_|PyInit_|__pyx_pf_.*__(?:reduce|setstate)_cython__"
)
FROM = re.compile(r'\s*/\* "(mqfast/store/[\w/]+\.p[yx][xd])":(\d+)$')
ELSEWHERE = re.compile(r'\s*/\* "[^"]*":\d+$')
EVERYTHING = re.compile(r"\bexcept BaseException\b")

Branches = dict[int, list[int]]  # line -> how often each branch was taken
Row = tuple[int, int, int, int]  # lines, run, branches, taken


def copy_tree() -> None:
    """The files that git knows, and new ones, into a tree of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    names = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in TREE.rglob("*"):
        relative = path.relative_to(TREE)
        if path.is_file() and relative.parts[0] != "build" and str(relative) not in names and path.suffix != ".so":
            path.unlink()
    for name in names:
        target = TREE / name
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def build(python: str) -> None:
    """In the copy, with gcov; counts of earlier runs are dropped."""
    # The linker would leave out what only the hook of run_tests calls.
    switches = {"MQFAST_COVERAGE": "1", "LDFLAGS": "-Wl,-u,__gcov_dump"}
    subprocess.run(
        [python, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=TREE, env={**os.environ, **switches}, check=True
    )
    for path in TREE.rglob("*.gcda"):
        path.unlink()


# gcov writes when a process ends in the usual way; os._exit, the end of most forked children, is none.
HOOK = """import ctypes, os, sys

leave = os._exit

def dump_and_leave(status):
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.startswith("mqfast.") and file.endswith(".so"):
            ctypes.CDLL(file).__gcov_dump()
    leave(status)

os._exit = dump_and_leave
"""
FLAGS = "-O0 -fprofile-update=atomic -Dalways_inline="  # as setup.py
# A C compiler for what the tests compile: with gcov, unless a sanitizer's own branches would be among ours.
COMPILER = """#!/bin/sh
case " $* " in
    *" -fsanitize"*|*" -fsyntax-only"*) exec {compiler} "$@";;
    *csrc/*) exec {compiler} "$@" --coverage {flags} -Wno-error -dumpdir {objects}/$$-;;
    *) exec {compiler} "$@";;
esac
"""


def scratch() -> Path:
    """A fresh directory for the tests: what they compile there must not be what an earlier run left. In memory where
    there is room: what is counted is the same, and most of the time would go to syncs."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 6 << 30
    return Path(tempfile.mkdtemp(prefix="mqfast-coverage-", dir=memory if roomy else BASE))


def run_tests(python: str, tests: list[str]) -> int:
    """Under coverage.py (WITHOUT_PYTHON without it), children included. Returns: the worse of pytest's statuses."""
    for path in BASE.glob(".coverage*"):
        path.unlink()
    shutil.rmtree(BASE / "objects", ignore_errors=True)
    (BASE / "objects").mkdir()
    temporary = scratch()
    config = BASE / "coveragerc"
    config.write_text(
        f"[run]\nbranch = True\nparallel = True\nconcurrency = thread,multiprocessing\nsource = {TREE}/mqfast/store\n"
        f"patch = _exit, fork\ndata_file = {BASE}/.coverage\n"
        "[report]\nexclude_also =\n    if TYPE_CHECKING:\n    @overload\n"
    )
    hook = BASE / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(f"import coverage\n\n{HOOK}\ncoverage.process_startup()\n")
    compiler = BASE / "cc"
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    compiler.write_text(COMPILER.format(compiler=found, objects=BASE / "objects", flags=FLAGS))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    environment = {
        **os.environ,
        "CC": str(compiler),
        "TMPDIR": str(temporary),
        "COVERAGE_PROCESS_START": str(config),
        "PYTHONPATH": os.pathsep.join([str(TREE), str(hook)]),
    }
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={temporary}/pytest"]
    both = [test for test in tests if not test.startswith(WITHOUT_PYTHON)]
    status = subprocess.run([*command, *both], cwd=TREE, env=environment, check=False).returncode if both else 0
    rest = [test for test in tests if test.startswith(WITHOUT_PYTHON)]
    if rest:
        del environment["COVERAGE_PROCESS_START"]
        environment["PYTHONPATH"] = str(TREE)  # without the hook: it could wait for a lock that another thread had
        for run in ([*command, *rest], [python, *MEMORY]):
            status = max(status, subprocess.run(run, cwd=TREE, env=environment, check=False).returncode)
    shutil.rmtree(temporary, ignore_errors=True)
    return status


def gcov() -> dict[str, list[dict[str, object]]]:
    """File below TREE -> the lines that gcov reports, of every object that has it."""
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    for data in sorted((*TREE.rglob("*.gcno"), *(BASE / "objects").glob("*.gcno"))):
        ended = subprocess.run(
            ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(data)],
            cwd=TREE, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for document in ended.stdout.splitlines():
            for file in json.loads(document)["files"] if document.startswith("{") else ():
                name = os.path.relpath(os.path.join(TREE, file["file"]), TREE)
                if name.startswith("csrc/") or (name.startswith("build/") and "/mqfast/store/" in name):
                    found[name].extend(file["lines"])
    return found


class Counted:
    """Lines and branches of one source, put together from every object that contains it."""

    def __init__(self) -> None:
        self.lines: dict[int, int] = defaultdict(int)
        self.branches: Branches = {}

    def add(self, number: int, count: int, taken: list[int]) -> None:
        """One more copy of a line."""
        self.lines[number] += count
        known = self.branches.setdefault(number, [])
        if len(known) < len(taken):
            known += [0] * (len(taken) - len(known))
        for i, n in enumerate(taken):
            known[i] += n

    def row(self) -> Row:
        flat = [n for taken in self.branches.values() for n in taken]
        return len(self.lines), sum(n > 0 for n in self.lines.values()), len(flat), sum(n > 0 for n in flat)


def of_c(lines: list[dict[str, object]], left_out: set[int]) -> Counted:
    """A file of csrc/."""
    counted = Counted()
    for line in lines:
        number = int(line["line_number"])  # type: ignore[call-overload]
        if number not in left_out:
            branches: list[dict[str, int]] = line["branches"]  # type: ignore[assignment]
            counted.add(number, int(line["count"]), [b["count"] for b in branches])  # type: ignore[call-overload]
    return counted


def of_cython(text: list[str], lines: list[dict[str, object]], into: dict[str, Counted]) -> None:
    """A file that Cython made, with what gcov says of it, into the .pyx and .pxd that it comes from."""
    seen = {int(line["line_number"]): line for line in lines}  # type: ignore[call-overload]
    source, number = "", 0
    sources: dict[str, list[str]] = {}
    blocks: dict[tuple[str, int], list[tuple[int, list[int]]]] = defaultdict(list)  # copies: (count, branches)
    for i, row in enumerate(text, 1):
        head = FROM.match(row)
        if head:
            source, number = head[1], int(head[2])
            if source not in sources:
                sources[source] = (TREE / source).read_text(encoding="utf-8").split("\n")
            blocks[source, number].append((-1, []))
            continue
        if ELSEWHERE.match(row) or row.startswith("}"):
            source = ""
        line = seen.get(i)
        if not source or line is None or NOT_OURS.match(str(line.get("function_name", ""))):
            continue
        count, taken = blocks[source, number][-1]
        if OURS.match(row) and not EVERYTHING.search(sources[source][number - 1]):
            branches: list[dict[str, int]] = line["branches"]  # type: ignore[assignment]
            taken += [b["count"] for b in branches]
        if "__PYX_ERR" not in row or row.lstrip().startswith("__pyx_"):
            count = max(count, int(line["count"]))  # type: ignore[call-overload]
        blocks[source, number][-1] = (count, taken)
    for (source, number), copies in blocks.items():
        for count, taken in copies:
            if count >= 0:
                into[source].add(number, count, taken)


def left_out_of(path: Path) -> dict[int, str]:
    """Line -> reason, for the lines of a C file that say ``coverage: reason``, or whose function's head does."""
    found: dict[int, str] = {}
    function = ""
    for i, row in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        said = re.search(r"coverage: (.+?) *\*/", row)
        if said and re.match(r"\w.*\{ ", row):
            function = said[1]
        if said or function:
            found[i] = said[1] if said else function
        if row == "}":
            function = ""
    return found


def python_table(python: str) -> dict[str, Row]:
    """file -> (lines, run, branches, taken) as coverage.py has it."""
    run = [python, "-W", "ignore", "-m", "coverage"]  # of data that a killed process left half written
    rc = f"--rcfile={BASE}/coveragerc"
    subprocess.run([*run, "combine", "-q", "--keep", rc], cwd=BASE, check=False)
    subprocess.run([*run, "json", "-q", rc, "-o", str(BASE / "python.json")], cwd=BASE, check=True)
    found = json.loads((BASE / "python.json").read_text(encoding="utf-8"))
    table = {}
    for name, file in sorted(found["files"].items()):
        s = file["summary"]
        table[os.path.relpath(os.path.join(BASE, name), TREE)] = (
            s["num_statements"], s["covered_lines"], s["num_branches"], s["covered_branches"]
        )  # fmt: skip
    return table


def share(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0


def show(title: str, table: dict[str, Row], goal: float | None, missed: list[str]) -> Row:
    """Print one table with its total."""
    print(f"\n{title:<44}{'lines':>8}{'%':>8}{'branches':>10}{'%':>8}")
    total = tuple(sum(row[i] for row in table.values()) for i in range(4))
    for name, row in [*table.items(), ("total", total)]:
        line, branch = share(row[1], row[0]), share(row[3], row[2])
        mark = "" if goal is None or branch >= goal else "  below the goal"
        print(f"  {name:<42}{row[0]:>8}{line:>8.1f}{row[2]:>10}{branch:>8.1f}{mark}")
    if goal is not None and share(total[3], total[2]) < goal:
        missed.append(title)
    return total[0], total[1], total[2], total[3]


def main() -> int:
    """Returns: 1 when the tests failed or a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goal", type=float, default=95.0, help="percent of the branches")
    parser.add_argument("--missing", action="store_true", help="name the lines whose branches were not all taken")
    parser.add_argument("--only-report", action="store_true", help="of the last run")
    parser.add_argument("tests", nargs="*", default=[])
    options = parser.parse_args()
    began, status = time.monotonic(), 0
    if not options.only_report:
        TREE.mkdir(parents=True, exist_ok=True)
        copy_tree()
        build(sys.executable)
        status = run_tests(sys.executable, options.tests or [*TESTS, *WITHOUT_PYTHON])
    c: dict[str, Counted] = {}
    cython: dict[str, Counted] = defaultdict(Counted)
    reasons: list[str] = []
    for name, lines in gcov().items():
        if name.startswith("csrc/"):
            left_out = left_out_of(TREE / name)
            counted_lines = {line["line_number"] for line in lines}
            reasons += [f"{name}:{n}: {reason}" for n, reason in left_out.items() if n in counted_lines]
            c[name] = of_c(lines, set(left_out))
        else:
            of_cython((TREE / name).read_text(encoding="utf-8").split("\n"), lines, cython)
    missed: list[str] = []
    show("csrc (gcov)", {name: c[name].row() for name in sorted(c)}, options.goal, missed)
    for path, modules in PATHS.items():
        found = {n: cython[n].row() for n in sorted(cython) if Path(n).stem in modules}
        show(f"{path} (gcov)", found, options.goal, missed)
    named = sum(PATHS.values(), ())
    others = {n: cython[n].row() for n in sorted(cython) if Path(n).stem not in named}
    show("other .pyx, not in the goal (gcov)", others, None, missed)
    show("Python of mqfast/store (coverage.py)", python_table(sys.executable), options.goal, missed)
    if reasons:
        print("\nnot counted:\n  " + "\n  ".join(reasons))
    if options.missing:
        for name, counted in sorted({**c, **cython}.items()):
            bad = [f"{n}" for n, taken in sorted(counted.branches.items()) if taken and not all(taken)]
            bad += [f"{n}!" for n, count in sorted(counted.lines.items()) if not count]
            print(f"{name}: {' '.join(bad)}")
        subprocess.run(
            [sys.executable, "-m", "coverage", "report", "-m", f"--rcfile={BASE}/coveragerc"], cwd=BASE, check=False
        )
    print(
        f"\ncoverage: {time.monotonic() - began:.0f} s, goal {options.goal:g} % of the branches: "
        + ("missed by " + "; ".join(missed) if missed else "reached everywhere")
        + ("; TESTS FAILED" if status else "")
    )
    return 1 if status or missed else 0


if __name__ == "__main__":
    sys.exit(main())
