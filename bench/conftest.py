"""What all benchmarks share: a directory, the floor in C, and the table of targets that is printed at the end."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

# Test files are imported by path, so the folder itself must be found for what they share.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import host_memory
import processors
from harness import Floor, Row, Table, compiled

_TABLE = Table()
# More than one benchmark writes, and more than all of a run.
_TOUCHED_BYTES, _KEPT_BYTES = 1 << 30, 8 << 30


@pytest.fixture(scope="session")
def table() -> Table:
    """The closing table."""
    return _TABLE


@pytest.fixture(scope="session", autouse=True)
def _memory() -> Iterator[None]:
    processors.end_in_order(signal.default_int_handler)  # pytest ends in order of a KeyboardInterrupt only
    with host_memory.kept(_KEPT_BYTES) as told:
        _TABLE.notes.append(told)
        yield


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory on the disk that is measured."""
    host_memory.touch(_TOUCHED_BYTES)
    path = Path(tempfile.mkdtemp(prefix="mqfast-bench-", dir=os.environ.get("MQFAST_BENCH_DIR")))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Floor:
    """The floor, compiled for this machine."""
    return Floor(compiled("floor.c", tmp_path_factory.mktemp("floor")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the targets beside what was measured."""
    if not _TABLE.rows:
        return
    if "MQFAST_BENCH_TABLE" in os.environ:
        Path(os.environ["MQFAST_BENCH_TABLE"]).write_text(json.dumps([asdict(row) for row in _TABLE.rows]))
    write = terminalreporter.write_line
    terminalreporter.section("targets")
    write(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {sys.version.split()[0]}")
    for note in _TABLE.notes:
        write(note)
    head = Row("what", "measured", "target", None, "durability", "C baseline")
    rows = [head, *_TABLE.rows]
    widths = [
        max(len(getattr(row, name)) for row in rows) for name in ("what", "figure", "baseline", "target", "durability")
    ]
    for row in rows:
        verdict = "" if row is head else "met" if row.met else "not compared" if row.met is None else "MISSED"
        write(
            f"{row.what:<{widths[0]}}  {row.figure:>{widths[1]}}  {row.baseline:<{widths[2]}}  "
            f"{row.target:<{widths[3]}}  {row.durability:<{widths[4]}}  {verdict}"
        )
