#!/usr/bin/env python3
"""How much of the engine the suite runs: ``make coverage``.

Builds a copy of the working tree with gcov (C, and the .pyx through their line directives), runs the short part of the
suite under coverage.py, and prints lines and branches: csrc/, what runs without the GIL in the .pyx, and the Python of
mqfast/store. It must never build in the working tree itself. Of a .pyx only functions that are declared ``nogil`` are
counted: in the others most branches are Cython's own, for calls into Python that fail.

    .ci/coverage_report.py [--goal 95] [--missing] [--only-report] [TEST ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "build" / "coverage"
TREE = BASE / "tree"
TESTS = [
    *("tests/store", "tests/issues", "tests/traps", "tests/csrc", "tests/truncation", "tests/linearity", "tests/model"),
    *("tests/crash/test_faults.py", "tests/damage", "tests/fuzz", "tests/kill/test_kill.py", "tests/races"),
]
# The engine's paths that the goal names: what they contain, by module.
PATHS = {"record": ("_record",), "append and flush": ("_commit_log",), "recovery": ("_dispatch", "_scan")}

Branches = dict[int, list[int]]  # line -> how often each branch was taken


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
    flags = {"CFLAGS": "--coverage -fprofile-update=atomic", "LDFLAGS": "--coverage", "MQFAST_DEBUG": "1"}
    subprocess.run(
        [python, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=TREE, env={**os.environ, **flags}, check=True
    )
    for path in TREE.rglob("*.gcda"):
        path.unlink()


def run_tests(python: str, tests: list[str]) -> int:
    """Under coverage.py, children included. Returns: pytest's status."""
    for path in BASE.glob(".coverage*"):
        path.unlink()
    config = BASE / "coveragerc"
    config.write_text(
        f"[run]\nbranch = True\nparallel = True\nconcurrency = thread,multiprocessing\nsource = {TREE}/mqfast/store\n"
        f"data_file = {BASE}/.coverage\n[report]\nexclude_also =\n    if TYPE_CHECKING:\n    @overload\n"
    )
    hook = BASE / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text("import coverage\n\ncoverage.process_startup()\n")
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(config),
        "PYTHONPATH": os.pathsep.join([str(TREE), str(hook)]),
    }
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={BASE}/tmp"]
    ended = subprocess.run([*command, *tests], cwd=TREE, env=environment, check=False)
    shutil.rmtree(BASE / "tmp", ignore_errors=True)
    return ended.returncode


def nogil_lines(path: Path) -> set[int]:
    """Numbers of the lines of a .pyx that stand in functions declared nogil."""
    text = path.read_text(encoding="utf-8")
    rows = text.split("\n")
    inside: set[int] = set()
    for head in re.finditer(r"^( *)cdef [^\n]*?\w+\((?:[^()]|\([^()]*\))*\)[^:\n]*\bnogil:\n", text, re.MULTILINE):
        number = text.count("\n", 0, head.end())  # of the first line of the body, from 0
        while number < len(rows) and (not rows[number] or rows[number].startswith(head[1] + " ")):
            number += 1
            inside.add(number)
    return inside


def gcov() -> tuple[dict[str, dict[int, int]], dict[str, Branches]]:
    """(file -> line -> count, file -> line -> branch counts) of csrc and of nogil functions."""
    lines: dict[str, dict[int, int]] = defaultdict(dict)
    branches: dict[str, Branches] = defaultdict(dict)
    allowed: dict[str, set[int]] = {}
    for data in sorted(TREE.rglob("*.gcno")):
        ended = subprocess.run(
            ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(data)],
            cwd=TREE, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for document in ended.stdout.splitlines():
            for file in json.loads(document)["files"] if document.startswith("{") else ():
                name = os.path.relpath(os.path.join(TREE, file["file"]), TREE)
                compiled = name.endswith(".pyx") and name.startswith("mqfast/store/")
                if not compiled and not name.startswith("csrc/"):
                    continue
                if compiled and name not in allowed:
                    allowed[name] = nogil_lines(TREE / name)
                for line in file["lines"]:
                    number = line["line_number"]
                    # Python's own start of the module is numbered from the last line directive on.
                    if compiled and (number not in allowed[name] or line.get("function_name", "").startswith("__Pyx_")):
                        continue
                    lines[name][number] = lines[name].get(number, 0) + line["count"]
                    taken = [branch["count"] for branch in line["branches"] if not branch["throw"]]
                    known = branches[name].setdefault(number, [0] * len(taken))
                    if len(known) == len(taken):
                        branches[name][number] = [a + b for a, b in zip(known, taken, strict=True)]
    return lines, branches


