"""docs/examples: each file runs as a program beside ``mqfast up``, and prints what the file says."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.py"))
SETTINGS = ("enablePropertyFilter=true", "recallMessageEnable=true")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def namesrv_addr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run ``mqfast up`` on free ports; return the address of its name server."""
    store = tmp_path_factory.mktemp("up") / "store"
    ports = ("--namesrv-port=0", "--broker-port=0")
    command = [sys.executable, "-m", "mqfast.cli", "up", *ports, f"--store={store}", *SETTINGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdout is not None
        printed: list[str] = []
        for line in servers.stdout:
            printed.append(line)
            if "automatic topics" in line:  # the last line of a started broker
                break
        try:
            match = re.search(r"NAMESRV_ADDR=(\S+:\d+)", "".join(printed))
            assert match is not None, "".join(printed)
            yield match[1]
        finally:
            servers.send_signal(signal.SIGTERM)
            servers.stdout.read()
    assert servers.returncode == 0


def expected(text: str) -> list[str]:
    """Return the lines that an example says to print."""
    return re.findall(r"^Prints: (.*)$", ast.get_docstring(ast.parse(text)) or "", re.MULTILINE)


def test_the_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\[(\w+\.py)\]\(\1\)$", page, re.MULTILINE)) == FILES
    assert len(FILES) == 15
    assert " ".join(SETTINGS) in page


@pytest.mark.parametrize("name", FILES)
def test_an_example_prints_what_the_file_says(name: str, namesrv_addr: str, tmp_path: Path) -> None:
    path = EXAMPLES / name
    text = path.read_text(encoding="utf-8")
    if "pyspark" in text and (importlib.util.find_spec("pyspark") is None or shutil.which("java") is None):
        pytest.skip("needs pyspark and Java")
    lines = expected(text)
    assert lines, "the docstring says nothing about what the example prints"
    command = [sys.executable, str(path)]
    if name.startswith("test_"):
        shutil.copy(path, tmp_path)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    environment = {**os.environ, "NAMESRV_ADDR": namesrv_addr, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    if name.startswith("test_"):
        printed = re.findall(r"^\d+ passed", printed[-1])
    assert printed == lines, done.stderr
