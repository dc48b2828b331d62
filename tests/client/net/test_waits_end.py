"""No call of a client waits without a bound: in the source, and where the system has no file descriptor left."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast import Producer
from mqfast.client.net.connect import connect
from mqfast.errors import ConnectError

CLIENT = Path(mqfast.__file__).parent / "client"

# Waits of threads without a time, each with the reason why it ends.
ENDS = {
    ("consumer/iteration.py", "self._lock.acquire"): "a lock that was made in the line before",
    ("consumer/push/wakeup_queue.py", "lock.acquire"): "the thread that took it from the list lets go of it next",
    ("consumer/push/worker_pools.py", "lock.acquire"): "a lock that was made in the line before",
    ("consumer/push/worker_pools.py", "future.result"): "the future is done",
    ("consumer/async_push_consumer.py", "waits[1].result"): "the task is done",
    ("consumer/simple/engine.py", "task.result"): "the task is done",
    ("net/connect.py", "ended.acquire"): "a lock that was made in the line before",
    ("net/io_thread.py", "self.ended.acquire"): "a lock that was made in the line before",
    ("net/io_thread.py", "call.task.result"): "the task is done",
}
BLOCKING = {"wait", "wait_for", "result", "join", "acquire", "recv", "exception"}


def waits(path: Path) -> list[str]:
    """The calls that may block a thread and have no argument."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    handed_on = {  # a coroutine that is given to the event loop
        id(argument) for node in ast.walk(tree) if isinstance(node, ast.Call) for argument in node.args
    }
    return [
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BLOCKING
        and not node.args
        and not node.keywords
        and id(node) not in awaited | handed_on
    ]


def test_every_wait_of_a_thread_has_a_time() -> None:
    found = {(str(path.relative_to(CLIENT)), wait) for path in CLIENT.rglob("*.py") for wait in waits(path)}
    asked = {
        one for one in found if one[1].endswith(".exception")
    }  # of futures and tasks that are done, and of loggers
    assert found - asked == set(ENDS)


WITHOUT_FILES = """
import os, resource, sys, time
from mqfast import AdminClient, Producer, PullConsumer, PushConsumer
from mqfast.client.net import io_thread, instance, connection_pool  # what a first call would load
from mqfast.client.producer import transaction

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(2))
except OSError:
    pass
calls = (
    lambda: Producer("g", "127.0.0.1:1").send("t", b"x"),
    lambda: PushConsumer("g", "127.0.0.1:1", topics="t").start(),
    lambda: PullConsumer("g", "127.0.0.1:1", topics="t").poll(0.1),
    lambda: AdminClient("127.0.0.1:1").topics(),
)


def ends():
    for call in calls:
        begin = time.monotonic()
        try:
            call()
        except Exception as error:
            yield type(error).__name__, time.monotonic() - begin < 15, str(error)
        else:
            yield "none", False, ""


print(*ends(), sep="\\n")
for one in taken:
    os.close(one)
print(*ends(), sep="\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the limit of file descriptors is POSIX's")
def test_without_file_descriptors_a_call_fails_and_the_client_lives_on() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    ends = [ast.literal_eval(line) for line in run.stdout.splitlines()]
    assert len(ends) == 8, run.stdout
    for kind, in_time, text in ends[:4]:
        assert (kind, in_time) == ("ClientError", True), run.stdout
        assert "the event loop of sync clients could not be made" in text
    for kind, in_time, text in ends[4:]:
        assert (kind, in_time) == ("ConnectError", True), run.stdout
        assert "127.0.0.1:1" in text


def test_the_name_of_a_host_is_resolved_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver waits as long as its servers let it: here until the send has ended."""
    ended, real = threading.Event(), socket.getaddrinfo

    def slow(host: Any, *arguments: Any, **settings: Any) -> Any:
        if host == "name.invalid" and not settings.get("flags", 0):
            ended.wait(60)
        return real(host, *arguments, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Producer("g", "name.invalid:9876") as producer:
        try:
            with pytest.raises(ConnectError, match=r"the name name\.invalid was not resolved"):
                producer.send("orders", b"x", timeout_s=0.5)
            assert not ended.is_set()
        finally:
            ended.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "name.invalid", "a" * 70 + ".invalid"])
def test_host_is_reached_or_the_error_has_the_reason(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if host in ("127.0.0.1", "localhost"):
            try:
                socket.getaddrinfo(host, port)
            except socket.gaierror:
                pytest.skip(f"this system does not know {host}")
            with connect(host, port, 30.0) as connection:
                assert connection.getpeername()[1] == port
        else:
            with pytest.raises((OSError, ValueError)):
                connect(host, port, 30.0)
