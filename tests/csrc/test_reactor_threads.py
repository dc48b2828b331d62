"""The reactors by themselves, under the thread and the address sanitizer: ``reactor_check.c`` beside this file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import WHOLE

CSRC = Path(__file__).resolve().parents[2] / "csrc"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reactors need epoll")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_reactors_loop_and_clients_under_a_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler found")
    program = tmp_path / "reactor_check"
    command = [compiler, "-std=c11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    command += [f"-fsanitize={sanitizer}", str(CSRC / "reactor.c"), str(Path(__file__).with_name("reactor_check.c"))]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find -l" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    for _ in range(20 if WHOLE else 1):
        done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
