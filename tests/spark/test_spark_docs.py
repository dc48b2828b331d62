"""The pages of docs/spark: their tables are those of the code, their program runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAMES = ("start.md", "read.md", "cluster.md", "write.md", "streaming.md", "jobs.md")
PAGES = [ROOT / "docs" / "spark" / name for name in _NAMES]


def test_the_tables_are_current() -> None:
    spec = importlib.util.spec_from_file_location("spark_tables", ROOT / "docs" / "spark_tables.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    texts = [path.read_text(encoding="utf-8") for path in writer.DOCUMENTS]
    assert [writer.renewed(text) for text in texts] == texts, "run: python docs/spark_tables.py"
    document = "\n".join(texts)
    assert document.count("written by docs/spark_tables.py") == 8
    assert "| `maxBytesPerTrigger` | size |" in document
    assert "| `crcOk` | boolean |" in document


def test_the_program_of_the_document_runs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("pyspark")
    session = request.getfixturevalue("spark")  # skips without Java; the program then gets this session
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        # Python workers of a running session have a directory of their own: give them the store by its whole name.
        program = (
            "\n".join(blocks).replace('"shop"', repr(str(tmp_path / "shop"))).replace("'shop'", f"'{tmp_path}/shop'")
        )
        exec(compile(program, "docs/spark", "exec"), {})
        session.catalog.dropTempView("orders")
    finally:
        os.chdir(before)


def test_importing_the_module_that_spark_finds_never_fails(tmp_path: Path) -> None:
    (tmp_path / "pyspark_mqfast").symlink_to(ROOT / "mqfast" / "spark" / "autoload")
    script = (
        "import sys; sys.path[:0] = [{!r}, {!r}]\n"
        "if {}: sys.modules['pyspark'] = None\n"
        "import pyspark_mqfast as m; print(hasattr(m, 'DefaultSource'))"
    )
    for without in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", script.format(str(tmp_path), str(ROOT), without)],
            capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.stdout.strip() == str(not without)
