"""The client logs to ``mqfast.client`` alone: unless the application sets logging up, nothing is printed or written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import BrokerProcess

# What every client has to say: a failing handler, a broker and name servers that are not there, a consumer of no topic.
TROUBLE = """
import asyncio, logging, sys, time

cluster, nobody, set_up = sys.argv[1:4]
if set_up:
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
before = (logging.getLogger().handlers[:], logging.getLogger().level, logging.lastResort, logging.raiseExceptions)
from mqfast import AdminClient, AsyncProducer, AsyncPushConsumer, Producer, PullConsumer, PushConsumer
from mqfast.errors import ClientError

seen = []


def fail(message):
    seen.append(message)
    raise ValueError("no such bill")


def fails(work):
    try:
        work()
    except ClientError:
        return
    raise AssertionError("expected a ClientError")


async def in_a_loop():
    consumer = AsyncPushConsumer("group-of-a-loop", cluster, from_where="first")

    async def fail_too(message):
        fail(message)

    consumer.subscribe("loop-orders", fail_too)
    async with AsyncProducer("group-of-a-loop", cluster) as producer, consumer:
        await producer.send("loop-orders", b"42")
        end = time.monotonic() + 30
        while not any(one.topic == "loop-orders" for one in seen) and time.monotonic() < end:
            await asyncio.sleep(0.01)


consumer = PushConsumer("billing", cluster, from_where="first")
consumer.subscribe("orders", fail)
consumer.subscribe("nobody-sends-this", fail)
with Producer("shop", cluster) as producer, consumer:
    producer.send("orders", b"42")
    end = time.monotonic() + 30
    while not seen and time.monotonic() < end:
        time.sleep(0.01)
assert seen
asyncio.run(in_a_loop())
assert len(seen) > 1
fails(lambda: Producer("shop", nobody, send_timeout_s=0.5).send("orders", b"42"))
fails(lambda: PushConsumer("billing", nobody, topics="orders").start())
fails(lambda: PullConsumer("billing", nobody, topics="orders").poll(0.1))
fails(lambda: AdminClient(nobody, timeout_s=0.5).topics())
if not set_up:
    root = logging.getLogger()
    assert before == (root.handlers, root.level, logging.lastResort, logging.raiseExceptions)
    ours = [name for name in logging.root.manager.loggerDict if name.startswith("mqfast")]
    levels = {name: logging.getLogger(name).level for name in ours}
    assert not any(levels.values()), levels
    outside = [name for name in ours if name != "mqfast" and not (name + ".").startswith("mqfast.client.")]
    assert all(not logging.getLogger(name).handlers for name in outside), outside
    kinds = {type(one) for name in ours for one in getattr(logging.getLogger(name), "handlers", ())}
    assert kinds <= {logging.NullHandler}, kinds
"""


@pytest.mark.parametrize("set_up", ["", "by the application"], ids=["silent", "set up"])
def test_what_is_said_goes_to_the_logger_and_nowhere_else(set_up: str, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    home = tmp_path / "home"
    home.mkdir()
    with BrokerProcess(tmp_path / "cluster") as cluster:
        run = subprocess.run(
            [sys.executable, "-c", TROUBLE, cluster.namesrv, "127.0.0.1:1", set_up],
            cwd=home,
            env={**os.environ, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert [str(one.relative_to(home)) for one in home.rglob("*")] == []
    if not set_up:
        assert run.stdout == ""
        return
    lines = run.stdout.splitlines()
    assert "ValueError: no such bill" in run.stdout  # with its traceback
    heads = [line for line in lines if line.split(" ")[0].startswith("mqfast")]
    assert all(line.startswith("mqfast.client") for line in heads)
    for text in ("handler fail raised ValueError", "fail_too raised ValueError", "nobody-sends-this"):
        assert any(text in line for line in heads), (text, run.stdout)
