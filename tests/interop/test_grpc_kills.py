"""Kills of the broker under the official SDKs: each send that was answered is consumed, also after failures.

The broker comes back with the store; clients reconnect by their own means.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from grpc_sdk_homes import java_jar, python_with_sdk
from running import BrokerProcess
from sampling import WHOLE

from mqfast.grpc import IS_BUILT

HERE = Path(__file__).resolve().parent
KILLS = 20
SENDS = 100  # between two kills
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not IS_BUILT, reason="built without gRPC"),
    pytest.mark.skipif(not WHOLE, reason="a minute each: make interop"),
]


@pytest.mark.parametrize("language", ["python", "java"])
def test_nothing_that_was_answered_is_lost_by_kills(tmp_path: Path, language: str) -> None:
    if language == "python":
        command = [python_with_sdk("5.1.2"), str(HERE / "grpc_kills.py")]
    else:
        command = ["java", "-cp", str(java_jar("5.2.0")), str(HERE / "GrpcKills.java")]
    with BrokerProcess(tmp_path, flushConsumerOffsetInterval=300) as broker, (tmp_path / "sdk.log").open("w") as log:
        client = subprocess.Popen(
            [*command, broker.broker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert client.stdout is not None
        assert client.stdin is not None
        try:
            for _ in range(KILLS):
                lines = [client.stdout.readline() for _ in range(SENDS)]
                assert all(line.startswith("sent ") for line in lines), lines[-1]
                broker.end(signal.SIGKILL)
                broker.start()
            for _ in range(SENDS):  # the client is back
                assert client.stdout.readline().startswith("sent ")
            client.stdin.write("stop\n")
            client.stdin.flush()
            last = [line for line in client.stdout if not line.startswith("sent ")]
            assert last[-1].startswith("done "), last
        finally:
            client.kill()
            client.wait()
            client.stdout.close()
            client.stdin.close()
