"""Former names of public classes, functions and arguments, which keep working with a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

__all__ = ["former_argument", "former_name"]

P = ParamSpec("P")
R = TypeVar("R")


def former_name(module: str, name: str, current: Mapping[str, object]) -> object:
    """Return the object of a former name; the ``__getattr__`` of a module calls this function.

    Args: current: former name -> object of today. Raises: AttributeError for any other name, as Python does.
    """
    if name not in current:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    replacement = current[name]
    warnings.warn(
        f"{module}.{name} is {getattr(replacement, '__name__', replacement)} now", DeprecationWarning, stacklevel=3
    )
    return replacement


def former_argument(former: str, current: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept a keyword argument under its former name as well. The function raises TypeError for both names."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if former in kwargs and current not in kwargs:
                warnings.warn(f"{function.__qualname__}: {former} is {current} now", DeprecationWarning, stacklevel=2)
                kwargs[current] = kwargs.pop(former)
            return function(*args, **kwargs)

        return call

    return decorate
