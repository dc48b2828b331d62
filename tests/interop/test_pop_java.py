"""POP with Java: the push consumer of Java on our broker, and brokers in turns on a store with messages in flight."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "broker" / "pop"))

import asking
from free_ports import free_port
from our_broker import SIZES, Setup, said_by, setup
from popping import ACK, POP, Popped, messages, real_topic
from real_programs import HERE, NEEDS_JAVA, compile_java
from waiting import until

from mqfast.client import AdminClient, Delivery, SimpleConsumer
from mqfast.errors import ConnectionLost, MqfastError

__all__ = ["setup"]
pytestmark = NEEDS_JAVA
SETTINGS = {**SIZES, "flushConsumerOffsetInterval": 1000, "timerWheelEnable": "true", "mappedFileSizeTimerLog": 10_400}
ROUNDS = 100 if os.environ.get("MQFAST_WHOLE") else 2


def topic_with(names: str, address: str, topic: str, bodies: list[bytes], queues: int = 2) -> None:
    with AdminClient(names) as admin:

        def is_made() -> bool:
            try:
                admin.create_topic(topic, queues=queues)
            except MqfastError:
                return False
            return True

        until(is_made, f"topic {topic}")
    for number, body in enumerate(bodies):
        assert asking.send(address, topic, body, queue_id=number % queues).code == 0


def mode(address: str, topic: str, group: str) -> None:
    body = b'{"topic":"%s","consumerGroup":"%s","mode":"POP","popShareQueueNum":-1}' % (topic.encode(), group.encode())
    assert asking.call(address, 401, body).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrently", "orderly"])
def test_the_push_consumer_of_java_in_pop_mode(setup: Setup, is_orderly: bool) -> None:
    compile_java(setup.machine.home, HERE / "Popped.java")
    names, port = setup.start_names(), free_port()
    setup.broker(
        f"listenPort={port}", f"storePathRootDir={setup.work / 'ours'}", "brokerIP1=127.0.0.1",
        f"namesrvAddr={names}", *(f"{name}={value}" for name, value in SIZES.items()),
    )  # fmt: skip
    address = f"127.0.0.1:{port}"
    bodies = [b"m%02d%s" % (number, b"fails" if number in (3, 8) else b"") for number in range(20)]
    topic_with(names, address, "Popped", bodies)
    mode(address, "Popped", "pop-group")
    out = said_by(setup.machine, names, "Popped", "pop-group", "20", str(is_orderly).lower(), main="Popped")
    seen = {body: rest for _, body, rest in (line.split(" ") for line in out.splitlines() if line.startswith("got "))}
    assert sorted(seen) == sorted(body.decode() for body in bodies), out
    assert {body: seen[body] for body in ("m03fails", "m08fails")} == {"m03fails": "f1", "m08fails": "f1"}, out
    if not is_orderly:
        assert {rest for body, rest in seen.items() if not body.endswith("fails")} == {"0"}, out


class Turns:
    """A store that brokers take turns on, and a POP consumer by the wire."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.names = setup, setup.start_names()
        self.store, self.port = setup.work / "store", free_port()
        self.process: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, is_java: bool) -> None:
        if is_java:
            self.process = self.setup.machine.start_broker(self.store, SETTINGS, self.port)
        else:
            self.process = self.setup.broker("-c", str(self.setup.work / "store.properties")).process
        until(self.is_there, "the topic of the broker's name server")

    def is_there(self) -> bool:
        try:
            return asking.call(self.address, 28).code == 0
        except (ConnectionLost, OSError, MqfastError):
            return False

    def end(self, how: int) -> None:
        self.process.send_signal(how)
        self.process.wait(200)

    def pop(self, invisible_ms: int, **more: Any) -> list[Popped]:
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": 32, "invisibleTime": invisible_ms,
            "pollTime": 300, "bornTime": int(time.time() * 1000), "initMode": 0, **more,
        }  # fmt: skip
        answer = asking.call(self.address, POP, timeout_ms=30_000, **fields)
        assert answer.code in (0, 209, 210), f"{answer.code} {answer.remark}"
        return messages(answer, broker="brk")

    def pop_all(self, invisible_ms: int) -> list[Popped]:
        """Return the visible messages; messages that come again end the loop, since endless pops make dead letters."""
        got: list[Popped] = []
        seen: set[bytes] = set()
        while more := self.pop(invisible_ms):
            got += more
            if seen >= {popped.body for popped in more}:
                break
            seen |= {popped.body for popped in more}
        return got

    def ack(self, popped: Popped) -> None:
        parts = popped.handle.split(" ")
        fields = {
            "consumerGroup": "g", "topic": real_topic(popped.handle), "queueId": parts[6], "extraInfo": popped.handle,
            "offset": parts[7],
        }  # fmt: skip
        answer = asking.call(self.address, ACK, **fields)
        assert answer.code == 0, (answer.code, answer.remark)


