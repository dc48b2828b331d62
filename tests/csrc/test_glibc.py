"""The extensions load on systems with glibc 2.28: no symbol that they import is newer."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest

import mqfast

LIBRARY, VERSION = platform.libc_ver()


@pytest.mark.skipif(sys.platform != "linux" or LIBRARY != "glibc", reason="needs glibc")
@pytest.mark.skipif(
    LIBRARY == "glibc" and tuple(map(int, VERSION.split("."))) > (2, 36),
    reason="a compiler beside a newer glibc chooses newer symbols: wheels are built with 2.36 or older",
)
def test_no_symbol_is_newer_than_glibc_2_28() -> None:
    modules = sorted(Path(mqfast.__file__).parent.rglob("*.so"))
    assert modules
    newer = {
        (module.name, f"2.{minor}")
        for module in modules
        for minor in map(int, re.findall(rb"GLIBC_2\.(\d+)", module.read_bytes()))
        if minor > 28
    }
    assert not newer
