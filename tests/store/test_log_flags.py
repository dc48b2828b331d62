"""The flags of a log have the same numbers in Python and in Cython."""

from __future__ import annotations

import re
from pathlib import Path

import mqfast
from mqfast.store.base.results import LogFlag

PACKAGE = Path(mqfast.__file__).parent


def test_the_flags_of_python_are_those_of_the_appends() -> None:
    source = (PACKAGE / "store" / "log" / "log_state.pxd").read_text(encoding="utf-8")
    enum = source.split("cdef enum LogFlag:")[1].split("cdef enum")[0]
    found = {name: int(value) for name, value in re.findall(r"^ +LOG_(\w+) = (\d+)", enum, re.MULTILINE)}
    assert found.pop("ASLEEP") not in found.values()  # of the services alone
    assert found == {flag.name: int(flag) for flag in LogFlag}