def python_table(python: str) -> dict[str, tuple[int, int, int, int]]:
    """file -> (lines, run, branches, taken) as coverage.py has it."""
    run = [python, "-m", "coverage"]
    rc = f"--rcfile={BASE}/coveragerc"
    subprocess.run([*run, "combine", "-q", rc], cwd=BASE, check=False)
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


def show(title: str, table: dict[str, tuple[int, int, int, int]], goal: float, missed: list[str]) -> None:
    """Print one table with its total."""
    print(f"\n{title:<44}{'lines':>8}{'%':>8}{'branches':>10}{'%':>8}")
    total = tuple(sum(row[i] for row in table.values()) for i in range(4))
    for name, row in [*table.items(), ("total", total)]:
        line, branch = share(row[1], row[0]), share(row[3], row[2])
        mark = "" if branch >= goal and line >= goal else "  below the goal"
        print(f"  {name:<42}{row[0]:>8}{line:>8.1f}{row[2]:>10}{branch:>8.1f}{mark}")
    if share(total[3], total[2]) < goal or share(total[1], total[0]) < goal:
        missed.append(title)


def main() -> int:
    """Returns: 1 when the tests failed or a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goal", type=float, default=95.0, help="percent")
    parser.add_argument("--missing", action="store_true", help="name the lines whose branches were not all taken")
    parser.add_argument("--only-report", action="store_true", help="of the last run")
    parser.add_argument("tests", nargs="*", default=[])
    options = parser.parse_args()
    status = 0
    if not options.only_report:
        TREE.mkdir(parents=True, exist_ok=True)
        copy_tree()
        build(sys.executable)
        status = run_tests(sys.executable, options.tests or TESTS)
    lines, branches = gcov()
    table = {
        name: (
            len(lines[name]),
            sum(count > 0 for count in lines[name].values()),
            sum(len(taken) for taken in branches[name].values()),
            sum(count > 0 for taken in branches[name].values() for count in taken),
        )
        for name in sorted(lines)
    }
    missed: list[str] = []
    show("csrc (gcov)", {n: row for n, row in table.items() if n.startswith("csrc/")}, options.goal, missed)
    for path, modules in PATHS.items():
        names = [f"mqfast/store/{module}.pyx" for module in modules]
        show(f"{path}, without the GIL (gcov)", {n: table[n] for n in names if n in table}, options.goal, missed)
    others = {n: row for n, row in table.items() if n.endswith(".pyx") and Path(n).stem not in sum(PATHS.values(), ())}
    show("other .pyx, without the GIL (gcov)", others, options.goal, missed)
    show("Python of mqfast/store (coverage.py)", python_table(sys.executable), options.goal, missed)
    if options.missing:
        for name in sorted(branches):
            bad = [f"{n}" for n, taken in sorted(branches[name].items()) if taken and not all(taken)]
            bad += [f"{n}!" for n, count in sorted(lines[name].items()) if not count]
            print(f"{name}: {' '.join(bad)}")
        subprocess.run(
            [sys.executable, "-m", "coverage", "report", "-m", f"--rcfile={BASE}/coveragerc"], cwd=BASE, check=False
        )
    print(
        f"\ncoverage: goal {options.goal:g} %: "
        + ("missed by " + "; ".join(missed) if missed else "reached everywhere")
    )
    return 1 if status or missed else 0


if __name__ == "__main__":
    sys.exit(main())
