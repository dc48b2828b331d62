"""The C below the store by itself: what every call of the door says when it fails, the guard against lost pages, the
lock, and copies that go no byte too far.

Room: tests. It must never stand in for the tests of the store over a failing door (``tests/crash``) or over files that
are cut (``tests/truncation``): here is only what ``csrc/os_api.c``, ``csrc/sigbus_guard.c``, ``csrc/atomics.h``
and ``csrc/short_copy.h`` promise by themselves. The checks are in the C files beside this one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# Program, sources, and the calls that it scripts: the C library would not fail on demand.
PROGRAMS = [
    ("os_api_check", ("os_api.c",), ("open", "fallocate", "fsync", "fcntl", "uname", "lseek")),
    ("sigbus_guard_check", ("sigbus_guard.c", "atomics.c"), ("sigaction", "syscall", "calloc", "raise", "sched_yield")),
    ("lock_check", ("atomics.c",), ()),
    ("short_copy_check", (), ()),
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the linker of other systems cannot wrap calls")
@pytest.mark.parametrize(("name", "sources", "scripted"), PROGRAMS, ids=[program[0] for program in PROGRAMS])
def test_in_a_process_of_its_own(
    tmp_path: Path, name: str, sources: tuple[str, ...], scripted: tuple[str, ...]
) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler found")
    program = tmp_path / name
    command = [compiler, "-std=c11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    command += [*(str(CSRC / source) for source in sources), str(Path(__file__).with_name(f"{name}.c"))]
    command += [f"-Wl,--wrap={call}" for call in scripted]
    subprocess.run([*command, "-o", str(program)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run([str(program), str(work)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert not list(work.iterdir())
