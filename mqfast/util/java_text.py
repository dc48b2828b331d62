"""Texts and whole numbers by Java's rules, which differ from Python's. Source: String.trim, Integer.parseInt."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["I32_MAX", "I64_MAX", "java_number", "java_trim", "java_whole"]

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1
_CONTROL: Final = "".join(map(chr, range(33)))  # what String.trim removes


def java_trim(text: str) -> str:
    """Return a text without blanks and control characters at both ends, as ``String.trim``."""
    return text.strip(_CONTROL)


def java_number(text: str, high: int = I32_MAX) -> int | None:
    """Return the number of ``Integer.parseInt`` or ``Long.parseLong``, by ``high``; None where Java throws."""
    # Java reads 16-bit units: a digit beyond U+FFFF is no digit.
    if not re.fullmatch(r"[+-]?\d{1,4000}", text) or any(ord(c) > 0xFFFF for c in text):
        return None
    number = int(text)
    return number if -high - 1 <= number <= high else None


def java_whole(text: str, high: int = I64_MAX) -> int:
    """Convert a text as ``java_number`` does, of 64 bits unless told. Raises: ValueError where Java throws."""
    number = java_number(text, high)
    if number is None:
        raise ValueError(f"expected a whole number as Java reads it, found {text!r:.80}")
    return number
