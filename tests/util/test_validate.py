"""Checks of arguments: a bool is no number, limits are inclusive, NaN is outside of any limit."""

from __future__ import annotations

import math

import pytest

from mqfast.errors import ConfigError, UsageError
from mqfast.util.validate import checked_flag, checked_text, checked_whole, is_number, is_whole


def test_whole_numbers_are_no_bools_and_no_floats() -> None:
    assert [is_whole(value) for value in (0, -5, 2**70, True, 1.0, "1", None)] == [True, True, True, *[False] * 4]
    assert [is_whole(value, 1, 3) for value in (0, 1, 3, 4)] == [False, True, True, False]
    assert is_whole(5, 1)
    assert not is_whole(0, 1)


def test_numbers_are_no_bools_and_nan_is_outside_of_limits() -> None:
    assert [is_number(value) for value in (0, 1.5, math.inf, math.nan, True, "1")] == [*[True] * 4, False, False]
    assert [is_number(value, 0, 1) for value in (0, 0.5, 1, 1.5, math.nan)] == [True, True, True, False, False]
    assert not is_number(math.nan, 0)


def test_checked_values_are_returned_and_others_are_errors_of_the_caller() -> None:
    assert (checked_whole("n", 3, 1, 5), checked_flag("f", False), checked_text("t", "")) == (3, False, "")
    with pytest.raises(UsageError, match="n: expected 1 to 5 bytes, found 6"):
        checked_whole("n", 6, 1, 5, error=UsageError, unit="bytes")
    with pytest.raises(ConfigError, match="n: expected a whole number, found bool True"):
        checked_whole("n", True, 1, 5)
    with pytest.raises(ConfigError, match="f: expected True or False, found 1"):
        checked_flag("f", 1)
    with pytest.raises(ConfigError, match="t: expected a str, found bytes"):
        checked_text("t", b"")
