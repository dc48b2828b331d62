"""Numbers as Java's filter reads and compares them: Integer, Long, Double, and text that is to become one of them.

Room: broker/pull/filter. It must never accept text as a number that Java refuses, nor the other way round. An Integer
is ``int``, a Long is ``JavaLong``, a Double is ``float``. Source: ComparisonExpression.__compare; java.lang.Integer,
Long, Double.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["EvaluationFailed", "JavaLong", "Value", "compare", "double_of", "integer_of"]


class EvaluationFailed(ValueError):
    """The expression has no value for this message; such a message is not wanted."""


class JavaLong(int):
    """A whole number of 64 bits."""


Value = bool | int | float | str | None
"""A value of an expression; None: unknown."""

_INTEGER: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = re.compile(r"([+-]?)(NaN|Infinity)")
_BLANK: Final = "".join(map(chr, range(0x21)))  # what Java's trim() takes off
_INTEGER_DIGITS_MAX: Final = 4300  # more have no value that fits, and Python refuses to convert them


def integer_of(text: str, bits: int) -> int:
    """Integer.valueOf (32 bits) or Long.valueOf (64). Raises: EvaluationFailed."""
    if _INTEGER.fullmatch(text) and len(text) <= _INTEGER_DIGITS_MAX and (text.isascii() or max(text) < "\U00010000"):
        number = int(text)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise EvaluationFailed(f"expected a whole number of {bits} bits, found {text!r:.80}")


def double_of(text: str) -> float:
    """Double.valueOf. Raises: EvaluationFailed."""
    plain = text.strip(_BLANK)
    if _DECIMAL.fullmatch(plain):
        return float(plain.rstrip("fFdD"))
    if named := _NAMED.fullmatch(plain):
        number = float(named[2].lower())
        return -number if named[1] == "-" else number
    if hexadecimal := _HEXADECIMAL.fullmatch(plain):
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return float("-inf" if plain.startswith("-") else "inf")
    raise EvaluationFailed(f"expected a number, found {text!r:.80}")


def compare(left: bool | int | float | str, right: bool | int | float | str) -> int:
    """Below 0, 0 or above 0, as Java's compareTo after its conversions; -1 for kinds that have no order.

    Raises: EvaluationFailed where text is to become a number and is none.
    """
    kind, other = type(left), type(right)
    if kind is other:
        return _order_of_doubles(left, right) if kind is float else (left > right) - (left < right)  # type: ignore[arg-type, operator]
    if kind is bool:
        if other is str:
            raise EvaluationFailed("a truth value cannot be compared with text")
        return -1
    if kind is str:
        left = _converted(left, other)  # type: ignore[arg-type]
    elif other is str:
        right = _converted(right, kind)  # type: ignore[arg-type]
    elif other is bool:
        return -1
    if kind is float or other is float:
        return _order_of_doubles(float(left), float(right))
    return (left > right) - (left < right)  # type: ignore[operator]


def _converted(text: str, kind: type) -> bool | int | float:
    if kind is float:
        return double_of(text)
    if kind is bool:
        return text.lower() == "true"
    return integer_of(text, 64 if kind is JavaLong else 32)


def _order_of_doubles(left: float, right: float) -> int:
    """Double.compare: NaN is equal to itself and above all others, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (_rank(left) > _rank(right)) - (_rank(left) < _rank(right))


def _rank(number: float) -> int:
    if number != number:
        return 2
    return 0 if number == 0 and str(number)[0] == "-" else 1