@pytest.mark.slow
@pytest.mark.parametrize("is_java", [True, False], ids=["java", "ours"])
def test_our_simple_consumer_on_a_java_broker_and_on_ours(setup: Setup, is_java: bool) -> None:
    turns = Turns(setup)
    turns.start(is_java=True)  # writes the settings
    if not is_java:
        turns.end(signal.SIGTERM)
        turns.start(is_java=False)
    bodies = [b"%d" % number for number in range(12)]
    topic_with(turns.names, turns.address, "T", bodies)
    with SimpleConsumer("simple", turns.names, topics="T", from_where="earliest") as consumer:
        got: dict[bytes, Delivery] = {}

        def is_received() -> bool:
            got.update({message.body: message for message in consumer.receive(invisible_s=120, timeout_s=3)})
            return len(got) == len(bodies)

        until(is_received, "all messages")
        *others, single, given_back = got.values()
        consumer.ack(others)
        consumer.ack(single)
        consumer.change_invisible_time(given_back, 1)
        again: list[Delivery] = []
        until(lambda: again.extend(consumer.receive(timeout_s=3)) or again, "the message that was given back")
        assert [(message.body, message.topic, message.attempt) for message in again] == [(given_back.body, "T", 2)]
        consumer.ack(again)
        consumer.subscribe("T", "none")
        assert consumer.receive(timeout_s=1) == []
    turns.end(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_brokers_take_turns_with_messages_in_flight(setup: Setup, how: int) -> None:
    """In each round a broker redelivers the messages that the last broker left without an ack; no message is lost."""
    turns = Turns(setup)
    turns.start(is_java=True)
    acked: Counter[bytes] = Counter()
    pending: set[bytes] = set()
    topic_with(turns.names, turns.address, "T", [])
    for number in range(ROUNDS):
        bodies = [b"%d-%d" % (number, position) for position in range(8)]
        for position, body in enumerate(bodies):
            assert asking.send(turns.address, "T", body, queue_id=position % 2).code == 0
        pending |= set(bodies)
        got: dict[bytes, Popped] = {}

        def is_popped(got: dict[bytes, Popped] = got, wanted: frozenset[bytes] = frozenset(pending)) -> bool:
            got.update({popped.body: popped for popped in turns.pop_all(3000)})
            return wanted <= set(got) | set(acked)

        until(is_popped, f"round {number}: {pending}")
        for body in sorted(pending)[::2]:
            turns.ack(got[body])
            acked[body] += 1
            pending.discard(body)
        if how == signal.SIGTERM:
            assert not set(acked) & {popped.body for popped in turns.pop_all(3000)}
        turns.end(how)
        turns.start(is_java=bool(number % 2))
    rest: dict[bytes, Popped] = {}

    def is_done() -> bool:
        rest.update({popped.body: popped for popped in turns.pop_all(60_000)})
        return pending <= set(rest)

    until(is_done, f"the rest: {pending}")
    if how == signal.SIGTERM:
        assert set(rest) == pending, "no message that was acked comes again"
        assert {popped.message.reconsume_times > 0 for popped in rest.values()} == {True}
    turns.end(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("is_java_first", [True, False], ids=["java-then-ours", "ours-then-java"])
def test_an_orderly_queue_stays_blocked_when_the_broker_changes(setup: Setup, is_java_first: bool) -> None:
    turns = Turns(setup)
    turns.start(is_java=True)  # writes the settings
    if not is_java_first:
        turns.end(signal.SIGTERM)
        turns.start(is_java=False)
    topic_with(turns.names, turns.address, "T", [b"0", b"1", b"2"], queues=1)
    first: list[Popped] = []
    until(lambda: first.extend(turns.pop(30_000, order="true")) or first, "the first batch")
    assert [popped.body for popped in first] == [b"0", b"1", b"2"]
    turns.ack(first[0])
    turns.end(signal.SIGTERM)
    turns.start(is_java=not is_java_first)
    begin = time.monotonic()
    again: list[Popped] = []
    until(lambda: again.extend(turns.pop(30_000, order="true")) or again, "the batch once more")
    assert [popped.body for popped in again] == [b"1", b"2"]
    pop_time_s = int(first[0].handle.split(" ")[1]) / 1000
    assert time.time() > pop_time_s + 30, f"after {time.monotonic() - begin:.1f} s: blocked until the batch is due"
    turns.end(signal.SIGTERM)
