"""Stock consumers of three releases on our broker: push, orderly, broadcasting, SQL92, pull and lite pull."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, STEP_S, Machine, compile_java, older_clients

__all__ = ["older_clients"]  # a fixture

pytestmark = NEEDS_JAVA

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("ours")
    with (work / "broker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "broker_process.py"), str(work / "store"), "enablePropertyFilter=true"],
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


@pytest.mark.slow
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_every_way_to_consume(names: str, older_clients: Callable[[str], Machine], release: str) -> None:
    machine = older_clients(release)
    compile_java(machine.home, HERE / "Consume.java")
    quick = {"rocketmq.client.rebalance.waitInterval": "1000"}
    process = machine.java(names, f"c{release.replace('.', '')}", main="Consume", **quick)
    out, _ = process.communicate(timeout=2 * STEP_S)
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(machine.work.glob("Consume*.log"))[-1:])
    lines = [line for line in out.splitlines() if not line.startswith("pushed after")]
    assert process.returncode == 0, f"{out}\n{logs}"
    ways = ["concurrently", "orderly", "broadcasting", "sql", "pulls", "lite pulls", "pushed", "done"]
    assert [line for line in lines if line in ways] == ways, f"{out}\n{logs}"
    print(out)
