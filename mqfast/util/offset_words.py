"""The two words for the ends of a queue: ``earliest`` and ``latest``; ``first`` and ``last`` are synonyms."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["end_word"]

_SAME: Final = {"first": "earliest", "last": "latest"}


def end_word(value: Any) -> Any:
    """Return ``earliest`` for ``first`` and ``latest`` for ``last``; any other value unchanged."""
    return _SAME.get(value, value) if isinstance(value, str) else value
