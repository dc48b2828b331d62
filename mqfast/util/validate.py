"""Checks of arguments: whole numbers, numbers, flags and texts; a bool is no number.

An error says ``NAME: expected ..., found ...``. The caller gives the class of the error.
"""

from __future__ import annotations

from typing import TypeGuard

from mqfast.errors import ConfigError

__all__ = ["checked_flag", "checked_text", "checked_whole", "expected_range", "is_number", "is_whole"]


def is_whole(value: object, low: float | None = None, high: float | None = None) -> TypeGuard[int]:
    """Return whether a value is a whole number, and no bool, from ``low`` to ``high``; None for no limit."""
    return isinstance(value, int) and is_number(value, low, high)


def is_number(value: object, low: float | None = None, high: float | None = None) -> TypeGuard[float]:
    """Return whether a value is a number, and no bool, from ``low`` to ``high``; NaN is outside of any limit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return (low is None or value >= low) and (high is None or value <= high)


def expected_range(low: float, high: float, unit: str, value: object) -> str:
    """Return ``expected 0 to 5 ms, found 7``."""
    return f"expected {low} to {high}{' ' if unit else ''}{unit}, found {value!r}"


def checked_whole(
    name: str, value: object, low: int, high: int, *, error: type[Exception] = ConfigError, unit: str = ""
) -> int:
    """Return a whole number from ``low`` to ``high``. Raises: ``error``."""
    if not is_whole(value):
        raise error(f"{name}: expected a whole number, found {type(value).__name__} {value!r}")
    if not low <= value <= high:
        raise error(f"{name}: {expected_range(low, high, unit, value)}")
    return value


def checked_flag(name: str, value: object, *, error: type[Exception] = ConfigError) -> bool:
    """Return True or False as given. Raises: ``error`` for another type."""
    if not isinstance(value, bool):
        raise error(f"{name}: expected True or False, found {value!r}")
    return value


def checked_text(name: str, value: object, *, error: type[Exception] = ConfigError) -> str:
    """Return a text as given. Raises: ``error`` for another type."""
    if not isinstance(value, str):
        raise error(f"{name}: expected a str, found {type(value).__name__}")
    return value
