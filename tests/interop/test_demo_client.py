"""The demo's round trip with a stock Java client."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, NEWEST

from mqfast.demo_network import JAVA_MESSAGES, network

pytestmark = NEEDS_JAVA


def test_a_stock_client_in_the_demo(tmp_path: Path) -> None:
    lines: list[str] = []
    network(tmp_path, lines.append, lines.append, lines.append)
    sent = f"the Java client of Apache RocketMQ {NEWEST} sent {JAVA_MESSAGES} messages and received each of them"
    assert sent in lines, lines
    rows = [line.split() for line in lines if line.split()[:1] == ["DemoJava"]]
    assert sum(int(row[-1]) for row in rows) == JAVA_MESSAGES
