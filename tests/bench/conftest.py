"""The scripts of bench/ as modules, which are no package: a fixture of each one's name.

It must never leave the path of imports changed behind a test file.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@contextmanager
def _script(name: str) -> Iterator[ModuleType]:
    """A script with its neighbours, by its path below bench/ without .py."""
    kept = list(sys.path)
    sys.path.insert(0, str(BENCH))
    own = f"bench_{name.replace('/', '_')}"
    spec = importlib.util.spec_from_file_location(own, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module  # a dataclass looks for its module there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = kept


@pytest.fixture(scope="module")
def ab() -> Iterator[ModuleType]:
    with _script("ab") as module:
        yield module


@pytest.fixture(scope="module")
def counts() -> Iterator[ModuleType]:
    with _script("counts") as module:
        yield module


@pytest.fixture(scope="module")
def host_memory() -> Iterator[ModuleType]:
    with _script("host_memory") as module:
        yield module


@pytest.fixture(scope="module")
def latency() -> Iterator[ModuleType]:
    with _script("latency") as module:
        yield module


@pytest.fixture(scope="module")
def processors() -> Iterator[ModuleType]:
    with _script("processors") as module:
        yield module


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    """bench/rivals/run.py."""
    with _script("rivals/run") as module:
        yield module
