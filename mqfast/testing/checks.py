"""Checks of the arguments of a test: an error at once, with the expected and the given value."""

from __future__ import annotations

from mqfast.errors import UsageError
from mqfast.util.validate import checked_flag, is_number, is_whole

__all__ = ["flag", "seconds", "whole"]


def whole(name: str, value: object, low: int, high: int) -> int:
    """Check a whole number within bounds. Raises: UsageError."""
    if not is_whole(value, low, high):
        raise UsageError(f"{name}: expected a whole number from {low} to {high}, found {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    """Check True or False. Raises: UsageError."""
    return checked_flag(name, value, error=UsageError)


def seconds(name: str, value: object, high: float) -> float:
    """Check seconds from 0 on. Raises: UsageError."""
    if not is_number(value, 0, high):
        raise UsageError(f"{name}: expected 0 to {high:g} seconds, found {value!r}")
    return float(value)
