"""The list of mutants is true to the sources: every old text stands where it is looked for, and every test exists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from mutants import MUTANTS, ROOT, Mutant, broken, places


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_it_can_be_applied(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert broken(mutant, text) != text


def test_every_test_exists() -> None:
    named = {test.partition("[")[0] for mutant in MUTANTS for test in mutant.tests}
    assert not named - places(ROOT).keys()
    assert all(mutant.tests for mutant in MUTANTS)


def test_no_name_twice_and_no_text_that_is_not_found_once() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    gone = Mutant("gone", "x", "no such line", "", "", ())
    with pytest.raises(ValueError, match="found it 0 times"):
        broken(gone, "another line")
    with pytest.raises(ValueError, match="found it 2 times"):
        broken(gone, "no such line\nno such line\n")
