"""A Java broker 5.5.0 and ours take turns on one store: what waits in it goes on, each message once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from free_ports import free_port
from our_broker import SIZES, Setup, numbered, setup
from real_programs import NEEDS_JAVA, STEP_S
from waiting import until

import mqfast
from mqfast.remoting.client import RemotingClient

__all__ = ["setup"]
pytestmark = NEEDS_JAVA


def test_a_java_broker_and_ours_take_turns_on_one_store(setup: Setup) -> None:
    """Each consumer goes on where the one before it stopped, and a message that waits comes from the next broker."""
    names = setup.start_names()
    store, port = setup.work / "store", free_port()
    more = {**SIZES, "flushConsumerOffsetInterval": 1000, "timerWheelEnable": "true", "mappedFileSizeTimerLog": 10_400}
    java = setup.machine.start_broker(store, more, port)
    conf = str(setup.work / "store.properties")
    until(lambda: "brk" in registered(names))
    # Delayed by 30 s, timed to 40 s, and half messages that stay undecided until their producer is asked by ours.
    first = setup.swap("a", 10, level=4, wanted=10, transactions="true", timed="40000")
    assert first == numbered("a", 10)
    setup.machine.stop(java)

    checked = subprocess.run(
        [sys.executable, "-m", "mqfast.cli", "broker", "-c", conf, "--check-store", str(store)],
        capture_output=True, text=True, timeout=STEP_S, check=False,
    )  # fmt: skip
    assert "note  10 delayed messages wait, and go on here" in checked.stdout
    assert "note  10 timed messages are parked, and go on here" in checked.stdout
    assert "half messages" in checked.stdout
    assert "STOP" not in checked.stdout, checked.stdout
    ours = setup.broker("-c", conf)
    at_least = {name for kind in ("b", "alater", "atimed", "ahalf", "bhalf") for name in numbered(kind, 10)}
    second = setup.swap("b", 10, level=5, wanted=50, transactions="true", commits="true", timed="70000")
    assert at_least <= set(second)
    assert ours.stop() < 2

    java = setup.machine.start_broker(store, more, port)
    until(lambda: "brk" in registered(names))
    left = {*numbered("blater", 10), *numbered("btimed", 10)} - set(second)
    third = setup.swap("c", 10, wanted=10 + len(left))
    assert third == sorted({*numbered("c", 10), *left})
    everything = {*first, *at_least, *numbered("blater", 10), *numbered("btimed", 10), *third}
    setup.machine.stop(java)
    with mqfast.StoreReader(store) as reader:
        queues = [one for one in reader.queues() if one.topic == "SwapTopic"]
        bodies = [bytes(m.body).decode() for one in queues for m in reader.messages("SwapTopic", one.queue_id)]
    assert sorted(bodies) == sorted(everything), "each message once"


def registered(names: str) -> str:
    async def ask() -> str:
        client = RemotingClient()
        try:
            return bytes((await client.call(names, 106)).body).decode()
        finally:
            await client.close()

    return asyncio.run(ask())
