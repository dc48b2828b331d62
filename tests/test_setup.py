"""A build without a compiler or without Python's headers says so in one line, before it does any work.

Room: tests. ``make wheel`` builds; here nothing is compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# setup.py without Cython and setuptools: what it needs for work must not be imported before the check.
WITHOUT = "import sys, runpy; sys.modules['Cython'] = sys.modules['setuptools'] = None; sys.argv = {!r}; "


def build(
    tmp_path: Path, compiler: str, more: str = "", command: str = "bdist_wheel"
) -> subprocess.CompletedProcess[str]:
    program = (
        WITHOUT.format(["setup.py", command])
        + more
        + f"runpy.run_path({str(ROOT / 'setup.py')!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "CC": compiler},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("command", ["build_ext", "bdist_wheel", "dist_info", "editable_wheel", "install"])
def test_without_a_compiler(tmp_path: Path, command: str) -> None:
    done = build(tmp_path, "no-such-gcc", command=command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "needs a C compiler: 'no-such-gcc' was not found (on Debian and Ubuntu: apt-get install" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_headers_of_python(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    elsewhere = f"import sysconfig; sysconfig.get_path = lambda name: {str(tmp_path / 'include')!r}; "
    done = build(tmp_path, str(broken), elsewhere)
    assert done.returncode == 1
    assert f"needs Python.h: expected in {tmp_path / 'include'}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_compiler_that_cannot_compile_is_named_with_its_error(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'x.c:1: fatal error: stdio.h: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    done = build(tmp_path, str(broken))
    assert done.returncode == 1
    assert "stdio.h: No such file" in done.stderr
    assert done.stderr.count("\n") == 1
