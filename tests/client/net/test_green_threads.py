"""gevent, eventlet and trio: a client works, or says at its first call what to do. Nothing hangs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from mqfast.testing import Broker

DEADLINE_S = 240
USE = """
import sys, mqfast
def use():
    with mqfast.Producer("g", sys.argv[1]) as producer:
        print(producer.send("t", b"1").ok, producer.send_future(mqfast.Message("t", b"2")).result(60).ok)
    with mqfast.PullConsumer("g", sys.argv[1], topics="t", from_where="first") as consumer:
        found = []
        while len(found) < 2:
            found += consumer.poll(10)
        print([one.body for one in found])
    with mqfast.AdminClient(sys.argv[1]) as admin:
        print("t" in admin.topics())
"""
REFUSED = """
for call in (
    lambda: mqfast.Producer("g", sys.argv[1]).send("t", b"1"),
    lambda: mqfast.PushConsumer("g", sys.argv[1], topics="t").start(),
    lambda: mqfast.PullConsumer("g", sys.argv[1], topics="t").poll(1),
    lambda: mqfast.AdminClient(sys.argv[1]).topics(),
):
    try:
        call()
        print("works")
    except mqfast.ClientError as error:
        print(error)
"""
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all({})",
    "eventlet": "import eventlet; eventlet.monkey_patch({})",
}


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("name", PATCHES)
def test_patched_threads_are_refused_with_what_to_do(name: str) -> None:
    needs(name)
    lines = run(PATCHES[name].format("") + USE + REFUSED, "127.0.0.1:1").splitlines()
    assert len(lines) == 4
    for line in lines:
        assert f"{name} has replaced the threads" in line
        assert "(thread=False)" in line


@pytest.mark.parametrize("name", PATCHES)
def test_without_patched_threads_clients_work(name: str) -> None:
    needs(name)
    with Broker(topics={"t": 1}, process=True) as broker:
        found = run(PATCHES[name].format("thread=False") + USE + "use()", broker.namesrv_addr)
    assert found.splitlines() == ["True True", "[b'1', b'2']", "True"]


def test_an_asynchronous_client_under_trio_says_what_to_do() -> None:
    needs("trio")
    code = """
import trio, mqfast
from mqfast.client import AsyncAdminClient, AsyncProducer, AsyncPullConsumer, AsyncPushConsumer
calls = (
    lambda: AsyncProducer("g", "127.0.0.1:1").start(),
    lambda: AsyncProducer("g", "127.0.0.1:1").send("t", b"x"),
    lambda: AsyncPushConsumer("g", "127.0.0.1:1", topics="t").start(),
    lambda: AsyncPushConsumer("g", "127.0.0.1:1", topics="t").run(),
    lambda: AsyncPullConsumer("g", "127.0.0.1:1", topics="t").poll(),
    lambda: AsyncAdminClient("127.0.0.1:1").topics(),
)
async def main():
    for call in calls:
        try:
            await call()
        except mqfast.ClientError as error:
            print(error)
trio.run(main)
"""
    lines = run(code).splitlines()
    assert len(lines) == 6
    assert all("trio.to_thread.run_sync" in line for line in lines)
