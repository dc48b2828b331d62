"""Stock clients of two releases send timed messages to our broker, call some back and receive the others in time."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, STEP_S, Machine, compile_java, older_clients

__all__ = ["older_clients"]  # a fixture

pytestmark = NEEDS_JAVA


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("ours")
    with (work / "broker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "broker_process.py"), str(work / "store"), "recallMessageEnable=true"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    found = re.search(r"NAMESRV_ADDR=(\S+)", process.stdout.readline())
    assert found, (work / "broker.log").read_text()
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, (work / "broker.log").read_text()
    process.stdout.close()


@pytest.mark.parametrize("release", ["5.5.0", "5.3.3"])
def test_any_delay_and_recall(names: str, older_clients: Callable[[str], Machine], release: str) -> None:
    machine = older_clients(release)
    compile_java(machine.home, HERE / "Timed.java")
    quick = {"rocketmq.client.rebalance.waitInterval": "1000"}
    process = machine.java(names, f"Later{release.replace('.', '')}", main="Timed", **quick)
    out, _ = process.communicate(timeout=2 * STEP_S)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(machine.work.glob("Timed*.log"))[-1:])
    assert process.returncode == 0, f"{out}\n{logs}"
    assert out.splitlines() == ["refused 13", "received 20 of them called back 0", "done"], f"{out}\n{logs}"
