"""Numbers as Java's filter reads and compares them: Integer, Long, Double, and text converted to these.

Exactly the texts that Java accepts are numbers. An Integer is ``int``, a Long is ``JavaLong``, a Double is ``float``.
Source: ComparisonExpression.__compare; java.lang.Integer, Long, Double.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["EvaluationFailed", "JavaLong", "Value", "compare", "double_of", "integer_of"]


class EvaluationFailed(ValueError):
    """The expression has no value for this message; such a message does not match."""


class JavaLong(int):
    """A whole number of 64 bits."""


Value = bool | int | float | str | None
"""A value of an expression; None: unknown."""

_INTEGER: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = re.compile(r"([+-]?)(NaN|Infinity)")
_BLANK: Final = "".join(map(chr, range(0x21)))  # characters that Java's trim() removes
_INTEGER_DIGITS_MAX: Final = 4300  # longer texts are out of range, and Python refuses to convert them


def integer_of(text: str, bits: int) -> int:
    """Return Integer.valueOf (32 bits) or Long.valueOf (64). Raises: EvaluationFailed."""
    if _INTEGER.fullmatch(text) and len(text) <= _INTEGER_DIGITS_MAX and (text.isascii() or max(text) < "\U00010000"):
        number = int(text)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise EvaluationFailed(f"expected a whole number of {bits} bits, found {text!r:.80}")


def double_of(text: str) -> float:
    """Return Double.valueOf. Raises: EvaluationFailed."""
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


def compare(lhs: bool | int | float | str, rhs: bool | int | float | str) -> int:
    """Return below 0, 0 or above 0, as Java's compareTo after conversions; -1 for types without an order.

    Raises: EvaluationFailed for text that must be converted and is no number.
    """
    kind, other = type(lhs), type(rhs)
    if kind is other:
        return _order_of_doubles(lhs, rhs) if kind is float else (lhs > rhs) - (lhs < rhs)  # type: ignore[arg-type, operator]
    if kind is bool:
        if other is str:
            raise EvaluationFailed("a truth value cannot be compared with text")
        return -1
    if kind is str:
        lhs = _converted(lhs, other)  # type: ignore[arg-type]
    elif other is str:
        rhs = _converted(rhs, kind)  # type: ignore[arg-type]
    elif other is bool:
        return -1
    if kind is float or other is float:
        return _order_of_doubles(float(lhs), float(rhs))
    return (lhs > rhs) - (lhs < rhs)  # type: ignore[operator]


def _converted(text: str, kind: type) -> bool | int | float:
    if kind is float:
        return double_of(text)
    if kind is bool:
        return text.lower() == "true"
    return integer_of(text, 64 if kind is JavaLong else 32)


def _order_of_doubles(lhs: float, rhs: float) -> int:
    """Compare as Double.compare: NaN is equal to NaN and above all others, -0.0 is below 0.0."""
    if lhs < rhs:
        return -1
    if lhs > rhs:
        return 1
    return (_rank(lhs) > _rank(rhs)) - (_rank(lhs) < _rank(rhs))


def _rank(number: float) -> int:
    if number != number:
        return 2
    return 0 if number == 0 and str(number)[0] == "-" else 1
