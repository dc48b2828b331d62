"""A test broker for other languages: ``python -m mqfast.testing -- COMMAND`` and ``mqfast testing serve``."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asking import call, send

from mqfast.remoting.codes import RequestCode, ResponseCode

TESTING = [sys.executable, "-m", "mqfast.testing"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TESTING, *arguments], capture_output=True, text=True, timeout=300)


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


COUNTS = """
import os, signal, sys, time

told = []
ended = []
signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
if sys.argv[1] == "apart":
    os.setsid()  # the terminal tells this process nothing any more
print("READY", flush=True)
until = time.monotonic() + 120
while not (ended and (told or sys.argv[1] == "apart")) and time.monotonic() < until:
    time.sleep(0.01)
print("TOLD", len(told) if ended else "nothing", flush=True)
"""


@pytest.mark.skipif(not os.path.exists("/dev/tty"), reason="needs terminals")
@pytest.mark.parametrize("place, expected", [("beside", b"TOLD 1"), ("apart", b"TOLD 0")])
def test_control_c_comes_from_the_terminal_and_is_not_sent_a_second_time(
    tmp_path: Path, place: str, expected: bytes
) -> None:
    program = tmp_path / "program.py"
    program.write_text(COUNTS)
    try:
        child, terminal = pty.fork()
    except OSError as error:
        pytest.skip(f"no terminal can be had: {error}")
    if child == 0:
        os.execv(TESTING[0], [*TESTING, "--", sys.executable, str(program), place])
    try:
        seen = _read_until(terminal, b"", b"READY")
        os.write(terminal, b"\x03")
        seen = _read_until(terminal, seen, b"^C")  # the terminal has sent the signal
        os.kill(child, signal.SIGTERM)  # this one is sent on
        _read_until(terminal, seen, expected)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def _read_until(terminal: int, seen: bytes, wanted: bytes) -> bytes:
    until = time.monotonic() + 120
    while wanted not in seen:
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # the other end is gone
                raise AssertionError(seen) from None
    return seen


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
            assert process.wait(200) == 0
        finally:
            process.kill()
