"""Checks of what a test gives: an error at once, with what was expected and what was found."""

from __future__ import annotations

from mqfast.errors import UsageError
from mqfast.util.validate import checked_flag, is_number, is_whole

__all__ = ["flag", "seconds", "whole"]


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds. Raises: UsageError."""
    if not is_whole(value, least, most):
        raise UsageError(f"{name}: expected a whole number from {least} to {most}, found {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    """True or False. Raises: UsageError."""
    return checked_flag(name, value, error=UsageError)


def seconds(name: str, value: object, most: float) -> float:
    """Seconds from 0 on. Raises: UsageError."""
    if not is_number(value, 0, most):
        raise UsageError(f"{name}: expected 0 to {most:g} seconds, found {value!r}")
    return float(value)
