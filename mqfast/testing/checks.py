"""Checks of what a test gives: an error at once, with what was expected and what was found."""

from __future__ import annotations

from mqfast.errors import UsageError

__all__ = ["flag", "seconds", "whole"]


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds. Raises: UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name}: expected a whole number from {least} to {most}, found {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    """True or False. Raises: UsageError."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}: expected True or False, found {value!r}")
    return value


def seconds(name: str, value: object, most: float) -> float:
    """Seconds from 0 on. Raises: UsageError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise UsageError(f"{name}: expected 0 to {most:g} seconds, found {value!r}")
    return float(value)
