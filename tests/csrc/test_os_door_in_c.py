"""The door in C by itself: what every call says when it fails, and what it makes of the moods of a system.

Room: tests. It must never stand in for the tests of the store over a failing door (``tests/crash``): here is only what
``csrc/os_door.c`` promises by itself. The checks are in os_door_check.c.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# Calls that os_door_check.c can let fail; the C library would not do it on demand.
SCRIPTED = ("open", "fallocate", "fsync", "fcntl", "uname", "lseek")


@pytest.mark.skipif(sys.platform != "linux", reason="the linker of other systems cannot wrap calls")
def test_every_call_of_the_real_table(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler found")
    program = tmp_path / "os_door_check"
    command = [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}", str(CSRC / "os_door.c")]
    command += [str(Path(__file__).with_name("os_door_check.c")), f"-Wl,{','.join('--wrap=' + c for c in SCRIPTED)}"]
    subprocess.run([*command, "-o", str(program)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run([str(program), str(work)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(work.iterdir())
