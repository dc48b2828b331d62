"""Hints for mistyped names: the nearest known names, as text behind an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["did_you_mean", "near_names"]

_CUTOFF: Final = 0.6


def near_names(
    name: str, known: Iterable[str], *, count: int = 1, cutoff: float = _CUTOFF, ignore_case: bool = False
) -> list[str]:
    """Return the known names that are most like ``name``, the nearest first.

    Args: count: at most so many; cutoff: least likeness, from 0 to 1; ignore_case: compare without case.
    """
    if not ignore_case:
        return difflib.get_close_matches(name, list(known), count, cutoff)
    by_lower = {word.lower(): word for word in known}
    return [by_lower[word] for word in difflib.get_close_matches(name.lower(), by_lower, count, cutoff)]


def did_you_mean(
    name: str, known: Iterable[str], *, count: int = 1, cutoff: float = _CUTOFF, ignore_case: bool = False
) -> str:
    """Return ``"; did you mean x or y?"``, or an empty text where no known name is near. Args: as ``near_names``."""
    near = near_names(name, known, count=count, cutoff=cutoff, ignore_case=ignore_case)
    return f"; did you mean {' or '.join(near)}?" if near else ""
