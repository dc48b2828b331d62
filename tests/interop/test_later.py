"""Stock clients whose messages come again or later on our broker: delay levels, retries up to the dead letters,
transactions with their checks, request and reply.

Room: tests/interop. One JVM a release carries out all flows; it checks what it receives.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, STEP_S, Machine, free_port

import mqfast
from mqfast.broker.transaction.half_message import ended_offsets

pytestmark = NEEDS_JAVA

SETTINGS = (
    "messageDelayLevel=1s 1s 1s 2s",
    "transactionTimeOut=1000",
    "transactionCheckInterval=500",
)


@pytest.mark.slow
@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_messages_of_java_clients_come_again_or_later(tmp_path: Path, release: str) -> None:
    machine = Machine(release, tmp_path, HERE / "Later.java")
    store = tmp_path / "store"
    command = [sys.executable, "-m", "mqfast.cli", "up", "--namesrv-port", "0", "--broker-port", str(free_port())]
    with (tmp_path / "up.log").open("w") as log:
        broker = subprocess.Popen(
            [*command, "--store", str(store), *SETTINGS], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert broker.stdout is not None
        banner = ""
        while (found := re.search(r"NAMESRV_ADDR=(\S+)", banner)) is None:
            line = broker.stdout.readline()
            assert line, f"{banner}\n{(tmp_path / 'up.log').read_text()}"
            banner += line
        client = machine.java(found[1], "L", main="Later", **{"rocketmq.client.rebalance.waitInterval": "500"})
        out, _ = client.communicate(timeout=STEP_S)
        logs = "\n".join(path.read_text()[-3000:] for path in sorted(tmp_path.glob("Later*.log")))
        assert client.returncode == 0, f"{out}\n{logs}\n{(tmp_path / 'up.log').read_text()[-3000:]}"
        steps = [line for line in out.splitlines() if line in ("delays", "transactions", "replies", "retries", "done")]
        assert steps == ["delays", "transactions", "replies", "retries", "done"]
    finally:
        machine.end_all()
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=200)
    with mqfast.open(store) as opened:
        halves = opened.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)
        marks = opened.get("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 0, max_count=1000)
        assert sorted(offset for mark in marks for offset in ended_offsets(mark)) == list(range(halves))
