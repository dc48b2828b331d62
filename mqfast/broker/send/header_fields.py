"""Fields of request headers, read by name and type."""

from __future__ import annotations

from mqfast.errors import FieldError
from mqfast.remoting.command import RemotingCommand
from mqfast.util.java_text import java_number

__all__ = ["flag", "text", "whole"]

_LONG_MAX = 2**63 - 1
_LONG_DIGITS = 19


def text(request: RemotingCommand, name: str) -> str:
    """Return a required text. Raises: FieldError."""
    value = request.ext_fields.get(name)
    if value is None or value == "":
        raise FieldError(name, "a value", "none")
    return str(value)


def whole(request: RemotingCommand, name: str, default: int | None = None) -> int:
    """Return a whole number, required unless there is a default. Raises: FieldError."""
    value = request.ext_fields.get(name)
    if value is None or value == "":
        if default is None:
            raise FieldError(name, "a whole number", "none")
        return default
    digits = str(value)
    if len(digits) < _LONG_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits)
    number = java_number(digits, _LONG_MAX)
    if number is None:
        raise FieldError(name, "a whole number", repr(value))
    return number


def flag(request: RemotingCommand, name: str) -> bool:
    """Return True if the field is ``true``; False without the field."""
    return str(request.ext_fields.get(name, "")).lower() == "true"
