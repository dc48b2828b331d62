"""The calls that RocketMQ's dashboard and exporter make, by the stock admin API 5.5.0: each finds what it asks for.

Neither program is on Maven Central; the calls are those of their sources (dashboard 770822b, exporter e1ab2dd). Left
out is exportPopRecords, which no page calls, of stores in RocksDB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from our_cluster import OurCluster
from real_programs import HERE, NEEDS_JAVA, NEWEST, STEP_S, Machine, compile_java, free_port

pytestmark = [*NEEDS_JAVA, pytest.mark.slow]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    java = Machine(NEWEST, tmp_path, HERE / "Flow.java")
    yield java
    java.end_all()


def test_every_call_of_the_dashboard_and_the_exporter(machine: Machine, tmp_path: Path) -> None:
    compile_java(machine.home, HERE / "Dashboard.java")
    ours = OurCluster(tmp_path, free_port())
    try:
        process = machine.java(ours.namesrv, main="Dashboard")
        out, _ = process.communicate(timeout=2 * STEP_S)
    finally:
        ours.stop()
    *lines, last = out.splitlines()
    assert last == "done", out
    assert [line for line in lines if not line.endswith(" ok")] == []
    assert len(lines) > 75
