"""The list of mutants agrees with the sources: every function, place and test exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from mutant import ROOT, Mutant, broken, broken_function, places
from mutants import MUTANTS
from operators import Operator, argument, before, call, condition, drop, instead, replace, result, without, words

PYTHON = """
X = 3

class Log:
    def flush(
        self, a, b=(1, 2),
    ):
        # if this: were code
        if a < 1 and (b or
                      a < 2):  # a comment
            self.store.sync(a, f(b, 0))
            return a
        return b

    def close(self): self.flush(1, 2)

cdef int last(int a) except -1:
    while a: a = next(a)
    return 0
"""
C = """
static int sync(int fd); /* int sync(int fd) {} */
int sync(int fd) {
    if (fd < 0 && (fd || !fd)) return -1;
    int rc = fsync(fd), at = 0;
    close(fd);
    return rc;
}
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_applies(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    old, new = broken_function(mutant, text)
    assert old != new
    assert not words(new) - words(old), "a local has another name now"


def test_every_test_exists() -> None:
    named = {test.partition("[")[0] for mutant in MUTANTS for test in mutant.tests}
    assert not named - places(ROOT).keys()
    assert all(mutant.tests for mutant in MUTANTS)


def test_every_case_of_a_test_exists() -> None:
    files = places(ROOT)
    cases = {test for mutant in MUTANTS for test in mutant.tests if "[" in test}
    named = [f"{files[test.partition('[')[0]]}::{test}" for test in cases]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MQFAST_WHOLE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    ("function", "operator", "old", "new"),
    [
        ("", replace("X = 3", "X = 0"), "X = 3", "X = 0"),
        ("Log.flush", replace("<", "<=", -1), "a < 2", "a <= 2"),
        ("Log.flush", replace("b or a < 2", "b"), "b or\n                      a < 2", "b"),
        ("Log.flush", condition("False"), "a < 1 and (b or\n                      a < 2)", "False"),
        ("Log.flush", without(1), "a < 1 and ", ""),
        ("Log.flush", without(2), "b or\n                      ", ""),
        ("Log.flush", without(3), " or\n                      a < 2", ""),
        ("Log.flush", result("0", -1), "return b", "return 0"),
        ("Log.flush", drop("sync"), "self.store.sync(a, f(b, 0))", "pass"),
        ("Log.flush", instead("sync", "a = b\nb = a"), "self.store.sync(a, f(b, 0))", "a = b\n            b = a"),
        ("Log.flush", before("store.sync", "b = 0"), "self.store", "b = 0\n            self.store"),
        ("Log.flush", argument("sync", 2, "0"), "f(b, 0)", "0"),
        ("Log.flush", argument("f", 2, "1"), "f(b, 0)", "f(b, 1)"),
        ("Log.close", call("flush", "0"), "self.flush(1, 2)", "0"),
        ("last", condition("1"), "while a", "while 1"),
    ],
)
def test_operator_changes_one_place_of_python(function: str, operator: Operator, old: str, new: str) -> None:
    assert PYTHON.count(old) == 1
    assert broken(Mutant("m", "x.pyx", function, operator, "", ()), PYTHON) == PYTHON.replace(old, new)


@pytest.mark.parametrize(
    ("operator", "old", "new"),
    [
        (condition("1"), "fd < 0 && (fd || !fd)", "1"),
        (without(3), " || !fd", ""),
        (result("0"), "return -1", "return 0"),
        (call("fsync", "0"), "fsync(fd)", "0"),
        (drop("close"), "close(fd);", ""),
    ],
)
def test_operator_changes_one_place_of_c(operator: Operator, old: str, new: str) -> None:
    assert C.count(old) == 1
    assert broken(Mutant("m", "x.c", "sync", operator, "", ()), C) == C.replace(old, new)


@pytest.mark.parametrize(
    ("function", "operator", "message"),
    [
        ("Log.sync", condition("True"), "one definition of Log.sync, found 0"),
        ("flush", condition("True"), "one definition of flush, found 0"),
        ("Log.flush", condition("True", 2), "condition number 2, found 1"),
        ("Log.flush", result("0", 0), "return number 0, found 2"),
        ("Log.flush", replace("a > 1", ""), "`a > 1` number 1, found 0"),
        ("Log.flush", without(4), "term number 4, found 3"),
        ("Log.flush", argument("sync", 3, "0"), "`sync` has no argument number 3"),
        ("last", without(1), "term 1 is the only one"),
        ("last", drop("next"), "`next` is called by `while`"),
    ],
)
def test_place_that_does_not_exist_is_an_error(function: str, operator: Operator, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        broken(Mutant("m", "x.pyx", function, operator, "", ()), PYTHON)
