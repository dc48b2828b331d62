"""The Python forms of compiled modules: found under the names of the compiled modules, at import.

``mqfast/__init__.py`` calls ``use_python_forms`` where no extension module was built, or with ``MQFAST_PURE=1``.
Compiled modules without a Python form are refused with an error that says how to get them. Both forms are never mixed
in a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

__all__ = ["PYTHON_FORMS", "NotCompiled", "PythonForms", "use_python_forms"]

_HERE: Final = os.path.dirname(os.path.abspath(__file__))
PYTHON_FORMS: Final = {
    "mqfast.client.delivery_fields": "delivery_fields.py",
    "mqfast.client.net.blocking_connection": "blocking_connection.py",
    "mqfast.client.net.guard": "guard.py",
    "mqfast.client.producer.fast_encode": "fast_encode.py",
    "mqfast.remoting.codec": "codec.py",
    "mqfast.remoting.connection": "connection.py",
    "mqfast.remoting.headers": "headers.py",
    "mqfast.remoting.unique_ids": "unique_ids.py",
    "mqfast.store.record.record": "record.py",
}
"""The file of this folder for each compiled module that a client imports."""
_SOURCES: Final = (".pyi", ".pxd", ".pyx")  # what lies beside an extension module


class NotCompiled(ImportError):
    """A module was imported that has compiled code only."""


class PythonForms(MetaPathFinder):
    """Finds the Python forms of compiled modules. Args: why: the reason of the choice, for the text of errors."""

    def __init__(self, why: str) -> None:
        self._why = why

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec; None for other packages. Raises: NotCompiled."""
        if not fullname.startswith("mqfast."):
            return None
        if fullname in PYTHON_FORMS:
            return spec_from_file_location(fullname, os.path.join(_HERE, PYTHON_FORMS[fullname]))
        spec = PathFinder.find_spec(fullname, path)
        if spec is None and not _is_compiled(fullname, path or ()):
            return None
        if spec is None or isinstance(spec.loader, ExtensionFileLoader):
            raise NotCompiled(
                f"{fullname} is compiled code, and {self._why}. Clients of brokers work without compiled code; the "
                "store, the broker, the name server and the test kit need compiled code: install a wheel for this "
                "system and Python version, or build one (a C compiler and Python.h: see docs/install.md)",
                name=fullname,
            )
        return spec


def _is_compiled(fullname: str, path: Sequence[str]) -> bool:
    """Return whether the module is an extension module that was not built."""
    tail = fullname.rpartition(".")[2]
    return any(os.path.exists(os.path.join(folder, tail + suffix)) for folder in path for suffix in _SOURCES)


def use_python_forms(*, is_excluded: bool) -> None:
    """Find the Python forms from now on. Called once, before any other module of ``mqfast`` is imported.

    Args: is_excluded: compiled code is not wanted, rather than missing.
    """
    if is_excluded:
        why = "MQFAST_PURE excludes compiled code"
    else:
        why = "this installation of mqfast has none (py3-none-any, or MQFAST_PURE=1 at its build)"
    sys.meta_path.insert(0, PythonForms(why))
