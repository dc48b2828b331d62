"""Runs of existing tests with clients without compiled code: ``MQFAST_PURE=1 pytest``.

Room: tests. Brokers of such a run are other processes, which are compiled. Modules of this process that only a broker
would use are placeholders: names can be imported, and nothing of them works.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["in_use", "use_python_forms"]


class _Placeholder(type):
    """The type of placeholders: any name or result of a placeholder is a placeholder."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name, (), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _Placeholder(cls.__name__, (), {})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name, (), {})


class _Placeholders(Loader, MetaPathFinder):
    """Finds a placeholder where the finder behind refuses compiled code."""

    def __init__(self, behind: MetaPathFinder) -> None:
        self._behind = behind

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        try:
            return self._behind.find_spec(fullname, path, target)
        except ImportError:
            return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def in_use() -> bool:
    """Whether clients of this process are without compiled code."""
    return any(isinstance(finder, _Placeholders) for finder in sys.meta_path)


def use_python_forms() -> None:
    """Let clients of this process be without compiled code, if ``MQFAST_PURE`` says so; not those of its children."""
    if not os.environ.get("MQFAST_PURE"):
        return
    importlib.import_module("mqfast")
    del os.environ["MQFAST_PURE"]
    form = importlib.import_module("mqfast.pure.form")
    (found,) = (finder for finder in sys.meta_path if isinstance(finder, form.PythonForms))
    sys.meta_path[sys.meta_path.index(found)] = _Placeholders(found)
    testing = importlib.import_module("mqfast.testing")
    testing.Broker = functools.partial(testing.Broker, process=True)
