"""A test broker for other languages: ``python -m mqfast.testing -- COMMAND`` and ``mqfast testing serve``."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from asking import call, send

from mqfast.remoting.codes import RequestCode, ResponseCode

TESTING = [sys.executable, "-m", "mqfast.testing"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TESTING, *arguments], capture_output=True, text=True, timeout=60)


def test_a_command_runs_beside_a_broker_and_its_exit_code_counts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, os\n"
        "from mqfast.remoting.client import RemotingClient\n"
        "async def flow():\n"
        "    client = RemotingClient()\n"
        "    answer = await client.call(os.environ['NAMESRV_ADDR'], 105, {'topic': 'orders'})\n"
        "    await client.close()\n"
        "    return 7 if answer.code == 0 else 1\n"
        "raise SystemExit(asyncio.run(flow()))\n"
    )
    done = run("--topic", "orders:2", "--", sys.executable, str(program))
    assert done.returncode == 7, done.stderr
    assert run("--", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--topic", "orders:x"], "--topic: expected NAME or NAME:QUEUES, found 'orders:x'"),
        (["--set", "maxMessageSize"], "--set: expected NAME=VALUE, found 'maxMessageSize'"),
        (["--set", "maxMesageSize=1"], "did you mean maxMessageSize"),
        (["--brokers", "0"], "brokers: expected a whole number from 1 to 26, found 0"),
        (["--", "/no/such/program"], "/no/such/program"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_serves_until_a_signal(how: int) -> None:
    command = [
        sys.executable,
        "-m",
        "mqfast.cli",
        "testing",
        "serve",
        "--topic",
        "orders",
        "--set",
        "maxMessageSize=1000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("NAMESRV_ADDR=127.0.0.1:")
            route = call(line.partition("=")[2].strip(), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
            address = re.findall(r"127\.0\.0\.1:\d+", route.body.decode())[0]
            assert send(address, "orders", b"42").code == 0
            assert send(address, "orders", b"x" * 1001).code == ResponseCode.MESSAGE_ILLEGAL
            process.send_signal(how)
            assert process.wait(30) == 0
        finally:
            process.kill()
