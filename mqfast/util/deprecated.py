"""Former names of a module's public classes and functions, which keep working with a DeprecationWarning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

__all__ = ["former_name"]


def former_name(module: str, name: str, current: Mapping[str, object]) -> object:
    """Return what a former name of a module stands for; a module calls this from its ``__getattr__``.

    Args: current: former name -> object of today. Raises: AttributeError for any other name, as Python does.
    """
    if name not in current:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    replacement = current[name]
    warnings.warn(
        f"{module}.{name} is {getattr(replacement, '__name__', replacement)} now", DeprecationWarning, stacklevel=3
    )
    return replacement
