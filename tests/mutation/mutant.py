"""The parts of a mutant, and how a mutant is applied to a source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from operators import Function, Operator, function

__all__ = ["ROOT", "Mutant", "broken", "broken_function", "places"]

ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 150


@dataclass(frozen=True)
class Mutant:
    """One place to break.

    Attributes: function: the qualified name, ``Class.method``; empty for the level of the module. operator: the change.
    why: what the place is needed for. tests: names of test functions of any file, with parameters or without.
    seconds: the limit of a run that hangs.
    """

    name: str
    file: str
    function: str
    operator: Operator
    why: str
    tests: tuple[str, ...]
    seconds: int = _SECONDS


def _find(mutant: Mutant, text: str) -> Function:
    return function(text, mutant.function, mutant.file.endswith((".c", ".h")))


def broken(mutant: Mutant, text: str) -> str:
    """Return the source with its place broken. Raises: ValueError when the function or the place does not exist."""
    try:
        return mutant.operator(_find(mutant, text))
    except ValueError as error:
        raise ValueError(f"{mutant.name}: {error} in {mutant.function or 'the module'} of {mutant.file}") from error


def broken_function(mutant: Mutant, text: str) -> tuple[str, str]:
    """Return the body of the function before and after the change. Raises: ValueError."""
    tokens, after = _find(mutant, text).tokens, broken(mutant, text)
    start, end = tokens[0].start, tokens[-1].end
    return text[start:end], after[start : end + len(after) - len(text)]


def places(tree: Path) -> dict[str, str]:
    """Return the file of every test function."""
    files: dict[str, str] = {}
    for path in sorted(tree.glob("tests/**/test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            files[name] = str(path.relative_to(tree))
    return files
