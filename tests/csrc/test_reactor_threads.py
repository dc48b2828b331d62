"""The reactors by themselves, under the thread and the address sanitizer: ``reactor_check.c`` beside this file, and
``tests/fuzz/reactor_frames.c``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import WHOLE

CSRC = Path(__file__).resolve().parents[2] / "csrc"


pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reactors need epoll")]


def built(program: Path, sanitizer: str, *sources: Path) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler found")
    command = [compiler, "-std=gnu11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    command += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined", *map(str, sources)]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if "cannot find -l" in done.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_reactors_loop_and_clients_under_a_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    program = built(
        tmp_path / "reactor_check", sanitizer, CSRC / "reactor.c", Path(__file__).with_name("reactor_check.c")
    )
    for _ in range(20 if WHOLE else 1):
        done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"


def test_each_byte_of_any_stream_is_served_or_handed_over_once_and_in_order(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[1] / "fuzz" / "reactor_frames.c"
    program = built(tmp_path / "reactor_frames", "address,undefined", source)
    command = [str(program), str(1_000_000 if WHOLE else 20_000), "46"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
